"""A run says what it costs, and refuses when that cannot be had."""

import pytest

from asyncfl_bench import environment, run
from asyncfl_bench.composing import compose
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.world import World

D = 64 * 200 + 200 + 200 * 10 + 10
ONE_BY_ONE = ["executor=sequential"]  # the others need workspaces besides


@pytest.mark.parametrize(
    ("words", "vectors"),
    [
        (["algorithm=ace"], 100 + 5 + 100 + 5),
        (["algorithm=ace", "algorithm.rule=incremental"], 5 + 100 + 100 + 5),
        (["algorithm=asgd", "concurrency=10"], 10 + 5),
        (["algorithm=fedbuff", "algorithm.momentum=0.9"], 2 + 100 + 5),
    ],
)
def test_the_opening_line_names_the_memory_of_the_model_vectors(words, vectors):
    settings = compose([*words, *ONE_BY_ONE])
    world = World(settings)
    assert world.vectors == vectors
    assert f"model vectors up to {vectors * D * 4 / 2**20:.0f} MiB" in world.describe(settings)
    world.executor.close()


def test_no_more_vectors_are_held_than_was_said():
    settings = compose(["algorithm=ace", "n_clients=40", "delay=exponential", "threads=1"])
    world = World(settings)
    for _ in range(300):
        world.simulation.advance()
    held = world.rule.cache.rows_nd.numel() + 2 * world.rule.total.sum_d.numel()
    executor = world.executor
    held += sum(v.numel() for v, _ in executor.versions._held.values()) + sum(
        v.numel() for v in executor.versions._spare
    )
    assert held <= world.vectors * D


def test_a_run_that_cannot_fit_refuses_with_the_numbers_and_what_would_fit(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "free_memory", lambda device: 100 * D * 4)
    with pytest.raises(ConfigError) as caught:
        run(["algorithm=ace", "progress=false", *ONE_BY_ONE])
    assert str(caught.value) == (
        f"n_clients=100: needs 210 vectors of {D} floats, 0.0 GiB, and cpu has 0.0 GiB free; n_clients=45 would fit"
    )
    assert not (tmp_path / "runs").exists()
    assert run(["algorithm=ace", "progress=false", *ONE_BY_ONE, "n_clients=45", "budget.server_iterations=5"]).ok
