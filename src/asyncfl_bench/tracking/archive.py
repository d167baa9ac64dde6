"""Many finished runs in one file: settings, summaries and metrics, without weights.

An archive is a parquet file with a row a run: name, identity, experiment, results_version, status, config and summary
(JSON), and a list for each column of metrics.jsonl and of clients.parquet, under its name with ``point.`` or
``client.`` before it. Columns of ``_ROUNDED`` are single precision, all others are exact. Each page of the file has a
checksum, and the footer a digest of each column: a flipped bit is an error that names the file.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..config.places import checkout_directory
from ..errors import BenchError, InputError, first_line
from ..files import atomic_write, check_unpacked_size, expand_home, open_regular, parse_json, say
from .columns import CLIENT, POINT, check_columns, column_digest, split_lists
from .records import MEASURED, Record, check_record, find_runs, read_directory

_KEY, _DIGESTS, _VERSION = b"asyncfl_bench.archive", b"asyncfl_bench.digests", b"2"
RESULTS = "results"  # default folder of pages and archives
NAME = "runs.parquet"  # of a paper, in its folder
_LOCAL = ("output_dir", "data_dir", "archive_dir", "resume", "tracking")
_FAMILIES = ("age/", "clients/", "in_flight/", "model/", "participation/", "staleness/", "train/")
_ROUNDED = tuple(POINT + name for name in (*_FAMILIES, "test/loss", "validation/loss", "wall_time"))  # on no page
_ASIDE = (CLIENT, *(POINT + family for family in _FAMILIES))  # columns that no check of a run reads
_LEVEL = 12  # of zstd: 19 takes seven times as long for 4 % less


class NotAnArchive(InputError):
    """The parquet file is not an archive of runs."""


def pack_archive(places: Iterable[str | Path], target: str | Path, only: Container[str] | None = None) -> int:
    """Write the finished runs (ok and diverged) at or below ``places``, archives included, to ``target``.

    Runs that are in ``target`` stay in it. Of two with one identity and code the one of the newer results version
    counts, then the one that ended well, then the one with a table of its clients, then the one in a run directory,
    then the one in ``target``: other archives bring what it lacks. A ``target`` that gains nothing is left as it is.

    only  experiments whose runs are added; None: all
    Returns how many runs the archive then holds. Raises BenchError when there is none, an archive cannot be read, or
    ``target`` holds a run that does not agree with itself.
    """
    from filelock import FileLock

    target = Path(target)
    directories, archives, closed = find_runs(roots := [Path(place) for place in places])
    for folder, why in closed.items():
        say(f"left out, {folder}: {why}")
    others = [archive for archive in archives if archive.resolve() != target.resolve()]
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{target.name}.lock")):
        held = _read_own_records(target)
        added = [record for place in others for record in _read_other_records(place)]
        kept: dict[tuple[str, str | None], Record] = {}
        for records, limit in ((added, only), (held, None), (map(read_directory, directories), only)):
            for record in records:
                if record.status in ("unreadable", "inconsistent"):
                    say(f"left out, {record.name}: {record.note}")
                identity, wanted = record.identity, limit is None or record.experiment in limit
                if record.status in MEASURED and identity is not None and wanted:
                    key = identity, record.code
                    kept[key] = max(record, kept.get(key, record), key=_preference_key)  # the later of two alike
        if not kept:
            raise BenchError(f"{', '.join(map(str, roots))}: no finished run to pack")
        if [id(record) for record in held] != [id(record) for record in _sort_records(kept.values())]:
            _write_archive(list(kept.values()), target)
    return len(kept)


def rewrite_archive(target: str | Path, change: Callable[[Record], Record]) -> int:
    """Write each run of an archive as ``change`` returns it; identity and name follow from its config.

    ``change`` gets runs as they are stored, also those that do not agree with themselves. Returns the number of
    runs. Raises BenchError, and leaves the archive as it is, when the file cannot be read or two runs get one
    identity.
    """
    from filelock import FileLock

    target = Path(target)
    with FileLock(target.with_name(f".{target.name}.lock")):
        records = [change(record) for record in _unpack_records(_read_table(target), target)]
        if len({(record.identity, record.code) for record in records}) < len(records):
            raise BenchError(f"{target}: two runs would have one identity; the archive is unchanged")
        _write_archive(records, target)
    return len(records)


def results_folder() -> Path:
    """Return the folder of pages: ``results`` here, or where it does not exist that of the git checkout around."""
    here, around = Path(RESULTS), _around(RESULTS)
    return here if here.is_dir() or not around.is_dir() else Path(os.path.relpath(around))


def archive_folders(folder: str | Path = RESULTS) -> list[Path]:
    """Return the existing folders of this name, in which archives are looked for.

    They are here, at the top of the git checkout around, and in the checkout of an editable install.
    """
    given, checkout = expand_home(folder, "archive_dir"), checkout_directory()
    found: dict[str, Path] = {}
    for place in (given, _around(given), *([] if checkout is None else [checkout / given])):
        if place.is_dir():
            found.setdefault(os.path.realpath(place), place if place == given else Path(os.path.relpath(place)))
    return list(found.values())


def describe_archive_folders(folder: str | Path = RESULTS) -> str:
    """Return where archives were looked for: ``archives below results``."""
    found = archive_folders(folder)
    text = f"archives below {' and '.join(map(str, found))}" if found else f"no archives in {folder}"
    carries_none = checkout_directory() is None and str(folder) == RESULTS
    return f"{text}, an installed wheel carries none" if carries_none else text


def _around(folder: str | Path) -> Path:
    """Return the path of ``folder`` at the top of the git checkout around the current directory."""
    here = Path.cwd()
    return next((place for place in (here, *here.parents) if (place / ".git").exists()), here) / folder


def archives_by_identity(folder: str | Path, wanted: Container[str] | None = None) -> dict[str, Path]:
    """Return identity -> archive of every measured run below ``folder`` that a report shows.

    Runs under another results version are left out. A file that is not an archive, or a damaged one, has no runs
    here; a line says so, once for each state of the file.
    wanted  identities to look for; None: all
    """
    found: dict[str, Path] = {}
    if Path(folder).is_dir():
        for archive in find_runs([Path(folder)])[1]:
            for identity in _finished_identities(archive):
                asked = (wanted is None or identity in wanted) and identity not in found
                if asked and (record := measured_run(archive, identity)) is not None and record.is_current:
                    found[identity] = archive
    return found


def measured_run(path: Path, identity: str, code: str | None = None) -> Record | None:
    """A run of an archive that ended by itself and contradicts nothing, without the columns of ``_ASIDE``.

    code  digest of the user's code, of which a run is preferred
    """
    try:
        found = _read_measured_runs(path, _file_stamp(path), identity)
    except BenchError:
        return None
    return next((one for one in found if one.code == code), found[-1] if found else None)


def archived_summaries(path: Path) -> list[tuple[str, str]]:
    """Return (summary, config) of every run of an archive, as JSON. Raises BenchError when the file cannot be read."""
    columns = _read_table(path, {"summary", "config"}.__contains__)
    return list(zip(columns["summary"].to_pylist(), columns["config"].to_pylist(), strict=True))


def read_run_points(path: Path, identity: str, code: object = None) -> dict[str, np.ndarray]:
    """Return the points of one run by metric. code: of its summary.

    Raises BenchError when the file cannot be read or lacks the run.
    """
    for record in read_archive(path):
        if record.identity == identity and record.summary.get("code_digest") == code:
            return record.points
    raise BenchError(f"{path}: no run {identity}")


def read_archive(path: Path) -> list[Record]:
    """Return the runs of an archive with their points.

    Raises NotAnArchive for a parquet file of another kind, BenchError for a file that cannot be read.
    """
    return _read_checked_records(path, _file_stamp(path))


@functools.lru_cache(maxsize=2**14)
def _read_measured_runs(path: Path, stamp: tuple[int, int], identity: str) -> list[Record]:
    """Return the runs of this identity that have a measured status and agree with themselves, one for each code."""
    table, places = _read_checked_columns(path, stamp)
    records = [check_record(_unpack_records(table.slice(row, 1), path)[0]) for row in places.get(identity, [])]
    return [record for record in records if record.status in MEASURED and record.identity == identity]


@functools.lru_cache(maxsize=8)
def _read_checked_columns(path: Path, stamp: tuple[int, int]) -> tuple[Any, dict[str, list[int]]]:
    """Return the columns of an archive that ``check_record`` reads, and the rows of each identity."""
    table = _read_table(path, lambda name: not name.startswith(_ASIDE))
    rows: dict[str, list[int]] = {}
    for row, identity in enumerate(table["identity"].to_pylist()):
        rows.setdefault(identity, []).append(row)
    return table, rows


@functools.lru_cache(maxsize=32)
def _read_checked_records(path: Path, stamp: tuple[int, int]) -> list[Record]:
    """Return all runs of an archive, each checked."""
    return [check_record(record) for record in _unpack_records(_read_table(path), path)]


def _parse_mapping(text: str | None) -> dict[str, Any]:
    """Return the mapping in a JSON text. Raises ValueError."""
    if not isinstance(value := parse_json(text or ""), dict):
        raise ValueError("is not a mapping")
    return value


def _unpack_records(table: Any, path: Path) -> list[Record]:
    """Return the rows of an archive as records, unchecked. Raises InputError for what no run is."""
    facts = table.select(["name", "status", "config", "summary"]).to_pylist()
    of_points, of_clients = (
        {name.removeprefix(first): split_lists(table[name]) for name in table.column_names if name.startswith(first)}
        for first in (POINT, CLIENT)
    )
    records = []
    for row, fact in enumerate(facts):
        points = {name: values for name, of in of_points.items() if (values := of[row]) is not None}
        clients = {name: values for name, of in of_clients.items() if (values := of[row]) is not None}
        try:
            config, summary = _parse_mapping(fact["config"]), _parse_mapping(fact["summary"])
        except ValueError as error:
            raise InputError(f"{path}: {fact['name']}: config or summary {error}") from None
        note = "" if fact["status"] == "ok" else str(summary.get("error") or "").partition("\n")[0]
        records.append(Record(str(fact["name"]), fact["status"], note, config, summary, points, clients))
    return records


def _read_own_records(target: Path) -> list[Record]:
    """Return the runs of an archive that is to be written again; none if there is no such file.

    Raises BenchError when a run would be lost.
    """
    if not target.exists():
        return []
    records = read_archive(target)
    for record in records:
        if record.status not in MEASURED:  # it would be lost
            raise BenchError(f"{target}: {record.name}: {record.note}; the archive is unchanged")
    return records


def _read_other_records(path: Path) -> list[Record]:
    """Return the runs of another archive; none, and a line that says so, if the file is not an archive."""
    try:
        return read_archive(path)
    except NotAnArchive as error:
        say(f"left out, {error}")
        return []


def _finished_identities(path: Path) -> tuple[str, ...]:
    """Return the identities of runs that need not be run again; a run that diverged would diverge again."""
    try:
        return _read_finished_identities(path, _file_stamp(path))
    except InputError:
        return ()  # it went while we looked


@functools.lru_cache(maxsize=256)
def _read_finished_identities(path: Path, stamp: tuple[int, int]) -> tuple[str, ...]:
    try:
        rows = _read_table(path, {"identity", "status"}.__contains__).to_pylist()
    except InputError as error:
        say(f"left out, {error}")
        return ()
    return tuple(row["identity"] for row in rows if row["status"] in MEASURED)


def _file_stamp(path: Path) -> tuple[int, int]:
    """Return the file's time of change [ns] and size [bytes]. Raises InputError when it cannot be read."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    return status.st_mtime_ns, status.st_size


