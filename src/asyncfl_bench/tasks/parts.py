"""A sequential network cut in two: the first layers with the clients, the others with the server.

Legend: d parameters of a part, B samples of a mini-batch, C classes.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from ..types import Reply
from .footprint import footprint

if TYPE_CHECKING:
    from .flat import FlatModel


class Part:
    """Consecutive layers as a function of a flat vector of their own parameters.

    What it gave does not depend on it any more: a graph may wait for its backward pass while others are computed.
    While it computes it holds the parameters, so each thread needs a ``twin``.
    d  number of parameters;  tensors  that they are
    """

    def __init__(self, layers: nn.Sequential):
        self.module = layers
        named = dict(layers.named_parameters())
        self._names, self._shapes = list(named), [p.shape for p in named.values()]
        self._sizes = [p.numel() for p in named.values()]
        self.d, self.tensors = sum(self._sizes), len(self._sizes)

    def __call__(self, w_d: Tensor, x: Tensor) -> Tensor:
        """What the layers make of (B, ...) samples."""
        parts = zip(self._names, w_d.split(self._sizes), self._shapes, strict=True)
        return functional_call(self.module, {name: part.view(shape) for name, part, shape in parts}, (x,))

    def twin(self) -> Part:
        """Another one, to compute with in another thread."""
        return Part(copy.deepcopy(self.module))


def cut(flat: FlatModel, layers: int) -> tuple[Part, Part]:
    """The first ``layers`` of a model that is an ``nn.Sequential``, whose parameters come first in the model's flat
    vector, and the others."""
    module = copy.deepcopy(flat.module)
    assert isinstance(module, nn.Sequential)
    return Part(module[:layers]), Part(module[layers:])


class Cut:
    """A task whose model is cut: what the clients compute with, and what the server does (``types.ServerPart``).

    flat     the model;  layers  of it with the clients
    shape    of a sample;  classes  C
    client     the clients' part
    footprint  what it costs them
    server_tensors  parameter tensors of the server's part
    """

    def __init__(self, flat: FlatModel, layers: int, shape: tuple[int, ...], classes: int):
        self.client, self._server = cut(flat, layers)
        self.d_client, self.classes, self.server_tensors = self.client.d, classes, self._server.tensors
        w_d = flat.initial_d()
        sample = w_d.new_zeros((1, *shape))
        self.footprint = footprint(flat.module, sample, layers)
        with torch.no_grad():
            self.activation = tuple(self.client(w_d[: self.d_client], sample).shape[1:])

    def gradient(self, s_d: Tensor, a: Tensor, y: Tensor, out_d: Tensor) -> Tensor:
        """See ``types.ServerPart``."""
        leaf_d = s_d.detach().requires_grad_()
        loss = F.cross_entropy(self._logits(leaf_d, a), y)
        out_d.copy_(torch.autograd.grad(loss, leaf_d)[0])
        return loss.detach()

    def answer(
        self, s_d: Tensor, a: Tensor, y: Tensor, bias_c: Tensor | None = None, out_d: Tensor | None = None
    ) -> Reply:
        """See ``types.ServerPart``."""
        leaf, leaf_d = a.detach().requires_grad_(), s_d.detach()
        if out_d is not None:
            leaf_d.requires_grad_()
        logits = self._logits(leaf_d, leaf)
        loss = F.cross_entropy(logits if bias_c is None else logits + bias_c, y)
        if out_d is None:
            return Reply(torch.autograd.grad(loss, leaf)[0], loss.detach())
        gradient, gradient_d = torch.autograd.grad(loss, (leaf, leaf_d))
        out_d.copy_(gradient_d)
        return Reply(gradient, loss.detach())

    def _logits(self, s_d: Tensor, a: Tensor) -> Tensor:
        return self._server(s_d, a.view(len(a), *self.activation))
