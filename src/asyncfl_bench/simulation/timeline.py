"""Work in flight, in the order in which it ends, or waiting for an answer of the server."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import asdict

from ..stateful import Stateful
from ..types import Work


class Timeline(Stateful):
    """
    works    all work in flight, by sequence number
    now      of it what ends at this time and has not been dealt with, in order of time and dispatch
    waiting  by client the stages that ended with a message which the server has not answered yet
    """

    state_names: tuple[str, ...] = ("_due",)

    def __init__(self) -> None:
        self.works: dict[int, Work] = {}
        self.now: deque[Work] = deque()
        self.waiting: dict[int, Work] = {}
        self._due: list[tuple[float, int]] = []  # heap of (time of the end, sequence number)

    def add(self, work: Work) -> None:
        """Work that ends when it is due."""
        heapq.heappush(self._due, (work.due, work.sequence))
        self.works[work.sequence] = work

    def add_now(self, work: Work) -> None:
        """Work that takes no time."""
        self.works[work.sequence] = work
        self.now.append(work)

    @property
    def busy(self) -> bool:
        """Whether any client is in flight."""
        return bool(self.works or self.waiting)

    @property
    def next_due(self) -> float:
        """When the next work ends that does not end now; infinite where there is none."""
        return self._due[0][0] if self._due else math.inf

    def reach(self, time: float, *, together: bool) -> None:
        """Put into ``now`` what ends by ``time``: all of it ``together``, or the next piece."""
        while self.next_due <= time:
            self.now.append(self.works[heapq.heappop(self._due)[1]])
            if not together:
                return

    def end_first(self) -> None:
        """What is first now is over."""
        del self.works[self.now.popleft().sequence]

    def free_at(self, client: int, now: float) -> float:
        """When the client has done all work it was given; now where it has none."""
        return max((work.due for work in self.works.values() if work.client == client), default=now)

    def cancel(self, oldest: int, chosen: Callable[[Work], bool]) -> list[Work]:
        """Take out the work from model version ``oldest`` or an older one for which ``chosen`` says so, in order of
        dispatch."""
        # in this order versions only rise
        old = itertools.takewhile(lambda work: work.iteration <= oldest, self.works.values())
        if works := [work for work in old if chosen(work)]:
            for work in works:
                del self.works[work.sequence]
            self.now = deque(work for work in self.now if work.sequence in self.works)
            self._due = [entry for entry in self._due if entry[1] in self.works]
            heapq.heapify(self._due)
        return works

    def put_back(self) -> None:
        """What was to end now ends later after all, in the same order."""
        while self.now:
            work = self.now.popleft()
            heapq.heappush(self._due, (work.due, work.sequence))

    def state_dict(self) -> dict:
        return super().state_dict() | {
            "works": [asdict(work) for work in self.works.values()],
            "now": [work.sequence for work in self.now],
            "waiting": [asdict(work) for work in self.waiting.values()],
        }

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.works = {work["sequence"]: Work(**work) for work in state["works"]}
        self.now = deque(self.works[sequence] for sequence in state["now"])
        self.waiting = {work["client"]: Work(**work) for work in state["waiting"]}
