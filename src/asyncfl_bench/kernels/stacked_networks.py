"""Gradients of many models of one small network at once, by formulas: no graph per model, no grouped convolution.

A convolution of p models is one gather, in which every window becomes a row, and one batched matrix product. Pools and
ReLUs treat the p mini-batches as one. The operators depend on shapes only and read no number, so a CUDA graph can
capture them.

Legend: p models, d parameters of each, B samples of a mini-batch, C classes.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .known_layers import is_square, plain_layers
from .perceptron import LinearLayer, Perceptron
from .stacked_convolutions import (
    BoundNetwork,
    StackedConvolution,
    StackedLinear,
    StackedPool,
    StackedRelu,
    packed_orders,
)

aten = torch.ops.aten


class StackedNetwork:
    """A sequence of convolutions, ReLUs, max-pools and linear layers as formulas over p flat vectors.

    perceptron  True for linear layers with a ReLU between each two
    """

    def __init__(self, layers: list[Any]):
        kinds = list(map(type, layers))
        self.perceptron = set(kinds[::2]) == {StackedLinear} and set(kinds[1::2]) <= {StackedRelu}
        self._layers = layers
        self._class_c: Tensor | None = None

    @classmethod
    def try_from_module(cls, module: nn.Module) -> StackedNetwork | None:
        """Return the formulas for ``module``; None for any other network."""
        layers = try_layers(module)
        if not layers or not isinstance(plain_layers(module)[-1], nn.Linear):
            return None
        for index in range(len(layers) - 1):
            # the other order has the same bits, ties included, with fewer numbers for the ReLU
            if isinstance(layers[index], StackedRelu) and isinstance(layers[index + 1], StackedPool):
                layers[index], layers[index + 1] = layers[index + 1], layers[index]
        return cls(layers)

    def for_single_model(self) -> Perceptron:
        """Return the formulas of a perceptron for one model at a time, with separate memory."""
        assert self.perceptron
        return Perceptron([layer for layer in self._layers if isinstance(layer, LinearLayer)])

    def bind(self, p: int, b: int, shape: tuple[int, ...], like: Tensor) -> BoundNetwork | None:
        """Return memory for p models and mini-batches of b samples of this shape; None for a perceptron.

        like  tensor of the dtype and on the device
        """
        return None if self.perceptron else BoundNetwork(self._layers, self._orders, p, b, shape, like)

    @cached_property
    def _orders(self) -> tuple[np.ndarray, np.ndarray]:
        return packed_orders(self._layers)

    def gradient(
        self,
        w_pd: Tensor,
        x_pb: Tensor,
        y_pb: Tensor,
        weight_pb: Tensor,
        out_pd: Tensor,
        bias_pc: Tensor | None = None,
        bound: BoundNetwork | None = None,
    ) -> Tensor:
        """Write gradients of p models into ``out_pd`` (p, d), each for its mini-batch. Return the (p,) losses in nats.

        The loss of model i is sum_b weight_pb[i, b] * cross-entropy(i, b). Weights >= 0 sum to 1 in each row; zeros are
        for padding of shorter mini-batches.
        x_pb (p, B, ...) float32, y_pb (p, B) int64, weight_pb (p, B) float32; bias_pc (p, C) is added to the logits.
        bound  result of ``bind`` for these shapes; None: memory for this call
        """
        p, b, *shape = x_pb.shape
        bound = bound or self.bind(p, b, tuple(shape), w_pd)
        if bound is None:
            *inputs, logits_pbc = self._perceptron_inputs(w_pd, x_pb)
        else:
            logits_pbc, packed_pm, kept = bound.forward(w_pd, x_pb)
        if bias_pc is not None:
            logits_pbc.add_(bias_pc.unsqueeze(1))
        if bound is None:
            return self._perceptron_gradient(w_pd, inputs, logits_pbc, y_pb, weight_pb, out_pd)
        loss_p, error_pbc = _differentiate_loss(logits_pbc, y_pb, weight_pb)
        bound.backward(w_pd, error_pbc, packed_pm, kept, out_pd)
        return loss_p

    def logits(self, w_d: Tensor, x: Tensor) -> Tensor:
        """Return (B, C) outputs of one perceptron at ``w_d`` for x (B, ...)."""
        return self._perceptron_inputs(w_d[None], x[None])[-1][0]

    def _perceptron_inputs(self, w_pd: Tensor, x_pb: Tensor) -> list[Tensor]:
        """Return (p, B, ...) inputs of each linear layer, and the logits."""
        inputs = [x_pb.flatten(2)]
        for layer in self._layers:
            if isinstance(layer, StackedLinear):
                weight_pio, bias_p1o = layer.weight(w_pd).transpose(1, 2), layer.bias(w_pd).unsqueeze(1)
                inputs.append(torch.baddbmm(bias_p1o, inputs[-1], weight_pio))
            else:
                inputs[-1].relu_()
        return inputs

    def _perceptron_gradient(
        self, w_pd: Tensor, inputs: list[Tensor], logits_pbc: Tensor, y_pb: Tensor, weight_pb: Tensor, out_pd: Tensor
    ) -> Tensor:
        """Write gradients and return losses, with the bits of archived runs on a CPU. Empties ``inputs``."""
        if self._class_c is None or self._class_c.device != logits_pbc.device:
            self._class_c = torch.arange(logits_pbc.shape[2], device=logits_pbc.device)
        log_pbc, label_pb1 = torch.log_softmax(logits_pbc, dim=2), y_pb.unsqueeze(2)
        loss_p = -(log_pbc.gather(2, label_pb1).squeeze(2) * weight_pb).sum(dim=1)
        # weight * (softmax - one-hot), the weight last. A scatter of labels would sort in deterministic mode
        is_label_pbc = label_pb1 == self._class_c
        error = log_pbc.exp_().add_(is_label_pbc, alpha=-1).mul_(weight_pb.unsqueeze(2))
        for layer in reversed(self._layers[::2]):
            entered = inputs.pop()
            torch.bmm(error.transpose(1, 2), entered, out=layer.weight(out_pd))
            torch.sum(error, dim=1, out=layer.bias(out_pd))
            if inputs:  # infinity times 0 is NaN, as in the archived runs
                error = torch.bmm(error, layer.weight(w_pd)).mul_(entered > 0)
        return loss_p


def _differentiate_loss(logits_pbc: Tensor, y_pb: Tensor, weight_pb: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (p,) weighted cross-entropies and their gradients (p, B, C), by the kernels that autograd calls."""
    log_pbc = torch.log_softmax(logits_pbc, dim=2)
    total = weight_pb[0, 0]  # an argument that is not read: nothing is averaged
    given = weight_pb.flatten(), log_pbc.flatten(0, 1), y_pb.flatten(), None, 0, -100, total
    negative_pbc = aten.nll_loss_backward(*given).view_as(log_pbc)  # minus the weight at the label, else 0
    loss_p = torch.bmm(negative_pbc.flatten(1).unsqueeze(1), log_pbc.flatten(1).unsqueeze(2)).flatten()
    return loss_p, aten._log_softmax_backward_data(negative_pbc, log_pbc, 2, log_pbc.dtype)


