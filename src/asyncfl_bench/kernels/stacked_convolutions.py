"""Gradients of p convolutional networks for mini-batches of one shape, with few kernels and few copies.

Windows of images are rows of a table by index. A part of zeros stands for the pixels around an image, so no image is
padded. A part with a one is the factor of the bias in each window, so the product for the gradient of the weights has
the gradient of the bias too. Gradients of pixels are sums of windows' rows by index. The channels of a pixel are
adjacent in a window, unlike in the flat vector: one gather reorders weights, another reorders gradients.

Legend: p models, d parameters of each, B samples of a mini-batch, N windows or samples of a layer, i inputs of a window
or sample, o outputs, r numbers of a row: inputs, a one and zeros; m numbers of all rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .perceptron import LinearLayer

aten = torch.ops.aten


@contextmanager
def _precision_of_convolutions(w_pd: Tensor) -> Iterator[None]:
    """Compute products on a GPU in cuDNN's precision of convolutions."""
    if not w_pd.is_cuda:  # a CPU has several threads, which share the flag
        yield
        return
    products = torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        products.allow_tf32 = before


class StackedRelu:
    """Rectified linear units of p models; ``out`` may be a view of the next layer's memory."""

    def forward(self, a: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
        return torch.clamp_min(a, 0, out=out), a

    def backward(self, error: Tensor, entered: Tensor) -> Tensor:
        return aten.threshold_backward.grad_input(error, entered, 0, grad_input=torch.empty_like(entered))


@dataclass
class StackedPool:
    """Max-pooling of the images of p models, without padding. kernel, stride: in pixels"""

    kernel: int
    stride: int

    def forward(self, a: Tensor, out: Tensor | None) -> tuple[Tensor, Any]:
        merged = a.flatten(0, 1)
        pooled, indices = aten.max_pool2d_with_indices(merged, [self.kernel] * 2, [self.stride] * 2)
        pooled = pooled.unflatten(0, a.shape[:2])
        return pooled if out is None else out.copy_(pooled), (merged, indices)

    def backward(self, error: Tensor, entered: Any) -> Tensor:
        merged, indices = entered
        sizes = [self.kernel] * 2, [self.stride] * 2, [0, 0], [1, 1], False
        back = aten.max_pool2d_with_indices_backward(error.flatten(0, 1), merged, *sizes, indices)
        return back.unflatten(0, error.shape[:2])


class StackedLinear(LinearLayer):
    """A linear layer of p models.

    row  numbers in memory for each sample: its inputs, a one for the bias, and zeros up to a multiple of four
    """

    @property
    def row(self) -> int:
        return self.inputs // 4 * 4 + 4

    @property
    def size(self) -> int:
        return self.outputs * self.row

    def weight_positions(self) -> np.ndarray:
        """Return the (outputs, inputs) position among the weights of each number of a row."""
        return np.arange(self.outputs * self.inputs).reshape(self.outputs, self.inputs)


@dataclass
class StackedConvolution(StackedLinear):
    """A linear layer of every window of an image, for p models.

    inputs                   numbers of a window: channels times pixels
    kernel, stride, padding  in pixels
    """

    kernel: int
    stride: int
    padding: int

    @property
    def channels(self) -> int:
        return self.inputs // self.kernel**2

    @property
    def row(self) -> int:
        return self.inputs + self.step

    @property
    def step(self) -> int:
        """Numbers of one index of the table."""
        return math.gcd(self.channels, 4)

    def weight_positions(self) -> np.ndarray:
        return (
            super().weight_positions().reshape(self.outputs, self.channels, -1).swapaxes(1, 2).reshape(self.outputs, -1)
        )


def packed_orders(layers: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return two gathers: the flat vector to the rows of all convolutions, the rows of all layers to the flat vector.

    They are int32 positions, one for each number of the result.
    """
    packed, unpacked, total = [np.empty(0, np.int64)], [], 0
    for layer in layers:
        if isinstance(layer, StackedLinear):
            outputs, inputs, row = layer.outputs, layer.inputs, layer.row
            if isinstance(layer, StackedConvolution):
                # windows have zeros at all these positions but the first
                bias_ox = (layer.at + outputs * inputs + np.arange(outputs))[:, None].repeat(row - inputs, axis=1)
                packed.append(np.concatenate([layer.at + layer.weight_positions(), bias_ox], axis=1).ravel())
            begins_o1, positions = total + row * np.arange(outputs)[:, None], np.empty(outputs * inputs, np.int64)
            positions[layer.weight_positions()] = begins_o1 + np.arange(inputs)
            unpacked += [positions, begins_o1[:, 0] + inputs]
            total += outputs * row
    return np.concatenate(packed).astype(np.int32), np.concatenate(unpacked).astype(np.int32)


@lru_cache(maxsize=8)
def _window_indices(
    b: int, height: int, width: int, layer: tuple[int, int, int], parts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the parts of the table in N windows, and the positions of each pixel in windows, both int32.

    The positions are (B * height * width, kernel * kernel), -1 if a pixel is in no window.
    layer  kernel, stride, padding;  parts  of the table for each pixel
    """
    kernel, stride, padding = layer
    pixels = b * height * width
    around = [(0, 0), (padding, padding), (padding, padding)]
    image = np.pad(np.arange(pixels).reshape(b, height, width), around, constant_values=-1)
    windows = np.lib.stride_tricks.sliding_window_view(image, (kernel, kernel), axis=(1, 2))[:, ::stride, ::stride]
    pixel_nt = windows.reshape(-1, kernel**2)
    pixel_nt1 = pixel_nt[:, :, None]
    part = np.where(pixel_nt1 < 0, pixels * parts, pixel_nt1 * parts + np.arange(parts)).reshape(len(pixel_nt), -1)
    part = np.pad(part, ((0, 0), (0, 1)), constant_values=pixels * parts + 1)
    source = np.full((pixels, kernel**2), -1, np.int32)
    window, index = np.nonzero(pixel_nt >= 0)
    source[pixel_nt[window, index], index] = window * kernel**2 + index
    return part.ravel().astype(np.int32), source


class _BoundLinear:
    """A layer with memory for its inputs.

    at         position of its rows among those of all layers
    inputs     (p, B, ...) view to write
    rows_pni   the same memory as samples or pixels
    shape      of a sample after the layer
    """

    shape: tuple[int, ...]
    _of_models: tuple[str, ...] = ("_entered_pnr", "rows_pni", "inputs")

    def __init__(self, layer: StackedLinear, at: int, p: int, b: int, shape: tuple[int, ...], like: Tensor):
        self.layer, self._at, self.shape = layer, at, (layer.outputs,)
        self._entered_pnr = like.new_zeros(p, b, layer.row)
        self._entered_pnr[:, :, layer.inputs] = 1
        self.rows_pni = self._entered_pnr[:, :, : layer.inputs]
        self.inputs = self.rows_pni.view(p, b, *shape)

    def shrink_to(self, p: int) -> _BoundLinear:
        """Return the layer for p models in the same memory."""
        small = copy.copy(self)
        for name in self._of_models:
            setattr(small, name, getattr(self, name)[:p])
        return small

    def weight(self, rows_pm: Tensor) -> Tensor:
        """Return the (p, outputs, r) view of weights."""
        rows_pm = rows_pm[:, self._at : self._at + self.layer.size]
        return rows_pm.view(-1, self.layer.outputs, self.layer.row)

    def forward(self, w_pd: Tensor, packed_pm: Tensor, out_pno: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs, and the inputs for ``backward``. packed_pm: weights of convolutions, row by row"""
        weight_pio, bias_p1o = self.layer.weight(w_pd).transpose(1, 2), self.layer.bias(w_pd).unsqueeze(1)
        return torch.baddbmm(bias_p1o, self.rows_pni, weight_pio, out=out_pno), self._entered_pnr

    def backward(
        self, w_pd: Tensor, packed_pm: Tensor, error: Tensor, entered_pnr: Tensor, out_pm: Tensor, first: bool
    ) -> Tensor | None:
        torch.bmm(error.transpose(1, 2), entered_pnr, out=self.weight(out_pm))
        return None if first else torch.bmm(error, self.layer.weight(w_pd)).view(self.inputs.shape)


class _BoundConvolution(_BoundLinear):
    """A convolution with memory for its inputs."""

    layer: StackedConvolution
    _of_models = ("_table_pts", "rows_pni", "inputs", "_source_pmt", "_begins_pm")

    def __init__(self, layer: Any, at: int, p: int, b: int, shape: tuple[int, ...], like: Tensor):
        self.layer, self._at = layer, at
        channels, height, width = shape
        kernel, stride, padding, step = layer.kernel, layer.stride, layer.padding, layer.step
        pixels, parts = b * height * width, channels // step
        table_pt = like.new_zeros(p, pixels * channels + 2 * step)
        table_pt[:, -step] = 1
        self._table_pts = table_pt.view(p, -1, step)
        self.rows_pni = table_pt[:, : pixels * channels].view(p, pixels, channels)
        self.inputs = self.rows_pni.view(p, b, height, width, channels).permute(0, 1, 4, 2, 3)
        sides = [(side + 2 * padding - kernel) // stride + 1 for side in (height, width)]
        self.shape = layer.outputs, *sides
        part, source = _window_indices(b, height, width, (kernel, stride, padding), parts)
        self._window_index, source_mt = (torch.tensor(index, device=like.device) for index in (part, source))
        self._positions = math.prod(sides) * b * kernel**2  # of a model
        begins_p11 = torch.arange(p, dtype=torch.int32, device=like.device).view(-1, 1, 1) * self._positions
        # 0 if a pixel is in no window
        self._source_pmt = torch.where(source_mt < 0, 0, source_mt + begins_p11 + 1)
        begins = torch.arange(0, self._source_pmt.numel(), kernel**2, dtype=torch.int32, device=like.device)
        self._begins_pm = begins.view(p, -1)

    def forward(self, w_pd: Tensor, packed_pm: Tensor, out_pno: Tensor | None) -> tuple[Tensor, Tensor]:
        p = len(w_pd)
        windows_pnr = self._table_pts.index_select(1, self._window_index).view(p, -1, self.layer.row)
        with _precision_of_convolutions(w_pd):
            out_pno = torch.bmm(windows_pnr, self.weight(packed_pm).transpose(1, 2), out=out_pno)
        _, *sides = self.shape
        return out_pno.view(p, -1, *sides, self.layer.outputs).permute(0, 1, 4, 2, 3), windows_pnr

    def backward(
        self, w_pd: Tensor, packed_pm: Tensor, error: Tensor, entered_pnr: Tensor, out_pm: Tensor, first: bool
    ) -> Tensor | None:
        p, _, channels, *sides = self.inputs.shape
        error_pno = error.permute(0, 1, 3, 4, 2).reshape(p, -1, self.layer.outputs)
        with _precision_of_convolutions(w_pd):
            torch.bmm(error_pno.transpose(1, 2), entered_pnr, out=self.weight(out_pm))
            if first:
                return None
            error_mc = error.new_empty(p * self._positions + 1, channels)  # the first row is not in sums
            weight_poi = self.weight(packed_pm)[:, :, : self.layer.inputs]
            torch.bmm(error_pno, weight_poi, out=error_mc[1:].view(p, -1, self.layer.inputs))
        folded, *_ = aten._embedding_bag_forward_only(
            error_mc, self._source_pmt.flatten(), self._begins_pm.flatten(), False, 0, False, None, False, 0
        )
        return folded.view(p, -1, *sides, channels).permute(0, 1, 4, 2, 3)


class BoundNetwork:
    """p models and mini-batches of B samples with static memory. Not for two threads at once.

    layers  ``StackedLinear``, ``StackedConvolution``, ``StackedRelu`` and ``StackedPool`` in a sequence
    orders  result of ``packed_orders`` for them
    shape   of a sample
    inputs  (p, B, *shape) memory for samples, to avoid a copy; None if the first layer has no weights
    """

    def __init__(
        self,
        layers: list[Any],
        orders: tuple[np.ndarray, np.ndarray],
        p: int,
        b: int,
        shape: tuple[int, ...],
        like: Tensor,
    ):
        self._steps: list[Any] = []
        self._first = next(index for index, layer in enumerate(layers) if isinstance(layer, StackedLinear))
        self._size = 0
        for layer in layers:
            if isinstance(layer, StackedPool):
                shape = (shape[0], *((side - layer.kernel) // layer.stride + 1 for side in shape[1:]))
            if isinstance(layer, StackedLinear):
                bind: type[_BoundLinear] = _BoundConvolution if isinstance(layer, StackedConvolution) else _BoundLinear
                bound = bind(layer, self._size, p, b, shape, like)
                self._size += layer.size
                layer, shape = bound, bound.shape
            self._steps.append(layer)
        self._pack, self._unpack = (torch.tensor(order, device=like.device) for order in orders)

    @property
    def inputs(self) -> Tensor | None:
        first = self._steps[0]
        return first.inputs if isinstance(first, _BoundLinear) else None

    def shrink_to(self, p: int) -> BoundNetwork:
        """Return a network for at most as many models p, in the same memory."""
        small = copy.copy(self)
        small._steps = [step.shrink_to(p) if isinstance(step, _BoundLinear) else step for step in self._steps]
        return small

    def forward(self, w_pd: Tensor, x_pb: Tensor) -> tuple[Tensor, Tensor, list[Any]]:
        """Return (p, B, C) logits, the weights of convolutions row by row, and each layer's inputs for ``backward``."""
        packed_pm = w_pd.index_select(1, self._pack) if len(self._pack) else w_pd
        if self.inputs is not None and x_pb is not self.inputs:
            self.inputs.copy_(x_pb)
        a, kept = x_pb, []
        for step, following in zip(self._steps, [*self._steps[1:], None], strict=True):
            into = following if isinstance(following, _BoundLinear) else None
            if not isinstance(step, _BoundLinear):
                a, entered = step.forward(a, None if into is None else into.inputs)
            elif into is None or type(into) is type(step):
                a, entered = step.forward(w_pd, packed_pm, None if into is None else into.rows_pni)
            else:  # pixels of images become one sample
                a, entered = step.forward(w_pd, packed_pm, None)
                into.inputs.copy_(a)
            kept.append(entered)
        return a, packed_pm, kept

    def backward(self, w_pd: Tensor, error: Any, packed_pm: Tensor, kept: list[Any], out_pd: Tensor) -> None:
        """Write the gradient into ``out_pd``. packed_pm, kept: results of ``forward``; the list is emptied"""
        out_pm = w_pd.new_empty(len(w_pd), self._size)
        for index in range(len(self._steps) - 1, self._first - 1, -1):
            step, entered = self._steps[index], kept.pop()
            if isinstance(step, _BoundLinear):
                error = step.backward(w_pd, packed_pm, error, entered, out_pm, index == self._first)
            else:
                error = step.backward(error, entered)
        torch.index_select(out_pm, 1, self._unpack, out=out_pd)
