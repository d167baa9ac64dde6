"""Asynchronous SGD whose step shrinks with the staleness of the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..ranges import at_least, greater_than, one_of
from .base import ServerRule, StepConfig
from .needs import Needs


@dataclass
class DelayAdaptiveAsgdConfig(StepConfig):
    """
    variant     beyond tau_c: mishchenko: eta * tau_c / tau | koloskova: eta / tau or 1 / (4 L tau) | drop: leave the
                upload out
    tau_c       staleness up to which eta is used in full, server iterations
    smoothness  L of the koloskova variant; null: 1 / (4 L) = eta
    """

    variant: Annotated[str, one_of("mishchenko", "koloskova", "drop")] = "mishchenko"
    tau_c: Annotated[int | None, at_least(1, null="for the concurrency")] = None
    smoothness: Annotated[float | None, greater_than(0)] = None

    def resolve(self, facts) -> None:
        super().resolve(facts)
        self.tau_c = self.tau_c or facts.concurrency

    def idle(self, facts) -> dict[str, str]:
        why = f"with algorithm.variant={self.variant}; koloskova has it"
        return super().idle(facts) | ({} if self.variant == "koloskova" else {"smoothness": why})


class DelayAdaptiveAsgd(ServerRule):
    """Delay-adaptive asynchronous SGD.

    Rule     w <- w - eta_t g_j at every arrival                                     (ACE paper, Algorithm a.4)
             eta_t = eta while tau <= tau_c, beyond it
               mishchenko  eta tau_c / tau                    (Mishchenko et al. 2022, arXiv:2206.07638, their code)
               koloskova   min(eta, 1 / (4 L tau)); with L not given eta / tau
                                                              (Koloskova et al. 2022, arXiv:2206.08307, Theorem 8)
               drop        0: the upload is used up, the model stays and no server iteration is counted
    Upload   gradient, shape (d,)
    State    dropped      Memory 0
    Limits   tau_c >= T is Asgd, bit for bit
    Differs  beyond the threshold `mishchenko` and `koloskova` differ by the factor tau_c

    >>> after_each(DelayAdaptiveAsgd(eta=0.1, tau_c=1), (0, [1.0]), (1, [1.0]), (2, [1.0]))
    [[-0.1], [-0.2], [-0.25]]
    """

    label = "delay-adaptive ASGD"
    config: DelayAdaptiveAsgdConfig
    upload_kinds = ("gradient", "difference")
    needs = Needs(linear=True)
    averaged = ("rule/step_scale",)
    state_names = ("dropped", "last_scale")

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.dropped = 0
        self.last_scale = 1.0

    def receive(self, upload) -> bool:
        self.last_scale = self.scale(upload.staleness)
        if self.last_scale == 0:
            self.dropped += 1
            return False
        self.model_d.add_(upload.vector_d, alpha=self.step_size * self.last_scale)
        return True

    def stats(self) -> dict[str, float]:
        return {"rule/dropped_uploads": float(self.dropped), "rule/step_scale": self.last_scale}

    def scale(self, staleness: int) -> float:
        """Return eta_t / eta for an upload of this staleness."""
        config = self.config
        assert config.tau_c is not None and config.eta is not None
        if staleness <= config.tau_c:
            return 1.0
        if config.variant == "mishchenko":
            return config.tau_c / staleness
        if config.variant == "koloskova":
            if config.smoothness is None:
                return 1.0 / staleness
            return min(1.0, 1 / (4 * config.smoothness * staleness * config.eta))
        return 0.0
