"""Times at which clients were online, from a file, and the arithmetic of these sessions."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated

from ..errors import check
from ..randomness import Streams
from ..ranges import greater_than, one_of
from ..types import Work
from .availability import Always, AlwaysConfig
from .fleet import FleetFile, check_file

TOUCHING = 1e-9  # share of a moment by which the end of a session may miss the beginning of the next
LAYOUTS = (("online", "offline"), ("start", "duration"))


@dataclass
class AvailabilityTraceConfig(AlwaysConfig):
    """
    path         required; columns client, online, offline or client, start, duration: virtual times, a row per session
    interrupted  work of a client that goes offline is lost | paused: it continues when the client is back
    repeat       true: the trace repeats after its end | false: a client without further sessions leaves for good
    period       length of the trace, in the delay's unit, >= its last end; null: that end
    """

    path: str | None = None
    interrupted: Annotated[str, one_of("lost", "paused")] = "lost"
    repeat: bool = True
    period: Annotated[float | None, greater_than(0)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_file(self.path, "client, online, offline or client, start, duration", LAYOUTS)
        ok = self.repeat or self.period is None
        check(ok, "period", self.period, "null with repeat=false: the trace ends with its last session")


class AvailabilityTrace(Always):
    """Clients are online during the sessions of a file, which are the same for every seed.

    Work dispatched to an offline client begins with its next session. If a client goes offline during work, the work is
    lost, or paused until its next session. The client is free again with that session. A client without another
    session has left from the end of its last one, and its work is lost. Work that is complete when a session ends
    arrives. Sessions that touch are one, also from the end of the trace to its next turn.
    """

    config: AvailabilityTraceConfig
    file: FleetFile
    loses_work = ends_for_some = True

    def start(self, n: int, streams: Streams) -> None:
        """Read the file. Raises BenchError or ConfigError if it is not valid."""
        self.n = n
        self.file = FleetFile(str(self.config.path), LAYOUTS)
        file = self.file
        rows_n = file.rows_of(n)
        columns = file.columns
        if "online" in columns:
            online_r, offline_r = columns["online"], columns["offline"]
            for row, (begin, end) in enumerate(zip(online_r, offline_r, strict=True)):
                if begin >= end:
                    raise file.refusal(row, f"offline must be a number > online ({begin:g}), found {end:g}")
        else:
            online_r = columns["start"]
            offline_r = [begin + length for begin, length in zip(online_r, columns["duration"], strict=True)]
        sessions_n = [self._join_sessions(rows, online_r, offline_r) for rows in rows_n]
        period = self._period(max(offline_r))
        for _, offline_s in sessions_n:
            if period is not None and math.isclose(offline_s[-1], period, rel_tol=TOUCHING):
                offline_s[-1] = period  # touches the next turn
        self._sessions_n = [Sessions(online_s, offline_s, period) for online_s, offline_s in sessions_n]

    def has_left(self, client: int, iteration: int, time: float = 0.0) -> bool:
        return self._sessions_n[client].session_at(time) is None

    def outcome(self, work: Work, duration: float) -> tuple[float, bool]:
        sessions = self._sessions_n[work.client]
        session = sessions.session_at(work.start)
        assert session is not None, "work was dispatched to a client that has left"
        begin, end = session
        if begin == work.start and begin + duration <= end:
            return duration, True
        if self.config.interrupted == "paused":
            done = sessions.end_of_work(work.start, duration)
            end = sessions.last
        else:
            done = begin + duration if begin + duration <= end else None
        if done is not None:
            return _wait(work.start, done), True
        back = sessions.session_at(end)
        return _wait(work.start, end if back is None else back[0]), False

    def _join_sessions(self, rows: list[int], online_r: list[float], offline_r: list[float]) -> tuple[list, list]:
        """Return (online_s, offline_s) of a client in order, touching sessions joined. BenchError if two overlap."""
        rows = sorted(rows, key=online_r.__getitem__)
        online_s, offline_s = [online_r[rows[0]]], [offline_r[rows[0]]]
        for before, row in pairwise(rows):
            if math.isclose(online_r[row], offline_s[-1], rel_tol=TOUCHING):
                offline_s[-1] = max(offline_r[row], offline_s[-1])
                continue
            if online_r[row] < offline_s[-1]:
                ends = f"when the session of {self.file.name_of_row(before)} ends"
                allowed = f"must begin at {offline_s[-1]:g} or later, {ends}"
                raise self.file.refusal(row, f"a session of the same client {allowed}, found {online_r[row]:g}")
            online_s.append(online_r[row])
            offline_s.append(offline_r[row])
        return online_s, offline_s

    def _period(self, end: float) -> float | None:
        if not self.config.repeat:
            return None
        given = self.config.period
        if given is None:
            return end
        ok = given >= end * (1 - TOUCHING)
        check(ok, "availability.period", given, f"a number >= {end:g}, where the trace in {self.file.path} ends")
        return given


def _wait(start: float, moment: float) -> float:
    """Return a wait with start + wait >= moment in floating point: before ``moment`` the client would not be back."""
    wait = moment - start
    while start + wait < moment:
        wait = math.nextafter(wait, math.inf)
    return wait


class Sessions:
    """Half-open intervals [online, offline) of virtual time.

    online_s, offline_s  ascending; no two overlap or touch
    period               time after which they repeat, >= the last end; None: they happen once
    last                 end of the last session of a turn
    A method takes O(log s).
    """

    def __init__(self, online_s: list[float], offline_s: list[float], period: float | None):
        self._online_s, self._offline_s, self._period = online_s, offline_s, period
        self._worked_s = list(accumulate(end - begin for begin, end in zip(online_s, offline_s, strict=True)))
        self.last = offline_s[-1]
        self._wraps = period is not None and online_s[0] == 0 and offline_s[-1] == period  # into the next turn

    def session_at(self, time: float) -> tuple[float, float] | None:
        """Return (begin, end) of the rest of the session at ``time``, or of the next one; None if there is none.

        end > time; it is infinite for a client that is never offline.
        """
        session = self._find(time)
        if session is None:
            return None
        index, turn_start = session
        end = turn_start + self._offline_s[index]
        if self._wraps and index == len(self._online_s) - 1:
            assert self._period is not None
            end = math.inf if index == 0 else turn_start + self._period + self._offline_s[0]
        return max(time, turn_start + self._online_s[index]), end

    def end_of_work(self, time: float, duration: float) -> float | None:
        """Return the time at which a client that started at ``time`` was online for ``duration``; None for never."""
        current, session = self._find(time), self.session_at(time)
        if current is None or session is None:
            return None
        begin, end = session
        if begin + duration <= end:
            return begin + duration
        index, turn_start = current
        total = self._worked_s[-1]
        # counted in online time since the turn began
        done = self._worked_s[index] + duration - (turn_start + self._offline_s[index] - begin)
        if self._period is None:
            turns, rest = 0.0, done
            if done > total:
                return None
        else:
            turns, rest = divmod(done, total)
            if rest == 0:  # at the very end of a turn, not when the next session begins
                turns, rest = turns - 1, total
        index = bisect_left(self._worked_s, rest)
        return turn_start + turns * (self._period or 0.0) + self._offline_s[index] - (self._worked_s[index] - rest)

    def _find(self, time: float) -> tuple[int, float] | None:
        """Return (index, start of its turn) of the first session that ends after ``time``; None if there is none."""
        turn, phase = (0.0, time) if self._period is None else divmod(time, self._period)
        period = self._period or 0.0
        index = bisect_right(self._offline_s, phase)
        # far out, the end of a session in virtual time may round to a moment that its phase has not reached
        if index < len(self._offline_s) and turn * period + self._offline_s[index] <= time:
            index += 1
        if index < len(self._offline_s):
            return index, turn * period
        return None if self._period is None else (0, (turn + 1) * period)
