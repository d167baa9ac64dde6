"""What is refused before torch is imported, which takes more than a second: it cannot be imported in these tests."""

import sys
import threading
from pathlib import Path

import numpy as np

from asyncfl_bench import run
from asyncfl_bench.config import compose
from asyncfl_bench.data.datasets import Digits, DigitsConfig
from asyncfl_bench.experiment import preflight
from asyncfl_bench.randomness import Streams


def run_without_torch(monkeypatch, *words):
    hide_torch(monkeypatch)
    Path("file").write_text("")
    Path("bad.csv").write_text("client,tme\n0,1\n")
    Path("bad").mkdir()
    for name in ("sst2.jsonl", "femnist.npz"):
        Path("bad", name).write_text("{")
    y, labels = np.arange(10) % 2, {"y_test": np.zeros(4, int)}
    np.savez("bad.npz", x_train=np.zeros((10, 3)), y_train=y[:9], x_test=np.zeros((4, 3)), **labels)
    np.savez("flat.npz", x_train=np.zeros(10), y_train=y, x_test=np.zeros(4), **labels)
    np.savez("good.npz", x_train=np.zeros((10, 3)), y_train=y, x_test=np.zeros((4, 3)), **labels)
    np.savez("own.npz", x=np.zeros((4, 3), np.float32))
    try:
        run(["n_clients=2", "progress=false", *words])
    finally:
        assert not Path("runs").exists()


def hide_torch(monkeypatch):
    Digits(DigitsConfig()).load(None, Streams(0), 1)  # made once, by packages that look for torch
    for name in ("torch", "asyncfl_bench.experiment.build"):
        monkeypatch.setitem(sys.modules, name, None)


def test_a_load_that_takes_long_is_announced(monkeypatch):
    hide_torch(monkeypatch)
    said, was_said, load = [], threading.Event(), preflight.Preflight._load
    monkeypatch.setattr(preflight, "say", lambda text: (said.append(text), was_said.set()))
    monkeypatch.setattr(preflight, "SECONDS_TO_ANNOUNCE", 0.001)
    monkeypatch.setattr(preflight.Preflight, "_load", lambda *given: was_said.wait(10) and load(*given))
    settings = compose(["algorithm=asgd", "dataset=synthetic", "model=softmax", "n_clients=5"])
    preflight.Preflight().check(settings)
    settings.root.progress = False
    preflight.Preflight().check(settings)
    assert said == ["loading dataset=synthetic for 5 clients"]
