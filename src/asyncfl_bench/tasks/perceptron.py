"""The gradient of one fully connected model at a time, in NumPy: for many steps in a row on a CPU.

With some ten thousand parameters a step is a few dozen operations of a few microseconds. NumPy asks about one
microsecond less than torch for each, and OpenBLAS multiplies matrices as small as these faster.

Legend: d parameters, B samples of a mini-batch, F features, C classes, m samples of several mini-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

Sample = tuple[np.ndarray, np.ndarray]


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

    Every result goes into memory that is used again at the next step: fresh memory would cost more than the arithmetic.
    """

    def __init__(self, layers: list[Layer]):
        self._layers = layers
        self._bound: tuple[Tensor | None, Tensor | None] = (None, None)
        self._workspaces: dict[int, _Workspace] = {}

    def samples(self, x: Tensor, y: Tensor, size: int) -> Iterator[Sample]:
        """Mini-batches of ``size`` from x (m, ...) and y (m,), the last one as it comes, as ``gradient`` takes them:
        (B, F) inputs and the (C, B) one-hot labels divided by B."""
        x_mf, y_m = x.flatten(1).numpy(), y.numpy()
        whole = len(y_m) // size
        if whole:
            at = np.arange(whole * size)
            target_scb = np.zeros((whole, self._layers[-1].outputs, size), x_mf.dtype)
            target_scb[at // size, y_m[: len(at)], at % size] = 1 / size
            for step in range(whole):
                yield x_mf[step * size : (step + 1) * size], target_scb[step]
        if rest := len(y_m) - whole * size:
            yield from self.samples(x[whole * size :], y[whole * size :], rest)

    def gradient(self, w_d: Tensor, sample: Sample, out_d: Tensor) -> float:
        """Writes the gradient at ``w_d`` of the mean cross-entropy into ``out_d`` (d,); returns the loss in nats."""
        if self._bound[0] is not w_d or self._bound[1] is not out_d:  # held, so no other tensor can be the same object
            self._bound = (w_d, out_d)
            self._weights, self._gradients = self._views(w_d.numpy()), self._views(out_d.numpy())
        x_bf, target_cb = sample
        if (space := self._workspaces.get(len(x_bf))) is None:
            space = self._workspaces[len(x_bf)] = _Workspace(self._layers, len(x_bf), x_bf.dtype)
        loss = self._forward(x_bf, target_cb, space)
        self._backward(x_bf, space)
        return loss

    def _views(self, vector_d: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """(outputs, inputs) weight and (outputs,) bias of each layer."""
        views = []
        for layer in self._layers:
            end = layer.at + layer.outputs * layer.inputs
            weight = vector_d[layer.at : end].reshape(layer.outputs, layer.inputs)
            views.append((weight, vector_d[end : end + layer.outputs]))
        return views

    def _forward(self, x_bf: np.ndarray, target_cb: np.ndarray, space: _Workspace) -> float:
        """The loss; leaves its gradient with respect to the logits in ``space.logits_cb``."""
        entered = x_bf
        for (weight, bias), out in zip(self._weights, space.hidden, strict=False):
            np.dot(entered, weight.T, out=out)
            np.add(out, bias, out=out)
            np.maximum(out, space.zero, out=out)
            entered = out
        weight, bias = self._weights[-1]
        logits_cb, sum_b = space.logits_cb, space.sum_b
        np.dot(weight, entered.T, out=logits_cb)
        np.add(logits_cb, bias[:, None], out=logits_cb)
        np.maximum.reduce(logits_cb, 0, out=sum_b)
        np.subtract(logits_cb, sum_b, out=logits_cb)
        hit = np.vdot(logits_cb, target_cb)
        np.exp(logits_cb, out=logits_cb)
        np.add.reduce(logits_cb, 0, out=sum_b)
        loss = float(np.log(sum_b, out=space.log_b).dot(space.mean_b) - hit)
        np.divide(space.mean_b, sum_b, out=sum_b)
        np.multiply(logits_cb, sum_b, out=logits_cb)
        np.subtract(logits_cb, target_cb, out=logits_cb)
        return loss

    def _backward(self, x_bf: np.ndarray, space: _Workspace) -> None:
        error_ob = space.logits_cb
        for number in range(len(self._layers) - 1, -1, -1):
            weight, bias = self._gradients[number]
            entered = space.hidden[number - 1] if number else x_bf
            np.dot(error_ob, entered, out=weight)
            np.dot(error_ob, space.one_b, out=bias)
            if number:
                error, passed = space.errors[number - 1], space.passed[number - 1]
                np.dot(error_ob.T, self._weights[number][0], out=error)
                np.greater(entered, space.zero, out=passed)
                np.multiply(error, passed, out=error)
                error_ob = error.T


class _Workspace:
    """What one step of B samples needs between its beginning and its end."""

    def __init__(self, layers: list[Layer], b: int, dtype: np.dtype):
        def empty(*shape: int) -> np.ndarray:
            return np.empty(shape, dtype)

        self.hidden = [empty(b, layer.outputs) for layer in layers[:-1]]
        self.errors = [empty(b, layer.outputs) for layer in layers[:-1]]
        self.passed = [np.empty((b, layer.outputs), bool) for layer in layers[:-1]]
        self.logits_cb = empty(layers[-1].outputs, b)
        self.sum_b, self.log_b = empty(b), empty(b)
        self.one_b, self.mean_b = np.ones(b, dtype), np.full(b, 1 / b, dtype)
        self.zero = dtype.type(0)
