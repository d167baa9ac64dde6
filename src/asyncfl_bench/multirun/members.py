"""Runs of a multirun that share processes: each run is in a thread, and each thread takes the next run that is left."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import threading
from array import array
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ..clients.run_group import RunGroup
from ..clients.stacked import ROWS
from ..config import Settings
from ..config.part_sources import allow_local_modules, named_folders, use_folders
from ..errors import EXIT_INTERRUPTED, BenchError, RunInUse, RunTooLarge, describe_error, lacks_memory
from ..experiment import execute
from ..experiment.stopping import Stop, recording_signals
from . import pending
from .launchers import ignoring_terminal_signals
from .run import closing_line

_PRELOADED = ["torch", "asyncfl_bench.experiment.build"]  # once, for all processes
_Member = tuple[int, Settings]  # its number in the multirun

_Results = dict[int, dict[str, Any]]  # number -> result as that of a job, and whether the run was too large


def run_members(settings: Sequence[Settings], runs: int, processes: int = 1) -> list[dict[str, Any]]:
    """Run these runs, at most ``runs`` at once in each process. Return the result of each as that of a job.

    Runs of one precision share a process, as torch has one for all. A run that lacks memory beside the others is
    repeated alone. A single process is this one.
    Raises BenchError if a process ended early, after all others.
    """
    numbered = sorted(enumerate(settings), key=lambda pair: pair[1].root.precision)
    groups = [list(group) for _, group in itertools.groupby(numbered, key=lambda pair: pair[1].root.precision)]
    found = _run_processes(groups, runs, processes) if processes > 1 else {}
    stop = Stop()
    with recording_signals(stop, ends_process=True):
        if processes == 1:
            found = _run_groups(groups, [_SharedIndices(len(group)) for group in groups], runs, stop)
        for number, one in numbered:
            if found[number]["too_large"] and len(numbered) > 1:
                found |= _run_groups([[(number, one)]], [_SharedIndices(1)], 1, stop)
    pending.state.stopped = bool(stop)
    return [found[number] for number in range(len(settings))]


class _SharedIndices:
    """Indices of a list, in an open file that threads and processes share. A call returns the next index or None."""

    def __init__(self, count: int):
        self._file = TemporaryFile(buffering=0)  # noqa: SIM115 (open as long as this object)
        self._file.write(array("I", range(count)).tobytes())
        self._file.seek(0)
        self._number = self._file.fileno()

    def __call__(self) -> int | None:
        read = array("I", os.read(self._number, array("I").itemsize))
        return read[0] if read else None

    def __getstate__(self) -> Any:
        return DupFd(self._number)  # the processes have one position in the file

    def __setstate__(self, state: Any) -> None:
        self._number = state.detach()


def _run_processes(groups: list[list[_Member]], runs: int, processes: int) -> _Results:
    """Run members in processes. Those save their runs when they get SIGTERM, which the command sends at Ctrl-C."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    indices, packed, started = [_SharedIndices(len(group)) for group in groups], pickle.dumps(groups), []
    with ignoring_terminal_signals():
        for _ in range(processes):
            ours, theirs = context.Pipe(duplex=False)
            words = theirs, named_folders(), packed, indices, runs
            process = context.Process(target=_run_share, args=words, daemon=True)
            process.start()
            theirs.close()
            started.append((process, ours))
    found: _Results = {}
    lost = 0
    for process, ours in started:
        try:
            found |= ours.recv()
        except EOFError:
            lost += 1
        process.join()
    if lost:
        raise BenchError(f"{lost} of {processes} processes ended before their runs")
    return found


def _run_share(
    answers: Connection, folders: list[Path], packed: bytes, indices: list[_SharedIndices], runs: int
) -> None:
    """Run members in this process until none is left, and send the results."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])  # the command passes them on as SIGTERM
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    use_folders(folders)
    allow_local_modules()
    stop = Stop()
    with recording_signals(stop, ends_process=True), suppress(BrokenPipeError):
        answers.send(_run_groups(pickle.loads(packed), indices, runs, stop))


def _stop_with_parent() -> None:
    """Save the runs of this process and end it, when the command that started it was killed. For a thread."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _run_groups(groups: list[list[_Member]], indices: Sequence[_SharedIndices], runs: int, stop: Stop) -> _Results:
    """Run one group after another, with shared stacks in each.

    A member that has not started when a stop is requested is interrupted.
    """
    found: _Results = {}

    def run_left(members: list[_Member], take_index: _SharedIndices, run_group: RunGroup) -> None:
        while (index := take_index()) is not None:
            number, settings = members[index]
            found[number] = {"postponed": False, "too_large": False} | (
                {"code": EXIT_INTERRUPTED, "line": "interrupted"} if stop else _run_member(settings, run_group)
            )

    for group, take_index in zip(groups, indices, strict=True):
        words, names = (group, take_index, RunGroup(ROWS)), range(min(runs, len(group)))
        threads = [threading.Thread(target=run_left, args=words, name=f"afl-run-{name}") for name in names]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    return found


def _run_member(settings: Settings, run_group: RunGroup) -> dict[str, Any]:
    """Run one member and return its result."""
    settings.root.progress = False  # a multirun has a line for each run
    try:
        result = execute(settings, alone=False, run_group=run_group)
    except BenchError as error:
        is_large = isinstance(error, RunTooLarge) or lacks_memory(error)
        answer = {"code": error.exit_code, "line": f"failed: {error}"}
        return answer | {"postponed": isinstance(error, RunInUse), "too_large": is_large}
    except Exception as error:  # the others continue
        return {"code": 1, "line": f"failed: {describe_error(error)}"}
    is_large = lacks_memory(BenchError(str(result.summary.get("error"))))
    return {"code": result.exit_code, "line": closing_line(result, settings.time_unit), "too_large": is_large}
