"""The models a config can name. Nothing here imports torch before ``build``; the modules are in ``networks``.

Legend: C channels, H height, W width, F features, L tokens.
Every ``build(data_shape, classes, seed)`` gives a float32 torch module on the CPU whose initial weights depend on
``seed`` alone; torch's own random state is left as it was. ConfigError when the model cannot take such samples.
A model with ``reads_tokens`` takes (L,) token ids in place of numbers and is also told how many symbols there are, and
which one stands behind short samples, if any: ``build(data_shape, classes, seed, symbols, padding)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from ..errors import ConfigError, check
from ..ranges import CheckedSettings, at_least, one_of, within
from ..types import Facts

if TYPE_CHECKING:
    import torch

    from .texts import Reader

NARROWEST = 64  # of the widths 64, 128, 256, 512 of ResNet-18 and VGG-16: what divides 64 divides all


def _need_images(name: str, data_shape: tuple[int, ...], least: int) -> None:
    """ConfigError unless samples are (C, H, W) with H and W of at least ``least`` pixels."""
    if len(data_shape) != 3:
        allowed = f"needs images, the data set has {data_shape[0]} features; model=mlp or model=softmax takes them"
        raise ConfigError("", name, allowed)
    height, width = data_shape[1:]
    if min(height, width) < least:
        allowed = f"needs images of at least {least}x{least} pixels, the data set has {height}x{width}"
        raise ConfigError("", name, f"{allowed}; model=mlp takes them")


@dataclass
class ModelConfig(CheckedSettings):
    """Settings of a model; the base of all."""

    can_be_cut = False  # between a client and the server

    @property
    def layers(self) -> int:
        """Of a model that can be cut; 0 of others."""
        return 0

    def resolve(self, facts: Facts) -> None:
        """Puts values in the place of null. Raises ConfigError for what does not fit the facts."""

    def content_digest(self) -> str | None:
        """Of files of the user's that the model is made of; None: there are none."""
        return None

    @property
    def batch_norm(self) -> bool:
        """Whether it normalises over the samples of a batch, and so has statistics of the clients' data."""
        return False

    @property
    def statistics_rate(self) -> float:
        """With batch normalisation: how far the server's statistics move towards those of each arriving client."""
        return 1.0


class Model:
    """Base of all. ``build`` gives the module; ``name`` is the choice of the group model, for messages."""

    Config = ModelConfig
    name = "model"
    reads_tokens = False

    def __init__(self, config: ModelConfig):
        self.config = config

    def reader(self) -> Reader | None:
        """What makes the ids of texts, for a model that comes with its own; None: the data set does."""
        return None


@dataclass
class SequentialConfig(ModelConfig):
    """Fields of a model that is one layer after another, and so can be cut between a client and the server.

    cut  layers of it in the clients' part, for algorithms that cut the model
    """

    cut: Annotated[int | None, at_least(1, null="for the model's own")] = field(default=None, kw_only=True)
    can_be_cut = True
    usual_cut = first_cut = 1  # the least at which the clients' part has parameters
    number_of_layers = 0  # the last one has parameters

    @property
    def layers(self) -> int:
        return self.number_of_layers

    def resolve(self, facts: Facts) -> None:
        if facts.cuts and self.cut is None:
            self.cut = self.usual_cut
        ok = not (facts.cuts and self.batch_norm)
        check(ok, "norm", "batch", f"group with algorithm={facts.algorithm}: parts of a model keep no statistics")
        ok = self.cut is None or self.first_cut <= self.cut < self.layers
        check(ok, "cut", self.cut, f"from {self.first_cut} to {self.layers - 1}, of the model's {self.layers} layers")

    def idle(self, facts: Facts) -> dict[str, str]:
        return super().idle(facts) | (
            {} if facts.cuts else {"cut": f"with algorithm={facts.algorithm}, whose clients hold the whole model"}
        )


@dataclass
class SoftmaxConfig(ModelConfig):
    """No settings."""


class Softmax(Model):
    """Multinomial logistic regression: one linear layer with bias, all zero at the start. A convex problem."""

    Config = SoftmaxConfig
    name = "softmax"

    def build(self, data_shape: tuple[int, ...], classes: int, seed: int) -> torch.nn.Module:
        from . import networks

        return networks.build_seeded(seed, lambda: networks.softmax(data_shape, classes))


@dataclass
class MlpConfig(SequentialConfig):
    """
    hidden  widths of the hidden layers, each >= 1
    """

    hidden: list[int] = field(default_factory=lambda: [200])
    usual_cut = 3  # behind the first ReLU
    first_cut = 2

    @property
    def layers(self) -> int:
        return 2 * len(self.hidden) + 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check(len(self.hidden) > 0 and min(self.hidden) >= 1, "hidden", self.hidden, "a list of integers >= 1")


class Mlp(Model):
    """Fully connected layers with ReLU in between, on the flattened sample."""

    Config = MlpConfig
    config: MlpConfig
    name = "mlp"

    def build(self, data_shape: tuple[int, ...], classes: int, seed: int) -> torch.nn.Module:
        from . import networks

        return networks.build_seeded(seed, lambda: networks.mlp(data_shape, list(self.config.hidden), classes))


