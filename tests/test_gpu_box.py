"""scripts/gpu_box.sh and scripts/check_device.py, on a machine without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from asyncfl_bench.config import options
from asyncfl_bench.config.choices import variant
from asyncfl_bench.experiment import machine

ROOT = Path(__file__).parents[1]


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def box(tmp_path):
    """Call the script with programs in the place of nvidia-smi and Python that note what they are asked."""
    write_program(tmp_path / "nvidia-smi", "echo 'a GPU, 1 MiB'")
    write_program(
        tmp_path / "python",
        f'echo "$@" >> {tmp_path}/asked; case "$*" in *sweep=ace/table1\\ *) echo broken >&2; exit 3;; '
        f"*prove_gpu*) test ! -f {tmp_path}/unproved;; esac",
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": str(tmp_path / "python")}

    def call(*words: str) -> tuple[str, list[str]]:
        (tmp_path / "asked").write_text("")
        command = [ROOT / "scripts" / "gpu_box.sh", tmp_path, tmp_path / "out", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout, (tmp_path / "asked").read_text().splitlines()

    return call


@pytest.mark.process
def test_every_full_sweep_of_the_papers_is_run_and_one_that_fails_stops_no_other(box, tmp_path):
    said, asked = box()
    named = [word.removeprefix("sweep=") for line in asked for word in line.split() if word.startswith("sweep=")]
    papers = {
        name for name in options("sweep") if name.partition("/")[0] in ("ace", "afbs", "asyncfeded", "fedecho", "gas")
    }
    refused = {name for name in papers if "refused" in (variant("sweep_scale", f"{name}/full") or {})}
    synthetic = {"fedecho/table2_synthetic", "fedecho/table3_synthetic"}
    assert len(named) == len(set(named)) and set(named) == papers - refused - synthetic
    assert "ace-table1: exit 3" in said and ": broken" in said
    assert all(f"{name}: no {tmp_path}/ddpm_cifar10.npy" in said for name in synthetic)
    assert asked[0] == f"scripts/prove_gpu.py {tmp_path}/out/gpu.md" and asked[1] == "scripts/check_device.py cuda"
    assert asked[2].startswith("scripts/benchmark.py --device cuda")
    assert sum(" hydra/launcher=gpu" in line for line in asked) == len(named)
    left = [float(line.split()[3]) for line in said.splitlines() if line.endswith(" modelled hours left")]
    assert len(left) == len(named) + len(synthetic) and left == sorted(left, reverse=True) and left[-1] > 0

    (tmp_path / "ddpm_cifar10.npy").touch()
    (again,) = box("60", "fedecho/table2_synthetic")[1][1:]  # the benchmark, whose file this Python does not write
    assert "sweep=fedecho/table2_synthetic scale=full device=cuda" in again and again.endswith("/ddpm_cifar10.npy")
    fine_tuning = [line for line in asked if "sweep=fedecho/table4 " in line or "sweep=ace/table_a2_" in line]
    assert len(fine_tuning) == 3 and all(line.endswith(" model.download=true") for line in fine_tuning)
    assert sum(line.endswith(" precision=tf32") for line in asked) == 1
    (tmp_path / "unproved").touch()
    (tmp_path / "out" / "proved").unlink()
    said, asked = box("-10", "ace/participation")
    assert "ace-participation: no time left" in said and "runs do not share the GPU" in said
    assert asked[0].startswith("scripts/prove_gpu.py ") and not any("hydra/launcher" in line for line in asked)


def test_a_gpu_gets_deterministic_kernels_and_warns_once_and_a_cpu_stays_as_it_is(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(warnings, "onceregistry", {})
    ones, twice = torch.ones(2), torch.tensor([0, 0])
    with torch.backends.cudnn.flags(benchmark=True), warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        machine.make_deterministic("cpu")
        torch.zeros(3).put_(twice, ones)
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ and torch.backends.cudnn.benchmark
        machine.make_deterministic("cuda:0")
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8" and torch.backends.cudnn.deterministic
        torch.zeros(3).put_(twice, ones)
        torch.zeros(3).put_(twice, ones)  # another line, of which Python warns again by itself
        (said,) = (str(one.message) for one in caught if one.category is UserWarning)
        assert said.startswith("put_ does not have a deterministic implementation")
        machine.make_deterministic("cpu")
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.slow
@pytest.mark.process
def test_the_cpu_repeats_its_own_bits_with_every_kind_of_network():
    names = ["lstm", "fasttext", "bert", "cnn", "int8", "mse", "dissimilarity"]
    command = [sys.executable, ROOT / "scripts" / "check_device.py", "cpu", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    assert done.returncode == 0 and len(rows) == 9, done.stdout + done.stderr
    assert all("| equal | equal | 0.0e+00 |" in row for row in rows), done.stdout
