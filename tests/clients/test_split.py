"""Clients that hold the first layers: what a step of theirs is."""

import pytest

from asyncfl_bench.config import compose
from asyncfl_bench.experiment.build import build_run


@pytest.mark.parametrize(("clip", "longest"), [("1e-4", 3e-4), ("null", None)])
def test_gradients_of_the_clients_part_are_clipped_as_they_come_back(clip, longest):
    words = ["algorithm=gas", "algorithm.model_buffer=1", "concurrency=1", "scale=smoke", "delay=exponential"]
    words += [
        "client.local_steps=3",
        "client.lr=1",
        f"client.clip={clip}",
        "schedule=random_idle",
        "executor=sequential",
    ]
    built = build_run(compose([*words, "algorithm.server_lr=0.001", "budget.server_iterations=1"]))
    before_d = built.model_d.clone()
    built.simulation.run()
    moved = float((built.model_d - before_d)[: built.rule.part.d_client].norm())
    built.executor.close()
    assert moved > 2e-4 and (moved < longest * (1 + 1e-5) if longest else moved > 1e-2)
