"""Which clients take part, and until when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..errors import ConfigError
from ..randomness import Streams
from ..ranges import CheckedSettings, at_least, within
from ..types import Facts, Work
from .fleet import FleetFile
from .timeline import Timeline


@dataclass
class AlwaysConfig(CheckedSettings):
    """No settings; the base of all."""


class Always:
    """Every client takes part from the first to the last iteration."""

    Config = AlwaysConfig
    file: FleetFile | None = None  # where the times online are from, if they were measured
    loses_work = False  # by ``outcome``
    ends_for_some = False  # by ``has_left``

    def __init__(self, config: AlwaysConfig):
        self.config = config

    def start(self, n: int, streams: Streams) -> None:
        pass

    def has_left(self, client: int, iteration: int, time: float = 0.0) -> bool:
        """True when work dispatched to the client at virtual ``time`` can no longer be delivered once ``iteration``
        server iterations are done: it does not take part any more."""
        return False

    def outcome(self, work: Work, duration: float) -> tuple[float, bool]:
        """(time from the work's dispatch until its client is free again, whether its upload reaches the server).

        duration  what the delay says, in its unit
        """
        return duration, True

    def build_timeline(self, discard: Callable[[Work], None], limit: float | None) -> Timeline:
        """An empty timeline for a run.

        discard  tells the executor of a loss that is found out on it
        limit    virtual time at which the run ends, or None
        """
        return Timeline()


@dataclass
class DropoutConfig(AlwaysConfig):
    """
    share         of the clients that stop for good, rounded to whole clients
    at_iteration  server iterations done when they stop; the paper: 250 of 500
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
    """A random share of the clients stops for good at a given server iteration; work they have in flight is lost.

    The set is fixed by the seed and nested: whoever drops at 10 % also drops at 20 %, under every algorithm.
    Source: arXiv:2511.19066, section 5 and appendix D.4.1 (dropout study).
    """

    Config = DropoutConfig
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
    probability  P that a piece of work is lost
    hang         after lost work of duration T the client hangs for U(0, hang * T)
    """

    probability: Annotated[float, within("[0, 1)")] = 0.1
    hang: Annotated[float, at_least(0)] = 3.0

    def idle(self, facts: Facts) -> dict[str, str]:
        return {} if self.probability else {"hang": "with availability.probability=0, where nothing is lost"}


class Suspension(Always):
    """With probability P a client is suspended: its upload is lost, it hangs for U(0, hang * T) after the T its work
    takes, then comes back and starts again from the current model. Synchronous rounds wait for it.

    Drawn per (seed, client, cycle), and nested: what is lost under some P is lost under every larger one, and under
    every algorithm.
    Source: AsyncFedED (Wang et al. 2022), section 6.1; hang and loss as the authors' raw runs show them.
    """

    Config = SuspensionConfig
    config: SuspensionConfig
    loses_work = True

    def start(self, n: int, streams: Streams) -> None:
        self._stream = streams.suspension

    def outcome(self, work: Work, duration: float) -> tuple[float, bool]:
        chance, hang = self._stream(work.client, work.cycle).random(2)
        if chance >= self.config.probability:
            return duration, True
        return float(duration * (1 + self.config.hang * hang)), False
