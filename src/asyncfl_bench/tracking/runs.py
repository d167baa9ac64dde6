"""Frames with a row for each run, evaluation or client, from run directories and archives."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..config.overrides import flat_items
from ..config.settings import ABSENT
from ..errors import BenchError, InputError
from ..files import clean_text
from .archive import read_archive
from .records import Record, find_runs, read_directory
from .rundir import CONFIG_NAME, COUNTERS, SENT

FIXED = (
    *("name", "status", "note", "algorithm", "seed", "identity", "experiment"),
    *("results_version", "data_digest", "code"),
)
CLIENT_COLUMNS = ("client", "samples", "uploads", "mean_delay", "accuracy")  # of every run
# (model_type, layers, hidden_size) of config.json -> the name in published numbers; MiniLM keeps that of archived runs
ENCODERS = {("bert", 12, 768): "bert_base", ("distilbert", 6, 768): "distilbert", ("bert", 6, 384): "bert"}
_SEPARATOR = "::"  # archive.parquet::name of the run


def load_runs(*paths: str | Path) -> pd.DataFrame:
    """Return a frame with a row for each run in directories and archives (``*.parquet``) at or below ``paths``.

    Index ``run``: the directory, or ``archive.parquet::name``. Columns:
      name, algorithm, seed, identity, experiment, results_version, data_digest
      code     digest of the user's code; None without such code
      status   ok, diverged, failed, interrupted, incomplete (no summary.json), unreadable (also a folder that cannot be
               listed) or inconsistent (the files contradict each other)
      note     reason of the status
      ``delay``, ``dataset``, ``profile`` …      choice for a group; ``model`` of an encoder other than MiniLM is its
                                                 architecture and size
      ``delay.beta``, ``heterogeneity.alpha`` …  settings; lists are text; None if the run lacks the setting
      ``summary.used.uploads`` …                 entries of summary.json
    Raises BenchError if a path does not exist or has no run.
    """
    records: dict[str, Record] = {}
    if wrong := [type(path).__name__ for path in paths if not isinstance(path, str | os.PathLike)]:
        raise InputError(f"paths={wrong[0]}: must be folders or archives, for example load_runs('runs', 'others')")
    directories, archives, closed = find_runs([Path(path) for path in paths])
    for directory in directories:
        records[str(directory)] = read_directory(directory)
    for archive in archives:
        records |= _archive_records(archive)
    records |= {str(folder): Record(str(folder), "unreadable", why) for folder, why in closed.items()}
    if not records:
        where = ", ".join(str(path) for path in paths) or "no path"
        raise BenchError(f"{where}: no runs found (a run directory holds a {CONFIG_NAME}; an archive ends in .parquet)")
    return build_frame(records)


def build_frame(records: dict[str, Record]) -> pd.DataFrame:
    """Return the frame of ``load_runs`` for records by their index."""
    rows = [_build_row(record) for record in records.values()]
    keys = dict.fromkeys([*FIXED, *(key for row in rows for key in row)])
    settings = [key for key in keys if not key.startswith("summary.")]
    ordered = [*settings, *(key for key in keys if key.startswith("summary."))]
    columns = {key: _to_column([row.get(key) for row in rows]) for key in ordered}
    return pd.DataFrame(columns, index=pd.Index(list(records), name="run", dtype=object))


def load_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with a row for each evaluation of ``runs`` (of ``load_runs``), in their order.

    Columns are ``run`` (their index), the counters iteration, uploads, client_steps, virtual_time and wall_time,
    ``bytes`` (sent in both directions, if runs counted them) and metrics (``test/accuracy`` as a share), with NaN for
    missing numbers. Runs that are neither ok nor diverged have no points.
    """
    points = _stack_tables(runs, [record.points for record in _read_records(runs)], COUNTERS)
    return points.assign(bytes=points[SENT[0]] + points[SENT[1]]) if {*SENT} <= {*points} else points


