"""Asynchronous SGD, vanilla and delay-adaptive."""

from __future__ import annotations

from .base import ServerRule, StepConfig
from .needs import Needs


class Asgd(ServerRule):
    """Vanilla asynchronous SGD.

    Rule     w <- w - eta g_j at every arrival      (Mishchenko et al. 2022, arXiv:2206.07638; ACE paper, section 2)
    Upload   gradient, shape (d,); with client.upload=difference: w <- w + eta D_j (asynchronous local SGD)
    State    none      Memory 0
    Limits   one client, no delay: SGD.  FedBuff with M = 1 and K = 1 is this rule with step eta * eta_l

    >>> after_each(Asgd(eta=0.1), (0, [1.0]), (1, [3.0]))
    [[-0.1], [-0.4]]
    """

    config: StepConfig
    label = "vanilla ASGD"
    upload_kinds = ("gradient", "difference")
    needs = Needs(linear=True)

    def receive(self, upload) -> bool:
        self.model_d.add_(upload.vector_d, alpha=self.step_size)
        return True
