"""FedDyn: each client's objective is corrected by what it has contributed so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..ranges import above
from .base import RuleConfig, ServerRule
from .rounds import RoundMean


@dataclass
class FedDynConfig(RuleConfig):
    """
    alpha  weight a of the dynamic regulariser
    """

    alpha: Annotated[float, above(0)] = 0.01

    @property
    def proximal(self) -> tuple[str, float]:
        return "alpha", self.alpha


class FedDyn(ServerRule):
    """FedDyn (Acar et al. 2021, arXiv:2111.04263, Algorithm 1).

    Rule     client k: minimise F_k(x) - <g_k, x> + (a/2) ||x - w||^2, then g_k <- g_k - a (x_k - w)
             server, after a round of the clients S:  h <- h - (a/n) sum_S (x_k - w);  w <- mean_S x_k - h / a
    Here     with l_k = -g_k / a, the sum of client k's uploads: each gradient gains a (x - (w - l_k)), and
             s = -h / a = mean over all clients of l_k:  s <- s + (1/n) sum_S D_k;  w <- w + mean_S D_k + s
    Upload   difference, shape (d,)
    State    mean of the clients' sums s, the round's sum      Memory 3 d floats; d on each client
    Limits   every client in every round and a -> 0: the first round tends to w + 2 mean D, not to FedAvg
    Differs  uniform weights and one a for all; the authors' code scales a by mean(n) / n_k. The model judged here is
             the one that is sent out; the authors report the mean of the client models
    """

    Config = FedDynConfig
    config: FedDynConfig
    accepts = ("difference",)
    moves_each_round = True
    clients_keep = "sum"
    state_names = ("sums_mean_d",)

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.mean = RoundMean(model_d, "uniform")
        self.sums_mean_d = model_d.new_zeros(model_d.shape)

    def vectors(self, n: int) -> int:
        return 3

    def parts(self) -> dict:
        return {"mean": self.mean}

    def receive(self, upload) -> bool:
        self.mean.add(upload)
        return False

    def round(self) -> bool:
        delivered = self.mean.count
        mean_d = self.mean.take()
        if mean_d is None:
            return False
        self.sums_mean_d.add_(mean_d, alpha=delivered / self.n)
        self.model_d.add_(mean_d).add_(self.sums_mean_d)
        return True
