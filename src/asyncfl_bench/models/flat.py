"""A torch module as a function of one flat vector of its parameters.

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


class FlatModel:
    """Computes with a module at any flat vector ``w_d`` without a copy: the parameters become views of the vector.

    All vectors are contiguous float32 on the model's device. The parameters stay bound to the last vector, which is
    thus kept alive and never written to.
    d           number of trained parameters; frozen ones do not change
    stack       formulas for several models at once; None without such formulas
    perceptron  ``stack`` if the network is linear layers with ReLUs between them; else None
    embedding   the module if samples read a few rows of its embedding; else None
    """

    reads_in_place = False  # a mini-batch is copied out of the training set

    def __init__(self, module: nn.Module):
        self.module = module.train()
        modules: list[Any] = list(module.modules())
        self._normalisations = [m for m in modules if getattr(m, "running_mean", None) is not None]
        self._batches = 0  # since the last reset of statistics, which are the plain mean over them
        frozen = [p for p in module.parameters() if not p.requires_grad]
        self._shared: dict[int, Any] = {id(p): p for p in frozen}  # with all clones: they are never written to
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
        """Move the model to a device, in place. Returns the model."""
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
        """Return a (d,) copy of the initial parameters."""
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
        """Write the gradient at ``w_d`` of the mean cross-entropy of logits + ``bias_c`` to ``out_d`` (d,).

        x, y      mini-batch: (B, ...) float32 or token ids, (B,) int64
        weight_b  (B,) weights of the samples instead of 1 / B; zeros for padding
        Returns the loss [nats] as a detached scalar tensor. Batch normalisation adds the batch to its running
        statistics (see ``reset_statistics``).
        """
        self._bind(w_d)
        self._batches += 1
        for normalisation in self._normalisations:
            normalisation.momentum = 1 / self._batches  # with None torch computes it from a count that is on the device
        logits = self.module(x) if bias_c is None else self.module(x) + bias_c
        if weight_b is None:
            loss = F.cross_entropy(logits, y)
        else:
            loss = (F.cross_entropy(logits, y, reduction="none") * weight_b).sum()
        parts = torch.autograd.grad(loss, self._parameters)
        torch.cat([part.reshape(-1) for part in parts], out=out_d)
        return loss.detach()

    def logits(self, w_d: Tensor, x: Tensor) -> Tensor:
        """Return the (B, C) outputs at ``w_d`` in evaluation mode, without a graph. Training mode is restored."""
        self._bind(w_d)
        self.module.eval()
        try:
            with torch.inference_mode():
                return self.module(x)
        finally:
            self.module.train()

    def select_rows(self, x: Tensor, y: Tensor, steps: Iterator[Tensor], bias_c: Tensor | None) -> SelectedRows:
        """Return the small model of the rows of ``embedding`` that the samples read."""
        assert self.embedding is not None
        return SelectedRows(self.embedding, x, y, steps, bias_c)

    def named_tensors(self, w_d: Tensor) -> dict[str, Tensor]:
        """Return name -> copy of each parameter in ``w_d`` and of each current buffer, on the model's device."""
        parts = zip(self._names, w_d.split(self._sizes), self._shapes, strict=True)
        parameters = {name: part.view(shape).detach().clone() for name, part, shape in parts}
        return parameters | {name: buffer.detach().clone() for name, buffer in self.module.named_buffers()}

    @property
    def has_statistics(self) -> bool:
        """True if batch normalisation keeps running means and variances."""
        return bool(self._statistics)

    def statistics(self) -> Tensor:
        """Return a (b,) copy of all running means and variances; empty without batch normalisation."""
        if not self._statistics:
            return self._initial_d.new_empty(0)
        return torch.cat([buffer.reshape(-1) for buffer in self._statistics])

    def reset_statistics(self) -> None:
        """Reset the statistics to the plain mean over the next training batches."""
        self._batches = 0
        for normalisation in self._normalisations:
            normalisation.reset_running_stats()

    def load_statistics(self, statistics_b: Tensor) -> None:
        """Load a vector of ``statistics``, or a (b,) mixture of such vectors."""
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


