"""arrivals.csv, a row for each piece of work that ended, which is all that a replay needs besides the settings."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from ..errors import BenchError
from ..files import atomic_write, open_own, open_regular
from ..simulation.recorded import COLUMNS, NAME, ArrivalRecord
from ..stateful import Stateful
from ..types import Work
from .clock import GRAIN
from .replies import ClientReply


class RecordFile(Stateful):
    """The file, opened with the first row; rows behind those of the checkpoint that a run resumes from are left out.

    record  what is in it that the run itself uses: when clients left
    """

    state_names = ("rows",)

    def __init__(self, directory: Path):
        self.rows = 0
        self.record = ArrivalRecord()
        self._path = directory / NAME
        self._file: Any = None

    def write(self, work: Work, reply: ClientReply) -> None:
        """Write how work ended that is due now. Raises BenchError where earlier rows are gone."""
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