def load_clients(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with a row for each client of ``runs`` made with ``evaluation.clients=true``, in their order.

    Columns are ``run`` (their index) and those of clients.parquet (docs/reference/run_directory.md); accuracy is a
    share.
    """
    return _stack_tables(runs, [record.clients for record in _read_records(runs)], CLIENT_COLUMNS)


def _read_records(runs: pd.DataFrame) -> list[Record]:
    """Return the record of each run in the order of the frame. Raises InputError for anything but a frame."""
    if not isinstance(runs, pd.DataFrame):
        got = repr(runs) if isinstance(runs, str) else ""
        raise InputError(f"runs={got or type(runs).__name__}: must be the frame that load_runs({got}) returns")
    read: dict[str, Record] = {}
    for archive in {str(run).partition(_SEPARATOR)[0] for run in runs.index if _SEPARATOR in str(run)}:
        read |= _archive_records(Path(archive))
    return [read[run] if run in read else read_directory(Path(run)) for run in map(str, runs.index)]


def _stack_tables(runs: pd.DataFrame, tables: list[dict[str, np.ndarray]], first: Sequence[str]) -> pd.DataFrame:
    """Stack the tables of all runs, with NaN for missing columns. first: first columns"""
    lengths = [len(next(iter(table.values()), ())) for table in tables]
    names = set(itertools.chain(*tables))
    frame: dict[str, Any] = {"run": np.repeat(np.array(runs.index, dtype=object), lengths)}
    for name in (*first, *sorted(names - set(first), key=_number_key)):
        parts = [table.get(name, np.full(length, math.nan)) for table, length in zip(tables, lengths, strict=True)]
        frame[name] = np.concatenate([part for part in parts if len(part)] or [np.zeros(0)])
    return pd.DataFrame(frame)


def _number_key(name: str) -> tuple[str, int]:
    """Return a sort key that puts ``label_2`` before ``label_10``."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or 0)


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one level with dotted keys. Lists become text, and empty mappings are dropped."""
    items = flat_items(tree, prefix)
    return {key: json.dumps(one, default=str) if isinstance(one, (list, tuple)) else one for key, one in items}


def setting_text(value: object) -> str:
    """Return a setting as YAML writes it, ``-`` for none; numbers to six digits."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}" if float(f"{value:.6g}") != value else json.dumps(float(value))
    if isinstance(value, (bool, np.bool_)):
        return json.dumps(bool(value))
    return str(value)


def _build_row(record: Record) -> dict[str, Any]:
    """Return the row of ``load_runs`` for a record."""
    config, summary = dict(record.config), record.summary
    listed, choices = config.pop(ABSENT, None), config.pop("choices", None)
    absent = set(map(str, listed)) if isinstance(listed, list) else set()
    chosen = {str(k): value for k, value in choices.items() if k not in absent} if isinstance(choices, dict) else {}
    task = summary.get("task")
    if isinstance(encoder := task.get("encoder") if isinstance(task, dict) else None, dict):
        shape: Any = (encoder.get("model_type"), encoder.get("layers"), encoder.get("hidden_size"))
        chosen["model"] = ENCODERS.get(shape) or "{}_{}x{}".format(*shape)  # roberta_24x1024: type, layers and width
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
        "code": record.code,
    }
    # a missing setting and the value at which it is absent are equal
    settings = {key: value for key, value in flatten(config).items() if not {key, key.partition(".")[0]} & absent}
    row = settings | chosen | fixed | (flatten(summary, "summary.") if summary else {})
    return {_clean(key): _clean(value) for key, value in row.items()}


def _clean(value: Any) -> Any:
    return clean_text(value, one_line=True) if isinstance(value, str) else value


def _to_column(values: list[Any]) -> pd.Series:
    """Return an array of one type if all values are booleans, integers or numbers, else the unchanged values."""
    kinds = {type(value) for value in values}
    if kinds == {bool} or kinds == {int} or kinds == {float}:
        return pd.Series(values).to_numpy()  # type: ignore[return-value]
    if kinds <= {int, float, type(None)} and float in kinds and int not in kinds:
        return np.array([math.nan if value is None else value for value in values])  # type: ignore[return-value]
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column  # type: ignore[return-value]


def _archive_records(path: Path) -> dict[str, Record]:
    """Return index -> record; one unreadable record for a file that cannot be read."""
    try:
        return {f"{path}{_SEPARATOR}{_clean(record.name)}": record for record in read_archive(path)}
    except BenchError as error:
        return {f"{path}{_SEPARATOR}": Record(path.name, "unreadable", str(error).removeprefix(f"{path}: "))}
