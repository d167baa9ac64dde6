"""Which device a run is on, and why."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from asyncfl_bench import run
from asyncfl_bench.config import compose
from asyncfl_bench.experiment import build, components, machine
from asyncfl_bench.experiment.checkpoint import stored_device
from asyncfl_bench.experiment.components import GPU_FLOP, Device, choose_device
from asyncfl_bench.models.costs import footprint

IMAGE, DIGIT = (3, 32, 32), (1, 28, 28)
# model, samples and mini-batch: whether a GPU is worth it (docs/explanation/performance.md)
NETWORKS = {
    "softmax": (DIGIT, 32, False),
    "mlp": (IMAGE, 50, False),
    "lenet5": (IMAGE, 64, False),
    "cnn": (IMAGE, 50, True),
    "resnet8": (IMAGE, 50, True),
    "alexnet": (IMAGE, 32, True),
    "resnet18": (IMAGE, 50, True),
}


@pytest.fixture
def gpu(monkeypatch):
    """One GPU is there."""
    monkeypatch.setattr(machine, "known_device", lambda choice: "cpu" if choice == "cpu" else None)
    monkeypatch.setattr(machine, "select_device", lambda choice: "cuda" if choice == "auto" else choice)


def never():
    raise AssertionError("was counted")


@pytest.mark.parametrize("model", NETWORKS)
def test_the_arithmetic_of_a_mini_batch_chooses(gpu, model):
    shape, b, on_gpu = NETWORKS[model]
    settings = compose(["scale=smoke", f"model={model}", f"client.batch_size={b}"])
    module = settings.parts["model"].build().build(shape, 10, 0)
    flop = 6 * footprint(module, torch.zeros(1, *shape)).macs * b
    chosen = choose_device(settings.root, None, lambda: flop)
    assert chosen.name == ("cuda" if on_gpu else "cpu") and "GFLOP a mini-batch" in chosen.reason


@pytest.mark.parametrize(
    ("words", "name", "reason"),
    [
        (["device=cpu"], "cpu", "device=cpu"),
        (["device=cuda"], "cuda", "device=cuda"),
        (["executor=threads"], "cpu", "executor=threads"),
        (["executor=native"], "cpu", "executor=native"),
        (["executor=graph"], "cuda", "executor=graph"),
        (["precision=tf32"], "cuda", "precision=tf32"),
    ],
)
def test_settings_that_one_device_has_choose_it(gpu, words, name, reason):
    chosen = choose_device(compose(["scale=smoke", *words]).root, None, never)
    assert (chosen.name, chosen.reason) == (name, reason)


def test_without_a_gpu_nothing_is_counted(monkeypatch):
    monkeypatch.setattr(machine, "known_device", lambda choice: "cpu")
    assert choose_device(compose(["scale=smoke"]).root, None, never).reason == "no usable GPU"


def test_the_step_of_a_run_is_counted_by_its_largest_mini_batch(monkeypatch):
    counted, choose = [], build.choose_device

    def count(root, began, count_flop):
        counted.append(count_flop())
        return choose(root, began, count_flop)

    monkeypatch.setattr(build, "choose_device", count)
    build.build_run(compose(["scale=smoke", "model.hidden=[16]", "client.batch_size=8"])).executor.close()
    assert counted == [6 * (64 * 16 + 16 * 10) * 8] and counted[0] < GPU_FLOP


def test_a_run_names_its_device_and_resumes_there_or_says_why_not(gpu, monkeypatch, capsys):
    first = run(["scale=smoke", "model=softmax", "algorithm=asgd", "budget.server_iterations=2", "threads=1"])
    assert "; cpu, 1 thread (0.000 GFLOP a mini-batch; a GPU from 1), " in capsys.readouterr().err
    assert json.loads((first.directory / "summary.json").read_text())["device_reason"].startswith("0.000 GFLOP")
    monkeypatch.setattr(components, "GPU_FLOP", 0)  # a fresh run is on the GPU
    again = compose([f"resume={first.directory}", "budget.server_iterations=3"])
    began = stored_device(again)
    assert choose_device(again.root, began, never) == Device("cpu", "where it began")
    assert not capsys.readouterr().err
    assert choose_device(replace(again.root, device="cuda"), began, never).name == "cuda"
    line = "this run began on cpu and resumes on cuda, with other last digits: device=cuda\n"
    assert capsys.readouterr().err == line
    assert run([f"resume={first.directory}", "budget.server_iterations=3"]).summary["device_reason"] == "where it began"


def test_a_run_of_a_gpu_that_is_not_there_says_so_and_resumes_on_the_cpu(monkeypatch, capsys):
    monkeypatch.setattr(machine, "known_device", lambda choice: "cpu")
    assert choose_device(compose(["scale=smoke"]).root, "cuda:1", never).name == "cpu"
    line = "this run began on cuda:1 and resumes on cpu, with other last digits: no usable GPU\n"
    assert capsys.readouterr().err == line
