"""The clock of a live run, which a replay repeats exactly, and arrivals.csv with a row for each piece of work."""

from __future__ import annotations

import csv
import io
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from ..errors import BenchError
from ..files import naming_file, open_own
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


class AppendedFile(Stateful, ABC):
    """A file that gets rows while a run lives, opened with the first one. A resumed run drops the rows after its
    checkpoint."""

    state_names = ("rows",)

    def __init__(self, path: Path):
        self.rows = 0
        self._path = path
        self._file: BinaryIO | None = None

    @abstractmethod
    def find_ends(self, file: BinaryIO) -> Sequence[int]:
        """Return the position in bytes of the end of the first 0, 1, 2, … whole rows of the file."""

    def append(self, row: bytes) -> None:
        """Write a row at the end. Raises BenchError if earlier rows are gone."""
        with naming_file(self._path):
            if self._file is None:
                file = open_own(self._path, "a+b", buffering=0)
                ends = self.find_ends(file)
                if len(ends) <= self.rows:
                    file.close()
                    has = f"has {len(ends) - 1} of {self.rows} rows"
                    raise BenchError(f"{self._path}: {has}; rerun=true starts the run from the beginning")
                file.truncate(ends[self.rows])
                self._file = file
            self._file.write(row)
        self.rows += 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class RecordFile(AppendedFile):
    """The file arrivals.csv, one line a row. record: the times in it at which clients left"""

    def __init__(self, directory: Path):
        super().__init__(directory / NAME)
        self.record = ArrivalRecord()

    def write(self, work: Work, reply: ClientReply) -> None:
        """Write the end of work that is due now."""
        if reply.left:
            self.record.left_at.setdefault(work.client, work.due)
        duration, arrived = max(reply.seconds, GRAIN), reply.vector_d is not None
        row = (work.client, work.cycle, repr(duration), int(arrived), int(reply.left), repr(work.due), reply.problem)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([row] if self.rows else [COLUMNS, row])
        self.append(text.getvalue().encode())

    def find_ends(self, file: BinaryIO) -> Sequence[int]:
        file.seek(0)
        ends = list(accumulate(len(line) + 1 for line in file.read().split(b"\n")[:-1]))
        return [0, *ends[1:]]  # without the line of the columns

    def state_dict(self) -> dict:
        return super().state_dict() | {"left_at": dict(self.record.left_at)}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.record.left_at.update(state["left_at"])
