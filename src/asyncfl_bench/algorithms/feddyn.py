"""FedDyn: the sum of a client's uploads corrects its objective."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from ..ranges import greater_than
from .base import RuleConfig
from .common.rounds import RoundRule


@dataclass
class FedDynConfig(RuleConfig):
    """
    alpha  weight a of the dynamic regulariser
    """

    alpha: Annotated[float, greater_than(0)] = 0.01


class FedDyn(RoundRule):
    """FedDyn (Acar et al. 2021, arXiv:2111.04263, Algorithm 1).

    Rule     client k: minimise F_k(x) - <g_k, x> + (a/2) ||x - w||^2, then g_k <- g_k - a (x_k - w)
             server, after a round of the clients S:  h <- h - (a/n) sum_S (x_k - w);  w <- mean_S x_k - h / a
    Here     with l_k = -g_k / a, the sum of client k's uploads: each gradient gains a (x - (w - l_k)), and
             s = -h / a = mean over all clients of l_k:  s <- s + (1/n) sum_S D_k;  w <- w + mean_S D_k + s
    Upload   difference, shape (d,)
    Tells    nothing
    State    mean of the clients' sums s, the round's sum      Memory 3 d
    Limits   every client in every round and a -> 0: the first round tends to w + 2 mean D, not to FedAvg
    Differs  uniform weights and one a for all; the authors' code scales a by mean(n) / n_k. The model judged here is
             the one that is sent out; the authors report the mean of the client models

    >>> after_each(FedDyn(alpha=0.1), (0, [2.0, 0.0]), (1, [4.0, 2.0]))
    [[0.0, 0.0], [6.0, 2.0]]
    """

    label = "FedDyn"
    config: FedDynConfig
    needs = replace(RoundRule.needs, keeps="sum", proximal="alpha")
    state_names = ("sums_mean_d",)
    kept_vectors = 3

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.sums_mean_d = model_d.new_zeros(model_d.shape)

    def step(self, mean_d, delivered) -> None:
        self.sums_mean_d.add_(mean_d, alpha=delivered / self.n)
        self.model_d.add_(mean_d).add_(self.sums_mean_d)
