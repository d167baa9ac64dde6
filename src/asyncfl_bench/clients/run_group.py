"""Groups of runs in one process that share stacks, so that their ready work is computed together.

Each run has its engine, rule, clock and random streams, in one thread. A run that needs an upload submits all its ready
work. The work is computed when every run waits, or when a stack is full. All stacks have one shape, so the bits of an
upload do not depend on the other work in its stack.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from .queue import WorkQueue
from .stacked import StackComputer, StackRow, Stacks

_SECONDS = 0.1  # between checks whether a waiting run was requested to stop


@dataclass(eq=False)
class _Request:
    """Work that a run waits for. error: of the computation, which the run raises"""

    rows: list[StackRow]
    is_done: bool = False
    error: BaseException | None = None


class RunGroup:
    """Runs that compute their work together. Runs whose work is not computed in stacks run beside them.

    full         pieces of work with equal keys that are computed without waiting for other runs
    most         largest number of runs at one time
    waves, rows  computations, and pieces of work in them
    """

    def __init__(self, full: int):
        self._full = full
        self._turn = threading.Condition()
        self._members = self.most = 0
        self._waiting: list[_Request] = []
        self._stacks: dict[tuple[object, ...], Stacks] = {}
        self._tasks: dict[object, Any] = {}  # by device and digest of samples
        self.waves = self.rows = 0

    @contextmanager
    def joining(self, executor: object) -> Iterator[None]:
        """Let a run compute with the group inside the block, if its work is computed in stacks."""
        computer = executor.computer if isinstance(executor, WorkQueue) else None
        if not isinstance(computer, StackComputer):
            yield
            return
        task = computer.task
        with self._turn:
            self._members += 1
            self.most = max(self.most, self._members)
            task.share_samples(self._tasks.setdefault((task.device, task.samples_digest), task))
            computer.compute_rows = partial(self.compute, computer)
        try:
            yield
        finally:
            with self._turn:
                self._members -= 1
                self._compute_if_ready()

    def compute(self, computer: StackComputer, rows: list[StackRow]) -> None:
        """Compute the work of one run together with that of others.

        Raises Stopped if the run is requested to stop while it waits, without a change of its state, and any error of
        the computation.
        """
        request = _Request(rows)
        with self._turn:
            self._waiting.append(request)
            self._compute_if_ready()
            while not request.is_done:
                self._turn.wait(_SECONDS)
                if not request.is_done and computer.local.stop:
                    self._waiting.remove(request)
                    self._compute_if_ready()
                    computer.local.raise_if_stopped()
        if request.error is not None:
            raise request.error

    def _compute_if_ready(self) -> None:
        """Compute the waiting work if all runs wait, or the work of one key if it fills a stack."""
        groups: dict[tuple[object, ...], list[_Request]] = {}
        for request in self._waiting:
            first = request.rows[0]
            groups.setdefault((*first.computer.stack_key, first.received[2] is None), []).append(request)
        all_wait = len(self._waiting) == self._members
        for key, requests in groups.items():
            if all_wait or sum(len(request.rows) for request in requests) >= self._full:
                self._compute_group(key, requests)

    def _compute_group(self, key: tuple[object, ...], requests: list[_Request]) -> None:
        rows = [row for request in requests for row in request.rows]
        self.waves, self.rows = self.waves + 1, self.rows + len(rows)
        error: BaseException | None = None
        try:
            if key not in self._stacks:
                self._stacks[key] = rows[0].computer.build_stacks()
            self._stacks[key].compute_rows(rows, lambda: None)
        except BaseException as problem:  # each run raises it
            error = problem
        for request in requests:
            request.is_done, request.error = True, error
            self._waiting.remove(request)
        self._turn.notify_all()
