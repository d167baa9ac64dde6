"""Tables of a traced run with a row for each event: messages of a cut model, and cancelled work."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..simulation.observer import Observer
from ..stateful import Stateful

if TYPE_CHECKING:
    from ..simulation.budget import Counters
    from ..tracking.rundir import RunDirectory
    from ..types import Message, Reply, Work

EXCHANGES_NAME = "exchanges.parquet"


class EventTable(Observer):
    """Base of the observers that write a table.

    name, types  file name and columns
    counters     of the run, with their current values
    """

    name: str
    types: ClassVar[dict[str, type]]

    def __init__(self, directory: RunDirectory, counters: Counters):
        self._table, self._counters = directory.open_table(self.name, self.types), counters

    def add_open_rows(self) -> None:
        """Add rows that still wait for a later event. Called at the end of the run."""

    def parts(self) -> dict[str, Stateful]:
        return {"table": self._table}


class CancelledWork(EventTable):
    """A row for each piece of work that the server cancelled because its model version was too old."""

    name = "cancelled.parquet"
    types: ClassVar[dict[str, type]] = {
        "uploads": np.int64,  # that reached the server before
        "time": np.float64,  # virtual time of the cancellation
        "client": np.int64,
        "dispatched_iteration": np.int64,
        "iteration": np.int64,  # server iterations done at the cancellation
        "worked": np.float64,  # virtual time since the dispatch
        "left": np.float64,  # virtual time until the arrival
    }

    def cancelled(self, work: Work) -> None:
        now, counters = self._counters.virtual_time, self._counters
        facts = (now, work.client, work.iteration, counters.iteration, now - work.start, work.due - now)
        self._table.add((counters.uploads, *facts))


class Exchanges(EventTable):
    """A row for each message of a client that holds a part of the model, in the order of the replies."""

    name = EXCHANGES_NAME
    types: ClassVar[dict[str, type]] = {
        "message": np.int64,  # number of this message, from 1
        "uploads": np.int64,  # that reached the server before
        "time": np.float64,  # virtual time of the arrival
        "client": np.int64,
        "stage": np.int64,  # of the work, from 0
        "dispatched_iteration": np.int64,
        "iteration": np.int64,  # server iterations done at the arrival
        "staleness": np.int64,
        "batch": np.int64,  # samples of the mini-batch
        "delay": np.float64,  # virtual time since the dispatch
        "uplink_bytes": np.int64,
        "stepped": np.bool_,  # the server's part moved
        "answered": np.float64,  # virtual time of the reply; NaN if the run ended before
        "answered_iteration": np.int64,  # server iterations done at the reply, or -1
        "answered_step": np.int64,  # server steps done at the reply, or -1
        "downlink_bytes": np.int64,
    }
    state_names = ("_waiting",)

    def __init__(self, directory: RunDirectory, counters: Counters):
        super().__init__(directory, counters)
        self._waiting: dict[int, tuple] = {}  # by client: the columns of a message that are known before its reply

    def message_received(self, message: Message, stepped: bool, time: float) -> None:
        counters = self._counters
        self._waiting[message.client] = (
            counters.messages,
            counters.uploads,
            time,
            message.client,
            message.stage,
            message.base_iteration,
            message.base_iteration + message.staleness,
            message.staleness,
            len(message.labels),
            message.delay,
            message.bytes,
            stepped,
        )

    def replied(self, client: int, reply: Reply, time: float) -> None:
        counters = self._counters
        self._table.add((*self._waiting.pop(client), time, counters.iteration, counters.server_steps, reply.bytes))

    def add_open_rows(self) -> None:
        for row in self._waiting.values():
            self._table.add((*row, math.nan, -1, -1, 0))
        self._waiting.clear()
