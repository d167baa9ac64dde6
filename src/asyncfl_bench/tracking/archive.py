"""Finished runs in parquet files: settings, summaries and metrics, without weights.

An archive is a parquet file, or a folder of such files, one for each packed batch, each named by its digest and
written once. A file has a row for each run: name, identity, experiment, results_version, status, config and summary
(JSON), and a list for each column of metrics.jsonl and of clients.parquet, with ``point.`` or ``client.`` before its
name. Columns that no page shows are single precision, all others are exact. Each page of a file has a checksum, and
the footer a digest of each column: a flipped bit is an error that names the file. Runs that a later file replaces are
lines ``FILE NAME`` of ``superseded.txt`` in the folder, and are skipped by readers.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..config.part_sources import checkout_directory
from ..errors import BenchError, InputError
from ..files import atomic_write, expand_home, parse_json, say
from .columns import (
    CLIENT,
    FAMILIES,
    POINT,
    SUPERSEDED,
    NotAnArchive,
    build_table,
    read_table,
    split_lists,
    write_table,
)
from .records import MEASURED, Record, check_record, find_runs, read_directory, stamp_or_none

RESULTS = "results"  # default folder of pages and archives
NAME = "archive"  # of a paper, in its folder
_ASIDE = (CLIENT, *(POINT + family for family in FAMILIES))  # columns that checks of a run do not read


def pack_archive(paths: Iterable[str | Path], target: str | Path, only: Container[str] | None = None) -> int:
    """Add the finished runs (ok and diverged) at or below ``paths``, archives included, to the archive ``target``.

    A ``target`` called ``*.parquet`` is rewritten with all its runs. Any other target is a folder, and gets one more
    file with the new runs. Of two runs with one identity and code the preferred one has the newer results version, then
    status ok, then a table of its clients, then a run directory, then a copy in ``target``. A ``target`` without new
    runs does not change.

    only  experiments whose runs are added; None for all
    Returns the number of runs in the archive. Raises BenchError without runs, for an archive that cannot be read, and
    if ``target`` has a run that contradicts itself.
    """
    from filelock import FileLock

    target = Path(target)
    is_folder = target.suffix != ".parquet"
    directories, archives, closed = find_runs(roots := [Path(path) for path in paths])
    for folder, why in closed.items():
        say(f"left out, {folder}: {why}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{target.name}.lock")):
        held = {file: read_archive(file) for file in archive_files(target)}
        for file, record in ((file, record) for file, records in held.items() for record in records):
            if record.status not in MEASURED:  # it would be lost
                raise BenchError(f"{file}: {record.name}: {record.note}; the archive is unchanged")
        own = {id(record): (file, record.name) for file, records in held.items() for record in records}
        taken = {file.resolve() for file in held}
        added: list[Record] = []
        for file in (file for file in archives if file.resolve() not in taken):
            try:
                added += read_archive(file)
            except NotAnArchive as error:
                say(f"left out, {error}")
        mine = [record for records in held.values() for record in records]
        kept: dict[tuple[str, str | None], Record] = {}
        for records, limit in ((added, only), (mine, None), (map(read_directory, directories), only)):
            for record in records:
                if record.status in ("unreadable", "inconsistent"):
                    say(f"left out, {record.name}: {record.note}")
                identity, wanted = record.identity, limit is None or record.experiment in limit
                if record.status in MEASURED and identity is not None and wanted:
                    known = kept.get(key := (identity, record.code), record)
                    better = max(record, known, key=_preference_key)  # the later of two alike
                    is_same = better is known or build_table([better]).equals(build_table([known]))
                    kept[key] = known if id(known) in own and is_same else better
        if not kept:
            raise BenchError(f"{', '.join(map(str, roots))}: no finished run to pack")
        new = [record for record in kept.values() if id(record) not in own]
        stay = {id(record) for record in kept.values()}
        replaced = [path for number, path in own.items() if number not in stay]
        if is_folder:
            add_batch(target, new)
            _write_superseded(target, replaced)
        elif new:
            write_archive(list(kept.values()), target)
    return len(kept)


def archive_of_paper(folder: Path) -> Path | None:
    """Return the archive in the folder of a paper's pages, or None."""
    return path if (path := folder / NAME).exists() else None


