"""Layers of sequential networks as plain facts, counted before torch is imported.

Legend: d parameters, C channels, H height, W width, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Size:
    """Size of a model.

    d           parameters
    d_client    parameters of the clients' part of a cut model
    activation  shape of that part's output for a sample
    """

    d: int
    d_client: int = 0
    activation: Shape = ()


@dataclass(frozen=True)
class Layer:
    """One layer, or several as one.

    kind       conv, relu, pool, mean, flatten or linear; any other name for several layers
    into, out  shapes of a sample before and behind it, (C, H, W) or (F,)
    size, stride, padding  of the window of a convolution or pool [pixels]
    norm       a normalisation follows the convolution
    d          parameters of several layers
    """

    kind: str
    into: Shape
    out: Shape
    size: int = 1
    stride: int = 1
    padding: int = 0
    norm: bool = False
    d: int = 0

    @property
    def parameters(self) -> int:
        if self.d or self.kind not in ("conv", "linear"):
            return self.d
        return self.out[0] * (self.into[0] * self.size**2 + (3 if self.norm else 1))


def stack(shape: Shape, words: str, norm: bool = False) -> list[Layer]:
    """Return the layers that ``words`` describe, for samples of this shape.

    Words are ``conv CHANNELS SIZE PADDING``, ``pool SIZE STRIDE``, ``linear F``, ``relu``, ``mean`` (over the pixels)
    and ``flatten``, separated by commas.
    """
    layers: list[Layer] = []
    for word in words.split(","):
        kind, *numbers = word.split()
        first, size, padding = [*map(int, numbers), 0, 0, 0][:3]
        if kind == "conv":
            out = (first, *(side + 2 * padding - size + 1 for side in shape[1:]))
            layers.append(Layer(kind, shape, out, size, 1, padding, norm))
        elif kind == "pool":
            stride = size or first
            out = (shape[0], *((side - first) // stride + 1 for side in shape[1:]))
            layers.append(Layer(kind, shape, out, first, stride))
        else:
            out = {"linear": (first,), "flatten": (prod(shape),), "mean": (shape[0], 1, 1)}.get(kind, shape)
            layers.append(Layer(kind, shape, out))
        shape = layers[-1].out
    return layers


def count(layers: Sequence[Layer], cut: int | None = None) -> Size:
    """Return the size of a network, cut behind its first ``cut`` layers or not."""
    d = sum(layer.parameters for layer in layers)
    if cut is None:
        return Size(d)
    return Size(d, sum(layer.parameters for layer in layers[:cut]), layers[cut - 1].out)
