"""How long a piece of work takes: the time from its dispatch to the arrival of its upload.

Every law gives a number in the unit its yaml names (`unit: ticks | seconds`); the clock turns it into an arrival.
A persistent fact about a client (its speed) comes from the stream `speed`, a fresh draw per piece of work from the
stream `delay` under the client's own count, so every algorithm meets the same durations under one seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..errors import wrong_return
from ..randomness import Streams
from ..ranges import CheckedSettings, one_of
from ..stateful import RunAttributes
from ..types import UNKNOWN_FOOTPRINT, ClientTable, Footprint, Work
from .fleet import FleetFile


@dataclass
class DelayConfig(CheckedSettings):
    """
    unit  unit of the delays. Under clock=auto it also chooses the clock
    """

    unit: Annotated[str, one_of("seconds", "ticks")] = "seconds"

    @property
    def takes_time(self) -> bool:
        """False when every piece of work takes zero time, so that virtual time stands still."""
        return True


class Delay(RunAttributes, ABC):
    """Base of all laws. ``start`` draws the persistent facts; ``duration`` is a pure function of its key.

    staged     the law has a duration for each stage of work; other laws divide the duration equally among stages
    samples_n  (n,) training samples that each client holds, for laws that go by them; footprint as in ``start``
    labels_nc  (n, C) of them by label; None where the task has no labels
    """

    Config = DelayConfig
    staged = False
    _set_by_run = ("n", "samples_n", "labels_nc", "footprint")
    file: FleetFile | None = None  # where the durations are from, if they were measured

    def __init__(self, config: DelayConfig):
        self.config = config

    def start(self, clients: ClientTable, streams: Streams, footprint: Footprint = UNKNOWN_FOOTPRINT) -> None:
        """footprint: what the model costs to compute and to send, for laws that go by it."""
        self._stream, self.footprint = streams.delay, footprint
        self.n, self.samples_n, self.labels_nc = clients.n, clients.samples_n, clients.labels_nc
        self.speed_n = self._speeds(clients.n, streams)

    def _speeds(self, n: int, streams: Streams) -> np.ndarray:
        """(n,) persistent number per client; its meaning belongs to the law."""
        return np.ones(n)

    @abstractmethod
    def duration(self, work: Work) -> float:
        """Units of time the piece of work takes, >= 0; draws are keyed by its client and cycle."""

    def stage_duration(self, work: Work) -> float:
        """Return the units of time of this stage, or of work without stages."""
        duration = self.duration(work)
        if not (isinstance(duration, int | float | np.number) and duration >= 0):
            raise wrong_return(self, "duration", duration, f"a number of {self.config.unit}, at least 0")
        return duration if self.staged else duration / work.stages
