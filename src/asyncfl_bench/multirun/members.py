"""Runs of a multirun that share one process: each in a thread, as many at once as are asked for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..clients.company import Company
from ..clients.stacked import ROWS
from ..config import Settings
from ..errors import EXIT_INTERRUPTED, BenchError, RunInUse, RunTooLarge, describe_error, lacks_memory
from ..experiment import execute
from ..experiment.stopping import Stop, recording_signals
from . import pending
from .run import closing_line


@dataclass(frozen=True)
class _MemberResult:
    """The result of a member. code: exit code; line: what is said of it"""

    code: int
    line: str
    is_postponed: bool = False
    is_too_large: bool = False


def run_members(settings: Sequence[Settings], most: int) -> list[dict[str, Any]]:
    """Run these runs in threads of this process, at most ``most`` at once. Return the answer of each, as a job's.

    Runs of one precision share the process, as torch has one for all. A run that lacks memory beside the others is
    repeated alone.
    """
    answers: dict[int, _MemberResult] = {}
    numbered = sorted(enumerate(settings), key=lambda pair: pair[1].root.precision)
    stop = Stop()
    with recording_signals(stop, ends_process=True):
        for _, same in groupby(numbered, key=lambda pair: pair[1].root.precision):
            members = list(same)
            answers |= _run_together(members, most, stop)
            for number, one in members:
                if answers[number].is_too_large and len(members) > 1:
                    answers |= _run_together([(number, one)], 1, stop)
    pending.state.stopped = bool(stop)
    found = [answers[number] for number in range(len(settings))]
    return [{"code": one.code, "line": one.line, "postponed": one.is_postponed} for one in found]


def _run_together(members: list[tuple[int, Settings]], most: int, stop: Stop) -> dict[int, _MemberResult]:
    """Run members of one company. A member that has not started when a stop is requested is interrupted."""
    company, waiting = Company(ROWS), queue.SimpleQueue[tuple[int, Settings]]()
    answers: dict[int, _MemberResult] = {}
    for member in members:
        waiting.put(member)

    def run_waiting() -> None:
        while True:
            try:
                number, one = waiting.get_nowait()
            except queue.Empty:
                return
            answers[number] = _MemberResult(EXIT_INTERRUPTED, "interrupted") if stop else _run_member(one, company)

    count = min(most, len(members))
    threads = [threading.Thread(target=run_waiting, name=f"afl-run-{place}") for place in range(count)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return answers


def _run_member(settings: Settings, company: Company) -> _MemberResult:
    """Run one member."""
    settings.root.progress = False  # a multirun has a line for each run
    try:
        result = execute(settings, alone=False, company=company)
    except BenchError as error:
        line, is_large = f"failed: {error}", isinstance(error, RunTooLarge) or lacks_memory(error)
        return _MemberResult(error.exit_code, line, isinstance(error, RunInUse), is_large)
    except Exception as error:  # the others continue
        return _MemberResult(1, f"failed: {describe_error(error)}")
    is_large = lacks_memory(BenchError(str(result.summary.get("error"))))
    return _MemberResult(result.exit_code, closing_line(result, settings.time_unit), is_too_large=is_large)
