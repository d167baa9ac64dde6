"""Gradients of many fully connected models at once, written out.

Batched matrix products in place of one small graph per model: for networks of linear layers and ReLU alone, several
times cheaper than automatic differentiation, which spends its time on bookkeeping there.

Legend: p models, d parameters of each, B samples of a mini-batch, F features, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .perceptron import Layer, Perceptron
from .plain import plain_layers


class StackedPerceptron:
    """A Flatten, Linear, ReLU, …, Linear network as formulas over p flat vectors."""

    def __init__(self, layers: list[Layer]):
        self.layers = layers

    @classmethod
    def try_from_module(cls, module: nn.Module) -> StackedPerceptron | None:
        """Return the formulas for ``module``; None for any other network."""
        parts = [part for part in plain_layers(module) if not isinstance(part, nn.Flatten)]
        linear = [part for part in parts[::2] if isinstance(part, nn.Linear) and part.bias is not None]
        between = parts[1::2]
        if not linear or len(linear) != len(parts[::2]):
            return None
        if len(between) != len(linear) - 1 or not all(isinstance(part, nn.ReLU) for part in between):
            return None
        layers, at = [], 0
        for part in linear:
            layers.append(Layer(at, part.out_features, part.in_features))
            at += part.out_features * (part.in_features + 1)
        return cls(layers)

    def for_single_model(self) -> Perceptron:
        """Return the formulas for one model at a time, with separate memory."""
        return Perceptron(self.layers)

    def gradient(
        self,
        w_pd: Tensor,
        x_pb: Tensor,
        y_pb: Tensor,
        weight_pb: Tensor,
        out_pd: Tensor,
        bias_pc: Tensor | None = None,
    ) -> Tensor:
        """As ``FlatModel.stacked_gradient``: writes (p, d) gradients, returns (p,) losses in nats."""
        inputs = [x_pb.flatten(2)]
        for layer in self.layers[:-1]:
            inputs.append(self._forward(layer, w_pd, inputs[-1]).relu_())
        logits_pbc = self._forward(self.layers[-1], w_pd, inputs[-1])
        if bias_pc is not None:
            logits_pbc.add_(bias_pc.unsqueeze(1))
        log_pbc = torch.log_softmax(logits_pbc, dim=2)
        index_pb1 = y_pb.unsqueeze(2)
        loss_p = -(log_pbc.gather(2, index_pb1).squeeze(2) * weight_pb).sum(dim=1)
        # gradient of the weighted cross-entropy with respect to the logits: weight * (softmax - one-hot)
        error = log_pbc.exp_().scatter_add_(2, index_pb1, log_pbc.new_full((1,), -1.0).expand(index_pb1.shape))
        error.mul_(weight_pb.unsqueeze(2))
        for number in range(len(self.layers) - 1, -1, -1):
            layer, entered = self.layers[number], inputs[number]
            torch.bmm(error.transpose(1, 2), entered, out=layer.weight(out_pd))
            torch.sum(error, dim=1, out=layer.bias(out_pd))
            if number:
                error = torch.bmm(error, layer.weight(w_pd)).mul_(entered > 0)
        return loss_p

    def logits(self, w_d: Tensor, x: Tensor) -> Tensor:
        """(B, C) outputs of one model at ``w_d`` for x (B, ...)."""
        entered = x.flatten(1)[None]
        for layer in self.layers[:-1]:
            entered = self._forward(layer, w_d[None], entered).relu_()
        return self._forward(self.layers[-1], w_d[None], entered)[0]

    @staticmethod
    def _forward(layer: Layer, w_pd: Tensor, entered: Tensor) -> Tensor:
        return torch.baddbmm(layer.bias(w_pd).unsqueeze(1), entered, layer.weight(w_pd).transpose(1, 2))
