"""The server's half of FedASMU: local models are mixed in with a weight that falls with staleness and with time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..errors import check
from ..ranges import at_least, greater_than
from .base import RuleConfig
from .fedasync import MixingRule


@dataclass
class FedAsmuServerConfig(RuleConfig):
    """
    mu        the weight of an arriving model is a = mu x / (1 + mu x); like the others a value of public ports
    lam       lambda, of the part of x that falls with staleness and time: x = lambda / (sqrt(t) (staleness +
              1)^exponent) + iota
    exponent  sigma, of the staleness in that part
    iota      the part of x that stays; 0: the weight falls with 1 / sqrt(t)
    bound     server iterations; uploads of this staleness or more are left out, one port takes 99
    """

    mu: Annotated[float, greater_than(0)] = 1.0
    lam: Annotated[float, at_least(0)] = 1.0
    exponent: Annotated[float, at_least(0)] = 0.5
    iota: Annotated[float, at_least(0)] = 0.0
    bound: Annotated[int | None, at_least(1, null="for none")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.lam + self.iota > 0, "lam", self.lam, "> 0 where algorithm.iota is 0: no model would be mixed in")


class FedAsmuServer(MixingRule):
    """FedASMU (Liu et al., AAAI 2024, arXiv:2312.05770), what its server does with fixed weights.

    Rule     arrival of w_i = received + D_i in step t = 1, 2, ..., with staleness tau:
             tau >= bound: ignored, and no step.  else x = lam / (sqrt(t) (tau + 1)^sigma) + iota
             a = mu x / (1 + mu x);  w <- (1 - a) w + a w_i                                      (equations 1 and 2)
    Upload   difference, shape (d,), with the model the work started from
    Tells    version
    State    the last weight, steps, dropped      Memory d, versions
    Limits   lam = 0, iota = s / (mu (1 - s)): FedAsync with alpha = s.  a is in (0, 1) and falls with t and with tau
    Differs  from public ports, as only the abstract could be read: two of three have the exponent sigma, one sigma / 2;
             their values are ours, since the authors' could not be read. Not here: lam, sigma and iota learnt for each
             client, on which the ports do not agree, and the fresh model that clients pull in mid-training. With
             iota = 0 a falls as 1 / sqrt(t), so that a long run of many clients stalls

    >>> after_each(FedAsmuServer(), (0, [2.0]), (1, [4.0]))
    [[1.0], [2.0]]
    """

    label = "FedASMU (server)"
    config: FedAsmuServerConfig
    state_names = ("mixing", "steps", "dropped")

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.steps = self.dropped = 0

    def receive(self, upload) -> bool:
        config = self.config
        if config.bound is not None and upload.staleness >= config.bound:
            self.dropped += 1
            return False
        self.steps += 1
        x = config.lam / (self.steps**0.5 * (upload.staleness + 1) ** config.exponent) + config.iota
        self.mix(upload, config.mu * x / (1 + config.mu * x))
        return True

    def stats(self) -> dict[str, float]:
        return super().stats() | {"rule/dropped_uploads": float(self.dropped)}
