"""Running one experiment from checked settings: begin, go on, or find it complete; every end through one door."""

from __future__ import annotations

import json
import signal
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .config import RESULTS_VERSION, Settings
from .diagnostics.base import at_least
from .errors import EXIT_INTERRUPTED, BenchError, ConfigError

if TYPE_CHECKING:
    import pandas as pd

SCHEDULER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
_ONE_REQUEST_SECONDS = 1.0  # a terminal and the process that started this one may both pass on the same Ctrl-C


@dataclass
class RunResult:
    """What a run leaves: its directory and its summary (the content of summary.json). signal: what interrupted it."""

    directory: Path
    summary: dict
    signal: int | None = None

    @property
    def ok(self) -> bool:
        return self.summary["exit_status"] == "ok"

    @property
    def exit_code(self) -> int:
        return {"ok": 0, "interrupted": EXIT_INTERRUPTED}.get(self.summary["exit_status"], 1)

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per logged point, as in metrics.jsonl."""
        import pandas as pd

        from .tracking.metrics import read_metrics

        return pd.DataFrame(read_metrics(self.directory / "metrics.jsonl"))


def execute(settings: Settings, group: str | None = None) -> RunResult:
    """Runs one experiment, or goes on with it, or returns its result if it is already complete.

    Raises ConfigError or BenchError for what goes wrong before the run has begun; afterwards a failure is written to
    summary.json and returned with exit status "failed" or "diverged".
    """
    from .running import Diverged, Run
    from .tracking.rundir import RunDirectory
    from .world import World

    if (result := finished(settings)) is not None:
        return result
    _refuse_strangers(settings)
    world = World(settings)  # may refuse; nothing is on disk yet
    run_directory = RunDirectory(settings.directory)
    with _alone_in(run_directory.path):
        tracker = settings.parts["tracking"].build()
        interrupted: list[int] = []
        run = Run(settings, world, run_directory, tracker, interrupted)
        status, error = "failed", None
        try:
            with _signals(interrupted):
                run.open(group)
                status = run.go()
        except Diverged as problem:
            status, error = "diverged", str(problem)
        except Exception as problem:
            error = _said(problem, run_directory.path)
            if not run.begun:  # what is in the directory stays as it is
                world.executor.close()
                raise problem if isinstance(problem, BenchError) else BenchError(error) from problem
            if not isinstance(problem, (BenchError, OSError)):
                with suppress(OSError):
                    (run_directory.path / "error.txt").write_text(traceback.format_exc())
        world.executor.close()
        summary = run.summary(status, error)
        try:
            run_directory.close()
            run_directory.write_summary(summary)
        except OSError as problem:
            said = f"; before that: {error}" if error else ""
            raise BenchError(f"{run_directory.path}: cannot be written: {problem.strerror or problem}{said}") from None
        finally:
            tracker.finish(summary, 0 if status == "ok" else 1)
    return RunResult(run_directory.path, summary, interrupted[0] if status == "interrupted" else None)


def _said(problem: Exception, path: Path) -> str:
    """What went wrong, in one line where that is known."""
    if isinstance(problem, BenchError):
        return str(problem)
    if isinstance(problem, OSError):
        return f"{problem.filename or path}: {problem.strerror or problem}"
    return f"{type(problem).__name__}: {problem}"


@contextmanager
def _alone_in(directory: Path):
    """Refuses when another process is at the same run."""
    from filelock import FileLock, Timeout

    lock = FileLock(directory / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BenchError(f"{directory}: another process is at this run; wait for it, or choose another place") from None
    try:
        yield
    finally:
        lock.release()
        with suppress(OSError):
            (directory / ".lock").unlink()


def finished(settings: Settings) -> RunResult | None:
    """The result of an earlier complete run with the same settings, if it has all that is asked for."""
    if settings.root.rerun:
        return None
    try:
        summary = json.loads((settings.directory / "summary.json").read_text())
        complete = summary["exit_status"] == "ok" and summary["identity"] == settings.identity
        complete = complete and summary.get("results_version") == RESULTS_VERSION
        if not complete or not {"final", "best", "used", "name", "wall_seconds", "stopped_by"} <= set(summary):
            return None
    except (OSError, ValueError, TypeError, KeyError):
        return None  # no summary, or none that can be read: not complete
    traced = (settings.directory / "trace.parquet").exists()
    if settings.root.trace and not traced:
        return None
    if not at_least(summary.get("diagnostics"), settings.tree["diagnostics"]):
        return None
    return RunResult(settings.directory, summary | {"already_complete": True})


def _refuse_strangers(settings: Settings) -> None:
    """A directory named by hand may hold another run, any other this run after ``--resume`` with a larger budget:
    neither is to be lost by mistake."""
    config_path = settings.directory / "config.yaml"
    if settings.root.rerun or settings.resumed_identity or not config_path.exists():
        return
    from .config.composition import identity_of

    if identity_of(config_path) in (None, settings.identity):
        return
    if settings.place is None:
        raise BenchError(
            f"{settings.directory}: this run has been given another budget since; move it away to run it with its "
            "first one again, or set rerun=true"
        )
    raise ConfigError(
        "hydra.run.dir", settings.directory, "holds a run with other settings; choose another, or set rerun=true"
    )


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
