"""Models of images: convolutions, pools and fully connected layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from ..errors import check, list_some
from ..ranges import Count, absent, at_least, one_of, within
from ..types import Facts
from .base import ModelConfig, SequentialConfig, SequentialModel
from .layers import Layer, Shape, stack

if TYPE_CHECKING:
    import torch


@dataclass
class LeNet5Config(SequentialConfig):
    """
    cut  null: 6, behind the second pool
    """

    usual_cut = 6
    layers = 12


class LeNet5(SequentialModel):
    """LeCun et al. 1998 with ReLU and max-pooling: conv 5x5 to 6, pool, conv 5x5 to 16, pool, linear 120, 84, classes.

    The first convolution pads images below 32 pixels by 2, so 28x28 becomes the original's 32x32.
    Parameters: 61 706 on MNIST, 62 006 on CIFAR-10, 69 656 on CIFAR-100. Images of at least 12x12. If the model is cut
    after layer 3, 6, 9 or 11 on CIFAR-10, clients send 1176, 400, 120 or 84 numbers for each sample.
    """

    config: LeNet5Config
    name = "lenet5"
    least_pixels = 12

    def layers(self, data_shape: Shape, classes: int) -> list[Layer]:
        padding = 2 if min(data_shape[1:]) < 32 else 0
        features = f"conv 6 5 {padding}, relu, pool 2, conv 16 5, relu, pool 2"
        return stack(data_shape, f"{features}, flatten, linear 120, relu, linear 84, relu, linear {classes}")


@dataclass
class CnnConfig(SequentialConfig):
    """
    hidden  width of the first linear layer
    cut     null: 6, behind the second pool
    """

    hidden: Count = 128
    usual_cut = 6  # behind the second pool
    layers = 10


class Cnn(SequentialModel):
    """Conv 3x3 to 32, pool, conv 3x3 to 64, pool, linear hidden, classes; ReLU, padding 1. Images of at least 4x4."""

    config: CnnConfig
    name = "cnn"
    least_pixels = 4

    def layers(self, data_shape: Shape, classes: int) -> list[Layer]:
        features = "conv 32 3 1, relu, pool 2, conv 64 3 1, relu, pool 2"
        return stack(data_shape, f"{features}, flatten, linear {self.config.hidden}, relu, linear {classes}")


@dataclass
class CnnOnePoolConfig(SequentialConfig):
    """
    cut  null: 5, behind the pool
    """

    usual_cut = 5
    layers = 7


class CnnOnePool(SequentialModel):
    """Conv 3x3 to 32, conv 3x3 to 64, pool, linear classes; ReLU, no padding. Images of at least 6x6.

    AsyncFedED (arXiv:2205.13797) prints for FEMNIST: two convolutions, one pooling, one linear layer. The sizes are our
    choice. 590 270 parameters with 28x28 grey pixels and 62 classes.
    """

    config: CnnOnePoolConfig
    name = "cnn_one_pool"
    least_pixels = 6

    def layers(self, data_shape: Shape, classes: int) -> list[Layer]:
        return stack(data_shape, f"conv 32 3, relu, conv 64 3, relu, pool 2, flatten, linear {classes}")


@dataclass
class AlexNetConfig(SequentialConfig):
    """
    cut  null: 6, behind the second ReLU, as in GAS
    """

    usual_cut = 6
    layers = 15


class AlexNet(SequentialModel):
    """The small AlexNet of the released code of GAS (Yang, Liu 2024). Images of at least 12x12.

    Conv 3x3 to 32, pool, ReLU, conv to 64, pool, ReLU | conv to 128, 256, 256, pool 3x3 of stride 2, ReLU, linear 1024,
    512, classes; padding 1, no activation between the last convolutions or linear layers. GAS cuts it after layer 6
    (the line), also after 3, 7 and 11. Layer 6 has 64x8x8 activations of 3x32x32 pixels; clients have 19 392 of
    3 868 746 parameters.
    """

    config: AlexNetConfig
    name = "alexnet"
    least_pixels = 12

    def layers(self, data_shape: Shape, classes: int) -> list[Layer]:
        features = "conv 32 3 1, pool 2, relu, conv 64 3 1, pool 2, relu, conv 128 3 1, conv 256 3 1, conv 256 3 1"
        return stack(data_shape, f"{features}, pool 3 2, relu, flatten, linear 1024, linear 512, linear {classes}")


@dataclass
class NormalisedConfig(ModelConfig):
    """
    norm             normalisation over groups of channels or over the batch. A cut model needs group, because its parts
                     do not keep the statistics of batch
    groups           groups of norm=group, a divisor of the first layer's channels; 32 in Wu, He 2018, 2 in the FedOpt
                     and FedDyn papers
    statistics_rate  of norm=batch: how far the server's running statistics move towards those of each arriving client
    """

    norm: Annotated[str, one_of("group", "batch")] = "group"
    groups: int = 32
    statistics_rate: Annotated[float, within("(0, 1]")] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batch_norm = self.norm == "batch"
        divisors = [str(one) for one in range(1, self.narrowest + 1) if self.narrowest % one == 0]
        allowed = f"a divisor of {self.narrowest}, the narrowest layer: {list_some(divisors)}"
        check(self.batch_norm or str(self.groups) in divisors, "groups", self.groups, allowed)

    @property
    def narrowest(self) -> int:
        """Channels of the first layer, which divide the channels of all layers."""
        return 64

    @property
    def normalised_groups(self) -> int | None:
        return None if self.batch_norm else self.groups

    def idle(self, facts: Facts) -> dict[str, str]:
        unused, other = ("groups", "group") if self.batch_norm else ("statistics_rate", "batch")
        return {unused: f"with model.norm={self.norm}; {other} has it"}


@dataclass
class ResNet18Config(SequentialConfig, NormalisedConfig):
    """
    width  channels of the first stage; each further stage doubles them
    cut    null: 4, behind the first stage, as in GAS
    """

    width: Annotated[int, at_least(1), absent(64)] = 64
    cut: Annotated[int | None, at_least(1, null="for the model's own"), absent(None)] = field(
        default=None, kw_only=True
    )
    usual_cut = 4
    layers = 10
    stages: ClassVar[tuple[int, ...]] = (2, 2, 2, 2)  # residual blocks of each

    @property
    def narrowest(self) -> int:
        return self.width


class ResNet18(SequentialModel):
    """torchvision's ResNet-18 with the stem for small images: 3x3 convolution of stride 1, no max-pooling.

    Layers: convolution, normalisation, ReLU, four stages, mean over the pixels, flatten, linear. If the model is cut
    after a stage (4, 5, 6 or 7) on CIFAR-10, clients send 65 536, 32 768, 16 384 or 8192 numbers for each sample.

    Group normalisation (Wu, He 2018, arXiv:1803.08494: 32 groups) has no statistics of the clients' data. Batch
    normalisation trains with the mean and variance of each batch and is evaluated with running ones: a client reports
    the mean over the batches of its work, and the server keeps a moving average over arrivals. 11.17 M parameters with
    3 channels and 10 classes. Images of at least 8x8; 16x16 with batch, which cannot normalise one sample of one pixel.
    Source: He et al. 2016, arXiv:1512.03385.
    """

    config: ResNet18Config
    name = "resnet18"

    @property
    def least_pixels(self) -> int:  # type: ignore[override]
        return 2 ** len(self.config.stages) if self.config.norm == "batch" else 8

    def build(self, data_shape: Shape, classes: int, seed: int) -> torch.nn.Module:
        self.check_samples(data_shape)
        from . import networks

        sizes = (self.config.normalised_groups, self.config.width, self.config.stages)
        return networks.build_seeded(seed, lambda: networks.resnet(data_shape, classes, *sizes, f"model={self.name}"))

    def layers(self, data_shape: Shape, classes: int) -> list[Layer]:
        width, (channels, height, breadth) = self.config.width, data_shape
        stem = (width, height, breadth)
        found = [
            Layer("convolution", data_shape, stem, d=channels * width * 9),
            Layer("normalisation", stem, stem, d=2 * width),
            Layer("relu", stem, stem),
        ]
        for stage, blocks in enumerate(self.config.stages):
            before, wide = found[-1].out, 2**stage * width
            convolutions = [wide * wide * 9] * 2 * blocks
            if stage:  # the first block halves the sides, and its shortcut is a convolution
                height, breadth = (height + 1) // 2, (breadth + 1) // 2
                convolutions = [before[0] * wide, before[0] * wide * 9, *convolutions[1:]]
            d, out = sum(convolutions) + 2 * wide * len(convolutions), (wide, height, breadth)
            found.append(Layer("stage", before, out, d=d))
        return [*found, *stack(found[-1].out, f"mean, flatten, linear {classes}")]


@dataclass
class ResNet8Config(ResNet18Config):
    """Three stages of one residual block each."""

    groups: int = 8
    width: Count = 16
    layers = 9
    stages = (1, 1, 1)


class ResNet8(ResNet18):
    """ResNet-18 with three stages of one residual block each, of 16, 32 and 64 channels.

    Layers: convolution, normalisation, ReLU, three stages, mean over the pixels, flatten, linear. 78 042 parameters and
    12.5 million multiply-adds with 3x32x32 pixels and 10 classes, where ResNet-18 has 555 million.
    Images of at least 8x8, also with batch.
    Source: the blocks of He et al. 2016, arXiv:1512.03385; widths as in its networks for CIFAR-10.
    """

    config: ResNet8Config
    name = "resnet8"


@dataclass
class Vgg16Config(SequentialConfig, NormalisedConfig):
    """
    cut  null: 10, behind the second pool, as in GAS
    """

    usual_cut = 10
    layers = 37


class Vgg16(SequentialModel):
    """VGG-16 for small images: 13 convolutions with normalisation and ReLU, 5 pools, linear 4096, 4096, classes.

    A convolution and its normalisation count as one layer. GAS (Yang, Liu 2024) uses batch normalisation and cuts after
    layer 10 (its default), 17, 24 or 31, the pools 2 to 5. The dropout of GAS is left out, because a gradient must be a
    function of model and samples alone: work is computed in any order. 33 646 666 parameters with 3x32x32 pixels and 10
    classes. Images of at least 32x32.
    Source: Simonyan, Zisserman 2015, arXiv:1409.1556.
    """

    config: Vgg16Config
    name = "vgg16"
    least_pixels = 32

    def layers(self, data_shape: Shape, classes: int) -> list[Layer]:
        blocks = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
        features = ", ".join("".join(f"conv {wide} 3 1, relu, " for wide in widths) + "pool 2" for widths in blocks)
        linear = f"linear 4096, relu, linear 4096, relu, linear {classes}"
        return stack(data_shape, f"{features}, flatten, {linear}", norm=True)
