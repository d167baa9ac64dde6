"""Base of the models that a config can name. Torch is only imported by ``build``.

Legend: L tokens.
``build(data_shape, classes, seed)`` of a model returns a float32 torch module on the CPU, whose initial weights depend
on ``seed`` alone; torch's random state does not change. Raises ConfigError if the model cannot take such samples.
A model with ``reads_tokens`` takes (L,) token ids instead of numbers. Its ``build`` also takes the number of symbols,
and the padding id if there is one: ``build(data_shape, classes, seed, symbols, padding)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from ..errors import ConfigError, check
from ..ranges import CheckedSettings, Configured, at_least
from ..types import Facts
from .layers import Layer, Shape, Size, count

if TYPE_CHECKING:
    import torch

    from ..data.texts import Reader

NEEDS_TEXTS = "needs texts: dataset=newsgroups20, sst2 or mrpc"


@dataclass
class ModelConfig(CheckedSettings):
    """Base of the settings of a model. Attributes without a type are not settings."""

    can_be_cut = False  # into a part of the clients and a part of the server
    layers = 0  # of a model that can be cut
    batch_norm = False  # the model normalises over the samples of a batch, and so has statistics of the clients' data
    statistics_rate = 1.0  # step of the server's batch statistics towards those of each arriving client, 0 to 1

    def content_digest(self) -> str | None:
        """Return a digest of the user's files that make the model; None without such files."""
        return None

    @property
    def normalised_groups(self) -> int | None:
        """Groups of group normalisation; None for batch normalisation and without normalisation."""
        return None

    @property
    def uncaptured(self) -> str | None:
        """Reason why no CUDA graph can compute the gradient; None if a graph is tried."""
        return "batch normalisation, which would see the samples that fill up a mini-batch" if self.batch_norm else None


class Model(Configured):
    """Base of all models. ``build`` returns the module.

    name          choice of the group model, for messages
    reads_tokens  samples are token ids
    least_pixels  height and width of the smallest images; 0 if samples need not be images
    """

    config: ModelConfig
    name = "model"
    reads_tokens = False
    least_pixels: int = 0

    def check_samples(self, shape: tuple[int, ...], symbols: int | None = None, padding: int | None = None) -> None:
        """Raise ConfigError unless the model takes samples of this shape.

        symbols  number of token ids; padding: the id behind short samples
        """
        has_tokens, least = symbols is not None, self.least_pixels
        fits = not least or (len(shape) == 3 and min(shape[1:]) >= least)
        if has_tokens == self.reads_tokens and fits:
            return
        wanted = f"images of at least {least}x{least} pixels" if least else "numbers"
        instead = f"model={'mlp' if not has_tokens else 'lstm' if padding is None else 'fasttext'} takes them"
        if self.reads_tokens:
            wanted, instead = "token ids", "dataset=sst2 and dataset=shakespeare have token ids"
        found = f"samples of {'x'.join(map(str, shape))} {'token ids' if has_tokens else 'numbers'}"
        raise ConfigError("", self.name, f"needs {wanted}, the data set has {found}; {instead}")

    def check_files(self) -> None:
        """Raise ConfigError or InputError for files that the model cannot use."""

    def size(self, data_shape: Shape, classes: int, symbols: int | None = None) -> Size | None:
        """Return the size of the model; None if only the built model has it. symbols: number of token ids."""
        return None

    def reader(self) -> Reader | None:
        """Return the model's tokenizer; None if the data set makes the token ids."""
        return None


@dataclass
class SequentialConfig(ModelConfig):
    """Settings of a sequential model, which can be cut between clients and server.

    cut  first layers, in the clients' part, for algorithms that cut the model
    """

    cut: Annotated[int | None, at_least(1, null="for the model's own")] = field(default=None, kw_only=True)
    can_be_cut = True
    usual_cut = first_cut = 1  # first_cut: the first at which the clients' part has parameters

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
    """Base of sequential models."""

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
