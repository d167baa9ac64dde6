"""FedAvg: synchronous rounds, the mean of the local models."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .base import StepConfig
from .common.rounds import RoundConfig, RoundRule


@dataclass
class FedAvgConfig(StepConfig, RoundConfig):
    """StepConfig and RoundConfig have all fields."""

    eta: float | None = 1.0


class FedAvg(RoundRule):
    """FedAvg (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1; AsyncFedED paper, equation 38).

    Rule     a round's D_i = local - received:  w <- w + eta * sum_i p_i D_i,  p_i = n_i / sum n over those delivered
    Upload   difference, shape (d,)
    State    the round's sum      Memory 2 d
    Limits   eta = 1: w <- sum_i p_i w_i.  FedProx with mu = 0 is this rule; FedBuff with M = n and
             schedule.dispatch=after_update is it with uniform weights
    Differs  equation 38 of the AsyncFedED paper has a further factor 1/m, which would shrink the model every round
    A round in which no client delivers changes nothing. With concurrency C < n each round takes C clients, drawn again
    under schedule=random_idle.

    >>> after_each(FedAvg(), (0, [2.0, 0.0]), (1, [4.0, 2.0]))
    [[0.0, 0.0], [3.0, 1.0]]
    """

    label = "FedAvg"
    config: FedAvgConfig
    needs = replace(RoundRule.needs, linear=True)
    kept_vectors = 2

    def step(self, mean_d, delivered) -> None:
        self.model_d.add_(mean_d, alpha=self.step_size)
