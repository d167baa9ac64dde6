"""Availability of clients: who takes part, until when, and which work is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..errors import ConfigError
from ..randomness import Streams
from ..ranges import CheckedSettings, Configured, NonNegative, at_least, within
from ..types import Facts, Work
from .fleet import FleetFile
from .timeline import Timeline


@dataclass
class AlwaysConfig(CheckedSettings):
    """Base class of all settings of availability, without settings."""


class Always(Configured):
    """Every client takes part from the first to the last iteration; the base class of all kinds of availability.

    file           measured times online; None without a file
    loses_work     ``outcome`` may lose work
    ends_for_some  ``has_left`` may be True
    """

    config: AlwaysConfig
    file: FleetFile | None = None
    loses_work = False
    ends_for_some = False

    def start(self, n: int, streams: Streams) -> None:
        pass

    def has_left(self, client: int, iteration: int, time: float = 0.0) -> bool:
        """Return True if work dispatched at virtual ``time`` cannot be delivered after ``iteration`` server iterations,
        because the client has left."""
        return False

    def outcome(self, work: Work, duration: float) -> tuple[float, bool]:
        """Return the time from dispatch until the client is free, and whether the upload reaches the server.

        duration  of the work, by the law of delay, in its unit
        """
        return duration, True

    def build_timeline(self, discard: Callable[[Work], None], limit: float | None) -> Timeline:
        """Build an empty timeline for a run.

        discard  discards work in the executor, for losses that the timeline finds
        limit    virtual time at which the run ends, or None
        """
        return Timeline()


@dataclass
class DropoutConfig(AlwaysConfig):
    """
    share         share of the clients that leave for good, rounded to whole clients
    at_iteration  server iterations after which they leave; the paper: 250 of 500
    """

    share: Annotated[float, within("[0, 1]")] = 0.3
    at_iteration: Annotated[int | None, at_least(1, null="for half the budget")] = None

    def resolve(self, facts: Facts) -> None:
        if self.at_iteration is None:
            if facts.iterations is None:
                why = f"half the budget is unknown in server iterations of algorithm={facts.algorithm}; set a number"
                raise ConfigError("at_iteration", None, why)
            self.at_iteration = max(1, facts.iterations // 2)

    def idle(self, facts: Facts) -> dict[str, str]:
        return {} if self.share else {"at_iteration": "with availability.share=0, where no client stops"}


class Dropout(Always):
    """A random share of the clients leaves for good at a given server iteration, and their work in flight is lost.

    The seed fixes the set for every algorithm. Sets are nested: clients that leave at 10 % also leave at 20 %.
    Source: arXiv:2511.19066, section 5 and appendix D.4.1 (dropout study).
    """

    config: DropoutConfig
    ends_for_some = True

    def start(self, n: int, streams: Streams) -> None:
        order = streams.dropout().permutation(n)
        self.departed_n = np.zeros(n, dtype=bool)
        self.departed_n[order[: round(self.config.share * n)]] = True

    def has_left(self, client: int, iteration: int, time: float = 0.0) -> bool:
        assert self.config.at_iteration is not None
        return iteration >= self.config.at_iteration and bool(self.departed_n[client])


@dataclass
class SuspensionConfig(AlwaysConfig):
    """
    probability  P, probability that a piece of work is lost
    hang         after lost work of duration T, the client hangs for U(0, hang * T)
    """

    probability: Annotated[float, within("[0, 1)")] = 0.1
    hang: NonNegative = 3.0

    def idle(self, facts: Facts) -> dict[str, str]:
        return {} if self.probability else {"hang": "with availability.probability=0, where nothing is lost"}


class Suspension(Always):
    """With probability P a client loses its upload, and hangs for U(0, hang * T) after work of duration T.

    It then starts again from the current model. Synchronous rounds wait for it. Draws depend on seed, client and cycle,
    not on the algorithm. They are nested: work that is lost under some P is lost under every larger one.
    Source: AsyncFedED (Wang et al. 2022), section 6.1; hang and loss as in the authors' raw runs.
    """

    config: SuspensionConfig
    loses_work = True

    def start(self, n: int, streams: Streams) -> None:
        self._stream = streams.suspension

    def outcome(self, work: Work, duration: float) -> tuple[float, bool]:
        chance, hang = self._stream(work.client, work.cycle).random(2)
        if chance >= self.config.probability:
            return duration, True
        return float(duration * (1 + self.config.hang * hang)), False