def try_layers(module: nn.Module) -> list[Any]:
    """Return the formulas of the layers of ``module``; an empty list for any other network."""
    layers: list[Any] = []
    at = 0
    for part in plain_layers(module):
        if isinstance(part, nn.Flatten):
            continue
        layer = _try_layer(part, at)
        if layer is None or (isinstance(layer, StackedRelu) and not at):
            return []
        layers.append(layer)
        at += sum(parameter.numel() for parameter in part.parameters())
    return layers


def _try_layer(part: nn.Module, at: int) -> Any:
    """Return the formulas of a layer with parameters from ``at`` of the flat vector on; None for any other layer."""
    if isinstance(part, nn.Linear) and part.bias is not None:
        return StackedLinear(at, part.out_features, part.in_features)
    if isinstance(part, nn.Conv2d) and is_square(part):
        kernel = part.kernel_size[0]
        inputs = part.in_channels * kernel**2
        return StackedConvolution(at, part.out_channels, inputs, kernel, part.stride[0], int(part.padding[0]))
    if isinstance(part, nn.MaxPool2d) and (part.padding, part.dilation, part.ceil_mode) == (0, 1, False):
        kernel_size, stride = part.kernel_size, part.stride
        return StackedPool(kernel_size, stride) if isinstance(kernel_size, int) and isinstance(stride, int) else None
    return StackedRelu() if isinstance(part, nn.ReLU) else None
