"""What clients that hold a part of the model told the server mini-batch by mini-batch, and when it answered."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..simulation.observer import Observer
from ..stateful import Stateful

if TYPE_CHECKING:
    from ..simulation.budget import Counters
    from ..tracking.rundir import RunDirectory
    from ..types import Message, Reply

EXCHANGES_NAME = "exchanges.parquet"
TYPES: dict[str, type] = {
    "message": np.int64,  # number of this message, from 1
    "uploads": np.int64,  # that had reached the server before it
    "time": np.float64,  # virtual time when it reached the server
    "client": np.int64,
    "stage": np.int64,  # of the task, from 0
    "dispatched_iteration": np.int64,
    "iteration": np.int64,  # server iterations done when it reached the server
    "staleness": np.int64,
    "batch": np.int64,  # samples of the mini-batch
    "delay": np.float64,  # virtual time since the task was dispatched
    "uplink_bytes": np.int64,
    "stepped": np.bool_,  # the server's part moved
    "answered": np.float64,  # virtual time; NaN where the run ended before
    "answered_iteration": np.int64,  # server iterations done then, or -1
    "answered_step": np.int64,  # server steps done then, or -1
    "downlink_bytes": np.int64,
}
UNANSWERED = (math.nan, -1, -1, 0)


class Exchanges(Observer):
    """Writes a row per message, in the order of the answers, to a table of the run.

    counters  of the run, as they are at any moment
    """

    state_names = ("_waiting",)

    def __init__(self, directory: RunDirectory, counters: Counters):
        self._table = directory.open_table(EXCHANGES_NAME, TYPES)
        self._counters = counters
        self._waiting: dict[int, tuple] = {}  # by client what is known of a message before its answer

    def heard(self, message: Message, stepped: bool, time: float) -> None:
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

    def answered(self, client: int, reply: Reply, time: float) -> None:
        counters = self._counters
        self._table.add((*self._waiting.pop(client), time, counters.iteration, counters.server_steps, reply.bytes))

    def close(self) -> None:
        """No client is answered any more: those that wait have their rows too."""
        for row in self._waiting.values():
            self._table.add((*row, *UNANSWERED))
        self._waiting.clear()

    def parts(self) -> dict[str, Stateful]:
        return {"table": self._table}
