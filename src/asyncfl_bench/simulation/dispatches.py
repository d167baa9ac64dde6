"""Work as it is given out: its numbers, how much of it there is, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..errors import wrong_answer
from ..stateful import Stateful
from ..types import Work, Workload
from .counters import Counters


class Dispatches(Stateful):
    """
    samples_n       training samples each client holds
    delay, availability  already started
    tick_rounding   of durations to whole ticks, `down` or `up`; None: the clock has none
    made            so far; each stage of a task has its own number
    """

    state_names = ("made", "_count_n")

    def __init__(
        self, rule, workload: Workload, samples_n: list[int], delay, availability, tick_rounding: str | None = None
    ):
        self._rule, self._workload, self._samples_n = rule, workload, samples_n
        self._delay, self._availability = delay, availability
        self._whole: Callable[[float], float] | None = None
        if tick_rounding is not None:
            self._whole = math.ceil if tick_rounding == "up" else math.floor
        self.made = 0
        self._count_n = [0] * len(samples_n)

    def without_time(self, client: int, counters: Counters) -> Work:
        """A piece of work that takes no time."""
        count = self._count_n[client]
        self._count_n[client] += 1
        self._rule.dispatched(client)
        k = self._rule.work_for(client)
        if k is None:
            k = self._workload.k
        elif not (isinstance(k, int | np.integer) and k >= 1):
            raise wrong_answer(self._rule, "work_for", k, "a whole number >= 1, or None")
        own = self._rule.resumes_from(client)
        held = self._samples_n[client]
        steps = self._workload.steps(held, k)
        return Work(
            client,
            self._next_number(),
            count,
            counters.iteration if own is None else own[0],
            local_steps=steps,
            k=k,
            samples=self._workload.samples(held, k),
            # a first round takes no time and no draw: all rules meet the same durations
            cycle=count - self._rule.needs.first_round,
            start=counters.virtual_time,
            stages=steps + 1 if self._rule.needs.cuts else 1,
        )

    def work(self, client: int, counters: Counters, free_at: float) -> Work:
        """A piece of work that the client begins when it is free, which is not before now."""
        work = self.without_time(client, counters)
        begun = work if free_at == work.start else replace(work, start=free_at)
        duration, arrives = 0.0, False
        if begun is work or not self._availability.has_left(client, counters.iteration, free_at):
            duration, arrives = self._availability.outcome(begun, self._delay.of_stage(work))
        work.lost = not arrives
        work.due = free_at + (duration if self._whole is None else max(1, self._whole(duration)))
        return work

    def next_stage(self, work: Work, now: float) -> Work:
        """Of a task. Whether work is lost was decided when the task was dispatched."""
        work = replace(work, stage=work.stage + 1, sequence=self._next_number())
        work.due = now + self._delay.of_stage(work)
        return work

    def _next_number(self) -> int:
        self.made += 1
        return self.made - 1
