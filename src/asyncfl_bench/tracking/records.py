"""Checked records of runs, the common form of a run in a directory and in an archive."""

from __future__ import annotations

import functools
import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..config.classes import UNKNOWN, is_own_class
from ..config.settings import NOT_IDENTITY, PARTS, fill_in_precision, identity_of_tree, results_version_of
from ..errors import BenchError, first_line
from ..files import LARGEST_FILE, read_json, read_parquet, read_yaml, sha256_of
from .rundir import (
    CLIENTS_NAME,
    CONFIG_NAME,
    FILES,
    METRICS_NAME,
    REPORTED,
    SUMMARY_NAME,
    describe_changed_file,
    iter_metrics,
)

MEASURED = ("ok", "diverged")  # statuses of runs that ended by themselves
NUMBERS = ("final", "best", "used", "arrivals")  # reproducible sections of a summary

_NOTE = 200  # letters of a note about a value
_EXACT = 2**53  # whole numbers up to here are exact in floating point
_MOST_VALUES = 2**27  # of all columns
_HELD = 4096  # runs that are kept in memory until their files change


@dataclass(frozen=True)
class Record:
    """Content of one run's files.

    points   columns of metrics.jsonl; NaN for missing numbers
    clients  columns of clients.parquet; empty without this file
    """

    name: str
    status: str
    note: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    points: dict[str, np.ndarray] = field(default_factory=dict)
    clients: dict[str, np.ndarray] = field(default_factory=dict)

    @functools.cached_property
    def identity(self) -> str | None:
        return identity_of(self.config) or self.summary.get("identity")

    @functools.cached_property
    def experiment(self) -> str | None:
        return self.summary.get("experiment") or identity_of(self.config, without_seed=True)

    @property
    def code(self) -> str | None:
        """Digest of the user's code in the run; None without such code, ``unknown`` for an earlier version."""
        if digest := self.summary.get("code_digest"):
            return str(digest)
        sections = [self.config.get(name) for name in PARTS if name not in NOT_IDENTITY]
        targets = [str(one["_target_"]) for one in sections if isinstance(one, dict) and "_target_" in one]
        return UNKNOWN if any(map(is_own_class, targets)) else None

    @property
    def results_version(self) -> object:
        return self.summary.get("results_version")

    @property
    def is_current(self) -> bool:
        """True if the rule still computes the numbers of the run's results version."""
        rule = self.config.get("algorithm")
        return self.results_version == results_version_of(rule.get("_target_") if isinstance(rule, dict) else None)


def find_runs(paths: list[Path]) -> tuple[list[Path], list[Path], dict[Path, str]]:
    """Find run directories, archives, and folders that cannot be listed (-> reason) at or below ``paths``, sorted.

    Raises BenchError if a path does not exist.
    """
    directories: dict[Path, Path] = {}
    archives: dict[Path, Path] = {}
    closed: dict[Path, str] = {}

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # the folder was removed meanwhile
            closed[Path(error.filename)] = f"cannot be listed: {error.strerror}"

    for path in paths:
        if path.is_file() and path.suffix == ".parquet":
            archives.setdefault(path.resolve(), path)
            continue
        if not path.is_dir():
            raise BenchError(f"{path}: no such directory or archive")
        for folder, files in run_folders(path, note):
            if CONFIG_NAME in files:
                directories.setdefault(folder.resolve(), folder)
                continue
            for name in files:
                if name.endswith(".parquet") and not name.startswith("."):
                    archives.setdefault((folder / name).resolve(), folder / name)
    return sorted(directories.values()), sorted(archives.values()), dict(sorted(closed.items()))


def run_folders(path: Path, note: Callable[[OSError], None] | None = None) -> Iterator[tuple[Path, list[str]]]:
    """Yield each folder at or below ``path`` that may have runs, with its files. Links are followed.

    Folders of Hydra and W&B also have a config.yaml. They start with a dot, are called ``wandb`` or are inside a run
    directory, and are skipped. ``note`` gets the error of a folder that cannot be listed.
    """
    entered: set[str] = set()
    for folder, below, files in os.walk(path, onerror=note, followlinks=True):
        if (real := os.path.realpath(folder)) in entered:
            below.clear()
            continue
        entered.add(real)
        inside = CONFIG_NAME in files
        below[:] = [] if inside else sorted(name for name in below if not name.startswith(".") and name != "wandb")
        yield Path(folder), files


