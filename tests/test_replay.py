"""The final weights of every algorithm, replayed from the trace by NumPy code that shares nothing with the package."""

import numpy as np
import pytest
from replay import Replay

from asyncfl_bench import run

CASES = {
    "ace": ["algorithm=ace"],
    "ace incremental": ["algorithm=ace", "algorithm.rule=incremental"],
    "ace int8": ["algorithm=ace", "algorithm.cache.precision=int8"],
    "aced int8": ["algorithm=aced", "algorithm.tau_algo=3", "algorithm.cache.precision=int8"],
    "ca2fl int8": ["algorithm=ca2fl", "algorithm.buffer_size=4", "algorithm.cache.precision=int8"],
    "aced": ["algorithm=aced", "algorithm.tau_algo=3"],
    "aced by gradient": ["algorithm=aced", "algorithm.tau_algo=6", "algorithm.tstart=gradient"],
    "fedbuff": ["algorithm=fedbuff", "algorithm.buffer_size=4"],
    "fedbuff weighted": [
        "algorithm=fedbuff",
        "algorithm.buffer_size=3",
        "algorithm.staleness_weight=polynomial",
        "algorithm.momentum=0.5",
        "algorithm.max_staleness=5",
    ],
    "ca2fl": ["algorithm=ca2fl", "algorithm.buffer_size=4"],
    "asgd": ["algorithm=asgd"],
    "delay adaptive": ["algorithm=delay_adaptive_asgd", "algorithm.tau_c=4"],
    "delay adaptive koloskova": ["algorithm=delay_adaptive_asgd", "algorithm.tau_c=4", "algorithm.variant=koloskova"],
    "delay adaptive drop": ["algorithm=delay_adaptive_asgd", "algorithm.tau_c=4", "algorithm.variant=drop"],
}
WORLDS = {
    "ticks": ["delay=exp_beta5"],
    "time": ["delay=exp_beta5", "clock=time"],
    "empty ticks": ["delay=exp_beta30", "delay.compute=3"],
    "random idle": ["delay=exponential", "schedule=random_idle", "concurrency=5"],
    "at the flush": ["delay=uniform", "schedule=random_idle", "concurrency=6", "schedule.hand_out=at_flush"],
    "dropout": ["delay=exp_beta5", "availability=dropout", "availability.share=0.4", "availability.at_iteration=15"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three noisy classes in four dimensions, 240 training samples."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 300)
    x = (rng.normal(size=(3, 4))[y] + rng.normal(size=(300, 4))).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "toy.npz"
    np.savez(path, x_train=x[:240], y_train=y[:240], x_test=x[240:], y_test=y[240:])
    return path


# ACED by gradient age counts turns that leave the model alone; a trace tells the turn of a dispatch only where a
# client is dispatched as it reports
PAIRS = [
    (c, w) for c in CASES for w in WORLDS if (c, w[:2]) not in {("aced by gradient", "ra"), ("aced by gradient", "at")}
]


@pytest.mark.parametrize(("case", "world"), PAIRS)
def test_numpy_replay_of_the_trace_gives_the_final_weights(case, world, data):
    result = run(
        [
            *("dataset=arrays", f"dataset.path={data}", "model=softmax", "n_clients=12", "heterogeneity.min_samples=3"),
            *("client.batch_size=all", "client.lr=0.5", "trace=true", "progress=false", "budget.server_iterations=40"),
            *("budget.uploads=400", "algorithm.eta=0.3"),
            *CASES[case],
            *WORLDS[world],
        ]
    )
    assert result.ok, result.summary["error"]
    replay = Replay(result.directory, data)
    moved = np.abs(replay.final - replay.w).max()
    replayed = replay.run()
    assert len(replay.versions) - 1 == result.summary["used"]["server_iterations"]
    assert len(replay.trace) == result.summary["used"]["uploads"]
    assert moved > 0.05, "the model must have learned something for the comparison to mean anything"
    np.testing.assert_allclose(replay.final, replayed, atol=2e-6)
