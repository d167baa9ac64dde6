"""Models of linear layers on the flattened sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import check
from .base import Model, SequentialConfig, SequentialModel
from .layers import Layer, Shape, Size, count, stack

if TYPE_CHECKING:
    import torch


class Softmax(Model):
    """Multinomial logistic regression: one linear layer with bias, all zero at the start. A convex problem."""

    name = "softmax"

    def build(self, data_shape: Shape, classes: int, seed: int) -> torch.nn.Module:
        from . import networks

        return networks.build_seeded(seed, lambda: networks.softmax(data_shape, classes))

    def size(self, data_shape: Shape, classes: int, symbols: int | None = None) -> Size:
        return count(stack(data_shape, f"flatten, linear {classes}"))


@dataclass
class MlpConfig(SequentialConfig):
    """
    hidden  widths of the hidden layers, each >= 1
    cut     null: 3, behind the first ReLU
    """

    hidden: list[int] = field(default_factory=lambda: [200])
    usual_cut = 3  # behind the first ReLU
    first_cut = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check(len(self.hidden) > 0 and min(self.hidden) >= 1, "hidden", self.hidden, "a list of integers >= 1")
        self.layers = 2 * len(self.hidden) + 2


class Mlp(SequentialModel):
    """Fully connected layers with ReLU in between, on the flattened sample."""

    config: MlpConfig
    name = "mlp"

    def layers(self, data_shape: Shape, classes: int) -> list[Layer]:
        hidden = "".join(f"linear {width}, relu, " for width in self.config.hidden)
        return stack(data_shape, f"flatten, {hidden}linear {classes}")
