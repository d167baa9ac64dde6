"""Launching a sweep's pending runs (its jobs minus the finished ones), so that a failure harms no other run.

A line reports each run that ends.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.part_sources import report_command
from ..config.settings import DEFAULT_STEPS
from ..errors import EXIT_INTERRUPTED, BenchError, typed_line
from ..experiment import RunResult
from ..files import is_locked, read_json, say, show
from ..tracking.progress_bar import clock_text
from ..tracking.rundir import LOCK_NAME
from .estimates import finished_in
from .jobs import Job, count_runs, describe_planning, output_folders, settings_of, varied_values
from .launchers import forget_workers

Launch = Callable[[Sequence[Sequence[str]], int], Sequence[Any]]
_SECONDS_BETWEEN_LOOKS = 1.0


@dataclass
class SweepResult:
    """The result of a sweep. failed: (job, problem) of jobs that ran now; diverged: the same of all jobs."""

    total: int
    failed: list[tuple[Job, str]]
    diverged: list[tuple[Job, str]]
    interrupted: bool = False


@dataclass
class SweepState:
    """The sweep of this process. Hydra makes the sweeper and drops what it returns, so both sides meet here.

    planned  every job, before the sweeper is called
    current jobs that run now; none in a process that only runs a job of the sweep
    unstarted jobs that were not launched, as an earlier one failed
    stopped  no further job is to begin in this process
    result   the outcome of the sweep that ran last
    problem  an error outside its runs
    worst    highest exit code of the jobs of this process
    """

    planned: list[Job] = field(default_factory=list)
    current: list[Job] = field(default_factory=list)
    unstarted: list[Job] = field(default_factory=list)
    stopped: bool = False
    result: SweepResult | None = None
    problem: BenchError | None = None
    worst: int = 0


state = SweepState()


def run_pending(
    launch: Launch, batch_size: int | None, workers: int = 1, stop_at_failure: bool = False
) -> SweepResult | None:
    """Launch every planned job without a finished run. Jobs report their outcome by their run directories alone, so
    this works alike in this process, in others and on other machines that share the disk.

    workers number of parallel runs, as far as it is known
    stop_at_failure launch no further batch after a failed run; a diverged one counts as finished
    Returns None, and starts nothing, if the data are others than those of finished runs; ``state`` has the problem.
    """
    jobs = state.planned
    paths = finished_paths(jobs)
    try:
        ended = find_finished(jobs, paths)
    except BenchError as problem:  # Hydra would show a stack trace
        state.problem = problem
        return None
    pending = [job for job, result in ended if result is None]
    first = f"{count_runs(len(jobs))}, {len(jobs) - len(pending)} of them finished already"
    say(f"{first}{_describe_archives(ended)}{_describe_steps_and_trackers(pending)}")
    for line in describe_planning(jobs):
        say(line)
    state.current = [job for job in pending if job.settings is not None]
    lines = SweepProgress(jobs, pending, workers)
    lines.report_ended([job for job in pending if job.settings is None])
    size = batch_size or (workers if stop_at_failure else max(1, len(state.current)))
    batches = [state.current[first : first + size] for first in range(0, len(state.current), size)]
    state.unstarted = []
    trouble = _launch_all(batches, launch, lines, stop_at_failure)
    state.problem = lines.problem
    tried = [job for job in pending if job not in state.unstarted]
    failed = [(job, outcome) for job in tried if (outcome := _outcome(job, trouble)) is not None]
    interrupted = any(outcome.startswith("interrupted") for _, outcome in failed)
    # in a search a diverged trial counts as completed
    results = [(job, job.finished_result(paths, repeated=True)) for job in jobs if not job.drawn]
    ends = [(job, one.summary) for job, one in results if one is not None]
    diverged = [(job, f"diverged: {end['error']}") for job, end in ends if end["exit_status"] == "diverged"]
    state.result = SweepResult(len(jobs), failed, diverged, interrupted)
    return state.result


def _describe_steps_and_trackers(jobs: Sequence[Job]) -> str:
    """Return whether step sizes are defaults, and where numbers go; all jobs have the same trackers."""
    from ..tracking.trackers import Trackers

    if not (known := settings_of(jobs)):
        return ""
    steps = DEFAULT_STEPS if any(one.default_steps for one in known) else ""
    return "".join(f"; {said}" for said in (steps, Trackers.from_settings(known[0].trackers).describe()) if said)


def _describe_archives(ended: Sequence[tuple[Job, RunResult | None]]) -> str:
    """Return a text that says where the runs are, and which command shows runs that are only in archives."""
    from ..tracking.archive import archive_around  # brings NumPy

    known = [(job.settings, result) for job, result in ended if job.settings is not None]
    packed = [
        (settings, archive_around(result.directory))
        for settings, result in known
        if result and result.directory.is_file()
    ]
    others = [r.directory.parent for s, r in known if r and r.directory.is_dir() and r.directory != s.directory]
    folders = {settings.directory.parent for settings, result in known if not result or result.directory.is_dir()}
    at = f"; in {next(iter(folders))}" if len(folders) == 1 else ""
    among = "".join(
        f", {len(paths)} of these in {' and '.join(map(str, dict.fromkeys(paths)))}"
        for paths in ([file for _, file in packed], others)
        if paths
    )
    if not packed:
        return among + at
    pages = set()
    for settings, archive in packed:
        sweep, profile, scale = (str(settings.choices.get(key)) for key in ("sweep", "profile", "scale"))
        is_of_paper = sweep.partition("/")[0] == archive.parent.name
        pages.add(report_command(sweep, profile, scale, settings.choices.get("length")) if is_of_paper else None)
    page = pages.pop() if len(pages) == 1 else None
    shows = page or f"afl-report {' '.join(map(str, dict.fromkeys(archive for _, archive in packed)))}"
    return f"{among}{at}; {shows} shows {'it' if len(packed) == 1 else 'them'}, rerun=true runs all of them here"


def find_finished(
    jobs: Sequence[Job], paths: Mapping[str, Path] | None = None, repeated: bool = False
) -> list[tuple[Job, RunResult | None]]:
    """Return each job with its result, or with None if it has to run.

    paths  see ``finished_paths``;  repeated  also take results of finished runs that are to be repeated
    Raises ConfigError or DataError if a result is of other data than those that are there.
    """
    from ..experiment import refuse_other_data

    paths = finished_paths(jobs) if paths is None else paths
    found = [(job, job.finished_result(paths, repeated)) for job in jobs]
    known = [(job.settings, one) for job, one in found if job.settings and one]
    refuse_other_data([(settings, one) for settings, one in known if not settings.root.rerun])
    return found


def finished_paths(jobs: Sequence[Job]) -> dict[str, Path]:
    """Return paths of finished runs besides a job's own directory, by identity: an archive below ``archive_dir``, or
    the directory of another sweep's run below ``output_dir``, which ended well or diverged."""
    from ..tracking.archive import archive_folders, archives_by_identity  # brings NumPy
    from ..tracking.records import MEASURED, read_directory

    known = settings_of(jobs)
    past = finished_in(output_folders(known), MEASURED)
    wanted = {one.identity for one in known}
    asked = [one.path for one in past if not one.is_archived and one.summary.get("identity") in wanted]
    records = {path: read_directory(path) for path in asked}
    found = {
        one.summary["identity"]: path for path, one in records.items() if one.status in MEASURED and one.is_current
    }
    for name in {one.root.archive_dir for one in known}:
        for folder in reversed(archive_folders(name)):  # the nearest one counts
            found |= archives_by_identity(folder, wanted)
    return found


