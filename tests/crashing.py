"""Runs that are killed without warning, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import pandas as pd
import torch

from asyncfl_bench import run


def run_until_killed(words: list[str], seconds: float) -> bool:
    """Runs in a child process that gets kill -9 after so many seconds; True when it ended by itself before."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if run(words).ok else 1)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(2)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            return True
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def left_behind(directory: Path) -> tuple[list[dict], pd.DataFrame, dict[str, torch.Tensor]]:
    """(metrics without wall times, trace, final weights)."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if k != "wall_time"} for line in lines]
    weights = torch.load(directory / "model_final.pt", weights_only=True)
    return rows, pd.read_parquet(directory / "trace.parquet"), weights


def assert_same(one: Path, other: Path) -> None:
    """Bit for bit, no line lost or doubled."""
    rows, trace, weights = left_behind(one)
    other_rows, other_trace, other_weights = left_behind(other)
    assert rows == other_rows
    pd.testing.assert_frame_equal(trace, other_trace, check_exact=True)
    assert weights.keys() == other_weights.keys()
    for name, value in weights.items():
        assert torch.equal(value, other_weights[name]), name