class SelectedRows:
    """A small model: the rows of an embedding that some samples read, and the linear layer.

    Gradients of all other rows are zero, so local work moves these without a gradient
    (``write_upload_of_zero_gradients``). The time of a step does not grow with the number of words.
    A flat vector of the small model has s numbers: R rows of E numbers, then weight and bias of the linear layer.
    x, y    (m, L) token ids and (m,) labels; e words and bigrams in all
    steps   (B,) positions of the samples of each step
    bias_c  (C,) added to the logits
    """

    def __init__(self, network: FastTextNetwork, x: Tensor, y: Tensor, steps: Iterator[Tensor], bias_c: Tensor | None):
        self._y, self._steps, self._bias_c = y, steps, bias_c
        self._embedded = network.embedding.weight.numel()  # the embedding comes first in the flat vector
        self._width, self._classes = network.embedding.embedding_dim, network.output.out_features
        row, there = network.rows(x)
        row_e = row[there]  # of each word or bigram, sample after sample
        read = torch.zeros(network.embedding.num_embeddings, dtype=torch.bool, device=x.device)
        read[row_e] = True  # and not torch.unique, which sorts them
        self._rows_r = read.nonzero().view(-1)
        slot = torch.empty(len(read), dtype=torch.int64, device=x.device)
        slot[self._rows_r] = torch.arange(len(self._rows_r), device=x.device)
        self._slot_e = slot[row_e]
        self._count_m = there.sum(dim=1)
        self._first_m = self._count_m.cumsum(0) - self._count_m
        self._numbers = len(self._rows_r) * self._width

    def select_rows(self, w_d: Tensor) -> Tensor:
        """Return a (s,) copy of the small model's numbers in the (d,) model."""
        rows, rest = self._halves(w_d)
        return torch.cat([rows[self._rows_r].view(-1), rest])

    def write_rows(self, w_s: Tensor, out_d: Tensor) -> None:
        """Write the small model's numbers to their positions in ``out_d``."""
        rows, rest = self._halves(out_d)
        rows[self._rows_r] = w_s[: self._numbers].view(-1, self._width)
        rest.copy_(w_s[self._numbers :])

    def gradient(self, w_s: Tensor, out_s: Tensor) -> Tensor:
        """Write the gradient of the next mini-batch, as ``FlatModel.gradient`` does, for vectors of s numbers."""
        chosen_b = next(self._steps)
        count_b, y = self._count_m[chosen_b], self._y[chosen_b]
        ends_b = count_b.cumsum(0)
        sample = torch.repeat_interleave(torch.arange(len(y), device=y.device), count_b)
        shift_b = self._first_m[chosen_b] - ends_b + count_b
        slot = self._slot_e[torch.arange(len(sample), device=y.device) + shift_b[sample]]
        embedding, weight, bias = self._parts(w_s)
        mean = F.embedding_bag(slot, embedding, ends_b - count_b, mode="mean")
        logits = torch.addmm(bias, mean, weight.T)
        log_bc = torch.log_softmax(logits if self._bias_c is None else logits + self._bias_c, dim=1)
        loss = F.nll_loss(log_bc, y)
        # gradient of the loss with respect to the logits: (softmax - one-hot) / B
        error = log_bc.exp().scatter_add_(1, y[:, None], log_bc.new_full((1, 1), -1.0).expand(len(y), 1)).div_(len(y))
        embedding_out, weight_out, bias_out = self._parts(out_s)
        torch.mm(error.T, mean, out=weight_out)
        torch.sum(error, dim=0, out=bias_out)
        each = torch.mm(error, weight).div_(count_b[:, None])  # of each word or bigram of a sample
        embedding_out.zero_().index_add_(0, slot, each[sample])
        return loss

    def _halves(self, w_d: Tensor) -> tuple[Tensor, Tensor]:
        """Return views of the embedding, (rows, E), and of the numbers behind it."""
        return w_d[: self._embedded].view(-1, self._width), w_d[self._embedded :]

    def _parts(self, w_s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return views of the embedding (R, E), the weight (C, E) and the bias (C,)."""
        width, classes = self._width, self._classes
        rows, weight, bias = w_s.split([self._numbers, classes * width, classes])
        return rows.view(-1, width), weight.view(classes, width), bias
