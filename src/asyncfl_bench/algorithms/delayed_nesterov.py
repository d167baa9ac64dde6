"""Delayed Nesterov: a server momentum that changes only every N arrivals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from ..errors import check
from ..ranges import at_least, within
from .base import ServerRule, StepConfig
from .needs import Needs


@dataclass
class DelayedNesterovConfig(StepConfig):
    """
    eta     shared by the N arrivals of a window
    window  N, arrivals between two changes of the momentum
    beta    of the momentum
    spread  c in [0, 1 / N], the part of the momentum that each arrival of a window applies; the last one applies the
            rest
    dylu    true: slower clients do less work: K is in proportion to the measured speed, and the fastest client has the
            configured K; needs a delay with which less work takes less time
    """

    eta: float | None = 0.7
    window: Annotated[int, at_least(1)] = 10
    beta: Annotated[float, within("[0, 1)")] = 0.9
    spread: Annotated[float, at_least(0)] = 0.0
    dylu: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = f"in [0, 1 / algorithm.window], here at most {1 / self.window:g}"
        check(self.spread * self.window <= 1, "spread", self.spread, allowed)

    def adapt(self, needs: Needs) -> Needs:
        return replace(super().adapt(needs), chooses_k=self.dylu)

    def resolve(self, facts) -> None:
        super().resolve(facts)
        allowed = "false with schedule=uniform_queue, under which work also takes the time that it waits"
        check(not (self.dylu and facts.queues), "dylu", self.dylu, allowed)


class DelayedNesterov(ServerRule):
    """Delayed Nesterov (Liu et al. 2024, arXiv:2401.09135, Algorithm 3), with dynamic local updates on request.

    Rule     t-th arrival of D_i = local - received:  S <- S + D_i
             t a multiple of N:  m <- b m + S / N,  S <- 0;  w <- w + eta ((1 - c N + c) b m + D_i / N)
             else:  w <- w + eta (c b m + D_i / N)
             dylu: K_i = max(1, floor(K v_i / max_j v_j)), v_i the work per unit of time that the last upload was seen
             to take; K until then
    Upload   difference, shape (d,)
    State    sum_d (S), momentum_d (m), count, and of each client v_i      Memory 2 d
    Limits   N = 1: Nesterov's SGD at each arrival, with the gradient -D_i.  beta = 0: Asgd on differences with eta / N
             c = 0: N arrivals move the model by eta (b m + mean D_i), one Nesterov step on their mean
    Differs  written from two ports that agree (halos, torchft), as only the abstract could be read; halos' eta holds N.
             A third port (Forgather) applies the whole D_i between renewals, and their mean once more. The grace period
             is left out. dylu needs a delay law by which less work takes less time: under any other K falls to 1

    >>> after_each(DelayedNesterov(window=2), (0, [-1.0]), (1, [-3.0]), (0, [-2.0]), (1, [0.0]))
    [[-0.35], [-2.66], [-3.36], [-5.124]]
    """

    label = "Delayed Nesterov"
    config: DelayedNesterovConfig
    upload_kinds = ("difference",)
    state_names = ("sum_d", "momentum_d", "count", "speeds", "most_work")
    kept_vectors = 2

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.sum_d, self.momentum_d = model_d.new_zeros((2, *model_d.shape))
        self.count = self.most_work = 0
        self.speeds = [0.0] * self.n  # 0 for clients without an upload

    def receive(self, upload) -> bool:
        config = self.config
        self.speeds[upload.client] = upload.k / upload.delay if upload.delay else 0.0
        self.most_work = max(self.most_work, upload.k)  # the configured K, with which every client begins
        self.sum_d.add_(upload.vector_d)
        self.count += 1
        share = config.spread
        if self.count % config.window == 0:
            self.momentum_d.mul_(config.beta).add_(self.sum_d, alpha=1 / config.window)
            self.sum_d.zero_()
            share = 1 - config.spread * config.window + config.spread
        self.model_d.add_(self.momentum_d, alpha=self.step_size * share * config.beta)
        self.model_d.add_(upload.vector_d, alpha=self.step_size / config.window)
        return True

    def work_for(self, client: int) -> int | None:
        speed = self.speeds[client]
        if not (self.config.dylu and speed):
            return None
        # the clock's rounding must not take a step from a client that is as fast as the fastest
        return max(1, int(self.most_work * (speed / max(self.speeds)) + 1e-6))