def read_directory(path: Path) -> Record:
    """Return the record of a run directory; of status ``unreadable`` if a file cannot be read."""
    return _read_directory(
        path, tuple(stamp_or_none(path / name) for name in (CONFIG_NAME, SUMMARY_NAME, METRICS_NAME))
    )


@functools.lru_cache(maxsize=_HELD)
def _read_directory(path: Path, stamps: tuple) -> Record:
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    points: dict[str, np.ndarray] = {}
    name, part = path.name, CONFIG_NAME
    try:
        config = read_yaml(path / part)
        if not isinstance(config, dict):
            config = {}
            raise ValueError("not a mapping")
        if stamps[1] is None:
            return check_record(Record(name, "incomplete", f"no {SUMMARY_NAME}: still running, or killed", config))
        part = SUMMARY_NAME
        summary = read_json(path / part)
        if not isinstance(summary, dict) or not isinstance(summary.get("exit_status"), str):
            summary = {}
            raise ValueError("no exit_status")
        changed = describe_changed_file(summary, path, REPORTED)
        summary.pop(FILES, None)
        if changed:
            return check_record(Record(name, "inconsistent", changed, config, summary))
        name, status, part = str(summary.get("name") or name), summary["exit_status"], METRICS_NAME
        if status in MEASURED:
            points = _build_columns(iter_metrics(path / part))
        part = CLIENTS_NAME
        table = read_parquet(path / part) if "clients" in summary else None
        clients = {} if table is None else {column: table[column].to_numpy() for column in table.column_names}
    except (BenchError, OSError, ValueError, OverflowError) as error:
        where = Path(getattr(error, "filename", None) or path / part)
        return check_record(Record(name, "unreadable", _describe(error, where), config, summary))
    note = "" if status == "ok" else str(summary.get("error") or "").partition("\n")[0]
    return check_record(Record(name, status, note, config, summary, points, clients))


def name_precision(record: Record) -> Record:
    """Return a run of an earlier version with its precision as a setting, and the names that follow from it."""
    config = fill_in_precision(record.config, record.summary)
    if config is record.config:
        return record
    old: Any = record.summary.get("identity")
    digests = record.summary.get("digests") or {}
    trees = record.config, config, {**config, "seed": None}
    try:
        before, new, experiment = (identity_of_tree(tree, digests) for tree in trees)
    except (KeyError, AttributeError, TypeError):
        before = None
    if before != old:  # a contradiction
        return record
    names = {"name": record.summary["name"].replace(old, new), "identity": new, "experiment": experiment}
    return replace(record, name=record.name.replace(old, new), config=config, summary=record.summary | names)


def check_record(record: Record) -> Record:
    """Return the record with its checked status.

    The status is ``unreadable`` if values that pages read have another type, ``inconsistent`` if parts contradict
    each other.
    """
    readable = record.status != "unreadable"
    if problem := _describe_malformed(record):
        return Record(record.name, "unreadable", problem if readable else record.note)
    record = name_precision(record)
    problem = _describe_contradiction(record) if readable else ""
    return replace(record, status="inconsistent", note=problem, points={}, clients={}) if problem else record


def _describe_malformed(record: Record) -> str:
    """Describe a malformed value of a record; empty without one."""
    config, summary = record.config, record.summary
    if config and type(config.get("seed")) is not int:
        return f"{CONFIG_NAME}: seed {config.get('seed')!r} is not a whole number"
    chosen = config.get("choices")
    texts = {f"{CONFIG_NAME}: choice of {key}": of for key, of in (chosen if isinstance(chosen, dict) else {}).items()}
    texts |= {f"{SUMMARY_NAME}: {key}": summary.get(key) for key in ("identity", "experiment", "data_digest")}
    numbers = {f"{SUMMARY_NAME}: wall_seconds": summary.get("wall_seconds")}
    for section in ("used", "final"):
        found = summary.get(section)
        numbers |= {f"{SUMMARY_NAME}: {section} {k}": v for k, v in (found if isinstance(found, dict) else {}).items()}
    for what, table in ((METRICS_NAME, record.points), (CLIENTS_NAME, record.clients)):
        if len({len(values) for values in table.values()}) > 1:
            return f"{what}: columns differ in length"
        if other := [name for name, values in table.items() if values.dtype.kind not in "biuf"]:
            return f"{what}: {other[0]} is not a column of numbers"[:_NOTE]
    for kinds, what, values in (((str,), "text", texts), ((int, float), "number", numbers)):
        for key, value in values.items():
            if value is not None and not isinstance(value, kinds):
                return f"{key} {value!r} is not a {what}"[:_NOTE]
    return ""


