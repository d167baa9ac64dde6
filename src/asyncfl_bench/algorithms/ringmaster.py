"""Ringmaster ASGD: asynchronous SGD that leaves out gradients which are too old."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..ranges import at_least
from .asgd import Asgd
from .base import RestartConfig, StepConfig


@dataclass
class RingmasterConfig(RestartConfig, StepConfig):
    """
    threshold  R, server iterations; uploads of this staleness or more are left out
    """

    threshold: Annotated[int | None, at_least(1, null="for restart_at or the concurrency")] = None

    def resolve(self, facts) -> None:
        super().resolve(facts)
        self.threshold = self.threshold or self.restart_at or facts.concurrency


class Ringmaster(Asgd):
    """Ringmaster ASGD (Maranjyan, Tyurin and Richtarik, ICML 2025, arXiv:2501.16168).

    Rule     arrival of g_j with staleness tau:  tau < R:  w <- w - eta g_j
             else g_j is ignored: the model stays and no server iteration is counted
             restart_at=R: after each step work whose model is R old is stopped and restarted at w, so that all is used
    Upload   gradient, shape (d,)
    Steps    per used upload
    State    dropped      Memory 0
    Limits   R >= T: Asgd, bit for bit;  delay_adaptive_asgd with variant=drop and tau_c = R - 1, bit for bit
             R = 1: only gradients of the current model, Rennala with B = 1
             equal durations and R = n: nothing is dropped or stopped.  restart_at >= T: nothing is stopped
    Differs  in the paper both forms have one R, here threshold and restart_at. Other code counts a dropped upload as an
             iteration (optimal-decentralized-optimization), or keeps tau = R too

    >>> after_each(Ringmaster(eta=0.5, threshold=2), (0, [2.0]), (1, [4.0]), (2, [6.0]))
    [[-1.0], [-3.0], [-3.0]]
    """

    label = "Ringmaster"
    config: RingmasterConfig
    state_names = ("dropped",)

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.dropped = 0

    def receive(self, upload) -> bool:
        assert self.config.threshold is not None
        if upload.staleness >= self.config.threshold:
            self.dropped += 1
            return False
        return super().receive(upload)

    def stats(self) -> dict[str, float]:
        return {"rule/dropped_uploads": float(self.dropped)}