@dataclass
class LeNet5Config(SequentialConfig):
    """Cut behind the second pool if nothing else is said."""

    usual_cut = 6
    number_of_layers = 12


class LeNet5(Model):
    """LeCun et al. 1998 with ReLU and max-pooling: conv 5x5 to 6, pool, conv 5x5 to 16, pool, linear 120, 84, classes.

    Images below 32 pixels are padded by 2 at the first convolution, so 28x28 is the original's 32x32.
    Parameters: 61 706 on MNIST, 62 006 on CIFAR-10, 69 656 on CIFAR-100. Images of at least 12x12. Of a
    model on CIFAR-10 that is cut after layer 3, 6, 9 or 11 clients send 1176, 400, 120 or 84 numbers for each sample.
    """

    Config = LeNet5Config
    name = "lenet5"

    def build(self, data_shape: tuple[int, ...], classes: int, seed: int) -> torch.nn.Module:
        _need_images(self.name, data_shape, least=12)
        from . import networks

        return networks.build_seeded(seed, lambda: networks.lenet5(data_shape, classes))


@dataclass
class CnnConfig(SequentialConfig):
    """
    hidden  width of the fully connected layer
    """

    hidden: Annotated[int, at_least(1)] = 128
    usual_cut = 6  # behind the second pool
    number_of_layers = 10


class Cnn(Model):
    """Conv 3x3 to 32, pool, conv 3x3 to 64, pool, linear hidden, classes; ReLU, padding 1. Images of at least 4x4."""

    Config = CnnConfig
    config: CnnConfig
    name = "cnn"

    def build(self, data_shape: tuple[int, ...], classes: int, seed: int) -> torch.nn.Module:
        _need_images(self.name, data_shape, least=4)
        from . import networks

        return networks.build_seeded(seed, lambda: networks.cnn(data_shape, self.config.hidden, classes))


@dataclass
class CnnOnePoolConfig(SequentialConfig):
    """Cut behind the pool if nothing else is said."""

    usual_cut = 5
    number_of_layers = 7


class CnnOnePool(Model):
    """Conv 3x3 to 32, conv 3x3 to 64, pool, linear classes; ReLU, no padding. Images of at least 6x6.

    AsyncFedED (arXiv:2205.13797) says of its network for FEMNIST: two convolutions, one pooling, one linear layer. The
    sizes are our choice. 590 270 parameters with 28x28 grey pixels and 62 classes.
    """

    Config = CnnOnePoolConfig
    name = "cnn_one_pool"

    def build(self, data_shape: tuple[int, ...], classes: int, seed: int) -> torch.nn.Module:
        _need_images(self.name, data_shape, least=6)
        from . import networks

        return networks.build_seeded(seed, lambda: networks.cnn_one_pool(data_shape, classes))


@dataclass
class AlexNetConfig(SequentialConfig):
    """Cut behind the second ReLU, as GAS has it, if nothing else is said."""

    usual_cut = 6
    number_of_layers = 15


class AlexNet(Model):
    """The small AlexNet of GAS (Yang, Liu 2024), as its released code has it. Images of at least 12x12.

    Conv 3x3 to 32, pool, ReLU, conv to 64, pool, ReLU | conv to 128, 256, 256, pool 3x3 of stride 2, ReLU, linear 1024,
    512, classes; padding 1, no activation between the last convolutions or linear layers. GAS cuts it after layer 6
    (the line; 3, 7 and 11 besides): 64x8x8 activations of 3x32x32 pixels, 19 392 of 3 868 746 parameters on clients.
    """

    Config = AlexNetConfig
    name = "alexnet"

    def build(self, data_shape: tuple[int, ...], classes: int, seed: int) -> torch.nn.Module:
        _need_images(self.name, data_shape, least=12)
        from . import networks

        return networks.build_seeded(seed, lambda: networks.alexnet(data_shape, classes))


@dataclass
class LstmConfig(ModelConfig):
    """
    embedding  numbers that stand for a token
    hidden     width of each layer
    layers     LSTM layers on top of each other
    """

    embedding: Annotated[int, at_least(1)] = 8
    hidden: Annotated[int, at_least(1)] = 256
    layers: Annotated[int, at_least(1)] = 2


class Lstm(Model):
    """Embedding, LSTM layers over all tokens, and a linear layer on the last step's output: the token that follows.

    Its work is computed one model at a time (executor sequential or threads). 819 920 parameters with 80 symbols.
    Source: LEAF's network for Shakespeare (arXiv:1812.01097); AsyncFedED (arXiv:2205.13797) names the same layers.
    """

    Config = LstmConfig
    config: LstmConfig
    name, reads_tokens = "lstm", True

    def build(
        self, data_shape: tuple[int, ...], classes: int, seed: int, symbols: int, padding: int | None = None
    ) -> torch.nn.Module:
        if padding is not None:  # its last step would read what stands behind a sample
            raise ConfigError("", self.name, "needs samples of one length, these are padded; model=fasttext takes them")
        from . import networks

        sizes = (self.config.embedding, self.config.hidden, self.config.layers)
        return networks.build_seeded(seed, lambda: networks.Lstm(symbols, *sizes, classes))


