"""PORT: a buffer weighted by direction and staleness, flushed only when no client in flight is too stale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ..ranges import at_least, greater_than, one_of
from .base import BufferConfig, ServerRule
from .common.scalars import add_scaled, divide
from .needs import Needs

if TYPE_CHECKING:
    from .common.scalars import Scalar


@dataclass
class PortConfig(BufferConfig):
    """
    buffer_size       the least number; the authors take 15 of 30 clients in flight
    eta               that of the authors is 1
    bound             S, server iterations; a step waits for all clients in flight whose model is older than that
    direction_weight  b_s, of the agreement of an upload with the last server step
    staleness_weight  b_t, of S / (staleness + S)
    deltas            current: local model minus the global one, as the authors' code | dispatched: minus the one it
                      started from
    """

    bound: Annotated[int, at_least(0)] = 10
    direction_weight: Annotated[float, at_least(0)] = 1.0
    staleness_weight: Annotated[float, greater_than(0)] = 3.0
    deltas: Annotated[str, one_of("current", "dispatched")] = "current"


class Port(ServerRule):
    """PORT (Su and Li 2022, no arXiv number known), the form of its authors' code (Plato) that waits for clients
    that are too stale and does not urge.

    Rule     arrival of w_i = received + D_i:  d_i = w_i - w (current) or D_i (dispatched)
               r_i = n_i [b_s (1 + cos_i) / 2 + b_t S / (tau_i + S)],  cos_i = cos(w - w', d_i), w' the model one server
               step before w; cos_i = 1 while tau_i <= 1.  R <- R + r_i,  G <- G + r_i d_i,  m <- m + 1
             m >= M and no client in flight has a model older than S iterations:
               w <- w + eta G / R;  G <- 0, R <- 0, m <- 0
    Upload   difference, shape (d,), with the model the work started from
    Steps    per M uploads, but waits while a client is too stale
    State    sum_d (G), weight (R), count (m), moved_d (w - w'), iteration, versions (of each client in flight)
    Memory   4 d, versions
    Limits   nothing stale, eta = 1: FedBuff weighted by samples.  no upload is staler than S + 1
             current, b_s = 0, S to infinity: w is the mean of the local models by samples
    Differs  eta is ours, 1 in Plato. With deltas=current, as there, a step is a mean of stale models and forgets other
             clients' progress since; FedBuff's differences are dispatched. The paper's form in which the server
             requests the work of a client that is too stale is not implemented. If work is lost, the rule waits for
             that client's next upload; a client that leaves for good would end all progress. AFL-Lib's port compares
             the local model itself with w - w'

    >>> after_each(Port(buffer_size=2), (0, [2.0]), (1, [4.0]), (0, [6.0]), (1, [3.0]))
    [[0.0], [3.0], [3.0], [4.5]]
    """

    label = "PORT"
    config: PortConfig
    upload_kinds = ("difference",)
    needs = Needs(base=True, one_at_a_time=True, waits_for="given")
    state_names = ("sum_d", "moved_d", "weight", "count", "iteration", "versions")
    kept_vectors = 4  # with the product of two

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        self.sum_d, self.moved_d, self._delta_d = model_d.new_zeros((3, *model_d.shape))
        self.weight: Scalar = 0.0
        self._has_weight = False  # known without reading the weight
        self.count = self.iteration = 0
        self.versions: dict[int, int] = {}

    def dispatched(self, client: int) -> None:
        self.versions[client] = self.iteration

    def receive(self, upload) -> bool:
        config = self.config
        self.versions.pop(upload.client, None)
        self._delta_d.copy_(upload.vector_d)
        if config.deltas == "current":
            self._delta_d.add_(upload.base_d).sub_(self.model_d)
        fresh = config.bound / (upload.staleness + config.bound) if upload.staleness else 1.0
        direction = (1 + self._cosine(upload.staleness)) / 2
        weight = upload.samples * (config.direction_weight * direction + config.staleness_weight * fresh)
        add_scaled(self.sum_d, self._delta_d, weight)
        self.weight = self.weight + weight
        self._has_weight = self._has_weight or upload.samples * fresh > 0
        self.count += 1
        oldest = min(self.versions.values(), default=self.iteration)
        if self.count < config.buffer_size or self.iteration - oldest > config.bound:
            return False
        if not (self._has_weight or self.weight):
            return False
        self.moved_d.copy_(self.sum_d).mul_(divide(self.step_size, self.weight))
        self.model_d.add_(self.moved_d)
        self.sum_d.zero_()
        self.weight, self.count, self._has_weight = 0.0, 0, False
        self.iteration += 1
        return True

    def _cosine(self, staleness: int) -> Scalar:
        """Return cos_i of the current delta."""
        import torch

        if staleness <= 1:
            return 1.0
        lengths = (self.moved_d.norm() * self._delta_d.norm()).double()
        # no dot product: BLAS's last bits depend on where in memory a vector is, which a resume changes
        product = (self.moved_d * self._delta_d).sum().double()
        return torch.where(lengths == 0, 1.0, product / lengths)
