"""``afl-run --list [WHERE]``: past runs with their state, accuracy and command."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import clean_text, expand_home, is_locked, show
from ..multirun.jobs import count_runs
from ..tracking.records import Record, find_runs, read_directory
from ..tracking.rundir import LOCK_NAME
from .json_objects import Fields


def list_runs(flag: str, names: Sequence[str], add: Callable[[Callable[[], Fields]], None]) -> int:
    """Print a line for each run at or below the named paths, ``runs`` if there are none. Returns the exit code.

    add  of the command's object for ``--json``
    Raises InputError for a path that does not exist.
    """
    paths = [expand_home(name, flag) for name in names or ["runs"]]
    for path in paths:
        if not path.exists():
            raise InputError(f"{flag}={path}: no such folder or archive; name one with runs: afl-run {flag} WHERE")
    runs = list(_describe_runs(paths))
    add(lambda: {"runs": runs})
    width = max((len(one["state"]) for one in runs), default=0)
    for one in runs:
        accuracy = "" if one["accuracy"] is None else f"{100 * one['accuracy']:.1f} %"
        line = f"{one['state']:<{width}}  {accuracy:>7}  {one['name']}: {one['command'] or one['note']}"
        show(clean_text(line, one_line=True))
    states = ", ".join(f"{count} {state}" for state, count in Counter(one["state"] for one in runs).items())
    show(f"{count_runs(len(runs))}{f': {states}' if states else ''}")
    return 0


def _describe_runs(paths: list[Path]) -> Iterator[dict[str, Any]]:
    """Yield the entry of each run, those in directories first, in the order of their paths."""
    from ..tracking.archive import read_archive

    directories, archives, closed = find_runs(paths)
    for directory in directories:
        yield _describe_run(read_directory(directory), directory, None)
    for archive in archives:
        for record in read_archive(archive):
            yield _describe_run(record, None, archive)
    for folder, why in closed.items():
        yield _describe_run(Record(str(folder), "unreadable", why), folder, None)


def _describe_run(record: Record, directory: Path | None, archive: Path | None) -> dict[str, Any]:
    summary, choices = record.summary, record.config.get("choices")
    chosen = choices if isinstance(choices, dict) else {}
    final = summary.get("final")
    is_running = directory is not None and record.status == "incomplete" and is_locked(directory / LOCK_NAME)
    return {
        "state": "running" if is_running else record.status,
        "accuracy": final.get("test/accuracy") if record.status == "ok" and isinstance(final, dict) else None,
        "name": record.name,
        "identity": record.identity,
        "experiment": record.experiment,
        "algorithm": chosen.get("algorithm"),
        "dataset": chosen.get("dataset"),
        "seed": record.config.get("seed"),
        "directory": directory,
        "archive": archive,
        "command": None if is_running else _command_of(record, directory, archive),
        "note": record.note,
    }


def _command_of(record: Record, directory: Path | None, archive: Path | None) -> str | None:
    """Return the command that resumes an unfinished run, or repeats one; None for a run that cannot be read."""
    if archive is not None:
        return shlex.join(["afl-run", "--repeat", str(archive), str(record.identity)])
    if record.status in ("incomplete", "interrupted"):
        return shlex.join(["afl-run", "--resume", str(directory)])
    command = record.summary.get("command")  # lacks in runs of earlier versions
    return command if isinstance(command, str) else None