def _read_table(path: Path, wanted: Callable[[str], bool] | None = None) -> Any:
    """Return all columns of an archive or the wanted ones, each compared with its digest.

    Raises NotAnArchive or InputError.
    """
    from pyarrow.parquet import ParquetFile

    try:
        with open_regular(path) as raw, ParquetFile(raw, page_checksum_verification=True) as file:
            facts, names = file.schema_arrow.metadata or {}, file.schema_arrow.names
            if _KEY not in facts:
                raise NotAnArchive(f"{path}: not an archive of runs; move it elsewhere")
            if facts[_KEY] != _VERSION:
                text = facts[_KEY].decode(errors="replace")
                raise InputError(f"{path}: an archive of format {text}, which this version does not read")
            check_columns(file.schema_arrow)
            check_unpacked_size(file, path.stat().st_size)
            table, digests = file.read(columns=[*filter(wanted, names)]), json.loads(facts[_DIGESTS])
        changed = {name for name in table.column_names if digests.get(name) != column_digest(table[name])}
        if changed := changed | ({*digests} ^ {*names}):
            raise ValueError(f"the digest of {', '.join(sorted(changed)[:3])} differs")
    except InputError:
        raise
    except Exception as error:  # a damaged footer makes the reader raise errors of any kind
        if known := getattr(error, "strerror", None):
            raise InputError(f"{path}: {known}") from None
        reason = " ".join(first_line(error).split())
        raise InputError(f"{path}: damaged: {reason}; restore the file, for example with git") from None
    return table.combine_chunks()


