"""A sequential network cut into the first layers, at the clients, and the others, at the server.

Legend: d parameters of a part, B samples of a mini-batch, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from ..kernels.native import NativeNetwork, Shapes, check_alike, exact_numbers
from ..storage import send
from ..types import Reply
from .costs import footprint
from .flat import FlatModel

Back = Callable[[Tensor], Tensor]  # gradient of the outputs -> (d,) gradient


class NetworkPart:
    """Consecutive layers as a function of a flat vector of their parameters.

    A graph can wait for its backward pass while other graphs are computed. Each thread needs a ``clone_for_thread``,
    because the parameters are bound during a call.
    d        number of parameters
    tensors  number of parameter tensors
    """

    def __init__(self, layers: nn.Sequential):
        self.module = layers
        named = dict(layers.named_parameters())
        self._names, self._shapes = list(named), [p.shape for p in named.values()]
        self._sizes = [p.numel() for p in named.values()]
        self.d, self.tensors = sum(self._sizes), len(self._sizes)

    def __call__(self, w_d: Tensor, x: Tensor) -> Tensor:
        """Return the outputs for (B, ...) samples."""
        parts = zip(self._names, w_d.split(self._sizes), self._shapes, strict=True)
        return functional_call(self.module, {name: part.view(shape) for name, part, shape in parts}, (x,))

    def forward(self, w_d: Tensor, x: Tensor) -> tuple[Tensor, Back]:
        """Return the outputs for (B, ...) samples and the backward function, to call once before ``w_d`` changes."""
        leaf_d = w_d.detach().requires_grad_()
        a = self(leaf_d, x)
        # the gradient of a scalar: given a gradient, torch imports for seconds
        return a.detach(), lambda gradient: torch.autograd.grad((a * gradient).sum(), leaf_d)[0]

    def clone_for_thread(self) -> NetworkPart:
        """Return a copy for another thread."""
        return NetworkPart(copy.deepcopy(self.module))


class CompiledPart:
    """A ``NetworkPart`` by a compiled kernel, which repeats the forward pass in the backward pass and keeps only x."""

    def __init__(self, network: NativeNetwork, shape: tuple[int, ...]):
        self._network, self._shape = network, shape

    def forward(self, w_d: Tensor, x: Tensor) -> tuple[Tensor, Back]:
        """Compute as ``NetworkPart.forward``, up to rounding."""

        def backward(gradient: Tensor) -> Tensor:
            out_d = torch.empty_like(w_d)
            self._network.backpropagate(w_d, x, gradient, out_d)
            return out_d

        return self._network.logits(w_d, x).view(len(x), *self._shape), backward

    def clone_for_thread(self) -> CompiledPart:
        """Return this object, as it has no state."""
        return self


class Cut:
    """A cut model: the clients' part, and the computations of the server's part (``types.ServerPart``).

    flat            the model
    layers          number of layers at the clients
    shape, classes  of a sample; C
    client          the clients' part
    footprint       costs of the clients' part
    server_tensors  parameter tensors of the server's part
    """

    def __init__(self, flat: FlatModel, layers: int, shape: tuple[int, ...], classes: int):
        module = copy.deepcopy(flat.module)
        assert isinstance(module, nn.Sequential)
        part, self._server = NetworkPart(module[:layers]), NetworkPart(module[layers:])
        self.client: NetworkPart | CompiledPart = part
        self.d_client, self.classes, self.server_tensors = part.d, classes, self._server.tensors
        self._w_d, self._shape = flat.initial_d(), shape
        sample = self._w_d.new_zeros((1, *shape))
        self.footprint = footprint(flat.module, sample, layers)
        with torch.no_grad():
            self.activation = tuple(part(self._w_d[: part.d], sample).shape[1:])
        self._compiled: NativeNetwork | None = None  # the server's part

    def compile(self) -> bool:
        """Use compiled kernels from now on. Returns False if that is not possible. Raises BenchError as
        ``NativeNetwork.compile_shapes``."""
        part = self.client
        assert isinstance(part, NetworkPart)
        shapes = (
            Shapes.try_from_module(part.module, self._shape),
            Shapes.try_from_module(self._server.module, self.activation),
        )
        found = [part for part in shapes if part is not None]
        if len(found) < 2 or sum(part.d for part in found) != len(self._w_d):
            return False
        client, server = map(NativeNetwork.compile_shapes, found)
        compiled = CompiledPart(client, self.activation)
        x, w_d, y = exact_numbers(self._shape, len(self._w_d), self.classes)
        answers = []
        for clients, servers in ((compiled, server), (part, None)):
            self._compiled = servers
            a, back = clients.forward(w_d[: self.d_client], x)
            out_d = torch.empty_like(w_d)
            reply = self.reply(w_d[self.d_client :], a, y, out_d=out_d[self.d_client :])
            out_d[: self.d_client] = back(reply.gradient)
            answers.append(out_d)
        check_alike(*reversed(answers))
        self.client, self._compiled = compiled, server
        return True

    def gradient(self, s_d: Tensor, a: Tensor, y: Tensor, out_d: Tensor) -> Tensor:
        """Compute as ``types.ServerPart`` says."""
        if self._compiled is not None:
            return self._compiled.gradient(s_d, a, y, out_d)
        leaf_d = s_d.detach().requires_grad_()
        loss = F.cross_entropy(self._logits(leaf_d, a), _send_labels(y, a.device))
        out_d.copy_(torch.autograd.grad(loss, leaf_d)[0])
        return loss.detach()

    def reply(
        self, s_d: Tensor, a: Tensor, y: Tensor, bias_c: Tensor | None = None, out_d: Tensor | None = None
    ) -> Reply:
        """Compute as ``types.ServerPart`` says."""
        if self._compiled is not None:
            gradient = torch.empty_like(a, memory_format=torch.contiguous_format)
            return Reply(gradient, self._compiled.gradient(s_d, a, y, out_d, bias_c, into=gradient))
        leaf, leaf_d = a.detach().requires_grad_(), s_d.detach()
        if out_d is not None:
            leaf_d.requires_grad_()
        logits = self._logits(leaf_d, leaf)
        loss = F.cross_entropy(logits if bias_c is None else logits + bias_c, _send_labels(y, a.device))
        if out_d is None:
            return Reply(torch.autograd.grad(loss, leaf)[0], loss.detach())
        gradient, gradient_d = torch.autograd.grad(loss, (leaf, leaf_d))
        out_d.copy_(gradient_d)
        return Reply(gradient, loss.detach())

    def _logits(self, s_d: Tensor, a: Tensor) -> Tensor:
        return self._server(s_d, a.view(len(a), *self.activation))


def _send_labels(y: Tensor, device: torch.device) -> Tensor:
    return y if y.device == device else send(y.numpy(), device)
