"""What a model costs a client: multiply-adds of its layers and numbers on their way, counted and not measured."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..types import Footprint

COUNTED = (nn.Conv2d, nn.Linear, nn.LSTM)  # what other layers do is left out: it is small beside these


def footprint(module: nn.Module, x: Tensor, cut: int | None = None) -> Footprint:
    """Of ``module``, by one sample x (1, ...) that it takes.

    cut  layers of a sequential module that the clients hold; None: all
    """
    parameters, (macs, _) = _count_trained(module), _count_multiply_adds(module, x)
    if cut is None:
        return Footprint(parameters, parameters, macs, macs)
    assert isinstance(module, nn.Sequential)
    at_cut, own, own_macs = [], 0, 0
    for layer in module[:-1]:
        more, x = _count_multiply_adds(layer, x)
        own, own_macs = own + _count_trained(layer), own_macs + more
        at_cut.append(Footprint(parameters, own, macs, own_macs, x.numel()))
    return replace(at_cut[cut - 1], at_cut=tuple(at_cut))


def _count_trained(module: nn.Module) -> int:
    """Return the number of trained parameters, which are those that clients send."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def _count_multiply_adds(module: nn.Module, x: Tensor) -> tuple[int, Tensor]:
    """Return (multiply-adds, output) of one forward pass of ``x``. The module's mode and statistics do not change."""
    macs = 0

    def count(layer: nn.Module, _, out) -> None:
        nonlocal macs
        out = out[0] if isinstance(out, tuple) else out
        channels = getattr(layer, "hidden_size", None) or getattr(layer, "out_features", None) or out.shape[1]
        # each weight is used once at every place of the output: a pixel, a token
        weights = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() > 1)
        macs += out.numel() // channels * weights

    layers = [layer for layer in module.modules() if isinstance(layer, COUNTED)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    training = module.training
    module.eval()  # batch normalisation learns nothing, and takes one sample
    try:
        with torch.no_grad():
            out = module(x)
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    return macs, out
