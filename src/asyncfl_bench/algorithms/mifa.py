"""MIFA: steps with the mean of every client's last difference."""

from __future__ import annotations

from dataclasses import dataclass

from .common.caches import CachedBufferConfig, CachedBufferRule
from .common.rounds import Weights
from .needs import Needs


@dataclass
class MifaConfig(CachedBufferConfig):
    """
    weights  p_i of the clients: uniform: 1 / n | samples: n_i / sum n over all of them
    """

    weights: Weights = "uniform"


class Mifa(CachedBufferRule):
    """MIFA (Gu et al. 2021, arXiv:2106.04159), as an asynchronous rule.

    Rule     state h_i = 0 for every i
             arrival of D_i = local - received:  h_i <- D_i,  m <- m + 1
             m = M:  w <- w + eta sum_i p_i h_i over all clients,  m <- 0
    Upload   difference, shape (d,)
    State    cache (n p_i h_i), its running sum, count (m)
    Memory   cache and 5 d
    Limits   every client once in each buffer of n: the mean difference;  M = 1, uniform: ACE on differences, but for
             its first round;  equal differences of all clients, once all are heard: eta D for any M
    Differs  the paper works in rounds, at a rate that falls with 1 / t for clients and server, and waits until all
             clients were heard. weights=samples is what the released code of GAS (arXiv:2409.01251) runs as CA2FL,
             but there work that was dispatched after the first C tasks starts from the model as it is when it arrives

    >>> after_each(Mifa(buffer_size=1), (0, [2.0]), (1, [4.0]), (0, [0.0]))
    [[1.0], [4.0], [6.0]]
    """

    label = "MIFA"
    config: MifaConfig
    needs = Needs(linear=True)
    kept_vectors = 5

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        share_n = clients.samples_n / max(int(clients.samples_n.sum()), 1)
        self.times_n = share_n * self.n if self.config.weights == "samples" else share_n * 0 + 1  # n p_i

    def add(self, upload) -> None:
        times = float(self.times_n[upload.client])
        self.cache.replace(upload.client, upload.vector_d * times if times != 1 else upload.vector_d, self.total)

    def step(self) -> None:
        self.total.add_to(self.model_d, self.step_size / self.n)
