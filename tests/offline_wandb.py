"""Reading back what W&B wrote offline, with W&B's own reader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def records(directory: Path) -> dict[str, list[dict]]:
    """What the one offline run below ``directory`` holds, by kind of record."""
    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found: dict[str, list[dict]] = {}
    for line in lines:
        record = json.loads(line)
        found.setdefault(record["type"], []).append(record[record["type"]])
    return found


def points(found: dict[str, list[dict]]) -> list[dict]:
    items = [record["item"] for record in found["history"]]
    return [{key: value for key, value in item.items() if not key.startswith("_")} for item in items]
