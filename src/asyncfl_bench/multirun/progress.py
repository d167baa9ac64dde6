"""The lines that a multirun prints: one for each run when it ends, and the best trials of a search."""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..config.places import command_text
from ..errors import BenchError
from ..files import read_json, show
from ..tracking.progress_bar import clock_text
from .jobs import Job

_SECONDS_BETWEEN_LOOKS = 1.0
_SHOWN, _SEEDS = 3, 5


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


def describe_best_trials(jobs: Sequence[Job], places: Mapping[str, Path]) -> str:
    """Return the result of a search as text: the best trials, and a command that tests the best one over seeds.

    places  see ``pending.places_of``
    The text is empty without a search. Trials with fewer finished seeds than others do not compete: a trial that
    diverges for some seeds must not win by its other seeds.
    """
    values: dict[tuple[str, ...], dict[tuple[str, ...], list[tuple[str, float]]]] = {}
    last: dict[tuple[str, ...], Job] = {}  # that of the greatest seed
    for job in jobs:
        if job.drawn and job.settings is not None:
            rest = tuple(text for text in job.overrides if text not in job.drawn and not text.startswith("seed="))
            last[rest] = max(job, last.get(rest, job), key=lambda one: one.settings.root.seed if one.settings else 0)
            trials = values.setdefault(rest, {})
            of_trial = trials.setdefault(job.drawn, [])
            result = job.finished_result(places, repeated=True)
            value = math.nan if result is None else result.value(job.settings.root.objective)
            if result is not None and not math.isnan(value):
                of_trial.append((result.summary.get("code_digest", ""), value))
    return "\n".join(_describe_trials(rest, last[rest], trials) for rest, trials in values.items())


def _describe_trials(rest: tuple[str, ...], last: Job, trials: dict[tuple[str, ...], list[tuple[str, float]]]) -> str:
    """Return the ranked trials of one search as text, and the command that tests the best one.

    trials  (digest of the user's code, value of the objective) of each seed; of several codes the present one counts
    """
    assert last.settings is not None
    root, code = last.settings.root, last.settings.code_digest
    objective = root.objective
    several = len({found for of in trials.values() for found, _ in of}) > 1
    values = {trial: [value for found, value in of if not several or found == code] for trial, of in trials.items()}
    most = max(map(len, values.values()))
    means = {trial: sum(of) / most for trial, of in values.items() if most and len(of) == most}
    what = " ".join(text for text in rest if text.startswith(("algorithm=", "sweep="))) or "the search"
    lines = [f"\n{what}: {len(means)} of {len(trials)} trials have {objective}"]
    lines += ["  runs of another code of its classes are left out; rerun=true repeats them"] if several else []
    ranked = sorted(means, key=lambda trial: means[trial], reverse=not objective.endswith("loss"))
    lines += [f"  {means[trial]:.4f}  {' '.join(trial)}" for trial in ranked[:_SHOWN]]
    if ranked:
        seeds = ",".join(str(root.seed + 1 + i) for i in range(_SEEDS))
        words = [text for text in last.hydra if not text.startswith("hydra.sweep.")]
        words += [*rest, *ranked[0], f"seed={seeds}", f"hydra.sweep.dir={Path(root.output_dir)}-best"]
        lines.append(f"the best on test samples, over seeds it was not chosen by:\n  {command_text(['-m', *words])}")
    return "\n".join(lines)
