"""Runs as frames: one row a run, and one row an evaluation, from run directories and archives alike."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from ..config import NOT_IDENTITY, PARTS, identity_of_tree
from ..errors import BenchError
from .metrics import COUNTERS, read_metrics
from .rundir import CONFIG_NAME, METRICS_NAME, SUMMARY_NAME

FIXED = (
    "name",
    "status",
    "note",
    "algorithm",
    "seed",
    "identity",
    "experiment",
    "results_version",
    "data_digest",
)
MEASURED = ("ok", "diverged")  # statuses of runs that came to an end of their own
_SEPARATOR = "::"  # archive.parquet::name of the run
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


def load_runs(*places: str | Path) -> pd.DataFrame:
    """One row a run, from run directories and archives (``*.parquet``) at or below ``places``.

    Index ``run``: the directory, or ``archive.parquet::name``. Columns:
      name, algorithm, seed, identity, experiment, results_version, data_digest
      status   ok, diverged, failed, interrupted, incomplete (no summary.json), unreadable or inconsistent (the files
               contradict each other); note: why, in a few words
      ``delay``, ``dataset``, ``profile`` …      what was chosen for a group
      ``delay.beta``, ``heterogeneity.alpha`` …  settings; a list is text; None where the run has no such setting
      ``summary.used.uploads`` …                 what summary.json says, under its own names
    Raises BenchError when a place does not exist or holds no run.
    """
    records: dict[str, Record] = {}
    directories, archives = find([Path(place) for place in places])
    for directory in directories:
        records[str(directory)] = read_directory(directory)
    for archive in archives:
        records |= _archived(archive)
    if not records:
        where = ", ".join(str(place) for place in places) or "no place"
        raise BenchError(f"{where}: no runs found (a run directory holds a {CONFIG_NAME}; an archive ends in .parquet)")
    return frame_of(records)


def frame_of(records: dict[str, Record]) -> pd.DataFrame:
    """The frame of ``load_runs`` for records by the text that is their index."""
    rows = [_row(record) for record in records.values()]
    keys = dict.fromkeys([*FIXED, *(key for row in rows for key in row)])
    settings = [key for key in keys if not key.startswith("summary.")]
    ordered = [*settings, *(key for key in keys if key.startswith("summary."))]
    columns = {key: _column([row.get(key) for row in rows]) for key in ordered}
    return pd.DataFrame(columns, index=pd.Index(list(records), name="run", dtype=object))


def load_points(runs: pd.DataFrame) -> pd.DataFrame:
    """One row an evaluation of ``runs`` (of ``load_runs``), in their order: ``run`` (their index), the counters
    iteration, uploads, client_steps, virtual_time and wall_time, then metrics (``test/accuracy`` as a share); NaN where
    a point has no such metric. A run that came to no end of its own (failed, incomplete, unreadable) has no points.
    """
    read: dict[str, Record] = {}
    for archive in {str(run).partition(_SEPARATOR)[0] for run in runs.index if _SEPARATOR in str(run)}:
        read |= _archived(Path(archive))
    columns: list[dict[str, np.ndarray]] = []
    for run in map(str, runs.index):
        if run not in read:
            read[run] = read_directory(Path(run))
        columns.append(read[run].points)
    lengths = [len(next(iter(points.values()), ())) for points in columns]
    names = set(itertools.chain(*columns))
    frame: dict[str, Any] = {"run": np.repeat(np.array(runs.index, dtype=object), lengths)}
    for name in (*COUNTERS, *sorted(names - set(COUNTERS))):
        parts = [points.get(name, np.full(length, math.nan)) for points, length in zip(columns, lengths, strict=True)]
        frame[name] = np.concatenate([part for part in parts if len(part)] or [np.zeros(0)])
    return pd.DataFrame(frame)


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
        config = yaml.load((path / part).read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if not isinstance(config, dict):
            config = {}
            raise ValueError("not a mapping")
        if stamps[1] is None:
            return Record(path.name, "incomplete", f"no {SUMMARY_NAME}: still running, or killed", config)
        part = SUMMARY_NAME
        summary = json.loads((path / part).read_text())
        if not isinstance(summary, dict) or not isinstance(summary.get("exit_status"), str):
            summary = {}
            raise ValueError("no exit_status")
    except (OSError, ValueError, yaml.YAMLError) as error:
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


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level with dotted keys, lists as text, without empty mappings."""
    if not isinstance(node, dict):
        return {prefix: json.dumps(node, default=str) if isinstance(node, (list, tuple)) else node}
    flat: dict[str, Any] = {}
    for key, item in node.items():
        flat |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return flat


def shown(value: object) -> str:
    """A setting in YAML's words, ``-`` for none; numbers to six digits."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}" if float(f"{value:.6g}") != value else json.dumps(float(value))
    if isinstance(value, (bool, np.bool_)):
        return json.dumps(bool(value))
    return str(value)


def _row(record: Record) -> dict[str, Any]:
    config, summary = dict(record.config), record.summary
    choices = config.pop("choices", None)
    chosen = {str(key): value for key, value in choices.items()} if isinstance(choices, dict) else {}
    algorithm = config.get("algorithm")
    target = str(algorithm.get("_target_")) if isinstance(algorithm, dict) else "?"
    fixed = {
        "name": record.name,
        "status": record.status,
        "note": record.note,
        "algorithm": chosen.get("algorithm") or target.rpartition(".")[2].lower(),
        "seed": config.get("seed"),
        "identity": record.identity,
        "experiment": record.experiment,
        "results_version": record.results_version,
        "data_digest": summary.get("data_digest"),
    }
    return flatten(config) | chosen | fixed | (flatten(summary, "summary") if summary else {})


def _column(values: list[Any]) -> pd.Series:
    """Numbers and truths as such where all of a column are of one kind, else the values as they are."""
    kinds = {type(value) for value in values}
    if kinds == {bool} or kinds == {int} or kinds == {float}:
        return pd.Series(values).to_numpy()  # type: ignore[return-value]
    if kinds <= {int, float, type(None)} and float in kinds and int not in kinds:
        return np.array([math.nan if value is None else value for value in values])  # type: ignore[return-value]
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column  # type: ignore[return-value]


def _archived(path: Path) -> dict[str, Record]:
    """Index -> record; of a file that cannot be read one record that says so."""
    from .archive import read_archive

    try:
        return {f"{path}{_SEPARATOR}{record.name}": record for record in read_archive(path)}
    except BenchError as error:
        return {f"{path}{_SEPARATOR}": Record(path.name, "unreadable", str(error))}


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
