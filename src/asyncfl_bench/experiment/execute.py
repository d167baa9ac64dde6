"""Running one experiment from checked settings: start, resume, or find it complete; every end through one door."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import Settings, identity_in
from ..errors import BenchError, ConfigError
from .result import RunResult, finished

if TYPE_CHECKING:
    from ..simulation.observer import Observer

SCHEDULER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
_ONE_REQUEST_SECONDS = 1.0  # a terminal and the process that started this one may both pass on the same Ctrl-C


def execute(settings: Settings, group: str | None = None, observers: Sequence[Observer] = ()) -> RunResult:
    """Runs one experiment, or resumes it, or returns its result if it is already complete.

    group      name under which a tracker groups several runs
    observers  are told what happens, besides those of the run itself
    Raises ConfigError or BenchError for what goes wrong before the run has begun; afterwards a failure is written to
    summary.json and returned with exit status "failed" or "diverged".
    """
    if (result := finished(settings)) is not None:
        return result
    _refuse_another_run(settings)
    from ..tracking.rundir import RunDirectory
    from .build import build_run
    from .drive import Run
    from .evaluate import Diverged

    components = build_run(settings)  # may refuse; nothing is on disk yet
    components.simulation.observers += observers
    directory = RunDirectory(settings.directory)
    with _locked(directory.path):
        tracker = settings.parts["tracking"].build()
        interrupted: list[int] = []
        run = Run(settings, components, directory, tracker, interrupted)
        status, error = "failed", None
        try:
            with _signals(interrupted):
                run.open(group)
                status = run.drive()
        except Diverged as problem:
            status, error = "diverged", str(problem)
        except Exception as problem:
            error = _described(problem, directory.path)
            if not run.begun:  # what is in the directory stays as it is
                components.executor.close()
                raise problem if isinstance(problem, BenchError) else BenchError(error) from problem
            if not isinstance(problem, (BenchError, OSError)):
                with suppress(OSError):
                    (directory.path / "error.txt").write_text(traceback.format_exc())
        components.executor.close()
        summary = run.summary(status, error)
        try:
            directory.close()
            directory.write_summary(summary)
        except OSError as problem:
            earlier = f"; before that: {error}" if error else ""
            reason = problem.strerror or problem
            raise BenchError(f"{directory.path}: cannot be written: {reason}{earlier}") from None
        finally:
            tracker.finish(summary, 0 if status == "ok" else 1)
    return RunResult(directory.path, summary, interrupted[0] if status == "interrupted" else None)


def _described(problem: Exception, path: Path) -> str:
    """What went wrong, in one line where that is known."""
    if isinstance(problem, BenchError):
        return str(problem)
    if isinstance(problem, OSError):
        return f"{problem.filename or path}: {problem.strerror or problem}"
    return f"{type(problem).__name__}: {problem}"


@contextmanager
def _locked(directory: Path):
    """Refuses when another process is working on the same run."""
    from filelock import FileLock, Timeout

    lock = FileLock(directory / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BenchError(
            f"{directory}: another process is working on this run; wait for it, or choose another directory"
        ) from None
    try:
        yield
    finally:
        lock.release()
        with suppress(OSError):
            (directory / ".lock").unlink()


def _refuse_another_run(settings: Settings) -> None:
    """A directory named by hand may hold another run, any other this run after ``--resume`` with a larger budget:
    neither is to be lost by mistake."""
    directory = settings.directory
    if settings.root.rerun or settings.resumed_identity or not (directory / "config.yaml").exists():
        return
    if identity_in(directory) in (None, settings.identity):
        return
    if settings.place is None:
        raise BenchError(
            f"{directory}: this run has been given another budget since; move it away to run it with its first one "
            "again, or set rerun=true"
        )
    raise ConfigError("hydra.run.dir", directory, "holds a run with other settings; choose another, or set rerun=true")


@contextmanager
def _signals(received: list[int]):
    """While open, Ctrl-C and SIGTERM are noted instead of raised; a second one ends the process as usual.

    So are the signals by which a scheduler announces the end, where it has installed a handler for them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    at = 0.0

    def note(number, frame):
        nonlocal at
        if received and time.monotonic() - at > _ONE_REQUEST_SECONDS:
            raise KeyboardInterrupt
        at = time.monotonic()
        received.append(number)

    announced = [number for number in SCHEDULER_SIGNALS if callable(signal.getsignal(number))]
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, *announced)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
