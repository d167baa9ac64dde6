"""Runs that are killed without warning, and what is left of them.

python tests/crashing.py 20      every algorithm, killed 20 times: a Markdown table (make crash)
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import torch

from asyncfl_bench import run
from asyncfl_bench.config import options

WORDS = ["trace=true", "progress=false", "n_clients=30", "checkpoint.every=15", "threads=2"]
SUSPENSION = ["availability=suspension", "availability.probability=0.3"]
CRASHES = {
    "ace": ["budget.server_iterations=250"],
    "ace incremental": ["budget.server_iterations=250", "algorithm.rule=incremental"],
    "ace int8 disk": [
        "budget.server_iterations=250",
        "algorithm.cache.precision=int8",
        "algorithm.cache.place=disk",
    ],
    "ace incremental disk": [
        "budget.server_iterations=250",
        "algorithm.rule=incremental",
        "algorithm.cache.place=disk",
    ],
    "aced": ["budget.server_iterations=600", "delay=exponential", "availability=dropout"],
    "fedbuff": ["budget.server_iterations=200", "algorithm.momentum=0.5", "client.local_steps=3", "client=adamw"],
    "fedecho": [
        *("budget.server_iterations=200", "client.local_steps=3", "distillation.rate=0.001", "distillation.max_age=8"),
        *SUSPENSION,
    ],
    "ace distilled": ["distillation=fedecho", "budget.server_iterations=60", "unlabelled=noise"],
    "afbs": ["budget.server_iterations=250", "algorithm.clusters=3", "client.local_steps=3", *SUSPENSION],
    "fadas": ["budget.server_iterations=250", "algorithm.delay_adaptive=code", "delay=fadas_large"],
    "fedac": ["budget.server_iterations=200", "algorithm.variate_step=share", "client.local_steps=3", *SUSPENSION],
    "ca2fl": ["budget.server_iterations=250", "schedule=random_idle", "schedule.rest=until_update"],
    "asgd": ["budget.server_iterations=1200", "model=cnn", "delay=exponential"],
    "asgd queue": ["budget.server_iterations=900", "schedule=uniform_queue", "schedule.draw=shuffled", *SUSPENSION],
    "delay_adaptive_asgd": ["budget.server_iterations=2500", "evaluation.every_time=20", "algorithm.variant=drop"],
    "rennala": ["budget.server_iterations=100", "algorithm.buffer_size=4"],
    "ringmaster": ["budget.server_iterations=600", "algorithm.restart_at=3", *SUSPENSION],
    "malenia": ["budget.server_iterations=15", "algorithm.batch=30"],
    "ringleader": ["budget.server_iterations=400", "delay=lognormal"],
    "ringleader current": ["budget.server_iterations=300", "algorithm.continue_on=current", *SUSPENSION],
    "delayed_nesterov": ["budget.server_iterations=400", "algorithm.dylu=true", "client.local_steps=4", *SUSPENSION],
    "fedstale_async": ["budget.server_iterations=200", "algorithm.over=heard", "algorithm.cache.precision=int8"],
    "port": ["budget.server_iterations=60", "algorithm.bound=2", "algorithm.buffer_size=4", *SUSPENSION],
    "fedavg": ["budget.server_iterations=150", "schedule=random_idle", "concurrency=12", "availability=suspension"],
    "fedprox": ["budget.server_iterations=60", "client.local_steps=3", "client.lr_decay=0.99", "delay=uniform"],
    "fedopt": ["budget.server_iterations=80", "algorithm.optimizer=yogi", "availability=dropout"],
    "gas": [
        *("budget.server_iterations=120", "client.local_steps=4", "client.momentum=0.5"),
        *("algorithm.activation_buffer=7", "algorithm.model_buffer=3"),
    ],
    **{
        name: ["budget.server_iterations=50", "client.local_steps=4", "schedule=random_idle", "concurrency=6"]
        for name in ("minibatch_sfl", "s2fl", "splitfed")
    },
    "feddyn": ["budget.server_iterations=60", "client.local_steps=2", *SUSPENSION],
    "fedasync": ["budget.server_iterations=600", "algorithm.staleness_weight=polynomial", *SUSPENSION],
    "asyncfeded": ["budget.server_iterations=400", "client.local_steps=4", "delay=work_and_link", *SUSPENSION],
}
# an algorithm that is not named above, in its default settings
CRASHES |= {name: ["budget.server_iterations=400"] for name in options("algorithm") if name not in CRASHES}


# A fork of this process inherits what other tests did to PyTorch. After torch.compile a forked child cannot train.
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(
    ["torch", "pandas", "pyarrow.parquet", "hydra", "asyncfl_bench.api.calls", "asyncfl_bench.experiment.drive"]
)


def _run_and_exit(words: list[str], environment: dict[str, str]) -> None:
    """The body of a child process: exit code 0 for a run that ended well."""
    os.environ.update(environment)
    sys.exit(0 if run(words).ok else 1)


def run_until_killed(words: list[str], folder: Path, lines: int, seconds: float) -> bool:
    """Run in a child process; kill it with SIGKILL `seconds` after it wrote metrics that have that number of lines.

    Returns True if the run in `folder` ended before. The number of lines makes the moment independent of the
    machine's load. Raises ChildProcessError if the child failed: a run that fails at once is not a run that ended.
    """
    before = state_of_metrics(folder)
    child = CHILDREN.Process(target=_run_and_exit, args=([*words, f"output_dir={folder}"], dict(os.environ)))
    child.start()
    while child.exitcode is None and (state_of_metrics(folder) == before or count_lines(folder) < lines):
        time.sleep(0.001)
    child.join(seconds)
    if child.exitcode is None:
        child.kill()
        child.join()
        return False
    if child.exitcode:
        raise ChildProcessError(f"the child that ran {words} ended with {child.exitcode}")
    return True


def count_lines(folder: Path) -> int:
    """Lines in the metrics of the one run in that folder."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*/metrics.jsonl"))


