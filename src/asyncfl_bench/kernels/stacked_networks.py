"""Gradients of many models of one small network at once, written out: no graph per model, no grouped convolution.

A convolution of p models is one copy, in which every window becomes a row, and one batched matrix product. Pools and
ReLUs see the p mini-batches as one. The operators depend on shapes alone and none reads a number, so a CUDA graph can
capture them.

Legend: p models, d parameters of each, B samples of a mini-batch, C classes, K numbers of a window, N windows.
Activations of images are (p, B, channels, height, width) with any strides.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .known_layers import plain_layers
from .perceptron import LinearLayer, Perceptron

aten = torch.ops.aten


@contextmanager
def _precision_of_convolutions(w_pd: Tensor) -> Iterator[None]:
    """Compute products on a GPU in the precision that cuDNN has for convolutions."""
    if not w_pd.is_cuda:  # whose threads share the flag
        yield
        return
    products = torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        products.allow_tf32 = before


class _Linear(LinearLayer):
    def forward(self, w_pd: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        return torch.baddbmm(self.bias(w_pd).unsqueeze(1), a, self.weight(w_pd).transpose(1, 2)), a

    def backward(self, w_pd: Tensor, error: Tensor, entered: Tensor, out_pd: Tensor, first: bool) -> Tensor | None:
        torch.bmm(error.transpose(1, 2), entered, out=self.weight(out_pd))
        torch.sum(error, dim=1, out=self.bias(out_pd))
        return None if first else torch.bmm(error, self.weight(w_pd))


@dataclass
class _Convolution(_Linear):
    """A linear layer of every window. inputs: K"""

    kernel: int
    stride: int
    padding: int

    def forward(self, w_pd: Tensor, a: Tensor) -> tuple[Tensor, Any]:
        sides = a.shape[3:]
        if self.padding:
            a = F.pad(a, (self.padding,) * 4)
        p, b, channels, *padded = a.shape
        height, width = ((side - self.kernel) // self.stride + 1 for side in padded)
        *outer, rows, columns = a.stride()
        strides = (*outer[:2], rows * self.stride, columns * self.stride, outer[2], rows, columns)
        windows = a.as_strided((p, b, height, width, channels, self.kernel, self.kernel), strides)
        windows_pnk = windows.reshape(p, b * height * width, self.inputs)
        with _precision_of_convolutions(w_pd):
            out, _ = super().forward(w_pd, windows_pnk)
        return out.view(p, b, height, width, self.outputs).permute(0, 1, 4, 2, 3), (windows_pnk, sides)

    def backward(self, w_pd: Tensor, error: Tensor, entered: Any, out_pd: Tensor, first: bool) -> Tensor | None:
        windows_pnk, sides = entered
        p, b = error.shape[:2]
        error = error.permute(0, 1, 3, 4, 2).reshape(p, -1, self.outputs)
        with _precision_of_convolutions(w_pd):
            error_pnk = super().backward(w_pd, error, windows_pnk, out_pd, first)
        if error_pnk is None:
            return None
        columns = error_pnk.view(p * b, -1, self.inputs).transpose(1, 2)
        return F.fold(columns, sides, self.kernel, padding=self.padding, stride=self.stride).unflatten(0, (p, b))


class _Relu:
    def forward(self, w_pd: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        a = a.relu_()
        return a, a

    def backward(self, w_pd: Tensor, error: Tensor, entered: Tensor, out_pd: Tensor, first: bool) -> Tensor:
        return aten.threshold_backward.grad_input(error, entered, 0, grad_input=error)


class _PerceptronRelu(_Relu):
    def backward(self, w_pd: Tensor, error: Tensor, entered: Tensor, out_pd: Tensor, first: bool) -> Tensor:
        return error.mul_(entered > 0)  # infinity times 0 is NaN, as in the archived runs


@dataclass
class _Pool:
    kernel: int
    stride: int

    def forward(self, w_pd: Tensor, a: Tensor) -> tuple[Tensor, Any]:
        merged = a.flatten(0, 1)
        out, places = aten.max_pool2d_with_indices(merged, [self.kernel] * 2, [self.stride] * 2)
        return out.unflatten(0, a.shape[:2]), (merged, places)

    def backward(self, w_pd: Tensor, error: Tensor, entered: Any, out_pd: Tensor, first: bool) -> Tensor:
        merged, places = entered
        sizes = [self.kernel] * 2, [self.stride] * 2, [0, 0], [1, 1], False
        back = aten.max_pool2d_with_indices_backward(error.flatten(0, 1), merged, *sizes, places)
        return back.unflatten(0, error.shape[:2])


class _Flatten:
    def forward(self, w_pd: Tensor, a: Tensor) -> tuple[Tensor, torch.Size]:
        return a.flatten(2), a.shape

    def backward(self, w_pd: Tensor, error: Tensor, entered: torch.Size, out_pd: Tensor, first: bool) -> Tensor:
        return error.view(entered)


class StackedNetwork:
    """Convolutions, ReLUs, max-pools and linear layers, one after another, as formulas over p flat vectors.

    perceptron  whether it consists of linear layers with a ReLU between each two
    """

    def __init__(self, layers: list[Any]):
        kinds = [type(layer) for layer in layers if not isinstance(layer, _Flatten)]
        self.perceptron = set(kinds[::2]) == {_Linear} and set(kinds[1::2]) <= {_Relu}
        if self.perceptron:
            layers = [_PerceptronRelu() if isinstance(layer, _Relu) else layer for layer in layers]
        self._layers = layers
        self._first = next(place for place, layer in enumerate(layers) if isinstance(layer, LinearLayer))
        self._class_c: Tensor | None = None

    @classmethod
    def try_from_module(cls, module: nn.Module) -> StackedNetwork | None:
        """Return the formulas for ``module``; None for any other network."""
        parts = plain_layers(module)
        if not parts or not isinstance(parts[-1], nn.Linear):
            return None
        layers: list[Any] = []
        at = 0
        for part in parts:
            layer = _try_layer(part, at)
            if layer is None or (isinstance(layer, _Relu) and not at):  # which would overwrite the samples
                return None
            layers.append(layer)
            at += sum(parameter.numel() for parameter in part.parameters())
        for place in range(len(layers) - 1):
            # the same numbers and gradients to the last bit, ties included, with fewer numbers for the ReLU
            if isinstance(layers[place], _Relu) and isinstance(layers[place + 1], _Pool):
                layers[place], layers[place + 1] = layers[place + 1], layers[place]
        return cls(layers)

    def for_single_model(self) -> Perceptron:
        """Return the formulas of a perceptron for one model at a time, with separate memory."""
        assert self.perceptron
        return Perceptron([layer for layer in self._layers if isinstance(layer, LinearLayer)])

    def gradient(
        self,
        w_pd: Tensor,
        x_pb: Tensor,
        y_pb: Tensor,
        weight_pb: Tensor,
        out_pd: Tensor,
        bias_pc: Tensor | None = None,
    ) -> Tensor:
        """Write gradients of p models into ``out_pd`` (p, d), each of its mini-batch; return the (p,) losses in nats.

        Model i's loss is sum_b weight_pb[i, b] * cross-entropy(i, b). Weights >= 0 that sum to 1 in each row give a
        weighted mean; zeros make padding, so that mini-batches of several sizes fit in one call.
        x_pb (p, B, ...) float32, y_pb (p, B) int64, weight_pb (p, B) float32; bias_pc (p, C) joins each model's logits.
        """
        logits_pbc, entered = self._forward(w_pd, x_pb)
        if bias_pc is not None:
            logits_pbc.add_(bias_pc.unsqueeze(1))
        error: Tensor | None
        differentiate = self._differentiate_as_archived if self.perceptron else _differentiate_loss
        loss_p, error = differentiate(logits_pbc, y_pb, weight_pb)
        for place in range(len(self._layers) - 1, self._first - 1, -1):
            error = self._layers[place].backward(w_pd, error, entered.pop(), out_pd, place == self._first)
        return loss_p

    def logits(self, w_d: Tensor, x: Tensor) -> Tensor:
        """(B, C) outputs of one model at ``w_d`` for x (B, ...)."""
        return self._forward(w_d[None], x[None])[0][0]

    def _forward(self, w_pd: Tensor, a: Tensor) -> tuple[Tensor, list[Any]]:
        """(p, B, C) logits, and what each layer keeps for the way back."""
        entered = []
        for layer in self._layers:
            a, kept = layer.forward(w_pd, a)
            entered.append(kept)
        return a, entered

    def _differentiate_as_archived(self, logits_pbc: Tensor, y_pb: Tensor, weight_pb: Tensor) -> tuple[Tensor, Tensor]:
        """See ``_differentiate_loss``; with the bits of archived runs on a CPU."""
        if self._class_c is None or self._class_c.device != logits_pbc.device:
            self._class_c = torch.arange(logits_pbc.shape[2], device=logits_pbc.device)
        log_pbc, label_pb1 = torch.log_softmax(logits_pbc, dim=2), y_pb.unsqueeze(2)
        loss_p = -(log_pbc.gather(2, label_pb1).squeeze(2) * weight_pb).sum(dim=1)
        # weight * (softmax - one-hot), the weight last. A scatter of labels would sort in deterministic mode
        is_label_pbc = label_pb1 == self._class_c
        return loss_p, log_pbc.exp_().add_(is_label_pbc, alpha=-1).mul_(weight_pb.unsqueeze(2))


def _differentiate_loss(logits_pbc: Tensor, y_pb: Tensor, weight_pb: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (p,) weighted cross-entropies and their gradients (p, B, C), by the kernels that autograd calls."""
    log_pbc = torch.log_softmax(logits_pbc, dim=2)
    total = weight_pb[0, 0]  # an argument that is not read: nothing is averaged
    given = weight_pb.flatten(), log_pbc.flatten(0, 1), y_pb.flatten(), None, 0, -100, total
    negative_pbc = aten.nll_loss_backward(*given).view_as(log_pbc)  # minus the weight at the label, else 0
    loss_p = torch.bmm(negative_pbc.flatten(1).unsqueeze(1), log_pbc.flatten(1).unsqueeze(2)).flatten()
    return loss_p, aten._log_softmax_backward_data(negative_pbc, log_pbc, 2, log_pbc.dtype)