def _preference_key(record: Record) -> tuple:
    """Return a sort key by which the preferred of two records of one run comes last."""
    version = record.results_version
    return (version if isinstance(version, int) else -1, record.status == "ok", bool(record.clients))


def _sort_records(records: Iterable[Record]) -> list[Record]:
    """Return the records by name and identity, the order of an archive's rows."""
    return sorted(records, key=lambda record: (record.name, str(record.identity)))


def _build_table(records: list[Record]) -> Any:
    """Return the records as a table, a row a run."""
    import pyarrow as pa

    # without the places of the machine that ran it, since archives are given to others
    portable = [_without_keys(one.config, _LOCAL) for one in records]
    texts = {
        "name": _unique_names(records),
        "identity": [record.identity for record in records],
        "experiment": [record.experiment for record in records],
        "status": [record.status for record in records],
        "config": [json.dumps(config, default=str) for config in portable],
        "summary": [json.dumps(_without_keys(record.summary, ("command",))) for record in records],
    }
    arrays: dict[str, Any] = {name: pa.array(values, pa.string()) for name, values in texts.items()}
    arrays["results_version"] = pa.array([record.results_version for record in records], pa.int64())
    for first, tables in ((POINT, [one.points for one in records]), (CLIENT, [one.clients for one in records])):
        for name in sorted({name for table in tables for name in table}):
            columns = [table.get(name) for table in tables]
            whole = all(column is None or column.dtype.kind == "i" for column in columns)
            kind = pa.int64() if whole else pa.float32() if f"{first}{name}".startswith(_ROUNDED) else pa.float64()
            rows = [column if whole or column is None else column.astype(kind.to_pandas_dtype()) for column in columns]
            arrays[first + name] = pa.array(rows, pa.list_(kind), from_pandas=True)
    return pa.table(arrays)


