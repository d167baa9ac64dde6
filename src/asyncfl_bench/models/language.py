"""Models of token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ..errors import ConfigError
from ..ranges import Count, at_least
from .base import Model, ModelConfig
from .layers import Shape, Size

if TYPE_CHECKING:
    from torch.nn import Module


@dataclass
class LstmConfig(ModelConfig):
    """
    embedding  numbers that represent a token
    hidden     width of each LSTM layer
    layers     LSTM layers on top of each other
    """

    embedding: Count = 8
    hidden: Count = 256
    layers: Count = 2


class Lstm(Model):
    """Embedding, LSTM layers over all tokens, and a linear layer on the last step's output, for the next token.

    Work is computed one model at a time (executor sequential, threads or graph). 819 920 parameters with 80 symbols.
    Source: LEAF's network for Shakespeare (arXiv:1812.01097); AsyncFedED (arXiv:2205.13797) names the same layers.
    """

    config: LstmConfig
    name, reads_tokens = "lstm", True

    def build(self, data_shape: Shape, classes: int, seed: int, symbols: int, padding: int | None = None) -> Module:
        if padding is not None:  # the last step would read the padding
            raise ConfigError("", self.name, "needs samples of one length, these are padded; model=fasttext takes them")
        from . import networks

        sizes = (self.config.embedding, self.config.hidden, self.config.layers)
        return networks.build_seeded(seed, lambda: networks.LstmNetwork(symbols, *sizes, classes))

    def size(self, data_shape: Shape, classes: int, symbols: int | None = None) -> Size:
        config, symbols = self.config, symbols or 0
        wide = config.hidden
        weights = 4 * wide * (config.embedding + wide + (config.layers - 1) * 2 * wide)
        others = 8 * wide * config.layers + symbols * config.embedding + (wide + 1) * classes
        return Size(weights + others)


@dataclass
class FastTextConfig(ModelConfig):
    """
    embedding  numbers that represent a word or bigram
    buckets    rows of the embedding that bigrams are hashed into; 0: words alone
    """

    embedding: Count = 64
    buckets: Annotated[int, at_least(0)] = 65536
    uncaptured = "an embedding, of which each piece of work reads other rows"


class FastText(Model):
    """The mean embedding of a text's words and bigrams, and a linear layer. Weights U(-0.5, 0.5), bias 0.

    Work uses only the rows of the embedding that its samples read (``flat.SelectedRows``), and is computed one model at
    a time (executor sequential or threads). (symbols + buckets) embedding + (embedding + 1) classes parameters:
    5 080 130 on SST-2.
    Source: Joulin et al. 2016, arXiv:1607.01759, with hashed bigrams. AFBS (arXiv:2506.12754) names FastText on SST-2.
    The 64 numbers for a word and the initial weights are those of FLGO, the authors' framework. FLGO gives each bigram
    of the training texts its own row.
    """

    config: FastTextConfig
    name, reads_tokens = "fasttext", True

    def build(self, data_shape: Shape, classes: int, seed: int, symbols: int, padding: int | None = None) -> Module:
        from . import networks

        sizes = (self.config.buckets, self.config.embedding, classes)
        return networks.build_seeded(seed, lambda: networks.FastTextNetwork(symbols, *sizes, padding))

    def size(self, data_shape: Shape, classes: int, symbols: int | None = None) -> Size:
        config = self.config
        return Size(((symbols or 0) + config.buckets) * config.embedding + (config.embedding + 1) * classes)
