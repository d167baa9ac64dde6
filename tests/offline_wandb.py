"""Reading back what W&B wrote offline, with W&B's own reader."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path


def records(directory: Path) -> dict[str, list[dict]]:
    """What the one offline run below ``directory`` holds, by kind of record.

    W&B writes from a process of its own, which on a busy machine may still be at it: the last record of a finished run
    is waited for, but not for long, since a run that was never finished has none.
    """
    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    for _ in range(10):
        answer = subprocess.run(command, capture_output=True, text=True)
        found: dict[str, list[dict]] = {}
        for line in answer.stdout.splitlines():
            record = json.loads(line)
            found.setdefault(record["type"], []).append(record[record["type"]])
        if answer.returncode == 0 and "exit" in found:
            break
        time.sleep(0.3)
    return found


def points(found: dict[str, list[dict]]) -> list[dict]:
    items = [record["item"] for record in found["history"]]
    return [{key: value for key, value in item.items() if not key.startswith("_")} for item in items]


def exit_codes(found: dict[str, list[dict]]) -> list[int]:
    """Of each time the run ended; beside the code W&B keeps the whole seconds it took, once there are any."""
    return [record["exit_code"] for record in found["exit"]]
