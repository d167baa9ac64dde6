"""FedFa: the global model is the mean of the last few local models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from ..errors import check
from ..ranges import at_least
from .base import RuleConfig, ServerRule, check_it_fills
from .needs import Needs


@dataclass
class FedFaConfig(RuleConfig):
    """
    queue  K, local models in the mean
    every  uploads per server iteration once the queue is full, 1 to K; K: the mean of each K models
    """

    queue: Annotated[int, at_least(1)] = 10
    every: Annotated[int, at_least(1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.every <= self.queue, "every", self.every, f"at most algorithm.queue={self.queue}: more are not kept")

    def resolve(self, facts) -> None:
        super().resolve(facts)
        check_it_fills("queue", self.queue, facts)

    def adapt(self, needs: Needs) -> Needs:
        return replace(super().adapt(needs), uploads=self.every)


class FedFa(ServerRule):
    """FedFa (Xu et al., IJCAI 2024, arXiv:2404.11015).

    Rule     arrival of w_i = received + D_i: it takes the place of the oldest of the last K such models
             once there are K, at every S-th arrival:  w <- mean of the K models
    Upload   difference, shape (d,), with the model the work started from
    Steps    per S arrivals (default 1)
    State    rows_kd (the models), arrivals      Memory K d, versions
    Limits   K = 1: FedAsync with alpha = 1, w = w_i.  K equal models: that model
             S = K: the plain mean of each K local models, without what was there before
    Differs  staleness plays no part and there is no server step, as in the ports that are public (the authors' code is
             not; the ports' K is 5). The variant in which clients send differences is another rule. FLGo's `fedfa`
             is another method of this name, for fairness

    >>> after_each(FedFa(queue=2), (0, [2.0]), (1, [4.0]), (2, [8.0]))
    [[0.0], [3.0], [6.0]]
    """

    label = "FedFa"
    config: FedFaConfig
    upload_kinds = ("difference",)
    needs = Needs(base=True)
    state_names = ("rows_kd", "arrivals")

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.rows_kd = model_d.new_zeros((self.config.queue, *model_d.shape))
        self.arrivals = 0

    def vectors(self, n: int) -> int:
        return self.config.queue

    def receive(self, upload) -> bool:
        import torch

        config = self.config
        torch.add(upload.base_d, upload.vector_d, out=self.rows_kd[self.arrivals % config.queue])
        self.arrivals += 1
        beyond_first = self.arrivals - config.queue
        if beyond_first < 0 or beyond_first % config.every:
            return False
        torch.mean(self.rows_kd, dim=0, out=self.model_d)
        return True
