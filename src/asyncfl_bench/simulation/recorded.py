"""Durations, losses and departures of a live run, from its arrivals.csv, for a replay.

A live server does not know of a loss before it happens. So here a loss is known only at the end of the work.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from ..errors import BenchError, InputError, check
from ..files import existing_file
from ..randomness import Streams
from ..ranges import one_of
from ..types import UNKNOWN_FOOTPRINT, ClientTable, Facts, Footprint, Work
from .availability import Always, AlwaysConfig
from .delay import Delay, DelayConfig
from .fleet import FleetFile, check_same_clients
from .timeline import Timeline

NAME = "arrivals.csv"
# client, its piece of work, s that the client took, whether it arrived, whether its client left with it, when, why not
COLUMNS = ("client", "cycle", "duration", "arrived", "left", "time", "why")
RECORD = f"the {NAME} of a live run; afl-run --replay DIR names it by itself"
NEVER = 2.0**33  # s: later than any moment of a record


@dataclass
class ArrivalRecord:
    """The ends of work in a live run.

    ends     (client, cycle) -> (time of the end in s, whether the upload arrived)
    left_at  client -> time from which it gets no more work
    """

    ends: dict[tuple[int, int], tuple[float, bool]] = field(default_factory=dict)
    left_at: dict[int, float] = field(default_factory=dict)

    def has_left(self, client: int, time: float) -> bool:
        return time >= self.left_at.get(client, math.inf)


def read_record(path: str | Path, n: int) -> ArrivalRecord:
    """Read an arrivals.csv of n clients. Raises InputError with the line of an invalid row."""
    record, file = ArrivalRecord(), FleetFile(str(path), (COLUMNS[1:],))
    clients, columns = {str(client): client for client in range(n)}, file.columns
    facts = zip(*(columns[name] for name in ("cycle", "arrived", "left", "time")), strict=True)
    for row, (name, (cycle, arrived, left, time)) in enumerate(zip(file.client_r, facts, strict=True)):
        if (client := clients.get(name)) is None or time >= NEVER or (client, int(cycle)) in record.ends:
            raise file.refusal(row, f"is not an arrival of a run of {n} clients")
        record.ends[client, int(cycle)] = time, bool(arrived)
        if left:
            record.left_at.setdefault(client, time)
    return record


@dataclass
class RecordedDelayConfig(DelayConfig):
    """
    unit  real seconds, as measured by the server of the live run
    path  required; arrivals.csv of the live run, the same as availability.path
    """

    unit: Annotated[str, one_of("seconds")] = "seconds"
    path: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        existing_file(self.path, RECORD)

    def resolve(self, facts: Facts) -> None:
        allowed = "another delay with clock=ticks: a record is in real seconds"
        check(facts.clock == "time", "", "recorded", allowed)


class RecordedDelay(Delay):
    """A client's k-th piece of work ends as in the live run; ``RecordedTimeline`` has its time."""

    config: RecordedDelayConfig
    record = ArrivalRecord()

    def start(self, clients: ClientTable, streams: Streams, footprint: Footprint = UNKNOWN_FOOTPRINT) -> None:
        super().start(clients, streams, footprint)
        self.record = read_record(str(self.config.path), clients.n)

    def duration(self, work: Work) -> float:
        return NEVER


@dataclass
class RecordedAvailabilityConfig(AlwaysConfig):
    """
    path  required; arrivals.csv of the live run, the same as delay.path
    """

    path: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        existing_file(self.path, RECORD)


class RecordedAvailability(Always):
    """Work that was lost in the live run is lost, and clients leave at the times when they left there.

    now  virtual time of the run, set by its timeline
    """

    config: RecordedAvailabilityConfig
    loses_work = True
    record = ArrivalRecord()
    now = 0.0

    def start(self, n: int, streams: Streams) -> None:
        self.record = read_record(str(self.config.path), n)

    def has_left(self, client: int, iteration: int, time: float = 0.0) -> bool:
        # queued work begins after ``now``; the record has its end even if its client has left by then
        return self.record.has_left(client, min(time, self.now))

    def build_timeline(self, discard: Callable[[Work], None], limit: float | None) -> Timeline:
        return RecordedTimeline(self, discard, limit)


def check_same_sources(delay: Delay, availability: Always) -> None:
    """Raise InputError unless files of both name the same clients, and both have the same record or neither has one."""
    check_same_clients(delay, availability)
    recorded = [isinstance(delay, RecordedDelay), isinstance(availability, RecordedAvailability)]
    if any(recorded) and not (all(recorded) and delay.record == availability.record):  # type: ignore[attr-defined]
        raise InputError("delay=recorded goes with availability=recorded, and both with the same path")


class LateLosses(Timeline, ABC):
    """A timeline on which a loss is known only at the end of the work.

    discard  discards work in the executor
    """

    def __init__(self, discard: Callable[[Work], None]):
        super().__init__()
        self._discard = discard

    @abstractmethod
    def is_lost(self, work: Work) -> bool:
        """Return True if the upload of work that ends now never arrives."""

    def reach(self, time: float, *, whole_tick: bool) -> None:
        super().reach(time, whole_tick=whole_tick)
        for work in self.ending:
            if not work.lost and self.is_lost(work):
                self._discard(work)
                work.lost = True


class RecordedTimeline(LateLosses):
    """Timeline with the ends of a record. limit: virtual time at which the run ends, or None"""

    state_names = (*LateLosses.state_names, "_now")

    def __init__(self, availability: RecordedAvailability, discard: Callable[[Work], None], limit: float | None):
        super().__init__(discard)
        self._availability, self._limit = availability, limit

    def add(self, work: Work) -> None:
        if not work.lost:
            work.due = self._availability.record.ends.get((work.client, work.cycle), (NEVER, True))[0]
        super().add(work)

    def is_lost(self, work: Work) -> bool:
        return not self._availability.record.ends[work.client, work.cycle][1]

    def reach(self, time: float, *, whole_tick: bool) -> None:
        self._now = time
        super().reach(time, whole_tick=whole_tick)

    @property
    def _now(self) -> float:
        return self._availability.now

    @_now.setter
    def _now(self, value: float) -> None:
        self._availability.now = value

    @property
    def next_due(self) -> float:
        due = super().next_due
        if NEVER <= due < math.inf and self._limit is None:
            raise BenchError(
                "the record ends here: no work in flight has an arrival in it; use the live run's settings"
            )
        return due
