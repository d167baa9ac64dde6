"""Work at its dispatch, and the uploads and messages at its end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import wrong_return
from ..stateful import Stateful
from ..types import Delivery, Message, Reply, Upload, Work, Workload
from .budget import Counters

if TYPE_CHECKING:
    import torch


class Dispatches(Stateful):
    """Creates work and numbers its dispatches.

    samples_n       training samples each client holds
    delay, availability  already started
    tick_rounding   of durations to whole ticks, `down` or `up`; None: the clock has none
    made            number of dispatches so far; each stage of work counts
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

    def create_instant_work(self, client: int, counters: Counters) -> Work:
        """Create work that takes no time."""
        count = self._count_n[client]
        self._count_n[client] += 1
        self._rule.dispatched(client)
        k = self._rule.work_for(client)
        if k is None:
            k = self._workload.k
        elif not (isinstance(k, int | np.integer) and k >= 1):
            raise wrong_return(self._rule, "work_for", k, "a whole number >= 1, or None")
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

    def create_work(self, client: int, counters: Counters, free_at: float) -> Work:
        """Create work that the client begins at ``free_at``, now or later."""
        work = self.create_instant_work(client, counters)
        begun = work if free_at == work.start else replace(work, start=free_at)
        duration, arrives = 0.0, False
        if begun is work or not self._availability.has_left(client, counters.iteration, free_at):
            duration, arrives = self._availability.outcome(begun, self._delay.stage_duration(work))
        work.lost = not arrives
        work.due = free_at + (duration if self._whole is None else max(1, self._whole(duration)))
        return work

    def create_next_stage(self, work: Work, now: float) -> Work:
        """Create the next stage of work. The dispatch decided whether the work is lost."""
        work = replace(work, stage=work.stage + 1, sequence=self._next_number())
        work.due = now + self._delay.stage_duration(work)
        return work

    def _next_number(self) -> int:
        self.made += 1
        return self.made - 1


def build_upload(work: Work, delivery: Delivery, samples: int, counters: Counters) -> Upload:
    """Build the upload at the end of work. samples: of the client; counters: at the arrival"""
    assert delivery.vector_d is not None
    return Upload(
        **_shared_attributes(work, samples, counters),
        vector_d=delivery.vector_d,
        local_steps=work.local_steps,
        loss=delivery.loss,
        base_d=delivery.base_d,
        outputs_uc=delivery.outputs_uc,
        second_d=delivery.second_d,
    )


def build_message(work: Work, delivery: Delivery, samples: int, counters: Counters) -> Message:
    """Build the message at the end of a stage that is not the last; arguments as of ``build_upload``."""
    assert delivery.activations is not None and delivery.labels is not None
    facts = _shared_attributes(work, samples, counters)
    return Message(**facts, stage=work.stage, activations=delivery.activations, labels=delivery.labels)


def _shared_attributes(work: Work, samples: int, counters: Counters) -> dict[str, Any]:
    """Return the attributes that uploads and messages share."""
    return {
        "client": work.client,
        "base_iteration": work.iteration,
        "staleness": counters.iteration - work.iteration,
        "samples": samples,
        "k": work.k,
        "delay": counters.virtual_time - work.start,
    }


class Executor(Protocol):
    """Computes work. The engine dispatches each piece of work whose upload will arrive, and later delivers it once, or
    discards it if its client has left."""

    def dispatch(self, work: Work, model_d: torch.Tensor) -> None: ...

    def deliver(self, work: Work) -> Delivery: ...

    def discard(self, work: Work) -> None: ...


class StagedExecutor(Executor, Protocol):
    """Computes work of several stages. ``dispatch`` and ``start_next_stage`` begin a stage. ``deliver`` returns the
    content of its message, or the upload at the end of the last stage."""

    def start_next_stage(self, work: Work, reply: Reply) -> None:
        """Begin the next stage of work with the reply to its last message."""
        ...
