"""FADAS: an adaptive server step on each full buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..ranges import at_least, one_of
from .base import BufferRule, MomentConfig


@dataclass
class FadasConfig(MomentConfig):
    """
    eta              the authors run 1e-4, with delay_adaptive=code 1e-3
    bias_correction  true: moments are divided by 1 - b1^k and 1 - b2^k at step k, as in Adam and the authors' code |
                     false: as published
    delay_adaptive   none | code: eta / T if T, the greatest staleness in the buffer, is above tau_c | paper: min(eta, 1
                     / T) then
    tau_c            the threshold in server iterations
    """

    bias_correction: bool = True
    delay_adaptive: Annotated[str, one_of("none", "code", "paper")] = "none"
    tau_c: Annotated[int, at_least(1)] = 1

    def idle(self, facts) -> dict[str, str]:
        why = "with algorithm.delay_adaptive=none; code and paper have it"
        return super().idle(facts) | ({"tau_c": why} if self.delay_adaptive == "none" else {})


class Fadas(BufferRule):
    """FADAS (Wang et al., ICML 2024, arXiv:2407.18365): AMSGrad on the mean of a buffer.

    Rule     arrival of D_i = local - received:  S <- S + D_i;  at M of them G = S / M,  S <- 0
             m <- b1 m + (1 - b1) G;  v <- b2 v + (1 - b2) G^2;  V <- max(V, v)
             w <- w + eta_T [m / (1 - b1^k)] / [sqrt(V / (1 - b2^k)) + eps],  k = 1, 2, ... the step
             eta_T, with T the greatest staleness in the buffer: eta while T <= tau_c, beyond it
               code   eta / T          (the authors' code)
               paper  min(eta, 1 / T)  (as published; with the small eta in use it changes nothing)
    Upload   difference, or gradient with the sign turned, shape (d,)
    State    S, count, T, moments m, v and V, all 0 at the start, k      Memory 5 d
    Limits   torch's Adam(amsgrad=True) with the gradient -G.  b1 = b2 = 0, eps to 0: the first step is eta sign(G), no
             later one is longer in any coordinate.  no staleness beyond tau_c: delay_adaptive changes nothing
    Differs  no bias correction in the paper, bias_correction=false; the code, whose form is the default, has it

    >>> after_each(Fadas(eta=0.1, buffer_size=2), (0, [2.0, 0.0]), (1, [4.0, -2.0]))
    [[0.0, 0.0], [0.1, -0.1]]
    """

    label = "FADAS"
    config: FadasConfig
    averaged = ("rule/step_scale",)
    state_names = ("sum_d", "count", "stalest", "first_d", "second_d", "largest_d", "steps", "last_scale")
    kept_vectors = 5  # the divisor is one

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.sum_d, self.first_d, self.second_d, self.largest_d = model_d.new_zeros((4, model_d.numel()))
        self.stalest = self.steps = 0
        self.last_scale = 1.0

    def add(self, upload) -> None:
        self.sum_d.add_(upload.vector_d)
        self.stalest = max(self.stalest, upload.staleness)

    def step(self) -> None:
        import torch

        config = self.config
        b1, b2 = config.beta1, config.beta2
        self.steps += 1
        mean_d = self.sum_d.div_(config.buffer_size)
        self.first_d.mul_(b1).add_(mean_d, alpha=1 - b1)
        self.second_d.mul_(b2).addcmul_(mean_d, mean_d, value=1 - b2)
        torch.maximum(self.largest_d, self.second_d, out=self.largest_d)
        k = self.steps if config.bias_correction else float("inf")
        divisor_d = self.largest_d.sqrt().div_((1 - b2**k) ** 0.5).add_(config.eps)
        self.last_scale = self.scale(self.stalest)
        self.model_d.addcdiv_(self.first_d, divisor_d, value=self.step_size * self.last_scale / (1 - b1**k))
        self.sum_d.zero_()
        self.stalest = 0

    def stats(self) -> dict[str, float]:
        return {"rule/step_scale": self.last_scale}

    def scale(self, stalest: int) -> float:
        """Return eta_T / eta for a buffer whose stalest upload has this staleness."""
        config = self.config
        assert config.eta is not None
        if config.delay_adaptive == "none" or stalest <= config.tau_c:
            return 1.0
        return 1 / stalest if config.delay_adaptive == "code" else min(1.0, 1 / (stalest * config.eta))
