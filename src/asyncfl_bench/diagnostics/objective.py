"""Gradients of the clients' true objectives F_i: all of a client's samples instead of a mini-batch.

Legend: n clients, d parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CHUNK = 512  # samples of one pass: more would only need more memory


class Objective:
    """Computes G_i(w), the gradient of F_i, by a separate network or a compiled one: the run's is never touched.

    task    models.task.Task, without batch normalisation
    decay   weight decay the clients train with: F_i includes decay / 2 * |w|^2
    """

    def __init__(self, task, decay: float = 0.0):
        self.task, self.decay = task, decay
        self._network = task.compiled or task.flat.clone_for_thread()
        self._part_d = task.flat.initial_d()

    def gradient(self, client: int, w_d: torch.Tensor, out_d: torch.Tensor) -> torch.Tensor:
        """Write G_i(w) into ``out_d`` and return it. Without samples it is zero, like such a client's uploads."""
        own = self.task.partition[client]
        out_d.zero_()
        if not len(own):
            return out_d
        for first in range(0, len(own), CHUNK):
            chunk = own[first : first + CHUNK]
            self._network.gradient(w_d, *self.task.batch(chunk), self._part_d)
            out_d.add_(self._part_d, alpha=len(chunk) / len(own))
        return out_d.add_(w_d, alpha=self.decay) if self.decay else out_d

    def gradients(self, w_d: torch.Tensor, out_d: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """(i, G_i(w)) of every client, each in the same ``out_d``."""
        for client in range(len(self.task.partition)):
            yield client, self.gradient(client, w_d, out_d)
