"""FedProx: FedAvg whose clients are pulled towards the model they received."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from ..ranges import at_least
from .base import idle_proximal
from .fedavg import FedAvg, FedAvgConfig


@dataclass
class FedProxConfig(FedAvgConfig):
    """
    mu  weight of the proximal term; the authors' code: 0.01, their grid: 0.001, 0.01, 0.1, 1
    """

    mu: Annotated[float, at_least(0)] = 0.01

    def idle(self, facts) -> dict[str, str]:
        return super().idle(facts) | idle_proximal("mu", facts)


class FedProx(FedAvg):
    """FedProx (Li et al. 2020, arXiv:1812.06127, Algorithm 2; AsyncFedED paper, equation 39).

    Rule     client: minimise f_i(w) + (mu/2) ||w - w_received||^2, so each step's gradient gains mu (w - w_received)
             server: that of FedAvg
    Upload   difference, shape (d,)
    State    the round's sum      Memory 4 d
    Limits   mu = 0: FedAvg, bit for bit
    Differs  slow clients do all of their work here; in the authors' code stragglers do fewer passes

    >>> after_each(FedProx(mu=0.1), (0, [2.0, 0.0]), (1, [4.0, 2.0]))
    [[0.0, 0.0], [3.0, 1.0]]
    """

    label = "FedProx"
    config: FedProxConfig
    needs = replace(FedAvg.needs, proximal="mu")