def archive_around(file: Path) -> Path:
    """Return the archive of a parquet file: its folder, or the file itself."""
    return file.parent if file.parent.name == NAME else file


def archive_files(archive: Path) -> list[Path]:
    """Return the sorted parquet files of an archive; none if it does not exist."""
    if archive.is_dir():
        return sorted(file for file in archive.glob("*.parquet") if not file.name.startswith("."))
    return [archive] if archive.exists() else []


def results_folder() -> Path:
    """Return the folder of pages: ``results`` here, else ``results`` of the surrounding git checkout."""
    here, around = Path(RESULTS), _around(RESULTS)
    return here if here.is_dir() or not around.is_dir() else Path(os.path.relpath(around))


def archive_folders(folder: str | Path = RESULTS) -> list[Path]:
    """Return the existing folders of this name that are searched for archives.

    They are here, at the top of the surrounding git checkout, and in the checkout of an editable install.
    """
    given, checkout = expand_home(folder, "archive_dir"), checkout_directory()
    found: dict[str, Path] = {}
    for path in (given, _around(given), *([] if checkout is None else [checkout / given])):
        if path.is_dir():
            found.setdefault(os.path.realpath(path), path if path == given else Path(os.path.relpath(path)))
    return list(found.values())


def describe_archive_folders(folder: str | Path = RESULTS) -> str:
    """Return the searched folders as text: ``archives below results``."""
    found = archive_folders(folder)
    text = f"archives below {' and '.join(map(str, found))}" if found else f"no archives in {folder}"
    carries_none = checkout_directory() is None and str(folder) == RESULTS
    return f"{text}, an installed wheel carries none" if carries_none else text


def _around(folder: str | Path) -> Path:
    """Return the path of ``folder`` at the top of the surrounding git checkout."""
    here = Path.cwd()
    return next((path for path in (here, *here.parents) if (path / ".git").exists()), here) / folder


def archives_by_identity(folder: str | Path, wanted: Container[str] | None = None) -> dict[str, Path]:
    """Return identity -> archive of the measured runs below ``folder`` with the current results version.

    Damaged and other files have no runs here, and a line reports them, once for each state of the file.
    wanted  identities to look for; None for all
    """
    found: dict[str, Path] = {}
    if Path(folder).is_dir():
        for archive in find_runs([Path(folder)])[1]:
            try:
                identities = _read_finished_identities(archive, _file_stamp(archive))
            except InputError:  # removed meanwhile
                continue
            for identity in identities:
                asked = (wanted is None or identity in wanted) and identity not in found
                if asked and (record := measured_run(archive, identity)) is not None and record.is_current:
                    found[identity] = archive
    return found


def measured_run(path: Path, identity: str, code: str | None = None) -> Record | None:
    """Return a consistent run of an archive that is ok or diverged, without the columns of ``_ASIDE``; else None.

    code  digest of the user's code of the preferred run
    """
    try:
        found = _read_measured_runs(path, _file_stamp(path), identity)
    except BenchError:
        return None
    return next((one for one in found if one.code == code), found[-1] if found else None)


def archived_summaries(path: Path) -> list[tuple[str, str]]:
    """Return (summary, config) of every run of an archive as JSON. Raises BenchError if the file cannot be read."""
    columns = read_table(path, {"summary", "config"}.__contains__)
    return list(zip(columns["summary"].to_pylist(), columns["config"].to_pylist(), strict=True))


def read_run_points(path: Path, identity: str, code: object = None) -> dict[str, np.ndarray]:
    """Return the points of one run by metric. code: of its summary.

    Raises BenchError if the file cannot be read or lacks the run.
    """
    for record in read_archive(path):
        if record.identity == identity and record.summary.get("code_digest") == code:
            return record.points
    raise BenchError(f"{path}: no run {identity}")