def _describe_contradiction(record: Record) -> str:
    """Describe a contradiction between parts of a record; empty without one."""
    computed = {"identity": identity_of(record.config), "experiment": identity_of(record.config, without_seed=True)}
    for key, value in computed.items():  # None if a file is missing
        if record.summary.get(key, value) not in (value, None) and value is not None:
            return f"{SUMMARY_NAME} says {key} {record.summary[key]}, {CONFIG_NAME} gives {value}"
    for key, values in record.points.items():
        if key.endswith("accuracy") and ((values < 0) | (values > 1)).any():
            return f"{METRICS_NAME}: {key} is not a share between 0 and 1"
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
        if isinstance(value, float) and (not len(measured) or measured[-1] not in (value, np.float32(value))):
            last = measured[-1] if len(measured) else "missing"
            return f"{SUMMARY_NAME} says {key} {value}, the last of {METRICS_NAME} is {last}"
    return ""


def identity_of(tree: dict[str, Any], without_seed: bool = False) -> str | None:
    """Return 8 hex digits of a hash over the settings that decide a run's numbers, as the run computes it.

    without_seed  return that of the experiment, which runs with different seeds share
    None if a file in the settings cannot be read, for data in a folder, which differ between machines, and for anything
    that is not a config.
    """
    digests = {}
    if isinstance(section := tree.get("dataset"), dict) and "folder" in section:
        return None
    try:
        for name in PARTS:
            if name not in NOT_IDENTITY and (path := (tree.get(name) or {}).get("path")):
                digests[name] = sha256_of(path, LARGEST_FILE)
        return identity_of_tree({**tree, "seed": None} if without_seed else tree, digests)
    except (OSError, KeyError, AttributeError, TypeError, ValueError):
        return None


def _build_columns(lines: Iterable[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the numbers of the lines by name; int64 for whole numbers without gaps, else float64.

    Raises ValueError for anything but numbers.
    """
    columns: dict[str, array[float]] = {}
    broken: set[str] = set()  # columns with a value that is missing or not whole
    count = 0
    for count, line in enumerate(lines, start=1):
        if count * len(columns) > _MOST_VALUES:
            raise ValueError(f"line {count}: {len(columns)} columns are too many for so long a file")
        for name, value in line.items():
            column = columns.setdefault(name, array("d"))
            if type(value) is not int or len(column) < count - 1:
                if value is not None and not isinstance(value, (int, float)):
                    raise ValueError(f"line {count}: {name} {value!r} is not a number"[:_NOTE])
                broken.add(name)
            column.extend([math.nan] * (count - 1 - len(column)))
            column.append(math.nan if value is None else value)
    for name, column in columns.items():
        if len(column) < count or any(abs(value) > _EXACT for value in (min(column), max(column))):
            broken.add(name)
        column.extend([math.nan] * (count - len(column)))
    found = {name: np.array(column) for name, column in columns.items()}
    return {name: values if name in broken else values.astype(np.int64) for name, values in found.items()}


def stamp_or_none(path: Path) -> tuple[int, int] | None:
    """Return a file's time of change [ns] and size [bytes]; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _describe(error: Exception, path: Path) -> str:
    """Describe a problem of a file without its folder: ``metrics.jsonl, line 3: not a JSON object``."""
    text = getattr(error, "strerror", None) or first_line(error)
    return path.name + text.removeprefix(str(path)) if text.startswith(str(path)) else f"{path.name}: {text}"
