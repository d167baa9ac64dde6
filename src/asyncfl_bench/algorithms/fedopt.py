"""FedOpt: an adaptive server optimizer on the round's mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..ranges import greater_than, one_of, within
from .base import StepConfig
from .common.rounds import RoundConfig, RoundRule, Weights


@dataclass
class FedOptConfig(StepConfig, RoundConfig):
    """
    optimizer  of the server
    beta1      b1, of the first moment
    beta2      b2, of the second moment; not used by adagrad
    tau        adaptivity, also the root of the second moment's first value
    """

    eta: float | None = 0.1
    optimizer: Annotated[str, one_of("adam", "yogi", "adagrad")] = "adam"
    beta1: Annotated[float, within("[0, 1)")] = 0.9
    beta2: Annotated[float, within("[0, 1)")] = 0.99
    tau: Annotated[float, greater_than(0)] = 1e-3
    weights: Weights = "uniform"

    def idle(self, facts) -> dict[str, str]:
        why = "with algorithm.optimizer=adagrad; adam and yogi have it"
        return super().idle(facts) | ({"beta2": why} if self.optimizer == "adagrad" else {})


class FedOpt(RoundRule):
    """FedAdam, FedYogi and FedAdagrad (Reddi et al. 2021, arXiv:2003.00295, Algorithm 2).

    Rule     G = mean of the round's D_i = local - received
             m <- b1 m + (1 - b1) G
             v <- v + G^2 (adagrad);  v - (1 - b2) G^2 sign(v - G^2) (yogi);  b2 v + (1 - b2) G^2 (adam)
             w <- w + eta m / (sqrt(v) + tau)
    Upload   difference, shape (d,)
    State    first moment m, second moment v (tau^2 at the start), the round's sum      Memory 5 d
    Limits   b1 = 0, tau so large that v stays at tau^2 (adam: and b2 near 1), eta = 2 tau: FedAvg with the same
             weights. The 2 is from v's first value, without which eta = tau would do
    Differs  no bias correction, as in the paper; Flower corrects, with an exponent one too large, and starts v at 0

    >>> after_each(FedOpt(eta=0.1, beta1=0.0, tau=1.0), (0, [2.0, 0.0]), (1, [4.0, 2.0]))
    [[0.0, 0.0], [0.1471, 0.05]]
    """

    label = "FedOpt"
    config: FedOptConfig
    state_names = ("first_d", "second_d")
    kept_vectors = 5

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.first_d = model_d.new_zeros(model_d.shape)
        self.second_d = model_d.new_full(model_d.shape, self.config.tau**2)

    def step(self, mean_d, delivered) -> None:
        config = self.config
        self.first_d.mul_(config.beta1).add_(mean_d, alpha=1 - config.beta1)
        square_d = mean_d.square_()
        if config.optimizer == "adagrad":
            self.second_d.add_(square_d)
        elif config.optimizer == "yogi":
            self.second_d.addcmul_(square_d, (self.second_d - square_d).sign_(), value=config.beta2 - 1)
        else:
            self.second_d.mul_(config.beta2).add_(square_d, alpha=1 - config.beta2)
        self.model_d.addcdiv_(self.first_d, self.second_d.sqrt().add_(config.tau), value=self.step_size)
