"""Clients that hold the first layers: what a step of theirs is, and what is left of them."""

import gc
import weakref

import pandas as pd
import pytest
import torch
from toy import final_model, table_of

from asyncfl_bench import run
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


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "threads"])
def test_a_client_whose_work_has_ended_is_let_go_at_once(executor):
    """Not when Python next looks for circles, which with few objects of many megabytes is late."""
    words = ["algorithm=gas", "scale=smoke", "delay=exponential", "client.local_steps=3", f"executor={executor}"]
    built = build_run(compose([*words, "threads=2", "budget.server_iterations=1000"]))
    built.simulation.step()
    gc.collect()
    gc.disable()
    try:
        clients = [weakref.ref(client) for client in built.executor._clients.values()]
        while built.simulation.counters.uploads < 3 * len(clients):
            built.simulation.step()
        assert len(clients) > 3 and not any(client() for client in clients)
    finally:
        gc.enable()
        built.executor.close()


@pytest.mark.slow  # it compiles
@pytest.mark.parametrize("rule", ["gas", "s2fl"])
def test_compiled_parts_send_the_same_messages_at_the_same_moments_and_learn_the_same(rule, tmp_path):
    """In any number of threads and over an interruption in the middle of tasks with the same bits."""
    words = [f"algorithm={rule}", "model=cnn", "client.batch_size=20", "client.local_steps=4", "delay=cell_link"]
    words += ["trace=true", "progress=false", "diagnostics=none", "evaluation.every=7"]
    words += ["n_clients=20", "concurrency=12"]  # at once more than two threads have
    ways = {"torch": ["executor=sequential"], "one": ["threads=1"], "two": ["threads=2"]}
    short = run([*words, "threads=2", "budget.server_iterations=3", f"output_dir={tmp_path}/short"]).directory
    words += ["budget.server_iterations=9"]
    results = {name: run([*words, *more, f"output_dir={tmp_path}/{name}"]) for name, more in ways.items()}
    results["again"] = run([f"resume={short}", "budget.server_iterations=9"])
    for name, result in results.items():
        assert result.summary["executor"] == ("sequential" if name == "torch" else "native")
    traces = {name: table_of(result, "exchanges") for name, result in results.items()}
    models = {name: final_model(result) for name, result in results.items()}
    for name in ("one", "two", "again"):
        pd.testing.assert_frame_equal(traces["torch"], traces[name], rtol=1e-3)
        torch.testing.assert_close(models["torch"], models[name], rtol=1e-3, atol=1e-4)
        assert torch.equal(models["one"], models[name]), name
