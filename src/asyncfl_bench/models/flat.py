"""A torch module seen as one flat vector.

Legend: d parameters, b batch statistics, B samples of a mini-batch, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.stacked_networks import StackedNetwork
from .networks import FastTextNetwork
from .rows import SelectedRows


class FlatModel:
    """Computes with a module at any flat vector ``w_d`` without copying it: the parameters become views of it.

    All vectors are contiguous float32 on the model's device. The module's parameters stay bound to the last vector
    used, which is therefore kept alive; nothing here ever writes to it.
    d          number of parameters that are trained; frozen ones stay as they are
    stack      formulas for several models at once, where there are some; else None
    perceptron  the same, of a network of linear layers with ReLUs between them; else None
    embedding  the module where it has an embedding of which samples read a few rows; else None
    """

    reads_in_place = False  # samples of a mini-batch, where they are in the training set

    def __init__(self, module: nn.Module):
        self.module = module.train()
        modules: list[Any] = list(module.modules())
        self._normalisations = [m for m in modules if getattr(m, "running_mean", None) is not None]
        self._batches = 0  # since the last reset of statistics, which are the plain mean over them
        frozen = [p for p in module.parameters() if not p.requires_grad]
        self._shared: dict[int, Any] = {id(p): p for p in frozen}  # by all twins: nothing writes to them
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._parameters = list(named.values())
        self._names = list(named)
        self._shapes = [p.shape for p in self._parameters]
        self._sizes = [p.numel() for p in self._parameters]
        self.d = sum(self._sizes)
        self._initial_d = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self.stack = StackedNetwork.try_from_module(module)
        self.perceptron = self.stack if self.stack is not None and self.stack.perceptron else None
        self.embedding = module if isinstance(module, FastTextNetwork) else None
        self.to(self._initial_d.device)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Numbers in each parameter tensor, in the order of the flat vector."""
        return tuple(self._sizes)

    def to(self, device: torch.device | str) -> FlatModel:
        """Move the model there, in place; return itself."""
        self.module.to(device)
        self._initial_d = self._initial_d.to(device)
        self._bound = 0  # moving a recurrent layer to a GPU puts its weights into separate memory, even from there
        self._bind(self._initial_d)
        buffers = self.module.named_buffers()  # found again: moving a module replaces its buffers
        self._statistics = [buffer for name, buffer in buffers if name.endswith(("running_mean", "running_var"))]
        return self

    def clone_for_thread(self) -> FlatModel:
        """Return a copy with separate parameter bindings, for another thread."""
        return FlatModel(copy.deepcopy(self.module, dict(self._shared)))

    def initial_d(self) -> Tensor:
        """(d,) a fresh copy of the initial parameters."""
        return self._initial_d.clone()

    def gradient(
        self,
        w_d: Tensor,
        x: Tensor,
        y: Tensor,
        out_d: Tensor,
        bias_c: Tensor | None = None,
        weight_b: Tensor | None = None,
    ) -> Tensor:
        """Write the gradient at ``w_d`` of the mean cross-entropy of logits + ``bias_c`` over the mini-batch into
        ``out_d``.

        x (B, ...) float32 or token ids, y (B,) int64, out_d (d,). Returns the loss in nats, a detached scalar tensor.
        weight_b (B,) of the samples instead of 1 / B; zeros make padding.
        Batch normalisation, if any, takes this batch into its running statistics (see ``reset_statistics``).
        """
        self._bind(w_d)
        self._batches += 1
        for normalisation in self._normalisations:
            normalisation.momentum = 1 / self._batches  # with None torch computes it from a count that is on the device
        loss = _loss(self.module(x), y, bias_c, weight_b)
        parts = torch.autograd.grad(loss, self._parameters)
        torch.cat([part.reshape(-1) for part in parts], out=out_d)
        return loss.detach()

    def logits(self, w_d: Tensor, x: Tensor) -> Tensor:
        """(B, C) outputs at ``w_d`` in evaluation mode, without a graph; leaves the module in training mode."""
        self._bind(w_d)
        self.module.eval()
        try:
            with torch.inference_mode():
                return self.module(x)
        finally:
            self.module.train()

    def select_rows(self, x: Tensor, y: Tensor, steps: Iterator[Tensor], bias_c: Tensor | None) -> SelectedRows:
        """Return the small model of the rows of ``embedding`` that these samples read."""
        assert self.embedding is not None
        return SelectedRows(self.embedding, x, y, steps, bias_c)

    def named_tensors(self, w_d: Tensor) -> dict[str, Tensor]:
        """Return name -> tensor, with parameters from ``w_d`` and the current buffers: copies on the model's device."""
        parts = zip(self._names, w_d.split(self._sizes), self._shapes, strict=True)
        parameters = {name: part.view(shape).detach().clone() for name, part, shape in parts}
        return parameters | {name: buffer.detach().clone() for name, buffer in self.module.named_buffers()}

    @property
    def has_statistics(self) -> bool:
        """Whether batch normalisation keeps running means and variances."""
        return bool(self._statistics)

    def statistics(self) -> Tensor:
        """(b,) a copy of all running means and variances; empty without batch normalisation."""
        if not self._statistics:
            return self._initial_d.new_empty(0)
        return torch.cat([buffer.reshape(-1) for buffer in self._statistics])

    def reset_statistics(self) -> None:
        """Forget them: from here on they are the plain mean over the training batches that follow."""
        self._batches = 0
        for normalisation in self._normalisations:
            normalisation.reset_running_stats()

    def load_statistics(self, statistics_b: Tensor) -> None:
        """Put back what ``statistics`` gave, or any (b,) mixture of such vectors."""
        parts = statistics_b.split([buffer.numel() for buffer in self._statistics]) if self._statistics else ()
        for buffer, part in zip(self._statistics, parts, strict=True):
            buffer.copy_(part.view_as(buffer))

    def _bind(self, w_d: Tensor) -> None:
        # bound parameters keep the vector's memory alive, so an equal address is the same memory
        if w_d.data_ptr() == self._bound:
            return
        for parameter, part, shape in zip(self._parameters, w_d.detach().split(self._sizes), self._shapes, strict=True):
            parameter.data = part.view(shape)
        self._bound = w_d.data_ptr()


def _loss(logits: Tensor, y: Tensor, bias_c: Tensor | None, weight_b: Tensor | None) -> Tensor:
    """Return the cross-entropy of logits (B, C) + ``bias_c`` in nats, weighted by ``weight_b``; None: its mean."""
    logits = logits if bias_c is None else logits + bias_c
    if weight_b is None:
        return F.cross_entropy(logits, y)
    return (F.cross_entropy(logits, y, reduction="none") * weight_b).sum()
