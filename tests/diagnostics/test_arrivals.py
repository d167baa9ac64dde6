"""What every run tells about its arrivals and its steps, held against its trace."""

import numpy as np
import pandas as pd
import pytest
import torch

from asyncfl_bench import run

WORDS = ["scale=smoke", "model=softmax", "trace=true", "progress=false"]


def traced(*words):
    result = run([*WORDS, *words])
    assert result.ok, result.summary["error"]
    return result, pd.read_parquet(result.directory / "trace.parquet")


@pytest.mark.parametrize("words", [["algorithm=asgd", "delay=exponential"], ["algorithm=ace", "delay=exp_beta5"]])
def test_staleness_and_age_follow_from_the_trace(words):
    result, trace = traced(*words)
    before = 0
    for _, row in result.metrics.iloc[1:].iterrows():
        uploads, iteration = int(row["uploads"]), int(row["iteration"])
        since, before = trace.iloc[before:uploads], uploads
        assert row["staleness/median"] == since["staleness"].median()
        age = iteration - trace.iloc[:uploads].groupby("client")["dispatched_iteration"].last()
        assert row["age/mean"] == pytest.approx(age.mean()) and row["age/max"] == age.max()


def test_versions_in_flight_are_those_that_somebody_under_way_started_from():
    result, trace = traced("algorithm=asgd", "delay=exponential", "n_clients=10")
    started, before = dict.fromkeys(range(10), 0), 0
    for _, row in result.metrics.iloc[1:].iterrows():
        counts = []
        for arrival in trace.iloc[before : int(row["uploads"])].itertuples():
            counts.append(len(set(started.values())))
            assert started[arrival.client] == arrival.dispatched_iteration
            started[arrival.client] = arrival.iteration + 1
        before = int(row["uploads"])
        assert row["in_flight/versions_mean"] == np.mean(counts) and row["in_flight/versions_max"] == max(counts)
    assert max(counts) > 5


def test_the_summary_tells_of_the_whole_run():
    result, trace = traced("algorithm=asgd", "delay=exponential", "n_clients=30")
    told = result.summary["arrivals"]
    assert told["staleness_mean"] == pytest.approx(trace["staleness"].mean())
    assert told["staleness_max"] == trace["staleness"].max() > 0
    assert told["never_heard"] == 30 - trace["client"].nunique() > 0
    assert told["uploads_per_iteration"] == 1
    assert told["gini"] == pytest.approx(result.metrics["participation/gini"].iloc[-1])
    counts = trace["client"].value_counts().reindex(range(30), fill_value=0).to_numpy()
    assert told["gini"] == pytest.approx(np.abs(counts[:, None] - counts).mean() / (2 * counts.mean()))
    assert traced("algorithm=fedbuff", "algorithm.buffer_size=4")[0].summary["arrivals"]["uploads_per_iteration"] == 4


def test_the_change_of_the_model_is_its_distance_from_the_line_before():
    words = ["algorithm=fedbuff", "delay=exponential"]
    result, _ = traced(*words, "evaluation.every=20")
    start, end = (
        torch.cat([part.flatten() for part in torch.load(result.directory / name, weights_only=True).values()])
        for name in ("model_initial.pt", "model_final.pt")
    )
    moved = result.metrics["model/change_norm"]
    assert moved.iloc[0] == 0
    assert moved.iloc[-1] == pytest.approx(float((end - start).norm()), rel=1e-5)


def test_the_mean_size_of_aced_s_active_set_is_taken_over_the_iterations_since_the_line_before():
    words = ["algorithm=aced", "algorithm.tau_algo=2", "delay=exponential"]
    each, _ = traced(*words, "evaluation.every=1")
    active = each.metrics.set_index("iteration")["rule/active_clients"]
    assert active.loc[1] == 10 and active.loc[20] <= 3
    coarse, _ = traced(*words, "evaluation.every=5")
    means = coarse.metrics.set_index("iteration")["rule/active_clients_mean"]
    for iteration in (5, 10, 15, 20):
        assert means.loc[iteration] == pytest.approx(active.loc[iteration - 4 : iteration].mean())
