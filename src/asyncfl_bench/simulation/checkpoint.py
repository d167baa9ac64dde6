"""A run's whole state in one file, replaced atomically, with the previous one kept until the new one is complete."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

from ..errors import BenchError

FORMAT = "asyncfl_bench checkpoint 1"
PARTS = (
    *("simulation", "rule", "executor", "model_d", "arrivals", "steps", "diagnostics", "trace", "lines", "logged_at"),
    *("last", "best", "next_time", "checkpoint_iteration", "wall_time", "evaluation_seconds"),
)


def save(path: Path, identity: str, state: dict, contract: int = 0) -> None:
    """Writes ``state`` (plain containers and tensors). The file before it stays as ``<name>.previous``."""
    import torch

    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save({"format": FORMAT, "results_version": contract, "identity": identity, "state": state}, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch's own writer raises RuntimeError on a full disk
        temporary.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0][:150]
        raise BenchError(f"{path}: the checkpoint could not be written: {reason}") from error
    if path.exists():  # at no moment is there no checkpoint under its own name
        link = path.with_name(path.name + ".link")
        link.unlink(missing_ok=True)
        try:
            os.link(path, link)
        except OSError:  # a file system without links
            shutil.copyfile(path, link)
        os.replace(link, previous_of(path))
    os.replace(temporary, path)


def exists(path: Path) -> bool:
    """Whether there is anything to go on from."""
    return path.exists() or previous_of(path).exists()


def previous_of(path: Path) -> Path:
    return path.with_name(path.name + ".previous")


def load(path: Path, identity: str, contract: int = 0, lines: float = math.inf) -> tuple[dict, list[str]]:
    """(state, remarks) from ``path``, or from the previous file when it is unusable; the remarks say what was wrong.

    lines  complete lines there are in metrics.jsonl: a checkpoint written after more of them cannot be gone on from
    Raises BenchError when neither can be used.
    """
    remarks: list[str] = []
    for candidate in (path, previous_of(path)):
        if not candidate.exists():
            continue
        try:
            return _read(candidate, identity, contract, lines), remarks
        except BenchError as error:
            remarks.append(str(error))
    raise BenchError("; ".join(remarks) or f"{path}: there is no checkpoint to go on from")


def _read(path: Path, identity: str, contract: int, lines: float) -> dict:
    import torch

    try:
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # a cache may be larger than memory
    except Exception as error:  # torch raises many kinds for truncated, foreign and unreadable files
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BenchError(f"{path}: not a readable checkpoint ({reason[:100]})") from None
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise BenchError(f"{path}: not a checkpoint of this program and version")
    if saved.get("identity") != identity:
        raise BenchError(f"{path}: belongs to run {saved.get('identity')}, not to {identity}: its settings differ")
    if saved.get("results_version") != contract:
        raise BenchError(f"{path}: made by a version of this program that computes other numbers")
    state = saved.get("state")
    state = state if isinstance(state, dict) else {}
    missing = [part for part in PARTS if part not in state]
    if missing:
        raise BenchError(f"{path}: the checkpoint lacks {', '.join(missing)}")
    if state["lines"] > lines:
        raise BenchError(f"{path}: written after {state['lines']} lines of metrics.jsonl, which has {lines}")
    return state
