"""Which clients take part, and until when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import check
from ..randomness import Streams


@dataclass
class AlwaysConfig:
    pass


class Always:
    """Every client takes part from the first to the last iteration."""

    Config = AlwaysConfig

    def __init__(self, config: AlwaysConfig):
        self.config = config

    def start(self, n: int, streams: Streams) -> None:
        pass

    def gone(self, client: int, iteration: int) -> bool:
        """True when the client no longer takes part once ``iteration`` server iterations are done."""
        return False


@dataclass
class DropoutConfig(AlwaysConfig):
    share: float = 0.3
    at_iteration: int | None = None

    def __post_init__(self) -> None:
        check(0 <= self.share <= 1, "share", self.share, "a share between 0 and 1")
        ok = self.at_iteration is None or self.at_iteration >= 1
        check(ok, "at_iteration", self.at_iteration, "a whole number >= 1, or null for half the budget")


class Dropout(Always):
    """A random share of the clients stops for good at a given server iteration; work they have in flight is lost.

    The set is fixed by the seed and nested: whoever drops at 10 % also drops at 20 %, under every algorithm.
    Source: arXiv:2511.19066, section 5 and appendix D.4.1 (dropout study).
    """

    Config = DropoutConfig
    config: DropoutConfig

    def start(self, n: int, streams: Streams) -> None:
        order = streams.dropout().permutation(n)
        self.gone_n = np.zeros(n, dtype=bool)
        self.gone_n[order[: round(self.config.share * n)]] = True

    def gone(self, client: int, iteration: int) -> bool:
        assert self.config.at_iteration is not None
        return iteration >= self.config.at_iteration and bool(self.gone_n[client])
