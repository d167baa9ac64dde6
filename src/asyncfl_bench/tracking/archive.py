"""Many finished runs in one file: settings, summaries and metrics, without weights.

An archive is a parquet file with a row a run: name, identity, experiment, results_version, status, config and summary
(JSON), and a list for each column of metrics.jsonl and of clients.parquet, under its name with ``point.`` or
``client.`` before it. Nothing is rounded.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..config import RESULTS_VERSION
from ..errors import BenchError, InputError
from ..files import atomic_write, parse_json, read_parquet, say
from .records import MEASURED, Record, checked, find, read_directory

_KEY, _VERSION = b"asyncfl_bench.archive", b"1"
NAME = "runs.parquet"  # beside a page
_LOCAL = ("output_dir", "data_dir", "archive_dir", "resume", "tracking")
_POINT, _CLIENT = "point.", "client."
_TEXTS = ("name", "identity", "experiment", "status", "config", "summary")
_LEVEL = 19  # of zstd: packing takes a second, and the file is copied and committed


def pack(places: Iterable[str | Path], target: str | Path, only: Container[str] | None = None) -> int:
    """Writes the finished runs (ok and diverged) at or below ``places``, archives included, to ``target``.

    Runs that are in ``target`` stay in it. Of two with one identity the one of the newer results version counts, then
    the one that ended well, then the one with a table of its clients, then the one in a run directory, then the one in
    ``target``: other archives bring what it lacks.

    only  experiments whose runs it is to hold; None: all
    Returns how many runs the archive then holds. Raises BenchError when there is none, or an archive cannot be read.
    """
    target = Path(target)
    directories, archives, closed = find(roots := [Path(place) for place in places])
    if target.exists():
        if not _is_archive(target):
            raise BenchError(f"{target}: no archive of runs; choose another file")
        archives = [*(archive for archive in archives if archive.resolve() != target.resolve()), target]
    kept: dict[str, Record] = {}
    for folder, why in closed.items():
        say(f"left out, {folder}: {why}")
    for record in (*(one for archive in archives for one in read_archive(archive)), *map(read_directory, directories)):
        if record.status == "unreadable":
            say(f"left out, {record.name}: {record.note}")
        identity = record.identity
        wanted = only is None or record.experiment in only
        if record.status in MEASURED and identity is not None and wanted:
            kept[identity] = max(record, kept.get(identity, record), key=_rank)  # the later of two alike
    if not kept:
        raise BenchError(f"{', '.join(map(str, roots))}: no finished run to pack")
    target.parent.mkdir(parents=True, exist_ok=True)
    table = _table([kept[identity] for identity in sorted(kept, key=lambda identity: (kept[identity].name, identity))])
    with atomic_write(target) as file:
        _write(table, file)
    return len(kept)


def archived(folder: str | Path, wanted: Container[str] | None = None) -> dict[str, Path]:
    """identity -> archive, of every run below ``folder`` that came to its own end under the current results version
    and that a report shows.

    wanted  identities to look for; None: all
    """
    found: dict[str, Path] = {}
    if Path(folder).is_dir():
        for archive in find([Path(folder)])[1]:
            identities = [one for one in _finished(archive) if wanted is None or one in wanted]
            sound = measured_runs(archive) if identities else {}  # reads all columns
            for identity in identities:
                if identity in sound:
                    found.setdefault(identity, archive)
    return found


def measured_runs(path: Path) -> dict[str, Record]:
    """By identity the runs of an archive that came to their own end and contradict nothing; of a file that cannot be
    read none."""
    try:
        return _measured_at(path, path.stat().st_mtime_ns)
    except (BenchError, OSError):
        return {}


@functools.lru_cache(maxsize=32)
def _measured_at(path: Path, stamp: int) -> dict[str, Record]:
    return {one.identity: one for one in read_archive(path) if one.status in MEASURED and one.identity is not None}


def summaries(path: Path) -> list[tuple[str, str]]:
    """(summary, config) of every run of an archive, as JSON; none of a parquet file of another kind.

    Raises BenchError when the file cannot be read.
    """
    if not _is_archive(path):
        return []
    columns = _table_in(path, ["summary", "config"])
    rows = zip(columns["summary"].to_pylist(), columns["config"].to_pylist(), strict=True)
    return [(summary, config) for summary, config in rows if summary is not None and config is not None]


def read_archive(path: Path) -> list[Record]:
    """The runs of an archive with their points; none of a parquet file of another kind, as a run's trace.

    Raises InputError when the file cannot be read.
    """
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


@functools.lru_cache(maxsize=32)
def _read(path: Path, stamp: int) -> list[Record]:
    if not _is_archive(path):
        return []
    table = _table_in(path).combine_chunks()
    facts = table.select(["name", "status", "config", "summary"]).to_pylist()
    lists = {
        first: {name.removeprefix(first): _lists(table[name]) for name in table.column_names if name.startswith(first)}
        for first in (_POINT, _CLIENT)
    }
    records = []
    for row, fact in enumerate(facts):
        points, clients = (
            {name: values for name, of in columns.items() if (values := of[row]) is not None}
            for columns in lists.values()
        )
        records.append(_record(fact, points, clients))
    return records


def _record(fact: dict[str, Any], points: dict[str, np.ndarray], clients: dict[str, np.ndarray]) -> Record:
    """A row; ``unreadable`` where its texts are none of an archive."""
    name, status = fact["name"] or "no name", fact["status"]
    try:
        config, summary = (parse_json(fact[part] or "") for part in ("config", "summary"))
    except ValueError as error:
        return Record(name, "unreadable", f"config or summary: {str(error).partition(chr(10))[0]}")
    if not (isinstance(config, dict) and isinstance(summary, dict) and status):
        return Record(name, "unreadable", "config, summary or status: missing, or of another kind")
    note = "" if status == "ok" else str(summary.get("error") or "").partition("\n")[0]
    return checked(Record(name, status, note, config, summary, points, clients))


def _finished(path: Path) -> tuple[str, ...]:
    """Identities of the runs that need not be run again; one that diverged would diverge again."""
    try:
        return _finished_at(path, path.stat().st_mtime_ns)
    except (BenchError, OSError):
        return ()  # half a file, as while it is copied, or a damaged one: then its runs are not there


@functools.lru_cache(maxsize=256)
def _finished_at(path: Path, stamp: int) -> tuple[str, ...]:
    if not _is_archive(path):
        return ()
    rows = _table_in(path, ["identity", "status", "results_version"]).to_pylist()
    return tuple(r["identity"] for r in rows if r["status"] in MEASURED and r["results_version"] == RESULTS_VERSION)


def _is_archive(path: Path) -> bool:
    """Whether the file is an archive. Raises InputError for one that this version cannot read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():  # a pipe would be waited for
        raise InputError(f"{path}: not a file")
    try:
        schema = pq.read_schema(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{path}: {str(error).partition(chr(10))[0]}") from None
    version = (schema.metadata or {}).get(_KEY)
    if version is None:
        return False
    if version != _VERSION:
        raise InputError(f"{path}: an archive of format {version.decode(errors='replace')}, which is not known here")
    types = {field.name: field.type for field in schema}
    wrong = [name for name in _TEXTS if not _is_text(types.get(name))]
    wrong += [name for name, kind in types.items() if name.startswith((_POINT, _CLIENT)) and not _is_numbers(kind)]
    if not pa.types.is_integer(types.get("results_version", pa.null())):
        wrong.append("results_version")
    if wrong or len(types) < len(schema):
        columns = ", ".join(wrong) or "one that is there twice"
        raise InputError(f"{path}: a damaged archive: column {columns} is not as afl-report --pack writes it")
    return True


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return kind is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_numbers(kind: Any) -> bool:
    """Whether a column has a list of numbers a run."""
    import pyarrow as pa

    return pa.types.is_list(kind) and (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))


