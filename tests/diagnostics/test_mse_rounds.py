"""The error of a round's step, and rounds that cannot be taken apart."""

from pathlib import Path

import numpy as np
import pytest
from replay import Replay
from toy import assert_same_bits, finish_run, write_noisy_classes

from asyncfl_bench import run
from asyncfl_bench.tracking.rundir import read_metrics

N = 12
WORDS = [
    *("dataset=arrays", "dataset.path=toy.npz", "model=softmax", f"n_clients={N}", "heterogeneity.min_samples=3"),
    *("client.lr=0.5", "trace=true", "progress=false", "budget.server_iterations=25", "algorithm=fedavg"),
    *("delay=uniform", "evaluation.every=1", "algorithm.eta=0.7"),
]
LOSSY = ["availability=suspension", "availability.probability=0.4", "schedule=random_idle", "concurrency=6"]


@pytest.fixture(autouse=True)
def data(own_folder):
    write_noisy_classes()


def measured(*words):
    result = finish_run(*WORDS, "diagnostics=mse", "diagnostics.every=1", *words)
    return result, result.metrics.set_index("iteration").iloc[1:]


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("world", [[], LOSSY])
def test_the_parts_of_a_rounds_error_are_those_of_the_closed_formulas(weights, world):
    result, metrics = measured("client.batch_size=all", f"algorithm.weights={weights}", *world)
    replay = Replay(result.directory, Path("toy.npz"))
    replay.run()
    stale = np.array([replay.gradient(i, replay.versions[0]) for i in range(N)])
    for t, group in replay.trace.groupby("dispatched_iteration"):
        own = np.array([replay.gradient(i, replay.versions[t]) for i in range(N)])
        clients = group["client"].to_numpy()
        p = group["samples"].to_numpy() if weights == "samples" else np.ones(len(clients))
        ubar, gradient = p @ own[clients] / p.sum(), own.mean(axis=0)
        stale[clients] = own[clients]
        bias, delay, row = ubar - stale.mean(axis=0), stale.mean(axis=0) - gradient, metrics.loc[t + 1]
        for name, vector in (("bias", bias), ("delay", delay), ("error", ubar - gradient), ("update", ubar)):
            assert row[f"mse/{name}"] == pytest.approx(vector @ vector, rel=2e-3, abs=1e-9), (name, t)
        assert row["mse/noise"] < 1e-9 and row["mse/residual"] < 1e-4
    assert len(metrics) == 25


def test_a_full_round_with_uniform_weights_errs_by_the_noise_of_its_mini_batches_alone():
    _, metrics = measured("client.batch_size=4", "algorithm.weights=uniform")
    assert metrics["mse/bias"].max() < 1e-9 and metrics["mse/delay"].max() < 1e-9
    np.testing.assert_allclose(metrics["mse/error"], metrics["mse/noise"], rtol=1e-3)
    assert metrics["mse/noise"].mean() == pytest.approx(metrics["mse/sigma2"].mean() / N, rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox"])
def test_measuring_changes_no_bit_of_rounds_with_lost_work(algorithm):
    words = [f"algorithm={algorithm}", "client.batch_size=4", *LOSSY]
    with_it, _ = measured(*words, "output_dir=with")
    without = run([*WORDS, *words, "output_dir=without"])
    assert_same_bits(with_it, without)
    for row, other in zip(*(read_metrics(r.directory / "metrics.jsonl") for r in (with_it, without)), strict=True):
        assert {**row, **other, "wall_time": 0} == {**row, "wall_time": 0}
