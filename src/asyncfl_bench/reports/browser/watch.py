"""Keeps pages current while their runs are made: looks every few seconds, builds only what changed, ends on Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ...errors import BenchError, first_line
from ...files import show
from ...tracking.records import run_folders
from ...tracking.rundir import CONFIG_NAME, METRICS_NAME, SUMMARY_NAME

SECONDS = 3.0
_FILES = (CONFIG_NAME, METRICS_NAME, SUMMARY_NAME)


def watch_folders(
    places: Iterable[Path], build: Callable[[], str], own: Path | None = None, every: float = SECONDS
) -> int:
    """Call ``build`` at once and whenever a run or archive at or below ``places`` has changed, until Ctrl-C.

    build  writes everything and returns what it did in a few words; of its BenchErrors one line is shown, and the next
           change is waited for
    own    a folder that ``build`` writes to: nothing in there is looked at
    every  seconds between looks; after a build that took longer, as long as that took
    Returns the exit code, 0.
    """
    places, known = list(places), None
    try:
        while True:
            pause = every
            if (seen := modification_times(places, own)) != known:
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


def modification_times(places: Iterable[Path], own: Path | None = None) -> dict[str, tuple[int, int]]:
    """Return file -> (time of change [ns], size [bytes]) of all files that pages read; none for a missing place."""
    found: dict[str, tuple[int, int]] = {}
    for place in places:
        names = [place] if place.is_file() else (at / f for at, files in run_folders(place) for f in files)
        for path in names:
            if own is not None and path.resolve().is_relative_to(own.resolve()):
                continue
            if path.name in _FILES or path.suffix == ".parquet":
                try:
                    status = path.stat()
                except OSError:
                    continue  # removed while we looked
                found[str(path)] = (status.st_mtime_ns, status.st_size)
    return found
