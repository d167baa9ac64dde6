"""Rescaled ASGD: steps in proportion to the time that the client takes."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import check
from ..ranges import check_client_numbers
from .base import ServerRule, StepConfig
from .needs import Needs


@dataclass
class RescaledAsgdConfig(StepConfig):
    """
    eta    of a client that takes as long as the mean
    times  virtual time of a gradient, one number > 0 per client; null: the mean of what each client was seen to take
    """

    times: list[float] | None = None

    def resolve(self, facts) -> None:
        super().resolve(facts)
        check_client_numbers("times", self.times, facts.n_clients)
        allowed = "numbers with schedule=uniform_queue, under which work also takes the time that it waits"
        check(self.times is not None or not facts.queues, "times", self.times, allowed)


class RescaledAsgd(ServerRule):
    """Rescaled ASGD (Mahran, Maranjyan and Richtarik 2026, arXiv:2605.13434), with a normalisation of ours.

    Rule     arrival of g_i:  w <- w - eta_i g_i,  eta_i = eta tau_i / mean_j tau_j, tau_i the time client i takes
    Upload   gradient, shape (d,)
    State    of each client the sum and the number of its delays      Memory 0
    Limits   equal times: Asgd, bit for bit where their mean is exact
             over a multiple of all tau_i each client's eta_i sum to the same: small steps end in the optimum of the
             mean objective, where Asgd ends in that of the objectives weighted by speed
    Differs  only the abstract was available. It states steps proportional to times. Our choices: the mean step over
             clients is eta; an unknown time is the mean of observed times, over the clients that have uploaded so far.
             Of use where every client works all the time: under other schedules than same_client they do not
             contribute in proportion to 1 / tau_i. A slow client's step may be too long where eta is not
             (rule/step_scale_max)

    >>> after_each(RescaledAsgd(eta=0.5, times=[1.0, 3.0]), (0, [4.0]), (1, [4.0]))
    [[-1.0], [-4.0]]
    """

    label = "Rescaled ASGD"
    config: RescaledAsgdConfig
    upload_kinds = ("gradient", "difference")
    needs = Needs(linear=True)
    averaged = ("rule/step_scale",)
    state_names = ("sums", "counts", "last_scale", "max_scale")

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        known = self.config.times
        self.sums, self.counts = list(known or [0.0] * self.n), [int(known is not None)] * self.n
        self.last_scale = self.max_scale = 1.0

    def receive(self, upload) -> bool:
        client = upload.client
        if self.config.times is None:
            self.sums[client] += upload.delay
            self.counts[client] += 1
        times = [total / count for total, count in zip(self.sums, self.counts, strict=True) if count]
        everybody = sum(times) / len(times)
        own = self.sums[client] / self.counts[client]
        self.last_scale = own / everybody if everybody else 1.0
        self.max_scale = max(self.max_scale, self.last_scale)
        self.model_d.add_(upload.vector_d, alpha=self.step_size * self.last_scale)
        return True

    def stats(self) -> dict[str, float]:
        return {"rule/step_scale": self.last_scale, "rule/step_scale_max": self.max_scale}
