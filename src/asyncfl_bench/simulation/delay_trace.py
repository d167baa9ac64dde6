"""Durations that were measured, from a file."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from ..errors import ConfigError, check
from ..randomness import Streams
from ..ranges import greater_than, one_of
from ..types import UNKNOWN_FOOTPRINT, ClientTable, Footprint, Work
from .delay import Delay, DelayConfig
from .fleet import FleetFile, check_file
from .recorded import COLUMNS

LAYOUTS = (("duration",), ("duration", "start"), COLUMNS[1:])


@dataclass
class DelayTraceConfig(DelayConfig):
    """
    unit    of the file's numbers
    path    required; columns client, duration and, if durations change with time, start; or arrivals.csv of a live run
    per     a duration is for: work: a piece of work | step: a local step | sample: a sample that work uses
    at_end  without the column start, after a client's last duration: repeat from its first | last: the last one stays
    period  with the column start: units after which the trace begins again, beyond its last start; null: the last
            duration stays
    """

    path: str | None = None
    per: Annotated[str, one_of("work", "step", "sample")] = "work"
    at_end: Annotated[str, one_of("repeat", "last")] = "repeat"
    period: Annotated[float | None, greater_than(0)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_file(self.path, "client, duration and, if you have it, start", LAYOUTS)


class DelayTrace(Delay):
    """Durations from a file, which are the same for every seed.

    Columns `client, duration`: a client's k-th piece of work takes its k-th duration in the file's order. Columns
    `client, duration, start`: work takes the duration with the client's latest `start` before its dispatch. Before the
    first start this is the first duration, or with ``period`` the last one. Of the arrivals.csv of a live run only
    uploads that arrived count.
    """

    config: DelayTraceConfig
    file: FleetFile

    def start(self, clients: ClientTable, streams: Streams, footprint: Footprint = UNKNOWN_FOOTPRINT) -> None:
        """Read the file. Raises BenchError or ConfigError if it is not valid."""
        self.n = clients.n
        self.file = FleetFile(str(self.config.path), LAYOUTS)
        durations, start_r = self.file.columns["duration"], self.file.columns.get("start")
        rows_n = self.file.rows_of(self.n)
        if (arrived_r := self.file.columns.get("arrived")) is not None:
            # the durations of lost uploads are the times until a loss was known
            for rows in rows_n:
                if not any(arrived_r[row] for row in rows):
                    raise self.file.refusal(rows[0], "no upload of its client arrived; use the record of a longer run")
            rows_n = [[row for row in rows if arrived_r[row]] for rows in rows_n]
        self._starts_n: list[list[float]] | None = None
        if start_r is not None:
            rows_n = [self._sort_by_start(rows, start_r) for rows in rows_n]
            self._starts_n = [[start_r[row] for row in rows] for rows in rows_n]
            last, period = max(starts[-1] for starts in self._starts_n), self.config.period
            allowed = f"a number > {last:g}, the last start in {self.file.path}"
            check(period is None or period > last, "delay.period", period, allowed)
        elif self.config.period is not None:
            raise ConfigError("delay.period", self.config.period, f"must be null: {self.file.path} has no column start")
        self._durations_n = [[durations[row] for row in rows] for rows in rows_n]

    def duration(self, work: Work) -> float:
        own, period = self._durations_n[work.client], self.config.period
        amount = {"work": 1, "step": work.local_steps, "sample": max(1, work.samples)}[self.config.per]
        if self._starts_n is None:
            row = work.cycle % len(own) if self.config.at_end == "repeat" else min(work.cycle, len(own) - 1)
        else:
            row = bisect_right(self._starts_n[work.client], work.start if period is None else work.start % period) - 1
            row = max(row, 0) if period is None else row  # -1 is the last one, of the turn before
        return own[row] * amount

    def _sort_by_start(self, rows: list[int], start_r: list[float]) -> list[int]:
        rows = sorted(rows, key=start_r.__getitem__)
        for before, row in pairwise(rows):
            if start_r[before] == start_r[row]:
                allowed = f"start must differ from that of {self.file.name_of_row(before)}, of the same client, found"
                raise self.file.refusal(row, f"{allowed} {start_r[row]:g}")
        return rows
