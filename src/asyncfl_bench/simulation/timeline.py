"""Work in flight, in the order in which it ends, and work that waits for a reply of the server."""

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
    in_flight  all work in flight, by sequence number; the clients in ``waiting`` are not in it
    ending     work that ends at the current time and has not been processed, in order of time and dispatch
    waiting    by client, the stages that ended with a message to which the server has not replied
    """

    state_names: tuple[str, ...] = ("_due",)

    def __init__(self) -> None:
        self.in_flight: dict[int, Work] = {}
        self.ending: deque[Work] = deque()
        self.waiting: dict[int, Work] = {}
        self._due: list[tuple[float, int]] = []  # heap of (time of the end, sequence number)

    def add(self, work: Work) -> None:
        """Add work that ends when it is due."""
        heapq.heappush(self._due, (work.due, work.sequence))
        self.in_flight[work.sequence] = work

    def add_now(self, work: Work) -> None:
        """Add work that takes no time."""
        self.in_flight[work.sequence] = work
        self.ending.append(work)

    @property
    def busy(self) -> bool:
        """Whether any client is in flight."""
        return bool(self.in_flight or self.waiting)

    @property
    def next_due(self) -> float:
        """Virtual time at which the next work ends that is not in ``ending``; infinite if there is none."""
        return self._due[0][0] if self._due else math.inf

    def reach(self, time: float, *, whole_tick: bool) -> None:
        """Move work that ends by ``time`` to ``ending``: all of it for a ``whole_tick``, else the next piece."""
        while self.next_due <= time:
            self.ending.append(self.in_flight[heapq.heappop(self._due)[1]])
            if not whole_tick:
                return

    def end_first(self) -> None:
        """Remove the first work of ``ending``."""
        del self.in_flight[self.ending.popleft().sequence]

    def free_at(self, client: int, now: float) -> float:
        """Return the time at which the client has done all its work; ``now`` if it has none."""
        return max((work.due for work in self.in_flight.values() if work.client == client), default=now)

    def cancel(self, oldest: int, is_chosen: Callable[[Work], bool]) -> list[Work]:
        """Remove and return work from model version ``oldest`` or older for which ``is_chosen`` is True.

        It is in order of dispatch.
        """
        # in this order versions only rise
        old = itertools.takewhile(lambda work: work.iteration <= oldest, self.in_flight.values())
        if cancelled := [work for work in old if is_chosen(work)]:
            for work in cancelled:
                del self.in_flight[work.sequence]
            self.ending = deque(work for work in self.ending if work.sequence in self.in_flight)
            self._due = [entry for entry in self._due if entry[1] in self.in_flight]
            heapq.heapify(self._due)
        return cancelled

    def put_back(self) -> None:
        """Move the work in ``ending`` back, so that it ends later in the same order."""
        while self.ending:
            work = self.ending.popleft()
            heapq.heappush(self._due, (work.due, work.sequence))

    def state_dict(self) -> dict:
        return super().state_dict() | {
            "works": [asdict(work) for work in self.in_flight.values()],
            "now": [work.sequence for work in self.ending],
            "waiting": [asdict(work) for work in self.waiting.values()],
        }

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.in_flight = {work["sequence"]: Work(**work) for work in state["works"]}
        self.ending = deque(self.in_flight[sequence] for sequence in state["now"])
        self.waiting = {work["client"]: Work(**work) for work in state["waiting"]}
