"""FedAsync: each arriving local model is mixed into the global one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from ..ranges import at_least, one_of, within
from .base import RuleConfig, ServerRule, idle_proximal
from .needs import Needs


@dataclass
class FedAsyncConfig(RuleConfig):
    """
    alpha             weight of an arriving model
    staleness_weight  s, see FedAsync
    hinge_a           a of the hinge: s = 1 / (a (lag - b) + 1) beyond the lag b
    hinge_b           b of the hinge, in the unit of the lag: s = 1 up to this lag
    exponent          of the polynomial: s = (lag + 1)^-exponent
    lag               iterations: staleness | time: virtual time from dispatch to arrival
    rho               weight of the clients' proximal term
    """

    alpha: Annotated[float, within("(0, 1]")] = 0.6
    staleness_weight: Annotated[str, one_of("constant", "hinge", "polynomial")] = "constant"
    hinge_a: Annotated[float, at_least(0)] = 10.0
    hinge_b: Annotated[float, at_least(0)] = 4.0
    exponent: Annotated[float, at_least(0)] = 0.5
    lag: Annotated[str, one_of("iterations", "time")] = "iterations"
    rho: Annotated[float, at_least(0)] = 0.0

    def idle(self, facts) -> dict[str, str]:
        used = {"constant": (), "hinge": ("hinge_a", "hinge_b", "lag"), "polynomial": ("exponent", "lag")}
        users = {"hinge_a": "hinge", "hinge_b": "hinge", "exponent": "polynomial", "lag": "hinge or polynomial"}
        weight = self.staleness_weight
        return idle_proximal("rho", facts) | {
            name: f"with algorithm.staleness_weight={weight}; {users[name]} has it"
            for name in users
            if name not in used[weight]
        }


class MixingRule(ServerRule):
    """A rule that mixes each arriving local model into the global one. mixing: weight of the last one"""

    upload_kinds = ("difference",)
    needs = Needs(base=True)
    averaged = ("rule/mixing",)
    arrival_facts = ("mixing",)
    state_names: tuple[str, ...] = ("mixing",)
    kept_vectors = 1

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.mixing = 0.0
        self._local_d = model_d.new_empty(model_d.shape)

    def mix(self, upload, weight: float) -> None:
        """Set w <- (1 - weight) w + weight w_i."""
        self.mixing = weight
        self._local_d.copy_(upload.base_d).add_(upload.vector_d)
        self.model_d.lerp_(self._local_d, self.mixing)

    def stats(self) -> dict[str, float]:
        return {"rule/mixing": self.mixing}


class FedAsync(MixingRule):
    """FedAsync (Xie et al. 2019, arXiv:1903.03934, Algorithm 1; AsyncFedED paper, equations 40 and 41).

    Rule     arrival of w_i = received + D_i:  a = alpha s(lag);  w <- (1 - a) w + a w_i
             s = 1 (constant);  1 if lag <= b else 1 / (a (lag - b) + 1) (hinge);  (lag + 1)^-exponent (polynomial)
             client: each gradient gains rho (w - w_received)
    Upload   difference, shape (d,), with the model the work started from
    State    the last weight      Memory d, versions
    Limits   alpha = 1: w = w_i.  Without staleness and s = 1: w + alpha D_i, which with staleness it is not.
             hinge_b beyond every lag: constant
    Differs  the lag is in server iterations as in the original, in virtual time in the AsyncFedED paper. The authors'
             code also halves alpha at given iterations and begins with a warm-up on one client. It pulls the local
             model back by eta_l rho before each step, which for plain SGD is this gradient

    >>> after_each(FedAsync(alpha=0.5), (0, [2.0]), (1, [4.0]))
    [[1.0], [2.5]]
    """

    label = "FedAsync"
    config: FedAsyncConfig
    needs = replace(MixingRule.needs, proximal="rho")

    def receive(self, upload) -> bool:
        lag = upload.staleness if self.config.lag == "iterations" else upload.delay
        self.mix(upload, self.config.alpha * self._weight(lag))
        return True

    def _weight(self, lag: float) -> float:
        config = self.config
        if config.staleness_weight == "polynomial":
            return (lag + 1) ** -config.exponent
        if config.staleness_weight == "constant" or lag <= config.hinge_b:
            return 1.0
        return 1 / (config.hinge_a * (lag - config.hinge_b) + 1)