def _launch_all(batches: list[list[Job]], launch: Launch, lines: SweepProgress, stop_at_failure: bool) -> str | None:
    """Launch batch after batch. Returns the reason if the launcher gave up for good; else None.

    A run of another process is postponed until that process has left it, and launched unless it is finished then.
    A worker that is killed (out of memory, say) makes joblib and Ray drop a whole batch. Runs that had not started are
    then launched again, and those that had started one by one, so that the culprit harms no other run.
    """
    trouble = None
    postponed: list[Job] = []
    while batches or postponed:
        if not batches:
            batches = [_wait_for_free_runs(postponed)]
            postponed = [job for job in postponed if job not in batches[0]]
        batch = batches.pop(0)
        ended = [job for job in batch if job.finished_result() is not None]  # by another process since the plan
        lines.report_ended(ended)
        if not (batch := [job for job in batch if job not in ended]):
            continue
        before = {id(job): job.summary_stamp() for job in batch}
        try:
            with lines.watching() if len(batch) > 1 else nullcontext():
                returns = launch([job.sent for job in batch], state.current.index(batch[0]))
        except Exception as error:
            forget_workers()
            trouble = f"the launcher gave up: {typed_line(error)}"
            was_interrupted = {id(job) for job in batch if (_outcome(job, None) or "").startswith("interrupted")}
            left = [job for job in batch if job.summary_stamp() == before[id(job)] or id(job) in was_interrupted]
            begun = [job for job in left if _lock(job).exists()]
            waiting = [job for job in left if job not in begun]
            if len(waiting) == len(batch):
                return trouble  # it cannot start at all
            one_by_one = [[job] for job in begun] if len(batch) > 1 else []
            batches = ([waiting] if waiting else []) + batches + one_by_one
            if batches:
                say(f"{trouble}; continuing with {sum(map(len, batches))} runs")
        else:
            answers = [_answer_of(one) for one in returns]
            in_use = [job for job, answer in zip(batch, answers, strict=True) if answer["postponed"]]
            postponed += in_use
            for job, answer in zip(batch, answers, strict=True):
                job.error = None if answer["code"] in (0, EXIT_INTERRUPTED) else answer["line"]
            lines.report_ended([job for job in batch if job not in in_use])
            if any(answer["code"] == EXIT_INTERRUPTED for answer in answers):
                break
        if stop_at_failure and any(_outcome(job, trouble) for job in batch if job not in postponed):
            state.unstarted = [job for left in (*batches, postponed) for job in left]
            say(f"stopped at the first failure: {count_runs(len(state.unstarted))} not started")
            break
    return trouble


