"""Compare the estimated memory of runs with the measured peak, one process each; prints a Markdown table.

    python scripts/memory.py              every case (some minutes)
    python scripts/memory.py mlp          those with this word in their name

On a CPU the peak of a process holds Python, torch and data besides: the peak of the same network with two clients and
no cache is subtracted, and so is what that run says it needs. Rows of a mini-batch show activations: mini-batches of
one sample are subtracted. Made-up data: memory does not depend on them.
Pages of a mapped file count as the process's while the kernel has room for them, so `disk` is compared as a sum too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

COMMON = [
    "progress=false",
    "threads=2",
    "client.batch_size=4",
    "evaluation.every=100000",
    "checkpoint.every_minutes=null",
]
COMMON += ["heterogeneity=iid", "checkpoint.at_end_mib=0", "device=cpu"]
MLP = ["model=mlp", "model.hidden=[2000]", "n_clients=60", "budget.server_iterations=200"]
RESNET = ["model=resnet18", "n_clients=20", "budget.server_iterations=60"]
ALONE = ["algorithm=asgd", "n_clients=2", "concurrency=1", "budget.server_iterations=12", "delay=exponential"]
ALONE += ["executor=sequential"]  # which holds the least
INT8, BF16, DISK = (f"algorithm.cache.{word}" for word in ("precision=int8", "precision=bf16", "place=disk"))
CASES = {
    "mlp ace": [*MLP, "algorithm=ace", "delay=exponential"],
    "mlp ace ticks": [*MLP, "algorithm=ace", "budget.server_iterations=60"],
    "mlp ace bf16": [*MLP, "algorithm=ace", "delay=exponential", BF16],
    "mlp ace int8": [*MLP, "algorithm=ace", "delay=exponential", INT8],
    "mlp ace disk": [*MLP, "algorithm=ace", "delay=exponential", DISK],
    "mlp ace incremental": [*MLP, "algorithm=ace", "delay=exponential", "algorithm.rule=incremental"],
    "mlp aced": [*MLP, "algorithm=aced", "delay=exponential"],
    "mlp ca2fl": [*MLP, "algorithm=ca2fl", "delay=exponential", "budget.server_iterations=100"],
    "mlp fedbuff": [*MLP, "algorithm=fedbuff", "delay=exponential", "budget.server_iterations=100"],
    "mlp fedbuff adamw": [*MLP, "algorithm=fedbuff", "client=adamw", "client.local_steps=3", "n_clients=30"],
    "mlp asgd sequential": [*MLP, "algorithm=asgd", "delay=exponential", "executor=sequential"],
    "resnet18 ace": [*RESNET, "algorithm=ace", "delay=exponential"],
    "resnet18 ace int8": [*RESNET, "algorithm=ace", "delay=exponential", INT8],
    "resnet18 ca2fl": [*RESNET, "algorithm=ca2fl", "algorithm.buffer_size=5", "budget.server_iterations=12"],
    "resnet18 fedbuff": [*RESNET, "algorithm=fedbuff", "algorithm.buffer_size=5", "budget.server_iterations=12"],
}
BATCHES = {"resnet8": 200, "resnet18": 50, "vgg16": 50, "alexnet": 200, "cnn": 200, "vit_small": 20}
STEP = [*ALONE, "budget.server_iterations=2"]  # the first step takes as much as any
CASES |= {f"{name} batch": [f"model={name}", f"client.batch_size={b}", *STEP] for name, b in BATCHES.items()}


def made_up_data(folder: Path, side: int | None) -> Path:
    """Return images with that many pixels a side, or rows of numbers."""
    path, rng, count = folder / f"{side}.npz", np.random.default_rng(0), 800 if side == 32 else 400
    if not path.exists():
        images, rows = (count, side or 1, side or 1, 3), (count, 600)
        x = rng.normal(size=rows).astype("f4") if side is None else rng.integers(0, 256, images, dtype=np.uint8)
        np.savez(path, x_train=x, y_train=np.arange(count) % 10, x_test=x[:20], y_test=np.arange(20) % 10)
    return path


def run_alone(words: list[str], data: Path, folder: Path) -> tuple[int, int]:
    """Return (estimated bytes, peak bytes) of a run in a separate process."""
    program = "import json, sys; from asyncfl_bench import run; print(json.dumps(run(sys.argv[1:]).summary))"
    given = [*COMMON, "dataset=arrays", f"dataset.path={data}", f"output_dir={folder}", "rerun=true", *words]
    # else glibc keeps what threads have freed, and mini-batches
    environment = {**os.environ, "MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", program, *given], capture_output=True, encoding="utf-8", timeout=900, env=environment
    )
    if answer.returncode:
        raise RuntimeError(answer.stderr)
    summary = json.loads(answer.stdout.splitlines()[-1])
    if summary["exit_status"] != "ok":
        raise RuntimeError(summary["error"])
    return sum(summary["estimated_memory_bytes"].values()), summary["peak_memory_bytes"]


def compare(words: list[str], folder: Path) -> tuple[int, int]:
    """Return (estimated, measured bytes) of a run, beyond those of its network alone, or with one sample."""
    model = [word for word in words if word.startswith("model")]
    if client := [word for word in words if word.startswith("client")]:  # an optimizer brings 200 MiB of torch with it
        model += [*client, "client.upload=difference"]
    batch = any(word.startswith("client.batch_size") for word in words)
    data = made_up_data(folder, 32 if batch else 8 if "model=resnet18" in words else None)
    said, took = run_alone(words, data, folder)
    base = [*words, "client.batch_size=1"] if batch else [*model, *ALONE]
    said_alone, took_alone = run_alone(base, data, folder)
    return said - said_alone, took - took_alone


if __name__ == "__main__":
    chosen = [name for name in CASES if all(word in name.split() for word in sys.argv[1:])]
    print("| run | estimated MiB | measured MiB | estimated / measured |")
    print("| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as directory:
        for name in chosen:
            estimated, measured = compare(CASES[name], Path(directory))
            numbers = f"{estimated / 2**20:.0f} | {measured / 2**20:.0f} | {estimated / measured:.2f}"
            print(f"| {name} | {numbers} |", flush=True)
