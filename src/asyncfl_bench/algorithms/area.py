"""AREA: the global model follows the mean of every client's last local model."""

from __future__ import annotations

from .common.caches import CachedBufferConfig, CachedBufferRule
from .needs import Needs


class Area(CachedBufferRule):
    """AREA (Iakovidou et al. 2024, arXiv:2405.10123).

    Rule     state y_i = w_0 for every client, its last local model; u = 0, m = 0
             arrival of w_i = received + D_i:  u <- u + (w_i - y_i);  y_i <- w_i;  m <- m + 1
             m = M:  w <- w + eta u / n, over n and not over M;  u <- 0, m <- 0
    Upload   difference, shape (d,), with the model the work started from
    State    first_d (w_0), cache (y_i - w_0), total (u), count (m)
    Memory   cache, 7 d, versions
    Limits   eta = 1: w + u / n = mean_i y_i at all times, so with M = 1 w is the mean of all last local models
             M = n, each client once and dispatched together: FedAvg with equal weights.  one client: local SGD
    Differs  the paper has no server step, eta = 1. Its clients' local step is in proportion to n_i / sum n, for the
             objective weighted by samples; with the same step for all, as here, it is the mean over clients. The client
             whose upload fills the buffer gets the model after the step, in the authors' code the one before it. In the
             paper clients keep y_i and send w_i - y_i. APPFL keeps the model received for y_i, which is another rule

    >>> after_each(Area(buffer_size=1), (0, [2.0]), (1, [4.0]), (0, [0.0]))
    [[1.0], [3.0], [2.0]]
    """

    config: CachedBufferConfig
    label = "AREA"
    upload_kinds = ("difference",)
    needs = Needs(base=True)
    state_names = ("first_d", "count")
    kept_vectors = 7

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.first_d = model_d.clone()
        self._local_d = model_d.new_empty(model_d.shape)

    def add(self, upload) -> None:
        self._local_d.copy_(upload.base_d).add_(upload.vector_d).sub_(self.first_d)
        self.cache.replace(upload.client, self._local_d, self.total)

    def step(self) -> None:
        self.total.add_to(self.model_d, self.step_size / self.n)
        self.total.zero()
