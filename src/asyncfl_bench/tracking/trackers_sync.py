"""``afl-run --sync``: what W&B kept offline is sent, once; the pieces of a run that was interrupted become one run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..errors import BenchError, ConfigError
from ..files import is_locked
from .rundir import LOCK_NAME

_FILES = "wandb/offline-run-*/run-*.wandb"


def send_offline_runs(folders: list[str]) -> int:
    """Send the offline runs below ``folders`` by ``wandb sync`` and print what was sent. Returns the exit code.

    W&B marks what it has sent, so nothing is sent twice; it sends pieces with one id in the order of their start. A
    run that has not ended is left for later: its piece would be marked with half of it sent.
    """
    places = [Path(folder).expanduser() for folder in folders]
    for place in places:
        if not place.is_dir():
            raise ConfigError("--sync", place, "no such folder; afl-run --sync DIR names the one with the runs")
    found = sorted({file.resolve() for place in places for file in place.rglob(_FILES)})
    under_way = [file for file in found if is_locked(file.parents[2] / LOCK_NAME)]
    pending = [file for file in found if file not in under_way and not _is_sent(file)]
    print(
        f"{_count_text(pending)} to send, {_count_text([file for file in found if _is_sent(file)])} sent before", end=""
    )
    print(f", {_count_text(under_way)} still running" if under_way else "", flush=True)
    if not pending:
        return 0
    command = [sys.executable, "-m", "wandb", "sync", *map(str, pending)]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace")
    left = [file for file in pending if not _is_sent(file)]
    for name in sorted({_run_id(file) for file in pending} - {_run_id(file) for file in left}):
        pieces = [file for file in pending if _run_id(file) == name]
        parts = f" ({len(pieces)} pieces)" if len(pieces) > 1 else ""
        print(f"sent {name}{parts} from {pieces[0].parents[2]}")
    if left:
        said = [line for line in (answer.stdout + answer.stderr).splitlines() if "rror" in line] or ["no reason given"]
        raise BenchError(f"{_count_text(left)} not sent ({said[-1].strip()}); the same command tries again")
    return 0


def _is_sent(file: Path) -> bool:
    return file.with_name(f"{file.name}.synced").exists()


def _run_id(file: Path) -> str:
    return file.stem.removeprefix("run-")


def _count_text(files: list[Path]) -> str:
    """Return the number of runs with its noun: ``2 runs``."""
    number = len({_run_id(file) for file in files})
    return f"{number} run{'s' * (number != 1)}"
