"""Running one experiment from checked settings: start, resume, or find it complete; every end through one door."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.saved import identity_in
from ..config.settings import Settings, fill_in_precision
from ..errors import (
    BenchError,
    ConfigError,
    InputError,
    RunInUse,
    describe_error,
    describe_lack_of_memory,
    lacks_memory,
    locating_user_errors,
)
from ..files import is_locked, open_own, read_json, read_yaml, write_text
from ..tracking.rundir import (
    CHECKPOINT_NAME,
    CONFIG_NAME,
    ERROR_NAME,
    LOCK_NAME,
    METRICS_NAME,
    SUMMARY_NAME,
    RunDirectory,
)
from ..tracking.trackers import Trackers
from . import machine
from .preflight import Preflight, announcing_wait
from .result import RunResult, finished_result, refuse_other_data
from .stopping import recording_signals

if TYPE_CHECKING:
    from ..clients.run_group import RunGroup
    from ..simulation.observer import Observer
    from .drive import Run

_building = threading.RLock()  # initial models are drawn from the one generator of torch


def execute(
    settings: Settings,
    group: str | None = None,
    observers: Sequence[Observer] = (),
    *,
    ends_process: bool = False,
    alone: bool = True,
    run_group: RunGroup | None = None,
) -> RunResult:
    """Run one experiment, resume it, or return its result if it is already complete.

    group         name under which a tracker groups several runs
    observers objects that receive the run's events, besides those of the run itself
    ends_process  a second Ctrl-C ends the process within two seconds, whatever it is doing
    alone         not a run of a multirun, which prints its own line for each
    run_group     runs in other threads of this process, with which this one computes
    Raises ConfigError or BenchError for errors before the run starts, RunInUse if another process works on
    it; afterwards a failure is written to summary.json and returned with exit status "failed" or "diverged".
    """
    path = settings.directory
    with _describing_problems(path):
        if settings.root.device.startswith("cuda"):
            machine.select_device(settings.root.device)  # raises without a GPU, even if the run is finished
        if (result := finished_result(settings)) is not None:
            refuse_other_data([(settings, result)])
            return result
        _refuse_another_run(settings)
        if is_locked(path / LOCK_NAME):  # said before data are loaded
            raise RunInUse(_describe_use(path))
        Preflight().check(settings)
        with locating_user_errors():
            from .build import build_run
            from .drive import Run

            text = f"preparing {settings.root.n_clients} clients and model={settings.choices['model']}"
            with announcing_wait(text, settings.root.progress and alone), _building:
                components = build_run(settings)
        components.simulation.observers += observers
        directory, stop = RunDirectory(path), components.stop
        with (
            closing(components.executor),
            directory.removing_if_empty(),
            _holding_lock(path),
            recording_signals(stop, ends_process),
            nullcontext() if run_group is None else run_group.joining(components.executor),
        ):
            if (result := finished_result(settings)) is not None:  # another process ended it since
                return result
            directory.remove_leftovers()
            run = Run(components, directory, Trackers.from_settings(settings.trackers))
            status, error = _drive(run, group, alone)
            components.executor.close()
            summary = run.summary(status, error) | ({} if run_group is None else {"shared": run_group.most})
            _write_summary(run, summary)
        return RunResult(path, summary, stop.received[0] if stop else None)


def _drive(run: Run, group: str | None, alone: bool) -> tuple[str, str | None]:
    """Start or resume the run, and drive it to its end. Returns the exit status and the error, None without one.

    Raises BenchError for a failure before the run has started.
    """
    from .evaluate import Diverged

    directory = run.directory
    try:
        run.open(group, alone)
        status, error = run.drive()
        if status == "ok" and directory.metrics.count_whole_lines() != run.evaluations.lines:
            raise BenchError(f"{directory.metrics.path}: no longer has the points that were written to it")
        return status, error
    except Diverged as problem:
        return "diverged", str(problem)
    except (Exception, SystemExit) as problem:  # a part of the user may call sys.exit
        error = _describe_problem(problem, directory.path)
        if not run.started:  # what is in the directory stays as it is
            raise problem if isinstance(problem, BenchError) else BenchError(error) from problem
        if not (isinstance(problem, (BenchError, OSError)) or lacks_memory(problem)):
            trace = directory.path / ERROR_NAME
            with suppress(OSError):
                write_text(trace, traceback.format_exc())
                error = f"{error}; stack trace in {trace}"
        return "failed", error


def _write_summary(run: Run, summary: dict[str, Any]) -> None:
    """Write the summary to the directory and to the trackers. Raises BenchError if it cannot be written."""
    directory = run.directory
    try:
        directory.close()
        directory.write_summary(summary)
    except OSError as problem:
        earlier = f"; before that: {summary['error']}" if summary["error"] else ""
        reason = problem.strerror or problem
        raise BenchError(f"{directory.path}: cannot be written: {reason}{earlier}") from None
    finally:
        run.tracker.finish(summary, 0 if summary["exit_status"] == "ok" else 1)


@contextmanager
def _describing_problems(path: Path) -> Iterator[None]:
    """Turn an OSError and a lack of memory in the block into a BenchError. path: the run directory"""
    try:
        yield
    except (OSError, ImportError, MemoryError, RuntimeError) as problem:
        if not (isinstance(problem, OSError) or lacks_memory(problem)):
            raise
        raise BenchError(_describe_problem(problem, path)) from problem


def _describe_problem(problem: BaseException, path: Path) -> str:
    """Return a message for the problem, in one line for known kinds."""
    if isinstance(problem, BenchError):
        return str(problem)
    if isinstance(problem, OSError):
        return f"{problem.filename or path}: {problem.strerror or problem}"
    if lacks_memory(problem):
        return describe_lack_of_memory(problem)
    return describe_error(problem)


@contextmanager
def _holding_lock(directory: Path):
    """Hold the lock of the run directory. Raises RunInUse if another process works on the run."""
    from filelock import FileLock, Timeout

    open_own(directory / LOCK_NAME, "ab").close()
    lock = FileLock(directory / LOCK_NAME)
    try:
        lock.acquire(timeout=0.2, poll_interval=0.02)  # ``is_locked`` of another process takes it for a moment
    except Timeout:
        raise RunInUse(_describe_use(directory)) from None
    try:
        yield
    finally:
        with suppress(OSError):  # while it is held: afterwards the file may be the lock of another process
            (directory / LOCK_NAME).unlink()
        lock.release()


def _describe_use(directory: Path) -> str:
    return f"{directory}: another process is working on this run; wait for it, or choose another directory"


def _refuse_run_without_precision(directory: Path) -> None:
    """Raise InputError for a run of an earlier version, without the setting, if it was or may have been on a GPU.

    Its convolutions were in TF32, so fp32 must neither resume nor replace it. The summary, if any, names the device.
    """
    from .checkpoint import has_checkpoint

    summary: dict = {}
    try:
        tree = read_yaml(directory / CONFIG_NAME)
        if "precision" in tree:
            return
        with suppress(OSError, ValueError):
            summary = read_json(directory / SUMMARY_NAME)
        device = str(summary.get("device") or tree.get("device"))
    except (OSError, ValueError, TypeError, AttributeError):
        return  # another message says what is wrong with the files
    if not (device.startswith("cuda") or (device == "auto" and machine.has_gpu())):
        return
    replaces = "rerun=true replaces it"
    if fill_in_precision(tree, summary) is not tree:
        why = f"a run of an earlier version on a GPU, which counts as one with precision=tf32; {replaces}"
        raise InputError(f"{directory}: holds {why}, and output_dir=DIR names another folder")
    if has_checkpoint(directory / CHECKPOINT_NAME):
        where = ", and a machine without a GPU resumes it" if device == "auto" else ""
        why = f"was interrupted in an earlier version, perhaps on a GPU in TF32; {replaces}{where}"
        raise InputError(f"{directory}: {why}")


def _refuse_another_run(settings: Settings) -> None:
    """Raise ConfigError if the directory has files of another run or of a person."""
    directory, root = settings.directory, settings.root
    if not root.rerun:
        _refuse_run_without_precision(settings.earlier.directory if settings.earlier else directory)
    there = [name for name in (CONFIG_NAME, SUMMARY_NAME, METRICS_NAME) if (directory / name).exists()]
    if root.rerun or not there:
        return
    held, before = identity_in(directory), {}
    with suppress(OSError, ValueError, TypeError, AttributeError):
        before = dict(read_json(directory / SUMMARY_NAME).get("digests", {}))
    # parts whose files are not those of the run with this summary
    changed = ", ".join(name for name, digest in settings.digests.items() if before.get(name, digest) != digest)
    if held == settings.identity and not changed:
        return
    if settings.named_directory is None:
        if held is not None:  # else its name identifies it, and its files cannot be read
            raise BenchError(
                f"{directory}: holds another run ({held}) under the name of this one; move it away, or replace it with "
                "rerun=true"
            )
    else:
        what = "a run with other settings" if held is not None else f"a {there[0]} that is not of this run"
        what = f"a run with other content of the files of {changed}" if changed and held == settings.identity else what
        raise ConfigError("hydra.run.dir", directory, f"holds {what}; choose another, or set rerun=true")
