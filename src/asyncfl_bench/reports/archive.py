"""Many finished runs in one file: settings, summaries and metrics, without weights."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from .runs import Record


def pack(places: list[str | Path], target: Path) -> int:
    """Writes the finished runs (ok and diverged) at or below ``places`` to ``target``; returns how many it then holds."""
    raise NotImplementedError


def archived(folder: Path) -> dict[str, Path]:
    """identity -> archive, of every run that ended well in an archive at or below ``folder``."""
    raise NotImplementedError


def read_archive(path: Path) -> list[Record]:
    raise NotImplementedError


def archived_points(path: Path, names: list[str]) -> pd.DataFrame:
    raise NotImplementedError
