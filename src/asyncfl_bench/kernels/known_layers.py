"""Networks of plain layers, which formulas and kernels can compute."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

KINDS = (nn.Conv2d, nn.Flatten, nn.Linear, nn.MaxPool2d, nn.ReLU)


class FlatNetwork(Protocol):
    """A torch module whose parameters are one flat vector of d numbers: ``models.flat.FlatModel``."""

    module: nn.Module
    d: int

    def initial_d(self) -> Tensor: ...

    def gradient(
        self,
        w_d: Tensor,
        x: Tensor,
        y: Tensor,
        out_d: Tensor,
        bias_c: Tensor | None = ...,
        weight_b: Tensor | None = ...,
    ) -> Tensor: ...

    def logits(self, w_d: Tensor, x: Tensor) -> Tensor: ...


def plain_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers of an ``nn.Sequential`` of torch's layers of a few kinds; an empty list for any other network.

    Other networks are those with another class, a hook, a repeated layer or a parameter that is not trained.
    """
    if type(module) is not nn.Sequential:
        return []
    layers = list(module)
    plain = all(type(layer) in KINDS for layer in layers) and not any(_is_modified(part) for part in (module, *layers))
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    own = len({id(parameter) for parameter in parameters}) == len(parameters)
    flat = all((part.start_dim, part.end_dim) == (1, -1) for part in layers if isinstance(part, nn.Flatten))
    return layers if plain and own and flat and all(parameter.requires_grad for parameter in parameters) else []


def is_square(part: nn.Conv2d) -> bool:
    """Return True for a convolution with a bias, a square kernel, one stride, and zeros around the image if any."""
    if isinstance(part.padding, str) or part.bias is None or part.padding_mode != "zeros":
        return False
    same = all(len(set(sizes)) == 1 for sizes in (part.kernel_size, part.stride, part.padding))
    return same and part.dilation == (1, 1) and part.groups == 1


def _is_modified(part: nn.Module) -> bool:
    """Return True for a module with hooks or with a replaced forward pass."""
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    return any(hooks) or "forward" in vars(part)
