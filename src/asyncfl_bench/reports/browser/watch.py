"""Keeps pages current during their runs: checks for changed files every few seconds, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ...errors import BenchError, first_line
from ...files import show
from ...tracking.records import run_folders, stamp_or_none
from ...tracking.rundir import CONFIG_NAME, METRICS_NAME, SUMMARY_NAME

SECONDS = 3.0
_FILES = (CONFIG_NAME, METRICS_NAME, SUMMARY_NAME)


def watch_folders(
    paths: Iterable[Path], build: Callable[[], str], own: Path | None = None, every: float = SECONDS
) -> int:
    """Call ``build`` at once and after each change of a run or archive at or below ``paths``, until Ctrl-C.

    build  writes the pages and returns a short report. A BenchError is shown in one line
    own    folder with the output of ``build``, which is ignored
    every  seconds between checks; after a longer build, as long as that took
    Returns the exit code, 0.
    """
    paths, known = list(paths), None
    try:
        while True:
            pause = every
            if (seen := modification_times(paths, own)) != known:
                known, begin = seen, time.monotonic()
                try:
                    text = build()
                except BenchError as error:
                    text = first_line(error)
                pause = max(every, time.monotonic() - begin)
                show(f"{time.strftime('%H:%M:%S')} {text}")
            time.sleep(pause)
    except KeyboardInterrupt:
        show("no longer watching")
        return 0


def modification_times(given: Iterable[Path], own: Path | None = None) -> dict[str, tuple[int, int]]:
    """Return file -> (time of change [ns], size [bytes]) of all files for pages; none for a missing path."""
    found: dict[str, tuple[int, int]] = {}
    for one in given:
        names = [one] if one.is_file() else (at / f for at, files in run_folders(one) for f in files)
        for path in names:
            if own is not None and path.resolve().is_relative_to(own.resolve()):
                continue
            is_read = path.name in _FILES or path.suffix == ".parquet"
            if is_read and (stamp := stamp_or_none(path)) is not None:
                found[str(path)] = stamp
    return found