def state_of_metrics(folder: Path) -> list[tuple[int, int]]:
    """(time of modification, size) of the metrics in that folder."""
    stats = [path.stat() for path in folder.glob("*/metrics.jsonl")]
    return [(stat.st_mtime_ns, stat.st_size) for stat in stats]


def undisturbed(words: list[str], folder: Path) -> tuple[Path, int]:
    """(directory, lines of metrics) of the same run without a kill."""
    directory = run([*words, f"output_dir={folder}"]).directory
    return directory, count_lines(folder)


def left_behind(directory: Path) -> tuple[list[dict], pd.DataFrame, dict[str, torch.Tensor]]:
    """(metrics without wall times, trace, final weights)."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if k != "wall_time"} for line in lines]
    weights = torch.load(directory / "model_final.pt", weights_only=True)
    return rows, pd.read_parquet(directory / "trace.parquet"), weights


def assert_same(one: Path, other: Path) -> None:
    """Bit for bit, no line lost or doubled."""
    rows, _, weights = left_behind(one)
    other_rows, _, other_weights = left_behind(other)
    assert rows == other_rows
    tables = sorted(path.name for path in one.glob("*.parquet"))
    assert tables == sorted(path.name for path in other.glob("*.parquet"))
    for name in tables:
        pd.testing.assert_frame_equal(pd.read_parquet(one / name), pd.read_parquet(other / name), check_exact=True)
    assert weights.keys() == other_weights.keys()
    for name, value in weights.items():
        assert torch.equal(value, other_weights[name]), name


def crash(case: str, kills_wanted: int, folder: Path) -> str:
    """Kills runs of one case until there were enough, compares each that ended; a row of the table."""
    evaluated = [] if any("evaluation." in word for word in CRASHES[case]) else ["evaluation.every=20"]
    words = [*WORDS, *evaluated, f"algorithm={case.split()[0]}", *CRASHES[case]]
    whole, lines = undisturbed(words, folder / "whole")
    moments, kills, ended = random.Random(case), 0, 0
    while kills < kills_wanted or not ended:
        killed = folder / f"killed{ended}"
        moment = moments.randrange(lines - 1), moments.uniform(0, 0.05)
        if kills < kills_wanted and not run_until_killed(words, killed, *moment):
            kills += 1
            continue
        directory = run([*words, f"output_dir={killed}"]).directory
        assert_same(directory, whole)
        ended += 1
    rows, trace, _ = left_behind(whole)
    return f"| {case} | {kills} | {ended} | {len(rows)} | {len(trace)} | equal |"


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print("| run | kills | runs ended and compared | metrics lines | trace rows | metrics, trace, weights |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for case in CRASHES:
        with tempfile.TemporaryDirectory() as folder:
            print(crash(case, wanted, Path(folder)), flush=True)