def _without_keys(tree: dict[str, Any], keys: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in keys}


def _unique_names(records: Sequence[Record]) -> list[str]:
    """Return names that no two runs of an archive share, also if a person chose a run's name."""
    names = [one.name if str(one.identity) in one.name else f"{one.name}-{one.identity}" for one in records]
    counts = Counter(names)
    return [f"{name}-{one.code}" if counts[name] > 1 else name for name, one in zip(names, records, strict=True)]


def _write_archive(records: list[Record], target: Path) -> None:
    """Write the archive.

    Shares have few values, so a dictionary is smallest for them. The bytes of other numbers are sorted by weight.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = _build_table(_sort_records(records))
    digests = {name: column_digest(table[name]) for name in table.column_names}
    table = table.replace_schema_metadata({_KEY: _VERSION, _DIGESTS: json.dumps(digests).encode()})
    numbers = [name for name in table.column_names if pa.types.is_list(table.schema.field(name).type)]
    inner = {name: f"{name}.list.element" if name in numbers else name for name in table.column_names}
    split = [
        inner[name]
        for name in numbers
        if pa.types.is_floating(table.schema.field(name).type.value_type) and not name.endswith("/accuracy")
    ]
    dictionary = [column for column in inner.values() if column not in split]
    with atomic_write(target) as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            compression_level=_LEVEL,
            use_dictionary=dictionary,
            use_byte_stream_split=split,
            write_page_checksum=True,
            write_statistics=False,
        )