def _wait_for_free_runs(jobs: list[Job]) -> list[Job]:
    """Wait until other processes have left at least one of these runs, and return the runs that are free."""
    waiting = False
    while not (free := [job for job in jobs if not is_locked(_lock(job))]):
        if not waiting:
            say(f"waiting for other processes, which work on {count_runs(len(jobs))} of this sweep")
        waiting = True
        time.sleep(1)
    return free


def results() -> list[RunResult]:
    """Return the result of every job of the sweep that ran last, in their order."""
    paths, found = finished_paths(state.planned), []
    for job in state.planned:
        if (result := job.finished_result(paths, repeated=True)) is None:
            directory = Path() if job.settings is None else job.settings.directory
            status, _, error = (_outcome(job, None) or "failed").partition(": ")
            summary = {"exit_status": status, "name": " ".join(job.overrides), "error": error or status}
            result = RunResult(directory, summary)
        found.append(result)
    return found


def has_active_runs() -> bool:
    """Return True while a process works on a run of this sweep."""
    return any(is_locked(_lock(job)) for job in state.current)


def _lock(job: Job) -> Path:
    """Return the file that a process locks while it works on the run."""
    assert job.settings is not None
    return job.settings.directory / LOCK_NAME


def _answer_of(job_return: Any) -> dict[str, Any]:
    """Return the answer of a job's function (multirun.run); of a job that raised, its error in one line."""
    if job_return.status.name == "COMPLETED":
        return dict(job_return.return_value)
    error = job_return._return_value  # hydra's property raises it
    return {"code": 1, "line": typed_line(error), "postponed": False}


def _outcome(job: Job, trouble: str | None) -> str | None:
    """Return a line about an unfinished run; None if it is finished."""
    if job.settings is None:
        return f"failed: {job.error}"
    if job.finished_result(repeated=trouble is None) is not None:  # with trouble it may not have run again
        return None
    if job.error and job.error.startswith("failed:"):  # refused: the summary there, if any, is an earlier one
        return job.error
    try:
        summary = read_json(job.settings.directory / "summary.json")
        return f"{summary['exit_status']}: {summary['error']}"
    except (OSError, ValueError, KeyError, TypeError):
        return job.error or trouble or "no summary: not started, or killed"


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
        self._varied_keys = varied_values(jobs).keys()
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


def describe_failures(result: SweepResult) -> str:
    """Return the failed and diverged runs with their commands as text; an empty text if there are none."""
    lines = []
    for jobs, what in (
        (result.failed, "did not finish; the same command resumes them, or one alone"),
        (result.diverged, "diverged, which counts as finished; rerun=true runs one again"),
    ):
        if jobs:
            lines.append(f"\n{len(jobs)} of {count_runs(result.total)} {what}:")
            lines += [f"  {job.command}    # {outcome}" for job, outcome in jobs]
    return "\n".join(lines)
