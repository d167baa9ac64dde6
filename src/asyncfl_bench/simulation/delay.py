"""Base class of laws of delay: the time from the dispatch of work to the arrival of its upload.

Durations are in the unit of the settings (`ticks` or `seconds`). Speeds of clients come from the stream `speed`. Draws
for each piece of work come from the stream `delay` under the client's count. So under one seed every algorithm has the
same durations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from ..errors import wrong_return
from ..randomness import Streams
from ..ranges import CheckedSettings, Configured, one_of
from ..stateful import RunAttributes
from ..types import UNKNOWN_FOOTPRINT, ClientTable, Footprint, Work
from .fleet import FleetFile


@dataclass
class DelayConfig(CheckedSettings):
    """
    unit  unit of the delays. Under clock=auto it also chooses the clock
    """

    unit: Annotated[str, one_of("seconds", "ticks")] = "seconds"
    timed_by: ClassVar[tuple[str, ...]] = ()  # settings that are all 0 or null if work takes no time

    @property
    def takes_time(self) -> bool:
        """Whether virtual time advances; False if every piece of work takes no time."""
        return not self.timed_by or any(vars(self)[name] for name in self.timed_by)


class Delay(Configured, RunAttributes, ABC):
    """Base class of all laws. ``start`` draws the speeds of clients; ``duration`` is a pure function of its work.

    staged     the law has a duration for each stage of work; other laws divide the duration equally among stages
    samples_n  (n,) training samples of each client;  footprint  see ``start``
    labels_nc  (n, C) of them by label; None if the data has no labels
    file       measured durations; None without a file
    """

    config: DelayConfig
    staged = False
    _set_by_run = ("n", "samples_n", "labels_nc", "footprint")
    file: FleetFile | None = None

    def start(self, clients: ClientTable, streams: Streams, footprint: Footprint = UNKNOWN_FOOTPRINT) -> None:
        """Draw the speeds of clients. footprint: cost of computing and of sending the model"""
        self._stream, self.footprint = streams.delay, footprint
        self.n, self.samples_n, self.labels_nc = clients.n, clients.samples_n, clients.labels_nc
        self.speed_n = self._speeds(clients.n, streams)

    def _speeds(self, n: int, streams: Streams) -> np.ndarray:
        """Return (n,) numbers of clients, such as speeds, with a meaning for this law."""
        return np.ones(n)

    @abstractmethod
    def duration(self, work: Work) -> float:
        """Return the units of time of a piece of work, >= 0; draws depend on its client and cycle."""

    def stage_duration(self, work: Work) -> float:
        """Return the units of time of this stage, or of work without stages."""
        duration = self.duration(work)
        if not (isinstance(duration, int | float | np.number) and duration >= 0):
            raise wrong_return(self, "duration", duration, f"a number of {self.config.unit}, at least 0")
        return duration if self.staged else duration / work.stages


def positive_normal(generator: np.random.Generator, sigma: float) -> float:
    """Draw from N(1, sigma) until the number is > 0."""
    while (factor := generator.normal(1, sigma)) <= 0:
        pass
    return factor
