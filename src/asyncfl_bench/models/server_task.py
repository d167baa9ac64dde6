"""Computations on the server's own samples, ``types.ServerTask``.

Legend: u samples, B of a mini-batch, C classes, d parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.native import NativeNetwork
from ..kernels.stacked_networks import StackedNetwork
from .flat import FlatModel

SAMPLES = 256  # of one forward pass, as in evaluation: more leave a CPU's cache


class ServerSamples:
    """The server's samples on the device, scaled as the clients' samples.

    x_u       (u, *shape) float32, or (u, L) token ids
    compiled  network that computes gradients instead of ``flat``, or None
    """

    def __init__(self, x_u: Tensor, flat: FlatModel, classes: int):
        self.samples, self.classes = len(x_u), classes
        self.compiled: NativeNetwork | None = None
        self._x_u, self._flat = x_u, flat

    def to(self, device: str) -> None:
        """Move the samples there, in place."""
        self._x_u = self._x_u.to(device)

    def gradient(self, w_d: Tensor, rows_b: Tensor, target_bc: Tensor, out_d: Tensor) -> Tensor:
        """Compute as ``types.ServerTask`` says. Running statistics of batch normalisation do not change."""
        x, compiled = self._x_u.index_select(0, rows_b), self.compiled
        if compiled is not None:
            return compiled.gradient(w_d, x, target_bc, out_d)
        statistics_b = self._flat.statistics()
        loss = self._flat.gradient(w_d, x, target_bc, out_d)
        self._flat.load_statistics(statistics_b)
        return loss

    def outputs(self, network: FlatModel | NativeNetwork | StackedNetwork, w_d: Tensor) -> Tensor:
        """Return (u, C) logits at ``w_d``. Each thread needs a separate network."""
        return torch.cat([network.logits(w_d, x) for x in self._x_u.split(SAMPLES)])
