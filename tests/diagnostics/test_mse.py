"""The error of a step and its three parts: closed formulas, limits, and that looking changes nothing."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from replay import Replay
from tiers import slow
from toy import assert_same_bits, finish_run, write_noisy_classes

from asyncfl_bench import run
from asyncfl_bench.config import compose
from asyncfl_bench.experiment.build import build_run
from asyncfl_bench.tracking.rundir import read_metrics

N = 12
WORDS = [
    *("dataset=arrays", "dataset.path=toy.npz", "model=softmax", f"n_clients={N}", "heterogeneity.min_samples=3"),
    *("trace=true", "progress=false", "budget.server_iterations=40", "algorithm.eta=0.3"),
    *("delay=exponential", "evaluation.every=1"),
]
ALGORITHMS = {
    "ace": [],
    "aced": ["algorithm.tau_algo=3"],
    "asgd": [],
    "delay_adaptive_asgd": ["algorithm.tau_c=4"],
    "fedbuff": ["client.lr=0.5", "algorithm.buffer_size=4", "algorithm.staleness_weight=polynomial"],
    "ca2fl": ["client.lr=0.5", "algorithm.buffer_size=4"],
}


@pytest.fixture(autouse=True)
def data(own_folder):
    write_noisy_classes()


def plain(algorithm, *words):
    return finish_run(*WORDS, f"algorithm={algorithm}", *ALGORITHMS[algorithm], *words)


def measured(algorithm, *words):
    return plain(algorithm, "diagnostics=mse", "diagnostics.every=1", *words)


def expected_steps(replay, algorithm, arrivals):
    """(t, ubar, G_i(v_i) as (n, d)) of every step, by the closed formulas; 0 stands for what was never heard."""
    config = replay.config["algorithm"]
    stale = np.array([replay.gradient(i, replay.versions[0]) for i in range(N)])
    tstart, t, buffer = np.ones(N), 0, []
    in_start = {}  # CA2FL: G_i as the cache had it before this buffer
    heard = set()
    for number, row in enumerate(arrivals, start=1):
        old = stale[row.client].copy() if row.client in heard else np.zeros(stale.shape[1])
        stale[row.client] = new = replay.gradient(row.client, replay.versions[row.dispatched_iteration])
        heard.add(row.client)
        if algorithm in ("ace", "aced") and number < N:
            continue
        if algorithm == "ace":
            ubar = stale.mean(axis=0)
        elif algorithm == "aced":
            ubar = stale[t - tstart <= config["tau_algo"]].mean(axis=0) if t else stale.mean(axis=0)
            if t:
                tstart[row.client] = t + 1
        elif algorithm == "asgd":
            ubar = new
        elif algorithm == "delay_adaptive_asgd":
            ubar = min(1, config["tau_c"] / max(row.staleness, 1)) * new
        else:
            buffer.append((1 + row.staleness) ** -0.5 * new if algorithm == "fedbuff" else new - old)
            in_start.setdefault(row.client, old)
            if len(buffer) < config["buffer_size"]:
                continue
            cache = np.array([in_start.get(i, stale[i] if i in heard else 0 * new) for i in range(N)])
            ubar = np.mean(buffer, axis=0) + (cache.mean(axis=0) if algorithm == "ca2fl" else 0)
            buffer, in_start = [], {}
        yield t, ubar, stale.copy()
        t += 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_parts_of_the_error_are_those_of_the_closed_formulas(algorithm):
    result = measured(algorithm, "client.batch_size=all")
    replay = Replay(result.directory, Path("toy.npz"))
    replay.run()
    metrics = result.metrics.set_index("iteration")
    arrivals = list(replay.trace.itertuples())
    steps = list(expected_steps(replay, algorithm, arrivals))
    assert len(steps) == 40
    for t, ubar, stale in steps:
        own = np.array([replay.gradient(i, replay.versions[t]) for i in range(N)])
        gradient = own.mean(axis=0)
        row = metrics.loc[t + 1]
        bias, delay = ubar - stale.mean(axis=0), stale.mean(axis=0) - gradient
        for name, vector in (("bias", bias), ("delay", delay), ("gradient", gradient), ("error", ubar - gradient)):
            assert row[f"mse/{name}"] == pytest.approx(vector @ vector, rel=2e-3, abs=1e-9), (name, t)
        assert row["mse/zeta2"] == pytest.approx(((own - gradient) ** 2).sum(axis=1).mean(), rel=1e-4)
        assert row["mse/noise"] < 1e-9  # every upload is the full gradient; what is left is the rounding of w
        assert row["mse/residual"] < 1e-6
    assert metrics["mse/error"].iloc[2:].min() > 1e-5, "else there is nothing to take apart"


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", ["ringmaster", "rennala", "malenia", "ringleader", "rescaled_asgd", "fedstale_async"]
)
def test_without_noise_no_other_linear_rule_has_any_and_malenia_has_no_error_at_all(algorithm):
    lr = ["client.lr=0.5"] if algorithm == "fedstale_async" else []
    words = [*WORDS, f"algorithm={algorithm}", "diagnostics=mse", "diagnostics.every=1", "client.batch_size=all", *lr]
    metrics = run([*words, "budget.server_iterations=12"]).metrics.iloc[1:]
    assert len(metrics) == 12 and metrics["mse/gradient"].min() > 1e-5
    assert metrics["mse/noise"].max() < 1e-9 and metrics["mse/residual"].max() < 1e-6
    error = metrics["mse/error"].iloc[2:]
    assert error.max() < 1e-9 if algorithm == "malenia" else error.min() > 1e-5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_drift_and_age_are_those_of_the_trace(algorithm):
    result = measured(algorithm, "client.batch_size=all")
    replay = Replay(result.directory, Path("toy.npz"))
    replay.run()
    arrivals = pd.read_parquet(result.directory / "mse_arrivals.parquet")
    pd.testing.assert_series_equal(arrivals["staleness"], replay.trace["staleness"])
    pd.testing.assert_series_equal(arrivals["client"], replay.trace["client"])
    for row, traced in zip(arrivals.itertuples(), replay.trace.itertuples(), strict=True):
        moved = replay.versions[traced.iteration] - replay.versions[traced.dispatched_iteration]
        assert row.drift == pytest.approx(moved @ moved, rel=1e-3, abs=1e-10)
    version = np.zeros(N, dtype=int)
    metrics = result.metrics.set_index("iteration")
    for traced in replay.trace.itertuples():
        version[traced.client] = traced.dispatched_iteration
        if traced.model_changed:
            row, w = metrics.loc[traced.iteration + 1], replay.versions[traced.iteration]
            age = traced.iteration - version
            assert (row["mse/age_mean"], row["mse/age_max"]) == (pytest.approx(age.mean()), age.max())
            drift = np.mean([((w - replay.versions[v]) ** 2).sum() for v in version])
            assert row["mse/drift"] == pytest.approx(drift, rel=1e-3, abs=1e-10)


@pytest.mark.slow
def test_ace_has_no_bias_and_its_noise_is_that_of_n_uploads():
    result = measured("ace", "client.batch_size=2", "budget.server_iterations=800")
    metrics = result.metrics.iloc[50:]
    assert (metrics["mse/bias"] < 1e-12 * metrics["mse/update"].clip(lower=1e-3)).all()
    assert metrics["mse/noise"].mean() / (metrics["mse/sigma2_cached"].mean() / N) == pytest.approx(1, abs=0.15)
    assert metrics["mse/residual"].max() < 1e-6


def test_the_noise_of_one_upload_per_step_is_that_upload_s_and_a_buffer_averages_it():
    metrics = measured("asgd", "client.batch_size=2").metrics.iloc[1:]
    np.testing.assert_allclose(metrics["mse/noise"], metrics["mse/sigma2"], rtol=1e-3)
    assert metrics["mse/sigma2"].min() > 1e-3
    metrics = measured("fedbuff", "client.batch_size=2", "algorithm.staleness_weight=constant").metrics.iloc[1:]
    assert metrics["mse/noise"].mean() / (metrics["mse/sigma2"].mean() / 4) == pytest.approx(1, abs=0.35)


@pytest.mark.slow
def test_ace_meets_its_noise_again_as_long_as_a_sample_stays_cached_and_asgd_never_does():
    words = ["client.batch_size=2", "budget.server_iterations=1500", "evaluation.every=1500", "diagnostics.every=2"]
    ace, asgd = (measured(name, *words).metrics.iloc[-1] for name in ("ace", "asgd"))
    assert ace["mse/noise_correlation_1"] == pytest.approx(1 - 1 / N, abs=0.05)
    assert ace["mse/noise_correlation_10"] == pytest.approx((1 - 1 / N) ** 10, abs=0.12)
    assert abs(asgd["mse/noise_correlation_1"]) < 0.1 and abs(asgd["mse/noise_correlation_10"]) < 0.1


def test_gradients_of_clients_that_dropped_out_stay_frozen_in_ace():
    result = measured("ace", "availability=dropout", "availability.share=0.5", "availability.at_iteration=20")
    frozen = result.metrics.set_index("iteration")["mse/frozen"]
    assert frozen.loc[:20].isna().all()
    assert (frozen.loc[21:] > 0).all()


@pytest.mark.parametrize("built", ["delay=exponential", *slow("delay=exp_beta5")])
@pytest.mark.parametrize("algorithm", ["ace", *slow(*(name for name in ALGORITHMS if name != "ace"))])
def test_measuring_changes_no_bit_of_the_run(algorithm, built):
    words = ["client.batch_size=4", built, "evaluation.every=4"]
    with_it = measured(algorithm, *words, "output_dir=with")
    without = plain(algorithm, *words, "output_dir=without")
    assert with_it.summary["identity"] == without.summary["identity"]
    assert_same_bits(with_it, without)
    for row, other in zip(*(read_metrics(r.directory / "metrics.jsonl") for r in (with_it, without)), strict=True):
        assert {**row, **other, "wall_time": 0} == {**row, "wall_time": 0}


@pytest.mark.parametrize("algorithm", ["asgd", *slow(*(name for name in ALGORITHMS if name != "asgd"))])
def test_a_resumed_run_measures_what_an_uninterrupted_one_does(algorithm):
    words = ["client.batch_size=4", "delay=exp_beta5", "evaluation.every=4", "diagnostics.every=3"]
    words += ["checkpoint.every=15", "checkpoint.at_end_mib=0", "availability=dropout", "budget.server_iterations=70"]
    whole = measured(algorithm, *words, "output_dir=whole")
    cut = measured(algorithm, *words, "output_dir=cut").directory
    (cut / "summary.json").unlink()
    (cut / "mse_arrivals.parquet").unlink()
    done = torch.load(cut / "checkpoint.pt", weights_only=True)["state"]["simulation"]["counters"]["iteration"]
    assert 15 <= done < 70
    again = measured(algorithm, *words, "output_dir=cut")

    def rows(result):
        return [{k: v for k, v in row.items() if k != "wall_time"} for row in read_metrics(result / "metrics.jsonl")]

    assert rows(cut) == rows(whole.directory)
    tables = [pd.read_parquet(result.directory / "mse_arrivals.parquet") for result in (again, whole)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)


@pytest.mark.slow
def test_a_run_that_was_not_measured_is_not_complete_for_one_that_is_to_be():
    without = plain("ace")
    assert "mse/noise" not in without.metrics
    with_it = measured("ace")
    assert with_it.directory == without.directory and not with_it.summary.get("already_complete")
    assert "mse/noise" in with_it.metrics
    assert measured("ace").summary["already_complete"]
    assert plain("ace").summary["already_complete"]
    other = measured("ace", "diagnostics.every=5")
    assert not other.summary.get("already_complete") and other.metrics["mse/noise"].notna().sum() == 8
    saved = json.loads((other.directory / "summary.json").read_text())
    assert saved["diagnostics"]["every"] == 5


@pytest.mark.slow
def test_no_more_vectors_are_held_than_was_said():
    built = build_run(compose(["algorithm=ca2fl", "n_clients=30", "delay=exponential", "diagnostics=mse", "threads=1"]))
    mse, d = built.diagnostics, built.task.flat.d
    built.simulation.observers.append(mse)
    most = 0
    for _ in range(400):
        built.simulation.step()
        most = max(most, len(mse.versions._held) + len(mse.versions._spare))
    held = most * d + mse.stale_nd.numel() + mse.shadow.cache.rows.rows_nd.numel() + d * len(mse.memory._anchors)
    assert held <= mse.vectors(built.rule, 30, 30) * d
    built.executor.close()


def test_the_bias_of_clients_that_stopped_is_the_delay_that_is_left(tmp_path):
    """Eleven of twelve clients stop after ten iterations; the last one works on the newest model, and slowly."""
    words = ["availability=dropout", "availability.share=0.9167", "availability.at_iteration=10", "algorithm=ace"]
    result = run([*WORDS, *words, "diagnostics=mse", "diagnostics.every=1", "delay=none", "algorithm.eta=0.02"])
    assert result.ok, result.summary
    rows = result.metrics.set_index("iteration")
    assert rows["mse/frozen"].loc[:9].isna().all() and rows["mse/frozen"].loc[12:].notna().all()
    late = rows.loc[20:]
    assert (late["mse/frozen"] / late["mse/delay"]).between(0.7, 1.4).all()
    assert late["mse/frozen"].iloc[-1] > 2 * late["mse/frozen"].iloc[0] > 0  # the model goes on, these gradients do not
    assert (rows["mse/bias"].dropna() < 1e-12).all()
