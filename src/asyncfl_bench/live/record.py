"""The clock of a live run, which a replay repeats exactly, and arrivals.csv with a row for each piece of work."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import BenchError
from ..files import atomic_write, open_own, open_regular
from ..simulation.recorded import COLUMNS, NAME, ArrivalRecord
from ..stateful import Stateful
from ..types import Work
from .messages import ClientReply

GRAIN = 2.0**-20  # s; sums and differences of multiples of it are exact below 2**33 s, 272 years


class Clock:
    """Stamps in s, multiples of GRAIN, that increase strictly, so that they alone decide the order.

    last  latest stamp, from which a resumed run continues
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self.last, self._now = 0.0, now

    @cached_property
    def _origin(self) -> float:
        return self._now() - self.last

    def start(self) -> None:
        """Start the clock at the latest stamp, if it has not started."""
        _ = self._origin

    def stamp(self, moment: float) -> float:
        """Return the stamp of a moment of ``now``, later than all earlier stamps."""
        self.last = max(math.floor((moment - self._origin) / GRAIN) * GRAIN, self.last + GRAIN)
        return self.last

    def seconds_until(self, moment: float) -> float:
        """Return the seconds until a moment of this clock."""
        return moment - (self._now() - self._origin)


class RecordFile(Stateful):
    """The file arrivals.csv, opened with the first row. A resumed run drops the rows after its checkpoint.

    record  the times in it at which clients left
    """

    state_names = ("rows",)

    def __init__(self, directory: Path):
        self.rows = 0
        self.record = ArrivalRecord()
        self._path = directory / NAME
        self._file: Any = None

    def write(self, work: Work, reply: ClientReply) -> None:
        """Write the end of work that is due now. Raises BenchError if earlier rows are gone."""
        file = self._open() if self._file is None else self._file
        if reply.left:
            self.record.left_at.setdefault(work.client, work.due)
        duration, arrived = max(reply.seconds, GRAIN), reply.vector_d is not None
        row = (work.client, work.cycle, repr(duration), int(arrived), int(reply.left), repr(work.due), reply.problem)
        csv.writer(file, lineterminator="\n").writerow(row)
        file.flush()
        self.rows += 1

    def _open(self) -> Any:
        kept: list[list[str]] = []
        if self.rows and self._path.exists():
            with open_regular(self._path, "r", newline="", encoding="utf-8") as file:
                kept = list(csv.reader(file))[1 : self.rows + 1]
        if len(kept) < self.rows:
            has = f"has {len(kept)} of {self.rows} rows"
            raise BenchError(f"{self._path}: {has}; rerun=true starts the run from the beginning")
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *kept])
        with atomic_write(self._path) as new:
            new.write(text.getvalue().encode())
        self._file = open_own(self._path, "a", newline="", encoding="utf-8")
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def state_dict(self) -> dict:
        return super().state_dict() | {"left_at": dict(self.record.left_at)}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.record.left_at.update(state["left_at"])
