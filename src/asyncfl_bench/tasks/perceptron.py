"""The gradient of one fully connected model at a time, for many steps in a row on a CPU.

With some ten thousand parameters a step is a few dozen operations of a few microseconds. So matrices are multiplied by
NumPy, whose library is faster at such sizes than torch's and takes less to call; the rest is done by whichever of the
two is faster, on the same memory.

Legend: d parameters, B samples of a mini-batch, F features, C classes, m samples of several mini-batches, i and o
inputs and outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Sample = tuple[np.ndarray, np.ndarray]
ZERO = np.float32(0)


@dataclass
class Layer:
    """Where one linear layer lies in the flat vector: weight (outputs, inputs) at ``at``, then its bias."""

    at: int
    outputs: int
    inputs: int

    def weight(self, w_pd: Tensor) -> Tensor:
        """(p, outputs, inputs) view."""
        return w_pd[:, self.at : self.at + self.outputs * self.inputs].view(-1, self.outputs, self.inputs)

    def bias(self, w_pd: Tensor) -> Tensor:
        """(p, outputs) view."""
        start = self.at + self.outputs * self.inputs
        return w_pd[:, start : start + self.outputs]


class Perceptron:
    """A Flatten, Linear, ReLU, …, Linear network as formulas over one flat vector. Not for two threads at once.

    Vectors are in an order of their own (``pack``, ``unpack``): weights transposed, so that a layer with its bias is
    one (inputs + 1, outputs) matrix, and every layer's inputs carry a column of ones. This spares the additions of
    biases and most products with a transposed second factor, which take twice as long.
    Results go into memory that is used again at the next step: fresh memory would cost as much as the arithmetic.
    """

    def __init__(self, layers: list[Layer]):
        self._layers = layers
        self._bound: tuple[Tensor | None, Tensor | None] = (None, None)
        self._workspaces: dict[int, _Workspace] = {}

    def pack(self, vector_d: Tensor) -> Tensor:
        """(d,) a copy in the own order."""
        packed_d = torch.empty_like(vector_d)
        for layer, matrix in zip(self._layers, self._matrices(packed_d), strict=True):
            matrix[:-1].copy_(layer.weight(vector_d[None])[0].t())
            matrix[-1].copy_(layer.bias(vector_d[None])[0])
        return packed_d

    def unpack(self, packed_d: Tensor, out_d: Tensor) -> None:
        """Writes what ``pack`` was given into ``out_d``."""
        for layer, matrix in zip(self._layers, self._matrices(packed_d), strict=True):
            layer.weight(out_d[None])[0].copy_(matrix[:-1].t())
            layer.bias(out_d[None])[0].copy_(matrix[-1])

    def samples(self, x: Tensor, y: Tensor, size: int) -> Iterator[Sample]:
        """Mini-batches of ``size`` from x (m, ...) and y (m,), the last one as it comes, as ``gradient`` takes them:
        (B, F + 1) inputs with a column of ones, and the (C, B) one-hot labels divided by B."""
        x_mf = torch.nn.functional.pad(x.flatten(1), (0, 1), value=1.0).numpy()
        y_m = y.numpy()
        whole = len(y_m) // size * size
        at = np.arange(whole)
        target_scb = np.zeros((whole // size, self._layers[-1].outputs, size), x_mf.dtype)
        target_scb[at // size, y_m[:whole], at % size] = 1 / size
        for step, target_cb in enumerate(target_scb):
            yield x_mf[step * size : (step + 1) * size], target_cb
        if rest := len(y_m) - whole:
            target_cb = np.zeros((self._layers[-1].outputs, rest), x_mf.dtype)
            target_cb[y_m[whole:], np.arange(rest)] = 1 / rest
            yield x_mf[whole:], target_cb

    def gradient(self, w_d: Tensor, sample: Sample, out_d: Tensor) -> float:
        """Writes the gradient at ``w_d`` of the mean cross-entropy into ``out_d``, both in the own order; returns the
        loss in nats."""
        if self._bound[0] is not w_d or self._bound[1] is not out_d:  # held, so no other tensor can be the same object
            self._bound = (w_d, out_d)
            self._weights = [matrix.numpy() for matrix in self._matrices(w_d)]
            self._gradients = [matrix.numpy() for matrix in self._matrices(out_d)]
        x_bf, target_cb = sample
        if (space := self._workspaces.get(len(x_bf))) is None:
            space = self._workspaces[len(x_bf)] = _Workspace(self._layers, len(x_bf))
        loss = self._forward(x_bf, target_cb, space)
        self._backward(x_bf, space)
        return loss

    def _matrices(self, packed_d: Tensor) -> list[Tensor]:
        """(inputs + 1, outputs) views, the bias in the last row."""
        sizes = [(layer.inputs + 1) * layer.outputs for layer in self._layers]
        return [part.view(-1, layer.outputs) for part, layer in zip(packed_d.split(sizes), self._layers, strict=True)]

    def _forward(self, x_bf: np.ndarray, target_cb: np.ndarray, space: _Workspace) -> float:
        """The loss; leaves its gradient with respect to the logits in ``space.error_cb``."""
        entered = x_bf
        for weight_io, hidden in zip(self._weights, space.hidden, strict=False):
            np.dot(entered, weight_io, out=hidden.before)
            torch.clamp_min(hidden.before_torch, 0, out=hidden.after_torch)
            entered = hidden.after
        np.dot(self._weights[-1].T, entered.T, out=space.logits_cb)
        torch.log_softmax(space.logits_torch, 0, out=space.error_torch)
        error_cb = space.error_cb
        loss = -float(np.vdot(error_cb, target_cb))
        np.exp(error_cb, out=error_cb)
        np.multiply(error_cb, space.share, out=error_cb)
        np.subtract(error_cb, target_cb, out=error_cb)
        return loss

    def _backward(self, x_bf: np.ndarray, space: _Workspace) -> None:
        error_ob = space.error_cb
        for number in range(len(self._layers) - 1, 0, -1):
            hidden = space.hidden[number - 1]
            np.dot(hidden.after.T, error_ob.T, out=self._gradients[number])
            np.dot(error_ob.T, self._weights[number][:-1].T, out=hidden.error)
            np.greater(hidden.before, ZERO, out=hidden.passed)
            np.multiply(hidden.error, hidden.passed, out=hidden.error)
            error_ob = hidden.error.T
        np.dot(x_bf.T, error_ob.T, out=self._gradients[0])


class _Hidden:
    """A hidden layer's results for B samples: before and after the ReLU, the latter with a column of ones, and the
    gradient of the loss with respect to the former."""

    def __init__(self, b: int, outputs: int):
        self.before, self.error = (np.empty((b, outputs), np.float32) for _ in range(2))
        self.after = np.ones((b, outputs + 1), np.float32)
        self.passed = np.empty((b, outputs), bool)
        self.before_torch = torch.from_numpy(self.before)
        self.after_torch = torch.from_numpy(self.after)[:, :-1]


class _Workspace:
    """What one step of B samples needs between its beginning and its end."""

    def __init__(self, layers: list[Layer], b: int):
        self.hidden = [_Hidden(b, layer.outputs) for layer in layers[:-1]]
        self.logits_cb, self.error_cb = (np.empty((layers[-1].outputs, b), np.float32) for _ in range(2))
        self.logits_torch, self.error_torch = torch.from_numpy(self.logits_cb), torch.from_numpy(self.error_cb)
        self.share = np.float32(1 / b)
