"""AFBS: which updates stay in the buffer, and what its step is when all of them do."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import assert_same_bits, finish_run, random_delays, table_of
from toy import models as toy_models

from asyncfl_bench import run
from asyncfl_bench.algorithms import afbs
from asyncfl_bench.algorithms.afbs import Afbs, AfbsConfig
from asyncfl_bench.algorithms.base import equip
from asyncfl_bench.algorithms.fedbuff import FedBuff, FedBuffConfig
from asyncfl_bench.config import compose
from asyncfl_bench.randomness import Streams
from asyncfl_bench.storage import Storage
from asyncfl_bench.types import ClientTable, Upload

N = 6
SAMPLES = [3, 200, 40, 10, 90, 25]
WORLD = {"n": N, "delay": random_delays(N, 2, 80), "kind": "difference", "lr": 0.3}
COLUMNS = Afbs.decision_columns
STREAMS = Streams(0)


def models(rule, samples=SAMPLES):
    return toy_models(rule, samples=samples, **WORLD)


def config(**given):
    return AfbsConfig(**{"clusters": 1, "buffer_size": 3} | given)


def flush(entries, groups, times=1, **given):
    """(model, decisions as a frame) of a full buffer of (client, staleness, samples, difference), again and again."""
    rule = Afbs(config(buffer_size=len(entries), clustering="planted", **given))
    model, told = torch.zeros(1, dtype=torch.float64), []
    clients = ClientTable(np.ones(len(groups), int), groups_n=np.array(groups))
    equip(rule, Storage(), STREAMS).start(model, clients, "difference")
    for _ in range(times):
        for client, staleness, samples, value in entries:
            changed = rule.receive(Upload(client, torch.tensor([value], dtype=torch.float64), 0, staleness, samples, 1))
        assert changed is True
        told += rule.decisions()
    return model.item(), pd.DataFrame(told, columns=COLUMNS)


BY_HAND = [(0, 3, 160, 1.0), (1, 15, 640, 2.0), (2, 7, 128, 4.0), (3, 8, 162, 8.0), (4, 4, 50, 16.0)]
GROUPS = [0, 0, 0, 1, 1]


def test_a_buffer_worked_out_by_hand():
    model, told = flush(BY_HAND, GROUPS, keep="never")
    # scores 160/16, 640/256, 128/64 in one cluster and 162/81, 50/25 in the other, where the fresher one is the best:
    # client 2 is beaten by client 0, client 1 is larger than it, client 3 is larger than client 4
    assert told["score"].tolist() == [10, 2.5, 2, 2, 2] and told["cluster"].tolist() == GROUPS
    assert told["kept"].tolist() == [1, 1, 0, 1, 1]
    assert model == 0.5 * (1 + 2 + 8 + 16) / 4  # (1 + 3)^-1/2 of the mean of four
    assert told["weight"].tolist() == [0.125, 0.125, 0, 0.125, 0.125]


def test_weights_are_the_freshest_ones_each_its_own_or_one():
    own, told = flush(BY_HAND, GROUPS, keep="never", weight="own")
    assert own == pytest.approx((1 / 2 + 2 / 4 + 8 / 3 + 16 / 5**0.5) / 4)
    assert (told["weight"] * [1, 2, 4, 8, 16]).sum() == pytest.approx(own)
    assert flush(BY_HAND, GROUPS, keep="never", weight="none")[0] == 27 / 4


def test_what_is_beaten_stays_as_often_as_its_score_over_the_highest():
    small = [(0, 0, 100, 1.0), (1, 0, 10, 1.0), (2, 1, 20, 1.0), (3, 1, 8, 1.0)]
    for maximum, chance in (("cluster", 2 / 10), ("buffer", 2 / 100)):
        told = flush(small, [0, 1, 1, 1], 1000, maximum=maximum)[1]
        often = told.groupby("client")["kept"].mean()
        assert often[:3].tolist() == [1, 1, 1]  # client 2 is larger than the best of its cluster
        assert often[3] == pytest.approx(chance, abs=4 * (chance / 1000) ** 0.5)


def test_without_clusters_the_best_of_the_buffer_beats_all():
    assert flush(BY_HAND, [0] * 5, keep="never")[1]["kept"].tolist() == [1, 1, 0, 1, 0]


entry = st.tuples(st.integers(0, 5), st.integers(0, 8), st.integers(1, 300), st.floats(-1, 1, width=32))


@settings(max_examples=40, deadline=None)
@given(entries=st.lists(entry, min_size=1, max_size=10), keep=st.sampled_from(["random", "never"]))
def test_the_best_the_freshest_and_the_largest_of_every_cluster_stay(entries, keep):
    _, told = flush(entries, [0, 0, 1, 1, 2, 2], keep=keep)
    kept = told[told["kept"] == 1]
    assert kept["staleness"].min() == told["staleness"].min()  # so it is no matter when lam is taken
    for cluster, own in told.groupby("cluster"):
        mine = kept[kept["cluster"] == cluster]
        assert mine["score"].max() == own["score"].max()
        assert mine["staleness"].min() == own["staleness"].min() and mine["samples"].max() == own["samples"].max()
    dropped = told[told["kept"] == 0]
    for row in dropped.itertuples():
        best = told[(told["cluster"] == row.cluster)].sort_values(["score", "staleness"], ascending=[False, True])
        assert row.samples < best["samples"].iloc[0] and row.staleness > best["staleness"].iloc[0]
        assert row.score < best["score"].iloc[0]


@settings(max_examples=40, deadline=None)
@given(entries=st.lists(entry, min_size=2, max_size=8), factor=st.sampled_from([2, 16]), data=st.data())
def test_order_and_the_unit_of_samples_do_not_matter(entries, factor, data):
    first = flush(entries, [0, 0, 1, 1, 2, 2], keep="never")[0]
    shuffled = data.draw(st.permutations(entries))
    assert flush(shuffled, [0, 0, 1, 1, 2, 2], keep="never")[0] == pytest.approx(first, abs=1e-12)
    scaled = [(client, tau, factor * n, value) for client, tau, n, value in entries]
    assert flush(scaled, [0, 0, 1, 1, 2, 2])[0] == flush(entries, [0, 0, 1, 1, 2, 2])[0]


@pytest.mark.parametrize(
    ("entries", "groups"),
    [
        ([(client, client, 10, 1.0) for client in range(5)], [0] * 5),  # equal samples
        ([(client, 4, 10 + client, 1.0) for client in range(5)], [0] * 5),  # equal staleness
        ([(client, client, 100 - client, 1.0) for client in range(5)], list(range(5))),  # one of each cluster
    ],
)
def test_nothing_is_dropped_where_nothing_is_both_smaller_and_staler_in_its_cluster(entries, groups):
    assert flush(entries, groups, keep="never")[1]["kept"].all()


def test_with_equal_samples_and_weights_of_ones_own_it_is_fedbuff_bit_for_bit():
    fedbuff = FedBuff(FedBuffConfig(buffer_size=3, eta=0.7, staleness_weight="polynomial"))
    expected = models(fedbuff)
    own = config(eta=0.7, weight="own")
    np.testing.assert_array_equal(models(Afbs(own), samples=[10] * N), expected)
    assert not np.array_equal(models(Afbs(own)), expected)  # unequal samples


def test_one_cluster_is_no_clustering_bit_for_bit():
    none = config(clustering="none", clusters=4)
    np.testing.assert_array_equal(models(Afbs(config())), models(Afbs(none)))


def test_the_server_is_told_projections_and_keeps_neither_them_nor_shares(monkeypatch):
    seen = []
    monkeypatch.setattr(afbs, "k_means", lambda x, k, generator: seen.append((x, k)) or np.arange(len(x)) % k)
    rule = equip(Afbs(config(clusters=2, rank=2)), Storage(), Streams(0))
    labels_nc = np.array([[8, 2, 0], [0, 1, 9], [4, 4, 2]])
    rule.start(torch.zeros(1), ClientTable(labels_nc.sum(axis=1), labels_nc), "difference")
    ((x, k),) = seen
    assert x.shape == (3, 3 * 2) and k == 2
    assert rule.bytes_before == 4 * 3 * 3 * 2  # what was told counts as sent
    assert rule.state_dict().keys() == {"rows_md", "entries", "decided", "flushes", "cluster_n"}
    assert not any(isinstance(value, np.ndarray) for value in vars(rule).values())


@pytest.mark.parametrize("given", [{}, {"maximum": "buffer"}])
def test_clients_without_samples_alone_in_a_cluster_stay_since_nobody_beats_them(given):
    empty = [(0, 0, 0, 0.0), (1, 5, 0, 0.0), (2, 1, 10, 3.0)]
    assert flush(empty, [0, 0, 1], **given)[1]["kept"].tolist() == [1, 1, 1]
    assert flush(empty[:2], [0, 0], **given)[1]["kept"].tolist() == [1, 1]


def test_the_number_of_clusters_is_that_of_the_splits_groups_where_it_plants_some():
    def resolved(*words):
        return compose(["algorithm=afbs", *words]).parts["algorithm"].config.clusters

    assert resolved() == 1 and resolved("heterogeneity=clusters", "heterogeneity.groups=3") == 3
    assert resolved("heterogeneity=clusters", "algorithm.clusters=2") == 2
    assert resolved("heterogeneity=clusters", "algorithm.clustering=none") == 1


WORDS = ["algorithm=afbs", "scale=smoke", "model=softmax", "trace=true", "progress=false", "n_clients=20"]
PLANTED = [*WORDS, "heterogeneity=clusters", "heterogeneity.groups=3", "delay=lognormal", "algorithm.buffer_size=4"]


def test_planted_clusters_are_the_splits_groups_and_the_table_has_every_upload():
    result = run([*PLANTED, "algorithm.clustering=planted", "budget.server_iterations=20"])
    told, trace = table_of(result, "rule"), table_of(result)
    assert list(told) == ["iteration", *COLUMNS]
    assert told["iteration"].tolist() == np.repeat(np.arange(1, 21), 4).tolist()
    for column in ("client", "staleness", "samples"):
        assert told[column].tolist() == trace[column].tolist(), column
    assert told.groupby("client")["cluster"].nunique().eq(1).all() and set(told["cluster"]) == {0, 1, 2}
    logged = result.metrics.set_index("iteration")["rule/kept"]
    assert logged.loc[20] == told.query("iteration == 20")["kept"].sum()


def test_a_run_goes_on_from_the_middle_of_a_buffer_with_the_same_bits():
    whole = run([*PLANTED, "budget={uploads: 98}", "output_dir=whole"])
    short = run([*PLANTED, "budget={uploads: 50}", "output_dir=short"])
    state = torch.load(short.directory / "checkpoint.pt", weights_only=True)["state"]["rule"]
    assert len(state["entries"]) == 2 and state["flushes"] == 12 and len(set(state["cluster_n"])) == 3
    resumed = run([f"resume={short.directory}", "budget.uploads=98"])
    assert_same_bits(resumed, whole)
    pd.testing.assert_frame_equal(table_of(resumed, "rule"), table_of(whole, "rule"), check_exact=True)


@pytest.mark.slow
def test_measuring_the_error_of_its_steps_makes_the_same_draws():
    words = [*PLANTED, "budget.server_iterations=15"]
    plain = run([*words, "output_dir=plain"])
    measured = finish_run(*words, "diagnostics=mse", "diagnostics.every=1", "output_dir=mse")
    pd.testing.assert_frame_equal(table_of(measured, "rule"), table_of(plain, "rule"))
    assert measured.metrics["mse/residual"].max() < 1e-3