def read_archive(path: Path) -> list[Record]:
    """Return the runs of an archive with their points.

    Raises NotAnArchive for a parquet file of another kind, BenchError for a file that cannot be read.
    """
    files = archive_files(path) if path.is_dir() else [path]
    return [record for file in files for record in _read_checked_records(file, _file_stamp(file))]


@functools.lru_cache(maxsize=2**14)
def _read_measured_runs(path: Path, stamp: tuple[int, ...], identity: str) -> list[Record]:
    """Return the consistent runs of this identity with a measured status, one for each code."""
    table, paths = _read_checked_columns(path, stamp)
    records = [check_record(unpack_records(table.slice(row, 1), path)[0]) for row in paths.get(identity, [])]
    return [record for record in records if record.status in MEASURED and record.identity == identity]


@functools.lru_cache(maxsize=8)
def _read_checked_columns(path: Path, stamp: tuple[int, ...]) -> tuple[Any, dict[str, list[int]]]:
    """Return the columns for ``check_record``, and the rows of each identity."""
    table = read_table(path, lambda name: not name.startswith(_ASIDE))
    rows: dict[str, list[int]] = {}
    for row, identity in enumerate(table["identity"].to_pylist()):
        rows.setdefault(identity, []).append(row)
    return table, rows


@functools.lru_cache(maxsize=32)
def _read_checked_records(path: Path, stamp: tuple[int, ...]) -> list[Record]:
    """Return all runs of an archive, each checked."""
    return [check_record(record) for record in unpack_records(read_table(path), path)]


def _parse_mapping(text: str | None) -> dict[str, Any]:
    """Return the mapping in a JSON text. Raises ValueError."""
    if not isinstance(value := parse_json(text or ""), dict):
        raise ValueError("is not a mapping")
    return value


def unpack_records(table: Any, path: Path) -> list[Record]:
    """Return the rows of an archive as unchecked records. Raises InputError for a malformed row."""
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


@functools.lru_cache(maxsize=256)
def _read_finished_identities(path: Path, stamp: tuple[int, ...]) -> tuple[str, ...]:
    """Return the identities of finished runs, diverged ones included, which would diverge again."""
    try:
        rows = read_table(path, {"identity", "status"}.__contains__).to_pylist()
    except InputError as error:
        say(f"left out, {error}")
        return ()
    return tuple(row["identity"] for row in rows if row["status"] in MEASURED)


def _file_stamp(path: Path) -> tuple[int, ...]:
    """Return time of change [ns] and size [bytes] of a file and of its list of superseded runs.

    Raises InputError if the file cannot be read.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    return status.st_mtime_ns, status.st_size, *(stamp_or_none(path.with_name(SUPERSEDED)) or ())


def _preference_key(record: Record) -> tuple:
    """Return a sort key, by which the preferred record of a run is last."""
    version = record.results_version
    return (version if isinstance(version, int) else -1, record.status == "ok", bool(record.clients))


def write_archive(records: list[Record], target: Path) -> None:
    """Write a file with these runs. The same runs give the same bytes."""
    with atomic_write(target) as file:
        write_table(build_table(records), file)


def add_batch(folder: Path, records: list[Record]) -> Path | None:
    """Write these runs, if any, to a file named by its digest. Returns the file."""
    if not records:
        return None
    folder.mkdir(exist_ok=True)
    write_table(build_table(records), raw := io.BytesIO())
    file = folder / f"{hashlib.sha256(raw.getbuffer()).hexdigest()[:16]}.parquet"
    with atomic_write(file) as opened:
        opened.write(raw.getbuffer())
    return file


def _write_superseded(folder: Path, runs: Iterable[tuple[Path, str]]) -> None:
    """Add runs, each with its file, to the list of superseded runs of a folder."""
    if lines := {f"{file.name} {name}" for file, name in runs}:
        path = folder / SUPERSEDED
        lines |= {*path.read_text(encoding="utf-8").splitlines()} if path.exists() else set()
        with atomic_write(path) as opened:
            opened.write("".join(f"{line}\n" for line in sorted(lines)).encode())
