"""When one client is online: the arithmetic of its sessions, once or turn after turn."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from itertools import accumulate


class Sessions:
    """Half-open intervals [online, offline) of virtual time.

    online_s, offline_s  ascending; no two overlap or touch
    period               they come again after so long, >= the last end; None: they happen once
    last                 end of the last session of a turn
    Each question costs O(log s).
    """

    def __init__(self, online_s: list[float], offline_s: list[float], period: float | None):
        self._online_s, self._offline_s, self._period = online_s, offline_s, period
        self._worked_s = list(accumulate(end - begin for begin, end in zip(online_s, offline_s, strict=True)))
        self.last = offline_s[-1]
        self._goes_on = period is not None and online_s[0] == 0 and offline_s[-1] == period  # into the next turn

    def at(self, time: float) -> tuple[float, float] | None:
        """(begin, end) of what is left of the session at ``time``, or of the next one; None when there is none any
        more. end > time, infinite for a client that is never offline."""
        session = self._find(time)
        if session is None:
            return None
        place, turn_start = session
        end = turn_start + self._offline_s[place]
        if self._goes_on and place == len(self._online_s) - 1:
            assert self._period is not None
            end = math.inf if place == 0 else turn_start + self._period + self._offline_s[0]
        return max(time, turn_start + self._online_s[place]), end

    def end_of_work(self, time: float, duration: float) -> float | None:
        """Time at which a client that started at ``time`` has been online for ``duration``; None for never."""
        current, session = self._find(time), self.at(time)
        if current is None or session is None:
            return None
        begin, end = session
        if begin + duration <= end:
            return begin + duration
        place, turn_start = current
        total = self._worked_s[-1]
        # counted in online time since the turn began
        done = self._worked_s[place] + duration - (turn_start + self._offline_s[place] - begin)
        if self._period is None:
            turns, rest = 0.0, done
            if done > total:
                return None
        else:
            turns, rest = divmod(done, total)
            if rest == 0:  # at the very end of a turn, not when the next session begins
                turns, rest = turns - 1, total
        place = bisect_left(self._worked_s, rest)
        return turn_start + turns * (self._period or 0.0) + self._offline_s[place] - (self._worked_s[place] - rest)

    def _find(self, time: float) -> tuple[int, float] | None:
        """(place, start of its turn) of the first session that ends after ``time``."""
        turn, phase = (0.0, time) if self._period is None else divmod(time, self._period)
        period = self._period or 0.0
        place = bisect_right(self._offline_s, phase)
        # far out, the end of a session in virtual time may round to a moment that its phase has not reached
        if place < len(self._offline_s) and turn * period + self._offline_s[place] <= time:
            place += 1
        if place < len(self._offline_s):
            return place, turn * period
        return None if self._period is None else (0, (turn + 1) * period)