def _table_in(path: Path, columns: list[str] | None = None) -> Any:
    """What the file holds. Raises InputError also where only the pages behind a sound footer are damaged."""
    try:
        return read_parquet(path, columns)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {str(error).partition(chr(10))[0]}") from None


def _lists(column: Any) -> list[np.ndarray | None]:
    """A column of lists as an array a row; None where the run has no such metric."""
    chunk = column.chunk(0) if column.num_chunks else column.combine_chunks()
    values = chunk.values.to_numpy(zero_copy_only=False)
    offsets, there = chunk.offsets.to_numpy(), chunk.is_valid().to_numpy(zero_copy_only=False)
    return [values[a:b] if ok else None for a, b, ok in zip(offsets[:-1], offsets[1:], there, strict=True)]


def _rank(record: Record) -> tuple:
    version = record.results_version
    return (version if isinstance(version, int) else -1, record.status == "ok", bool(record.clients))


def _portable(config: dict[str, Any]) -> dict[str, Any]:
    """Without what only says where things were on the machine that ran it: archives are given to others."""
    return {key: value for key, value in config.items() if key not in _LOCAL}


def _table(records: list[Record]) -> Any:
    import pyarrow as pa

    texts = {
        "name": [_named(record) for record in records],
        "identity": [record.identity for record in records],
        "experiment": [record.experiment for record in records],
        "status": [record.status for record in records],
        "config": [json.dumps(_portable(record.config), default=str) for record in records],
        "summary": [json.dumps(record.summary) for record in records],
    }
    arrays: dict[str, Any] = {name: pa.array(values, pa.string()) for name, values in texts.items()}
    arrays["results_version"] = pa.array([record.results_version for record in records], pa.int64())
    for first, tables in ((_POINT, [one.points for one in records]), (_CLIENT, [one.clients for one in records])):
        for name in sorted({name for table in tables for name in table}):
            columns = [table.get(name) for table in tables]
            whole = all(column is None or column.dtype.kind == "i" for column in columns)
            arrays[first + name] = pa.array(columns, pa.list_(pa.int64() if whole else pa.float64()), from_pandas=True)
    return pa.table(arrays).replace_schema_metadata({_KEY: _VERSION})


def _named(record: Record) -> str:
    """A name that no other run of an archive has, also where somebody chose it by hand."""
    return record.name if record.name.endswith(str(record.identity)) else f"{record.name}-{record.identity}"


def _write(table: Any, file: Any) -> None:
    """Accuracies have few values, so a dictionary holds them best; the bytes of other numbers are sorted by weight."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = [name for name in table.column_names if pa.types.is_list(table.schema.field(name).type)]
    inner = {name: f"{name}.list.element" if name in numbers else name for name in table.column_names}
    split = [
        inner[name]
        for name in numbers
        if pa.types.is_floating(table.schema.field(name).type.value_type) and not name.endswith("accuracy")
    ]
    dictionary = [column for column in inner.values() if column not in split]
    pq.write_table(
        table,
        file,
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=dictionary,
        use_byte_stream_split=split,
    )
