"""Malenia SGD: gradients of the current model from every client, each client's mean with the same weight."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

from ..ranges import at_least
from ..storage import send
from .base import RestartConfig, ServerRule, StepConfig
from .needs import Needs


@dataclass
class MaleniaConfig(RestartConfig, StepConfig):
    """
    batch       S, which n times the harmonic mean of the clients' numbers of gradients must exceed; below n: one each
                is enough
    restart_at  1: no upload is late
    """

    batch: Annotated[float, at_least(0)] = 1.0

    def adapt(self, needs: Needs) -> Needs:
        return replace(super().adapt(needs), uploads=lambda n: n * (math.floor(self.batch / n) + 1))


class Malenia(ServerRule):
    """Malenia SGD (Tyurin and Richtarik, NeurIPS 2023, arXiv:2305.12387).

    Rule     arrival of g_i with staleness 0:  G_i <- G_i + g_i,  b_i <- b_i + 1;  any other is ignored
             ((1 / n) sum_i 1 / b_i)^-1 > S / n:  w <- w - (eta / n) sum_i G_i / b_i;  G_i <- 0, b_i <- 0 for all i
             so every client must have reported: with b_i = 0 the left side is 0
             restart_at=1: after each step all work is stopped and restarted at w, so that nothing is late
    Upload   gradient, shape (d,)
    Steps    once each client has a used upload (a larger `batch` requires more)
    State    sums_nd (G_i), counts (b_i), dropped      Memory n d
    Limits   gradients without noise: the gradient of the mean objective, whatever the speeds
             S < n: a step as soon as all have reported.  equal durations, S < n: Rennala with B = n
             one client: SGD with batch floor(S) + 1
    Differs  the code of Ringleader's authors has no S, which is S < n. AsyncFL's malenia_sgd counts all gradients and
             divides by them, which is Rennala. A client that never returns blocks the rule for ever

    >>> after_each(Malenia(eta=0.5), (0, [2.0]), (0, [4.0]), (1, [7.0]), (1, [9.0]))
    [[0.0], [0.0], [-2.5], [-2.5]]
    """

    label = "Malenia"
    config: MaleniaConfig
    upload_kinds = ("gradient", "difference")
    needs = Needs(linear=True, waits_for="all")
    state_names = ("sums_nd", "counts", "dropped")

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.sums_nd = model_d.new_zeros((self.n, *model_d.shape))
        self.counts = [0] * self.n
        self.dropped = 0

    def vectors(self, n: int) -> int:
        return n

    def receive(self, upload) -> bool:
        if upload.staleness:
            self.dropped += 1
            return False
        self.sums_nd[upload.client] += upload.vector_d
        self.counts[upload.client] += 1
        if 0 in self.counts:
            return False
        weights = [1 / count for count in self.counts]
        if self.n**2 / sum(weights) <= self.config.batch * (1 + 1e-12):  # equality waits, whatever the rounding
            return False
        weight_n = send(weights, self.model_d.device).to(self.model_d.dtype)
        self.model_d.addmv_(self.sums_nd.T, weight_n, alpha=self.step_size / self.n)
        self.sums_nd.zero_()
        self.counts = [0] * self.n
        return True

    def stats(self) -> dict[str, float]:
        return {"rule/dropped_uploads": float(self.dropped)}
