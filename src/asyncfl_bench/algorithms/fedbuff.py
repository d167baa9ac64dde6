"""FedBuff: buffered asynchronous aggregation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

from ..ranges import at_least, one_of, within
from .base import BufferConfig, BufferRule
from .needs import Needs


@dataclass
class FedBuffConfig(BufferConfig):
    """
    staleness_weight    s(tau): constant: 1 | polynomial: (1 + tau)^-a | freshest: that of the buffer's least tau, for
                        all
    staleness_exponent  a, of polynomial and freshest
    momentum            of the server step
    max_staleness       server iterations; the sum leaves out older uploads, which are not counted; FedEcho's teacher
                        has them. null: none
    """

    staleness_weight: Annotated[str, one_of("constant", "polynomial", "freshest")] = "constant"
    staleness_exponent: Annotated[float, at_least(0)] = 0.5
    momentum: Annotated[float, within("[0, 1)")] = 0.0
    max_staleness: Annotated[int | None, at_least(0)] = None

    def idle(self, facts) -> dict[str, str]:
        why = "with algorithm.staleness_weight=constant; polynomial or freshest has it"
        return super().idle(facts) | ({"staleness_exponent": why} if self.staleness_weight == "constant" else {})

    def adapt(self, needs: Needs) -> Needs:
        needs = super().adapt(needs)
        return replace(needs, linear_if=(*needs.linear_if, ("momentum", self.momentum, 0)))


class FedBuff(BufferRule):
    """FedBuff (Nguyen et al. 2022, arXiv:2106.06639; ACE paper, Algorithm a.2).

    Rule     arrival of D_i = local - received:  S <- S + s(tau_i) D_i,  m <- m + 1              (lines 5-7)
             m = M:  b <- beta b + S / M;  w <- w + eta b;  S <- 0, m <- 0                       (lines 12-14)
             s(tau): the weight of a difference by its staleness; the weights of a buffer need not sum to M
    Upload   difference, shape (d,)
    State    sum_d (S), count (m), velocity_d (b, only with momentum), freshest (least tau in the buffer)
    Memory  d, with momentum 2 d
    Limits   M = 1, s = 1, beta = 0, K = 1: vanilla ASGD with step eta * client.lr
             M = n, concurrency n, dispatch=after_update: FedAvg with equal client weights
    Differs  FLSim, the authors' code, does not divide by M, so its eta is ours / M. It divides s(tau) by s(1).
             staleness_weight=freshest is AFBS's weight

    >>> after_each(FedBuff(buffer_size=2), (0, [2.0, 0.0]), (1, [4.0, 2.0]))
    [[0.0, 0.0], [3.0, 1.0]]
    """

    label = "FedBuff"
    config: FedBuffConfig
    needs = Needs(linear=True)
    state_names: tuple[str, ...] = ("sum_d", "count", "velocity_d", "dropped", "freshest")

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.sum_d = model_d.new_zeros(model_d.shape)
        self.velocity_d = model_d.new_zeros(model_d.shape if self.config.momentum else (0,))
        self.dropped = 0
        self.freshest = math.inf

    def vectors(self, n: int) -> int:
        return 2 if self.config.momentum else 1

    def receive(self, upload) -> bool:
        most = self.config.max_staleness
        if most is not None and upload.staleness > most:
            self.dropped += 1
            return False
        return super().receive(upload)

    def add(self, upload) -> None:
        one_by_one = self.config.staleness_weight == "polynomial"
        self.sum_d.add_(upload.vector_d, alpha=self._weight(upload.staleness) if one_by_one else 1.0)
        self.freshest = min(self.freshest, upload.staleness)

    def step(self) -> None:
        config = self.config
        if config.staleness_weight == "freshest":
            self.sum_d.mul_(self._weight(self.freshest))
        if config.momentum:
            self.velocity_d.mul_(config.momentum).add_(self.sum_d, alpha=1 / config.buffer_size)
            self.model_d.add_(self.velocity_d, alpha=self.step_size)
        else:
            self.model_d.add_(self.sum_d, alpha=self.step_size / config.buffer_size)
        self.sum_d.zero_()
        self.freshest = math.inf

    def stats(self) -> dict[str, float]:
        return {"rule/dropped_uploads": float(self.dropped)}

    def _weight(self, staleness: float) -> float:
        return (1 + staleness) ** -self.config.staleness_exponent
