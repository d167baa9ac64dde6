"""The progress of a multirun: one short line for each run as soon as it ends, under any launcher."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ..errors import BenchError
from ..files import read_json, show
from ..tracking.progress_bar import clock_text
from .jobs import Job

_SECONDS_BETWEEN_LOOKS = 1.0


class SweepProgress:
    """Print a line for each run that ends: ``[7/20] algorithm=ace seed=3: 93.1 % (best 94.0 %), 12.3 s; 0:02:36 left``.

    Runs report by their directories alone, so the lines include runs in other processes.

    jobs     of the whole multirun; pending: those that are to run now
    workers how many run at once
    clock    seconds, only differences matter
    problem  why a line could not be written, where the reason is not a lost reader
    """

    def __init__(
        self, jobs: Sequence[Job], pending: Sequence[Job], workers: int = 1, clock: Callable[[], float] = time.monotonic
    ):
        self._varied_keys = varied_keys(jobs)
        self._total, self._left = len(jobs), {id(job): job for job in pending}
        self._done_before = len(jobs) - len(pending)
        self._before = {id(job): job.summary_stamp() for job in pending}
        self._workers, self._clock, self._started = workers, clock, clock()
        self.problem: BenchError | None = None
        self._lock = threading.Lock()

    def report_ended(self, jobs: Sequence[Job] = ()) -> None:
        """Print a line for each run that ended since the last call.

        jobs  ended jobs whose directories do not show it
        """
        ended = {id(job) for job in jobs}
        with self._lock:
            for key, job in list(self._left.items()):
                if job.summary_stamp() not in (None, self._before[key]):
                    self._print_ended(job, _describe_outcome(job))
                elif key in ended:
                    self._print_ended(job, job.error or "already complete")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Report the ended runs of other processes every second while the block runs."""
        over = threading.Event()

        def report_repeatedly() -> None:
            while not over.wait(_SECONDS_BETWEEN_LOOKS):
                self.report_ended()

        thread = threading.Thread(target=report_repeatedly, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.report_ended()

    def _print_ended(self, job: Job, outcome: str) -> None:
        del self._left[id(job)]
        done = self._total - len(self._left)
        half = min(self._workers - 1, len(self._left)) / 2  # active runs are on average half done
        here = done - self._done_before + half
        left = (self._clock() - self._started) / here * (len(self._left) - half)
        words = " ".join(text for text in job.overrides if text.partition("=")[0] in self._varied_keys)
        name = words or (job.settings.name if job.settings else " ".join(job.overrides))
        rest = f"; {clock_text(left)} left" if self._left else f"; {clock_text(self._clock() - self._started)} in all"
        try:
            show(f"[{done:{len(str(self._total))}}/{self._total}] {name}: {outcome}{rest}")
        except OSError as error:  # the reader left, or a disk is full, but the runs are wanted
            if error.errno != errno.EPIPE:
                self.problem = BenchError(f"standard output: {error.strerror}")


def varied_keys(jobs: Sequence[Job]) -> set[str]:
    """Return the keys whose overrides differ between jobs, or that only some jobs have."""
    values: dict[str, set[str]] = {}
    for job in jobs:
        for text in job.overrides:
            values.setdefault(text.partition("=")[0], set()).add(text)
    own = [{text.partition("=")[0] for text in job.overrides} for job in jobs]
    return {key for key, texts in values.items() if len(texts) > 1 or not all(key in keys for keys in own)}


def count_runs(count: int) -> str:
    """Return a count with its noun: ``1 run``, ``2 runs``."""
    return f"{count} run{'s' * (count != 1)}"


def _describe_outcome(job: Job) -> str:
    """Return the result of an ended run in a few words."""
    summary: dict[str, Any] = {}
    assert job.settings is not None
    with suppress(OSError, ValueError):
        summary = read_json(job.settings.directory / "summary.json")
    try:
        if summary["exit_status"] == "ok":
            final, best = (100 * summary[which]["test/accuracy"] for which in ("final", "best"))
            return f"{final:.1f} % (best {best:.1f} %), {summary['wall_seconds']:.1f} s"
        if summary["exit_status"] == "interrupted":
            return f"interrupted after {summary['used']['server_iterations']} server iterations"
        until = "," if summary["exit_status"] == "diverged" else "; stack trace"
        return f"{summary['exit_status']}: {str(summary['error']).partition(until)[0]}"  # all of it comes at the end
    except (KeyError, TypeError):
        return "its summary.json cannot be read"
