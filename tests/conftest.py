"""Settings for all tests: one thread, no account, nothing written outside the test's own folder."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.pop("ASYNCFL_BENCH_DATA", None)

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Runs go to the test's folder, and no test sees another's home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
