"""The gradient of one fully connected model at a time, for many steps in a row on a CPU.

With ten thousand parameters a step is a few dozen operations of a few microseconds. NumPy multiplies matrices, because
its library is faster for such sizes than torch's. Other operations use the faster of the two, on the same memory.

Legend: d parameters, B samples of a mini-batch, F features, C classes, m samples of several mini-batches, i and o
inputs and outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Sample = tuple[np.ndarray, np.ndarray]
ZERO = np.float32(0)


@dataclass
class LinearLayer:
    """Position of a linear layer in the flat vector: weight (outputs, inputs) at ``at``, then its bias."""

    at: int
    outputs: int
    inputs: int

    def weight(self, w_pd: Tensor) -> Tensor:
        """Return the (p, outputs, inputs) view of weights."""
        return w_pd[:, self.at : self.at + self.outputs * self.inputs].view(-1, self.outputs, self.inputs)

    def bias(self, w_pd: Tensor) -> Tensor:
        """Return the (p, outputs) view of biases."""
        start = self.at + self.outputs * self.inputs
        return w_pd[:, start : start + self.outputs]


class Perceptron:
    """A Flatten, Linear, ReLU, …, Linear network as formulas over one flat vector. Not for two threads at once.

    Vectors are in another order (``pack``, ``unpack``): weights are transposed, so that a layer with its bias is one
    (inputs + 1, outputs) matrix, and the inputs of a layer have a column of ones. This avoids the additions of biases
    and most products with a transposed second factor, which take twice as long.
    Steps reuse memory for results, because new memory would cost as much time as the arithmetic.
    """

    def __init__(self, layers: list[LinearLayer]):
        self._layers = layers
        self._bound: tuple[Tensor | None, Tensor | None] = (None, None)
        self._x_mf, self._targets = np.empty((0, 0), np.float32), np.empty(0, np.float32)
        self._workspaces: dict[int, _Workspace] = {}  # by B

    def pack(self, vector_d: Tensor) -> Tensor:
        """Return (d,) a copy in the order of this class."""
        packed_d = torch.empty_like(vector_d)
        for layer, matrix in zip(self._layers, self._matrices(packed_d), strict=True):
            matrix[:-1].copy_(layer.weight(vector_d[None])[0].t())
            matrix[-1].copy_(layer.bias(vector_d[None])[0])
        return packed_d

    def unpack(self, packed_d: Tensor, out_d: Tensor) -> None:
        """Write a packed vector into ``out_d``, in the order of the flat vector."""
        for layer, matrix in zip(self._layers, self._matrices(packed_d), strict=True):
            layer.weight(out_d[None])[0].copy_(matrix[:-1].t())
            layer.bias(out_d[None])[0].copy_(matrix[-1])

    def samples(self, x: Tensor, y: Tensor, sizes: list[int]) -> Iterator[Sample]:
        """Yield mini-batches of these sizes, in a row in x (m, ...) and y (m,), for ``gradient``.

        Each is (B, F + 1) inputs with a column of ones, and (C, B) one-hot labels divided by B; lent until the next.
        """
        m, classes = len(y), self._layers[-1].outputs
        if len(self._x_mf) < m:
            self._x_mf = np.ones((m, self._layers[0].inputs + 1), np.float32)
            self._targets = np.empty(m * classes, np.float32)
        self._x_mf[:m, :-1] = x.flatten(1).numpy()
        targets = self._targets[: m * classes]
        targets.fill(0)
        stops = np.cumsum(sizes)
        size_m, before_m = np.repeat(sizes, sizes), np.repeat(stops - sizes, sizes)  # samples before each mini-batch
        targets[before_m * (classes - 1) + y.numpy() * size_m + np.arange(m)] = 1 / size_m
        for stop, size in zip(stops.tolist(), sizes, strict=True):
            start = stop - size
            yield self._x_mf[start:stop], targets[start * classes : stop * classes].reshape(classes, size)

    def gradient(self, w_d: Tensor, sample: Sample, out_d: Tensor, bias_c: np.ndarray | None = None) -> float:
        """Write the gradient at ``w_d`` of the mean cross-entropy of logits + ``bias_c`` into ``out_d``, both packed.

        Return the loss in nats.
        """
        if self._bound[0] is not w_d or self._bound[1] is not out_d:  # held, so no other tensor can be the same object
            self._bound = (w_d, out_d)
            weights = self._matrices(w_d)
            self._weights = [matrix.numpy() for matrix in weights]
            self._backwards = [matrix[:-1].t() for matrix in weights]
            self._gradients = [matrix.numpy() for matrix in self._matrices(out_d)]
        x_bf, target_cb = sample
        space = self._workspaces.get(len(x_bf)) or self._workspace(len(x_bf))
        loss = self._forward(x_bf, target_cb, space, bias_c)
        self._backward(x_bf, space)
        return loss

    def _workspace(self, b: int) -> _Workspace:
        """Return a workspace for b samples, a part of the largest one, which is replaced by a larger one if needed."""
        most = max(self._workspaces, default=0)
        if b > most:
            self._workspaces = {b: _Workspace(self._layers, b)}
        else:
            self._workspaces[b] = _Workspace(self._layers, b, self._workspaces[most])
        return self._workspaces[b]

    def _matrices(self, packed_d: Tensor) -> list[Tensor]:
        """Return (inputs + 1, outputs) views, with the bias in the last row."""
        sizes = [(layer.inputs + 1) * layer.outputs for layer in self._layers]
        return [part.view(-1, layer.outputs) for part, layer in zip(packed_d.split(sizes), self._layers, strict=True)]

    def _forward(self, x_bf: np.ndarray, target_cb: np.ndarray, space: _Workspace, bias_c: np.ndarray | None) -> float:
        """Return the loss, and write its gradient with respect to the logits into ``space.error_cb``."""
        entered = x_bf
        for weight_io, hidden in zip(self._weights, space.hidden, strict=False):
            np.dot(entered, weight_io, out=hidden.before)
            torch.clamp_min(hidden.before_torch, 0, out=hidden.after_torch)
            entered = hidden.after
        np.dot(self._weights[-1].T, entered.T, out=space.logits_cb)
        if bias_c is not None:
            np.add(space.logits_cb, bias_c[:, None], out=space.logits_cb)
        torch.log_softmax(space.logits_torch, 0, out=space.error_torch)
        error_cb = space.error_cb
        loss = -float(np.vdot(error_cb, target_cb))
        np.exp(error_cb, out=error_cb)
        np.multiply(error_cb, space.share, out=error_cb)
        np.subtract(error_cb, target_cb, out=error_cb)
        return loss

    def _backward(self, x_bf: np.ndarray, space: _Workspace) -> None:
        error_bo, last = space.error_cb.T, len(self._layers) - 1
        for number in range(last, 0, -1):
            hidden = space.hidden[number - 1]
            np.dot(hidden.after.T, error_bo, out=self._gradients[number])
            if number == last:
                np.dot(error_bo, self._weights[number][:-1].T, out=hidden.error)
            else:  # the one product left with a transposed second factor: torch is faster unless it is tiny
                torch.mm(space.hidden[number].error_torch, self._backwards[number], out=hidden.error_torch)
            np.greater(hidden.before, ZERO, out=hidden.passed)
            np.multiply(hidden.error, hidden.passed, out=hidden.error)
            error_bo = hidden.error
        np.dot(x_bf.T, error_bo, out=self._gradients[0])


class _Hidden:
    """A hidden layer's memory for B samples. whole: memory for more, whose first part it is; None: its own

    before, after  the ReLU; ``after`` has a column of ones
    passed, error  where ``before`` > 0; gradient of the loss with respect to ``before``
    """

    def __init__(self, b: int, outputs: int, whole: _Hidden | None):
        if whole is None:
            self.before, self.error = (np.empty((b, outputs), np.float32) for _ in range(2))
            self.after, self.passed = np.ones((b, outputs + 1), np.float32), np.empty((b, outputs), bool)
        else:
            self.before, self.error = whole.before[:b], whole.error[:b]
            self.after, self.passed = whole.after[:b], whole.passed[:b]
        self.before_torch, self.error_torch = torch.from_numpy(self.before), torch.from_numpy(self.error)
        self.after_torch = torch.from_numpy(self.after)[:, :-1]


class _Workspace:
    """Memory for a step of B samples. whole: memory for more, whose first part it is; None: its own"""

    def __init__(self, layers: list[LinearLayer], b: int, whole: _Workspace | None = None):
        hidden: Sequence[_Hidden | None] = [None] * (len(layers) - 1) if whole is None else whole.hidden
        self.hidden: list[_Hidden] = [
            _Hidden(b, layer.outputs, one) for layer, one in zip(layers, hidden, strict=False)
        ]
        size = layers[-1].outputs * b
        self.flat: list[np.ndarray] = [np.empty(size, np.float32) for _ in range(2)] if whole is None else whole.flat
        self.logits_cb, self.error_cb = (numbers[:size].reshape(-1, b) for numbers in self.flat)
        self.logits_torch, self.error_torch = torch.from_numpy(self.logits_cb), torch.from_numpy(self.error_cb)
        self.share = np.float32(1 / b)