@dataclass
class FastTextConfig(ModelConfig):
    """
    embedding  numbers that stand for a word or bigram
    buckets    rows of the embedding that bigrams are hashed into; 0: words alone
    """

    embedding: Annotated[int, at_least(1)] = 64
    buckets: Annotated[int, at_least(0)] = 65536


class FastText(Model):
    """The mean embedding of a text's words and bigrams, and a linear layer. Weights U(-0.5, 0.5), bias 0.

    A piece of work computes with the rows of the embedding that its samples read and no others (``tasks.rows``); one
    model at a time (executor sequential or threads). (symbols + buckets) embedding + (embedding + 1) classes
    parameters: 5 080 130 on SST-2.
    Source: Joulin et al. 2016, arXiv:1607.01759, whose bigrams are hashed too. AFBS (arXiv:2506.12754) names FastText
    on SST-2; 64 numbers a word and the initial weights are those of FLGO, on which its authors built, and which gives
    every bigram of the training texts a row of its own.
    """

    Config = FastTextConfig
    config: FastTextConfig
    name, reads_tokens = "fasttext", True

    def build(
        self, data_shape: tuple[int, ...], classes: int, seed: int, symbols: int, padding: int | None = None
    ) -> torch.nn.Module:
        from . import networks

        sizes = (self.config.buckets, self.config.embedding, classes)
        return networks.build_seeded(seed, lambda: networks.FastText(symbols, *sizes, padding))


@dataclass
class NormalisedConfig(ModelConfig):
    """
    norm             normalisation over groups of channels, or over the batch
    groups           of group normalisation: 1, 2, 4, 8, 16, 32 or 64; not used by batch
    statistics_rate  of batch: how far the server's running statistics move towards those of each arriving client
    """

    norm: Annotated[str, one_of("group", "batch")] = "group"
    groups: int = 32
    statistics_rate: Annotated[float, within("(0, 1]")] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        divides = 1 <= self.groups <= NARROWEST and NARROWEST % self.groups == 0
        check(divides, "groups", self.groups, "a divisor of 64, the narrowest layer: 1, 2, 4, 8, 16, 32 or 64")

    @property
    def batch_norm(self) -> bool:
        return self.norm == "batch"

    @property
    def normalised_groups(self) -> int | None:
        """Of group normalisation; None for batch normalisation."""
        return None if self.batch_norm else self.groups

    def idle(self, facts: Facts) -> dict[str, str]:
        unused, other = ("groups", "group") if self.batch_norm else ("statistics_rate", "batch")
        return {unused: f"with model.norm={self.norm}; {other} has it"}


@dataclass
class ResNet18Config(NormalisedConfig):
    """No settings of its own."""


class ResNet18(Model):
    """torchvision's ResNet-18 with the stem for small images: 3x3 convolution of stride 1, no max-pooling.

    Group normalisation (Wu, He 2018, arXiv:1803.08494: 32 groups) has no statistics of the clients' data; batch
    normalisation trains with each batch's own mean and variance, as always, and is judged with running ones: a client
    reports the mean over the batches of its work, the server keeps a moving average over arrivals. 11.17 M parameters
    with 3 channels and 10 classes. Images of at least 8x8; 16x16 with batch, which cannot normalise one sample of one
    pixel.
    Source: He et al. 2016, arXiv:1512.03385.
    """

    Config = ResNet18Config
    config: ResNet18Config
    name = "resnet18"

    def build(self, data_shape: tuple[int, ...], classes: int, seed: int) -> torch.nn.Module:
        _need_images(self.name, data_shape, least=16 if self.config.norm == "batch" else 8)
        from . import networks

        return networks.build_seeded(
            seed, lambda: networks.resnet18(data_shape, classes, self.config.normalised_groups)
        )


@dataclass
class Vgg16Config(SequentialConfig, NormalisedConfig):
    """Cut behind the second pool, as GAS has it, if nothing else is said."""

    usual_cut = 10
    number_of_layers = 37


class Vgg16(Model):
    """VGG-16 for small images: 13 convolutions with normalisation and ReLU, 5 pools, linear 4096, 4096, classes.

    A convolution counts as one layer with its normalisation. GAS (Yang, Liu 2024), which uses batch normalisation, cuts
    it after layer 10 (the default there), 17, 24 or 31, the pools 2 to 5. Its dropout is left out: a gradient here is a
    function of the model and the samples alone, so that work can be computed in any order. 33 646 666 parameters with
    3x32x32 pixels and 10 classes. Images of at least 32x32.
    Source: Simonyan, Zisserman 2015, arXiv:1409.1556.
    """

    Config = Vgg16Config
    config: Vgg16Config
    name = "vgg16"

    def build(self, data_shape: tuple[int, ...], classes: int, seed: int) -> torch.nn.Module:
        _need_images(self.name, data_shape, least=32)
        from . import networks

        return networks.build_seeded(seed, lambda: networks.vgg16(data_shape, classes, self.config.normalised_groups))
