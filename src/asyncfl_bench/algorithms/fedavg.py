"""FedAvg: synchronous rounds, the mean of the local models."""

from __future__ import annotations

from dataclasses import dataclass

from .base import ServerRule, StepConfig
from .rounds import RoundMean, Weights


@dataclass
class FedAvgConfig(StepConfig):
    """
    weights  of the clients: `samples`, n_i / sum n over those that delivered, or `uniform`
    """

    eta: float | None = 1.0
    weights: Weights = "samples"


class FedAvg(ServerRule):
    """FedAvg (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1; AsyncFedED paper, equation 38).

    Rule     a round's D_i = local - received:  w <- w + eta * sum_i p_i D_i,  p_i = n_i / sum n over those delivered
    Upload   difference, shape (d,)
    State    the round's sum      Memory 2 d floats
    Limits   eta = 1: w <- sum_i p_i w_i.  FedProx with mu = 0 is this rule; FedBuff with M = n, handing out at the
             flush, is it with uniform weights
    Differs  equation 38 of the AsyncFedED paper has a further factor 1/m, which would shrink the model every round
    A round in which nobody delivers changes nothing. With concurrency C < n each round takes C clients, drawn anew
    under schedule=random_idle.
    """

    Config = FedAvgConfig
    config: FedAvgConfig
    accepts = ("difference",)
    moves_each_round = True
    linear = True

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.mean = RoundMean(model_d, self.config.weights)

    def vectors(self, n: int) -> int:
        return 2

    def parts(self) -> dict:
        return {"mean": self.mean}

    def receive(self, upload) -> bool:
        self.mean.add(upload)
        return False

    def round(self) -> bool:
        mean_d = self.mean.take()
        if mean_d is None:
            return False
        self.model_d.add_(mean_d, alpha=self.step_size)
        return True
