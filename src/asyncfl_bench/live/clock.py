"""Real time as a replay can repeat it to the last bit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

GRAIN = 2.0**-20  # s; sums and differences of multiples of it are exact below 2**33 s, 272 years


class Clock:
    """Stamps that rise strictly, so that order never depends on anything else, in multiples of GRAIN.

    last  latest stamp; a resumed run continues from it
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self.last = 0.0
        self._now = now
        self._origin: float | None = None

    def start(self) -> None:
        """Let time pass from the latest stamp on; once is enough."""
        if self._origin is None:
            self._origin = self._now() - self.last

    def stamp(self, moment: float) -> float:
        """Return the stamp of a moment of ``now``, later than all earlier stamps."""
        self.start()
        assert self._origin is not None
        self.last = max(math.floor((moment - self._origin) / GRAIN) * GRAIN, self.last + GRAIN)
        return self.last

    def seconds_until(self, moment: float) -> float:
        """Return the seconds until a moment of this clock."""
        self.start()
        assert self._origin is not None
        return moment - (self._now() - self._origin)
