"""Layers of sequential networks as plain facts: counted before torch is imported, and built by ``networks.sequential``.

Legend: d parameters, C channels, H height, W width, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Size:
    """Facts about a model. macs: multiply-adds of a sample's forward pass.

    d_client, activation  of a cut model: parameters of the clients' part, and shape of what it gives for a sample
    """

    d: int
    macs: int
    d_client: int = 0
    activation: Shape = ()


@dataclass(frozen=True)
class Layer:
    """One layer. kind: conv, relu, pool, mean, flatten or linear.

    into, out  shapes of a sample before and behind it, (C, H, W) or (F,)
    size, stride, padding  of the window of a convolution or pool, in pixels
    norm       the convolution has a normalisation behind it
    """

    kind: str
    into: Shape
    out: Shape
    size: int = 1
    stride: int = 1
    padding: int = 0
    norm: bool = False

    @property
    def weights(self) -> int:
        return self.into[0] * self.out[0] * self.size**2 if self.kind in ("conv", "linear") else 0

    @property
    def parameters(self) -> int:
        return self.weights + (self.out[0] * (3 if self.norm else 1) if self.weights else 0)

    @property
    def macs(self) -> int:
        return self.weights * prod(self.out[1:])


@dataclass(frozen=True)
class Composite(Layer):
    """Several layers as one. d, work: its parameters and multiply-adds."""

    d: int = 0
    work: int = 0

    @property
    def parameters(self) -> int:
        return self.d

    @property
    def macs(self) -> int:
        return self.work


def stack(shape: Shape, words: str, norm: bool = False) -> list[Layer]:
    """Return the layers that ``words`` describe: ``conv CHANNELS SIZE PADDING``, ``pool SIZE STRIDE``, ``linear F``,
    ``relu``, ``mean`` over the pixels, ``flatten``, with commas between them. shape: of a sample."""
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
    d, macs = sum(layer.parameters for layer in layers), sum(layer.macs for layer in layers)
    if cut is None:
        return Size(d, macs)
    return Size(d, macs, sum(layer.parameters for layer in layers[:cut]), layers[cut - 1].out)


def mlp(shape: Shape, hidden: Sequence[int], classes: int) -> list[Layer]:
    return stack(shape, f"flatten, {''.join(f'linear {width}, relu, ' for width in hidden)}linear {classes}")


def lenet5(shape: Shape, classes: int) -> list[Layer]:
    padding = 2 if min(shape[1:]) < 32 else 0
    features = f"conv 6 5 {padding}, relu, pool 2, conv 16 5, relu, pool 2"
    return stack(shape, f"{features}, flatten, linear 120, relu, linear 84, relu, linear {classes}")


def cnn(shape: Shape, hidden: int, classes: int) -> list[Layer]:
    features = "conv 32 3 1, relu, pool 2, conv 64 3 1, relu, pool 2"
    return stack(shape, f"{features}, flatten, linear {hidden}, relu, linear {classes}")


def cnn_one_pool(shape: Shape, classes: int) -> list[Layer]:
    return stack(shape, f"conv 32 3, relu, conv 64 3, relu, pool 2, flatten, linear {classes}")


def alexnet(shape: Shape, classes: int) -> list[Layer]:
    features = "conv 32 3 1, pool 2, relu, conv 64 3 1, pool 2, relu, conv 128 3 1, conv 256 3 1, conv 256 3 1"
    return stack(shape, f"{features}, pool 3 2, relu, flatten, linear 1024, linear 512, linear {classes}")


def vgg16(shape: Shape, classes: int) -> list[Layer]:
    """A convolution and its normalisation are one layer, so layers are counted as without them."""
    blocks = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
    features = ", ".join("".join(f"conv {wide} 3 1, relu, " for wide in widths) + "pool 2" for widths in blocks)
    linear = f"linear 4096, relu, linear 4096, relu, linear {classes}"
    return stack(shape, f"{features}, flatten, {linear}", norm=True)


def resnet(shape: Shape, classes: int, width: int, stages: Sequence[int]) -> list[Layer]:
    """A convolution, its normalisation and ReLU, stages of residual blocks, mean over the pixels, linear.

    width   channels of the first stage; each further stage has twice as many
    stages  number of blocks of each stage
    """
    channels, height, breadth = shape
    stem = (width, height, breadth)
    found = [
        Composite("convolution", shape, stem, d=channels * width * 9, work=channels * width * 9 * height * breadth),
        Composite("normalisation", stem, stem, d=2 * width),
        Layer("relu", stem, stem),
    ]
    for stage, blocks in enumerate(stages):
        before, wide = found[-1].out, 2**stage * width
        convolutions = [wide * wide * 9] * 2 * blocks
        if stage:  # the first block halves the sides, and its shortcut is a convolution
            height, breadth = (height + 1) // 2, (breadth + 1) // 2
            convolutions = [before[0] * wide, before[0] * wide * 9, *convolutions[1:]]
        d, out = sum(convolutions) + 2 * wide * len(convolutions), (wide, height, breadth)
        found.append(Composite("stage", before, out, d=d, work=sum(convolutions) * height * breadth))
    return [*found, *stack(found[-1].out, f"mean, flatten, linear {classes}")]


def vit(shape: Shape, classes: int, patch: int, width: int, hidden: int, blocks: int) -> list[Layer]:
    """Patches, transformer blocks, and a head on the class token. Products of queries with keys are not counted."""
    pixels, patches = shape[0] * patch**2, (shape[1] // patch) * (shape[2] // patch)
    tokens = (patches + 1, width)
    weights = 4 * width**2 + 2 * width * hidden  # of queries, keys, values, what they give, and the perceptron
    return [
        Composite("patches", shape, tokens, d=(pixels + 1 + tokens[0] + 1) * width, work=pixels * width * patches),
        *[Composite("block", tokens, tokens, d=weights + 6 * width + hidden, work=weights * tokens[0])] * blocks,
        Composite("head", tokens, (classes,), d=2 * width + (width + 1) * classes, work=width * classes),
    ]
