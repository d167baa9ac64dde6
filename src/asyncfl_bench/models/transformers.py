"""Models of images made of transformer blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError, check
from ..ranges import Count
from .base import SequentialConfig, SequentialModel
from .layers import Layer, Shape

if TYPE_CHECKING:
    import torch


@dataclass
class VitSmallConfig(SequentialConfig):
    """
    patch   side of a patch [pixels], a divisor of the images' sides
    width   numbers of a token
    heads   of each block's attention, a divisor of the width
    hidden  width of each block's perceptron
    blocks  transformer layers, one after another
    cut     null: 2, behind the first block, as in GAS
    """

    patch: Count = 4
    width: Count = 512
    heads: Count = 8
    hidden: Count = 512
    blocks: Count = 6
    usual_cut = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.layers = self.blocks + 2
        check(self.width % self.heads == 0, "heads", self.heads, f"a divisor of model.width={self.width}")


class VitSmall(SequentialModel):
    """A small vision transformer for small images: patches and a class token, blocks, a linear layer on that token.

    Blocks normalise before attention and perceptron. GAS (Yang, Liu 2024) prints 6 blocks of 8 heads, a perceptron of
    512 and dropout of 0.1. Width and patches are our choice, and dropout is left out, as in VGG-16. 9 523 722
    parameters with 3x32x32 pixels and 10 classes. If the model is cut behind the first block, clients send 65 x 512
    numbers for each sample.
    Source: Dosovitskiy et al. 2021, arXiv:2010.11929.
    """

    config: VitSmallConfig
    name = "vit_small"

    @property
    def least_pixels(self) -> int:  # type: ignore[override]
        return self.config.patch

    def check_samples(self, shape: Shape, symbols: int | None = None, padding: int | None = None) -> None:
        super().check_samples(shape, symbols, padding)
        height, width = shape[1:]
        if height % self.config.patch or width % self.config.patch:
            allowed = f"a divisor of both sides of the images, {height} and {width} pixels"
            raise ConfigError("patch", self.config.patch, f"must be {allowed}")

    def build(self, data_shape: Shape, classes: int, seed: int) -> torch.nn.Module:
        self.check_samples(data_shape)
        from . import networks

        config = self.config
        sizes = (config.patch, config.width, config.heads, config.hidden, config.blocks)
        return networks.build_seeded(seed, lambda: networks.vit(data_shape, classes, *sizes))

    def layers(self, data_shape: Shape, classes: int) -> list[Layer]:
        width, hidden, patch = self.config.width, self.config.hidden, self.config.patch
        pixels, patches = data_shape[0] * patch**2, (data_shape[1] // patch) * (data_shape[2] // patch)
        tokens = (patches + 1, width)
        weights = 4 * width**2 + 2 * width * hidden  # of queries, keys, values, output and perceptron
        return [
            Layer("patches", data_shape, tokens, d=(pixels + 2 + tokens[0]) * width),
            *[Layer("block", tokens, tokens, d=weights + 6 * width + hidden)] * self.config.blocks,
            Layer("head", tokens, (classes,), d=2 * width + (width + 1) * classes),
        ]
