"""What one run left, read from its directory and checked: the common form of a run in a directory and in an archive."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..config import NOT_IDENTITY, PARTS, identity_of_tree
from ..errors import BenchError
from ..files import read_json, read_yaml
from .metrics import read_metrics
from .rundir import CONFIG_NAME, METRICS_NAME, SUMMARY_NAME

MEASURED = ("ok", "diverged")  # statuses of runs that came to an end of their own


_HELD = 4096  # runs whose files are kept in memory as long as they do not change


@dataclass(frozen=True)
class Record:
    """What one run left. points: the columns of metrics.jsonl, NaN where a line has no such number."""

    name: str
    status: str
    note: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    points: dict[str, np.ndarray] = field(default_factory=dict)

    @functools.cached_property
    def identity(self) -> str | None:
        return identity_of(self.config) or self.summary.get("identity")

    @functools.cached_property
    def experiment(self) -> str | None:
        return self.summary.get("experiment") or identity_of(self.config, without_seed=True)

    @property
    def results_version(self) -> object:
        return self.summary.get("results_version")


def find(places: list[Path]) -> tuple[list[Path], list[Path]]:
    """(run directories, archives) at or below ``places``, sorted, each once.

    Folders of Hydra and W&B keep a config.yaml too; they start with a dot, are called ``wandb``, or lie inside a run
    directory, and are not entered. Raises BenchError when a place does not exist.
    """
    directories: dict[Path, Path] = {}
    archives: dict[Path, Path] = {}
    for place in places:
        if place.is_file() and place.suffix == ".parquet":
            archives.setdefault(place.resolve(), place)
            continue
        if not place.is_dir():
            raise BenchError(f"{place}: no such directory or archive")
        for folder, below, files in os.walk(place):
            if CONFIG_NAME in files:
                directories.setdefault(Path(folder).resolve(), Path(folder))
                below.clear()
                continue
            for name in files:
                if name.endswith(".parquet") and not name.startswith("."):
                    archives.setdefault((Path(folder) / name).resolve(), Path(folder) / name)
            below[:] = sorted(name for name in below if not name.startswith(".") and name != "wandb")
    return sorted(directories.values()), sorted(archives.values())


def read_directory(path: Path) -> Record:
    """What cannot be read is a record of status ``unreadable``, never an exception."""
    return _read_directory(path, tuple(_stamp(path / name) for name in (CONFIG_NAME, SUMMARY_NAME, METRICS_NAME)))


@functools.lru_cache(maxsize=_HELD)
def _read_directory(path: Path, stamps: tuple) -> Record:
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    try:
        part = CONFIG_NAME
        config = read_yaml(path / part)
        if not isinstance(config, dict):
            config = {}
            raise ValueError("not a mapping")
        if stamps[1] is None:
            return Record(path.name, "incomplete", f"no {SUMMARY_NAME}: still running, or killed", config)
        part = SUMMARY_NAME
        summary = read_json(path / part)
        if not isinstance(summary, dict) or not isinstance(summary.get("exit_status"), str):
            summary = {}
            raise ValueError("no exit_status")
    except (OSError, ValueError) as error:
        return Record(path.name, "unreadable", f"{part}: {_first_line(error)}", config, summary)
    name, status = str(summary.get("name") or path.name), summary["exit_status"]
    note = "" if status == "ok" else str(summary.get("error") or "").partition("\n")[0]
    points: dict[str, np.ndarray] = {}
    if status in MEASURED:
        try:
            points = _columns(read_metrics(path / METRICS_NAME))
        except (BenchError, OSError, ValueError) as error:
            return Record(name, "unreadable", f"{METRICS_NAME}: {_first_line(error)}", config, summary)
    return checked(Record(name, status, note, config, summary, points))


def checked(record: Record) -> Record:
    """The record, ``inconsistent`` where its parts contradict each other."""
    problem = _contradiction(record)
    return replace(record, status="inconsistent", note=problem, points={}) if problem else record


def _contradiction(record: Record) -> str:
    said = record.summary.get("identity")
    if said is not None and said != record.identity:
        return f"{SUMMARY_NAME} says identity {said}, {CONFIG_NAME} gives {record.identity}"
    for key, values in record.points.items():
        if key.endswith("accuracy") and ((values < 0) | (values > 1)).any():
            return f"{METRICS_NAME}: {key} is no share between 0 and 1"
    if (np.diff(record.points.get("iteration", ())) < 0).any():
        return f"{METRICS_NAME}: the iterations are not in order"
    if record.status != "ok":
        return ""
    if not record.points:
        return f"{SUMMARY_NAME} says ok, but {METRICS_NAME} has no points"
    final = record.summary.get("final")
    for key, value in (final if isinstance(final, dict) else {}).items():
        measured = record.points.get(key, np.zeros(0))
        measured = measured[~np.isnan(measured)]
        if isinstance(value, float) and (not len(measured) or measured[-1] != value):
            last = measured[-1] if len(measured) else "missing"
            return f"{SUMMARY_NAME} says {key} {value}, the last of {METRICS_NAME} is {last}"
    return ""


def identity_of(tree: dict[str, Any], without_seed: bool = False) -> str | None:
    """8 hex digits of a hash over the settings that decide a run's numbers, as the run itself computes it.

    without_seed  of the experiment: runs that differ in nothing but their seed have the same one
    Returns None where a setting names a file that cannot be read, whose content counts and not its place, and for what
    is no config.
    """
    digests = {}
    try:
        for name in PARTS:
            if name not in NOT_IDENTITY and (path := tree[name].get("path")):
                with open(Path(path).expanduser(), "rb") as file:
                    digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
        return identity_of_tree({**tree, "seed": None} if without_seed else tree, digests)
    except (OSError, KeyError, AttributeError, TypeError):
        return None


def _columns(lines: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """The numbers of the lines, whole ones as such where no line lacks them."""
    columns: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(itertools.chain(*lines)):
        values = [line.get(name) for line in lines]
        if {type(value) for value in values} == {int}:
            columns[name] = np.array(values, dtype=np.int64)
        elif all(value is None or isinstance(value, (int, float)) for value in values):
            columns[name] = np.array([math.nan if value is None else value for value in values], dtype=float)
    return columns


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__} {error}".partition("\n")[0]
