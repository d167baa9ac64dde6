"""Base of the models that a config can name. They import torch in ``build`` alone; the modules are in ``networks``.

Legend: C channels, H height, W width, F features, L tokens.
Every ``build(data_shape, classes, seed)`` gives a float32 torch module on the CPU whose initial weights depend on
``seed`` alone; torch's own random state is left as it was. ConfigError when the model cannot take such samples.
A model with ``reads_tokens`` takes (L,) token ids in place of numbers and is also told how many symbols there are, and
which one stands behind short samples, if any: ``build(data_shape, classes, seed, symbols, padding)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from ..errors import ConfigError, check
from ..ranges import CheckedSettings, at_least
from ..types import Facts
from .layers import Layer, Shape, Size, count

if TYPE_CHECKING:
    import torch

    from ..data.texts import Reader


@dataclass
class ModelConfig(CheckedSettings):
    """Settings of a model; the base of all."""

    can_be_cut = False  # between a client and the server

    @property
    def layers(self) -> int:
        """Of a model that can be cut; 0 of others."""
        return 0

    def resolve(self, facts: Facts) -> None:
        """Put values in the place of null. Raises ConfigError for what does not fit the facts."""

    def content_digest(self) -> str | None:
        """Of files of the user's that the model is made of; None: there are none."""
        return None

    @property
    def normalised_groups(self) -> int | None:
        """Of group normalisation; None for batch normalisation, and for models without either."""
        return None

    @property
    def batch_norm(self) -> bool:
        """Whether it normalises over the samples of a batch, and so has statistics of the clients' data."""
        return False

    @property
    def uncaptured(self) -> str | None:
        """Why no CUDA graph takes the model's gradient; None: a graph is tried."""
        return "batch normalisation, which would see the samples that fill up a mini-batch" if self.batch_norm else None

    @property
    def statistics_rate(self) -> float:
        """With batch normalisation: how far the server's statistics move towards those of each arriving client."""
        return 1.0


NEEDS_TEXTS = "needs texts: dataset=newsgroups20, sst2 or mrpc"


class Model:
    """Base of all. ``build`` gives the module; ``name`` is the choice of the group model, for messages.

    least_pixels  height and width of the smallest images it takes; 0: it does not need images
    """

    Config = ModelConfig
    name = "model"
    reads_tokens = False
    least_pixels: int = 0

    def __init__(self, config: ModelConfig):
        self.config = config

    def check_samples(self, shape: tuple[int, ...], symbols: int | None = None, padding: int | None = None) -> None:
        """Raise ConfigError unless the model takes samples of this shape; loads no torch. symbols: of token ids."""
        if self.reads_tokens and symbols is None:
            found = "x".join(map(str, shape))
            sets = "dataset=sst2 and dataset=shakespeare have"
            allowed = f"needs token ids, the data set has samples of {found} numbers; {sets} token ids"
            raise ConfigError("", self.name, allowed)
        if symbols is not None and not self.reads_tokens:
            takes = "lstm" if padding is None else "fasttext"
            allowed = f"needs numbers, the data set has samples of {shape[0]} token ids; model={takes} takes them"
            raise ConfigError("", self.name, allowed)
        if self.least_pixels and len(shape) != 3:
            allowed = f"needs images, the data set has {shape[0]} features; model=mlp or model=softmax takes them"
            raise ConfigError("", self.name, allowed)
        if self.least_pixels and min(shape[1:]) < self.least_pixels:
            least, found = (f"{height}x{width}" for height, width in ([self.least_pixels] * 2, shape[1:]))
            allowed = f"needs images of at least {least} pixels, the data set has {found}; model=mlp takes them"
            raise ConfigError("", self.name, allowed)

    def check_files(self, classes: int) -> None:
        """Raise ConfigError or InputError for files that cannot be those of the model; loads no torch."""

    def size(self, data_shape: Shape, classes: int, symbols: int | None = None) -> Size | None:
        """Count the model before torch is imported; None: only the built model tells. symbols: of token ids."""
        return None

    def reader(self) -> Reader | None:
        """What makes the ids of texts, for a model that comes with its own; None: the data set does."""
        return None


@dataclass
class SequentialConfig(ModelConfig):
    """Fields of a model that is one layer after another, and so can be cut between a client and the server.

    cut  first layers, in the clients' part, for algorithms that cut the model
    """

    cut: Annotated[int | None, at_least(1, null="for the model's own")] = field(default=None, kw_only=True)
    can_be_cut = True
    usual_cut = first_cut = 1  # the least at which the clients' part has parameters

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


class SequentialModel(Model, ABC):
    """Base of models that are one layer after another."""

    config: SequentialConfig

    @abstractmethod
    def layers(self, data_shape: Shape, classes: int) -> list[Layer]:
        """Return the layers for samples of this shape."""

    def build(self, data_shape: Shape, classes: int, seed: int) -> torch.nn.Module:
        self.check_samples(data_shape)
        from . import networks

        groups = self.config.normalised_groups
        return networks.build_seeded(seed, lambda: networks.sequential(self.layers(data_shape, classes), groups))

    def size(self, data_shape: Shape, classes: int, symbols: int | None = None) -> Size:
        return count(self.layers(data_shape, classes), self.config.cut)
