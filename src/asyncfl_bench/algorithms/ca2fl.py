"""CA2FL: cached update calibration on top of a buffer."""

from __future__ import annotations

from .common.caches import CachedBufferConfig, CachedBufferRule
from .needs import Needs


class Ca2fl(CachedBufferRule):
    """CA2FL (Wang et al., ICLR 2024; ACE paper, arXiv:2511.19066, Algorithm a.3).

    Rule     state h_i = 0 for every i, h = mean_i h_i = 0
             arrival of D_i = local - received:  S <- S + (D_i - h_i);  h_i <- D_i;  m <- m + 1      (lines 6-9)
             m = M:  w <- w + eta (h + S / M);  h <- mean_i h_i;  S <- 0, m <- 0                     (lines 14-21)
    Upload   difference, shape (d,)
             with a rounded cache h_i is what is stored, D_i what arrived: only the memory is rounded
    State    cache (h_i), their running sum, mean_d (h), sum_d (S), count (m), repeats
    Memory   cache and 7 d
    Limits   the first buffer is FedBuff's; each client exactly once in a buffer of n: v = mean_i D_i
    Differs  a client that appears twice in one buffer is calibrated against its newest cached value and the divisor
             stays M (the paper's sets leave this open; `rule/repeated_clients` counts it). The sum behind h is kept
             running in double precision instead of summed again over n vectors at each flush.

    >>> after_each(Ca2fl(buffer_size=2), (0, [1.0]), (1, [3.0]), (0, [1.0]), (0, [1.0]))
    [[0.0], [2.0], [2.0], [4.0]]
    """

    config: CachedBufferConfig
    label = "CA2FL"
    needs = Needs(linear=True)
    state_names = ("mean_d", "sum_d", "count", "in_buffer", "repeats")
    kept_vectors = 7

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.mean_d = model_d.new_zeros(model_d.shape)  # h, as it was before this buffer
        self.sum_d = model_d.new_zeros(model_d.shape)
        self.in_buffer: list[int] = []
        self.repeats = 0

    def add(self, upload) -> None:
        client = upload.client
        self.repeats += client in self.in_buffer
        self.in_buffer.append(client)
        self.sum_d.add_(upload.vector_d).sub_(self.cache.stored_vector(client))
        self.cache.replace(client, upload.vector_d, self.total)

    def step(self) -> None:
        self.model_d.add_(self.mean_d, alpha=self.step_size)
        self.model_d.add_(self.sum_d, alpha=self.step_size / self.config.buffer_size)
        self.mean_d.copy_(self.total.sum_d).div_(self.n)
        self.sum_d.zero_()
        self.in_buffer = []

    def stats(self) -> dict[str, float]:
        return {"rule/repeated_clients": float(self.repeats)}
