"""Clients that hold the first layers: what a step of theirs is, and what is left of them."""

import gc
import weakref

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


@pytest.mark.parametrize("executor", ["sequential", "threads"])
def test_a_task_that_has_ended_is_let_go_at_once(executor):
    """Not when Python next looks for circles, which with few objects of many megabytes is late."""
    words = ["algorithm=gas", "scale=smoke", "delay=exponential", "client.local_steps=3", f"executor={executor}"]
    built = build_run(compose([*words, "threads=2", "budget.server_iterations=1000"]))
    built.simulation.step()
    gc.collect()
    gc.disable()
    try:
        tasks = [weakref.ref(task) for task in built.executor._tasks.values()]
        while built.simulation.counters.uploads < 3 * len(tasks):
            built.simulation.step()
        assert len(tasks) > 3 and not any(task() for task in tasks)
    finally:
        gc.enable()
        built.executor.close()