def _try_layer(part: nn.Module, at: int) -> Any:
    """The formulas of a layer whose parameters begin at ``at`` of the flat vector; None for any other layer."""
    if isinstance(part, nn.Linear) and part.bias is not None:
        return _Linear(at, part.out_features, part.in_features)
    if isinstance(part, nn.Conv2d) and _is_square(part):
        kernel = part.kernel_size[0]
        inputs = part.in_channels * kernel**2
        return _Convolution(at, part.out_channels, inputs, kernel, part.stride[0], int(part.padding[0]))
    if isinstance(part, nn.MaxPool2d) and (part.padding, part.dilation, part.ceil_mode) == (0, 1, False):
        kernel_size, stride = part.kernel_size, part.stride
        return _Pool(kernel_size, stride) if isinstance(kernel_size, int) and isinstance(stride, int) else None
    return _Relu() if isinstance(part, nn.ReLU) else _Flatten() if isinstance(part, nn.Flatten) else None


def _is_square(part: nn.Conv2d) -> bool:
    """Return True for a convolution with a bias, a square kernel, one stride, and zeros around the image if any."""
    if isinstance(part.padding, str) or part.bias is None or part.padding_mode != "zeros":
        return False
    same = all(len(set(sizes)) == 1 for sizes in (part.kernel_size, part.stride, part.padding))
    return same and part.dilation == (1, 1) and part.groups == 1
