"""Rennala SGD: a mini-batch of gradients of the current model, from the fastest clients."""

from __future__ import annotations

from dataclasses import dataclass

from .base import BufferConfig, RestartConfig
from .fedbuff import FedBuff


@dataclass
class RennalaConfig(RestartConfig, BufferConfig):
    """
    buffer_size  B in the paper, gradients of the current model alone; may exceed the number of clients
    restart_at   1: no upload is late
    """

    eta: float | None = None
    # of FedBuff's settings, those that make it Rennala
    staleness_weight, momentum, max_staleness = "constant", 0.0, 0


class Rennala(FedBuff):
    """Rennala SGD (Tyurin and Richtarik, NeurIPS 2023, arXiv:2305.12387).

    Rule     arrival of g_j with staleness 0:  S <- S + g_j,  m <- m + 1;  any other is ignored
             m = B:  w <- w - eta S / B;  S <- 0, m <- 0
             restart_at=1: after each step all work is stopped and restarted at w, so that nothing is late
    Upload   gradient, shape (d,)
    Steps    per B used uploads
    State    FedBuff's      Memory d
    Limits   FedBuff with max_staleness=0, bit for bit.  B = 1: Ringmaster with R = 1.  one client: SGD with batch B
             equal durations, B = n and restart_at=1: one mini-batch step of all clients per unit of time
    Differs  the paper continues while the sum is at most S, so B = floor(S) + 1. B may exceed n: a client that reports
             continues at the same model. The mean is that of all gathered gradients, so fast clients weigh more; see
             Malenia. To ignore what is late and to stop it are both the paper's

    >>> after_each(Rennala(eta=0.5, buffer_size=2), (0, [2.0]), (1, [4.0]), (2, [6.0]))
    [[0.0], [-1.5], [-1.5]]
    """

    Config = RennalaConfig
    label = "Rennala"
    upload_kinds = ("gradient", "difference")
