"""Which work was stopped because its model had become too old, and how long it had been in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..simulation.observer import Observer
from ..stateful import Stateful

if TYPE_CHECKING:
    from ..simulation.budget import Counters
    from ..tracking.rundir import RunDirectory
    from ..types import Work

CANCELLED_NAME = "cancelled.parquet"
TYPES: dict[str, type] = {
    "uploads": np.int64,  # that had reached the server before it
    "time": np.float64,  # virtual time when it was stopped
    "client": np.int64,
    "dispatched_iteration": np.int64,
    "iteration": np.int64,  # server iterations done when it was stopped
    "worked": np.float64,  # virtual time since it was dispatched
    "left": np.float64,  # virtual time until it would have arrived
}


class CancelledWork(Observer):
    """Writes a row to a table of the run for each piece of work that was stopped.

    counters  of the run, as they are at any moment
    """

    def __init__(self, directory: RunDirectory, counters: Counters):
        self.table = directory.open_table(CANCELLED_NAME, TYPES)
        self._counters = counters

    def cancelled(self, work: Work) -> None:
        now, counters = self._counters.virtual_time, self._counters
        facts = (now, work.client, work.iteration, counters.iteration, now - work.start, work.due - now)
        self.table.add((counters.uploads, *facts))

    def close(self) -> None:
        """No row waits for anything."""

    def parts(self) -> dict[str, Stateful]:
        return {"table": self.table}
