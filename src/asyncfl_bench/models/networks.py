"""The torch modules of the models.

Inputs are (B, C, H, W) or (B, F) float32 or (B, L) token ids; outputs are (B, classes) logits.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import Any

import torch
from torch import nn

from ..data.sources import torchvision
from .layers import Layer


def build_seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Build a module with initial weights drawn from ``seed`` on the CPU, the same for all devices."""
    before = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which would also seed every GPU
        return make()
    finally:
        torch.set_rng_state(before)


def softmax(shape: tuple[int, ...], classes: int) -> nn.Module:
    linear = nn.Linear(prod(shape), classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.Flatten(), linear)


def sequential(layers: list[Layer], groups: int | None = None) -> nn.Sequential:
    """Build the layers. groups: of group normalisation; None for batch normalisation."""

    def build(layer: Layer) -> nn.Module:
        into, out = layer.into[0], layer.out[0]
        if layer.kind == "linear":
            return nn.Linear(into, out)
        if layer.kind == "pool":
            return nn.MaxPool2d(layer.size, layer.stride)
        if layer.kind != "conv":
            return nn.ReLU() if layer.kind == "relu" else nn.Flatten()
        convolution = nn.Conv2d(into, out, layer.size, padding=layer.padding)
        if not layer.norm:
            return convolution
        return nn.Sequential(convolution, nn.BatchNorm2d(out) if groups is None else nn.GroupNorm(groups, out))

    return nn.Sequential(*map(build, layers))


class LstmNetwork(nn.Module):
    """Maps (B, L) integers 0 .. symbols - 1 to (B, classes) logits."""

    def __init__(self, symbols: int, embedding: int, hidden: int, layers: int, classes: int):
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, classes)
        # On a GPU torch copies the weights into another order at each call and advises to keep that order. Here they
        # are views of another flat vector at each call; the copy is cheap compared to the work.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk", UserWarning)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step, _ = self.lstm(self.embedding(x.int()))
        return self.output(step[:, -1])


class FastTextNetwork(nn.Module):
    """Maps (B, L) word ids 0 .. symbols - 1 to (B, classes) logits by the mean embedding of words and bigrams.

    Each word has a row of the embedding. A bigram is hashed to one of ``buckets`` rows.
    padding  the id that is not a word; None if all ids are words
    """

    def __init__(self, symbols: int, buckets: int, embedding: int, classes: int, padding: int | None):
        super().__init__()
        self.symbols, self.buckets, self.padding = symbols, buckets, padding
        self.embedding = nn.Embedding(symbols + buckets, embedding)
        self.output = nn.Linear(embedding, classes)
        for weight in (self.embedding.weight, self.output.weight):
            nn.init.uniform_(weight, -0.5, 0.5)
        nn.init.zeros_(self.output.bias)

    def rows(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (B, M) rows of the embedding that each sample reads, words first, and (B, M) False for padding."""
        there = torch.ones_like(x, dtype=torch.bool) if self.padding is None else x != self.padding
        if not self.buckets:
            return x.long(), there
        first, second = x[:, :-1].long(), x[:, 1:].long()
        # Knuth's multiplicative hashing; products stay far below 2^63, so they are the same on every machine
        bigram = self.symbols + ((first * 2654435761 + second * 2246822519) >> 8) % self.buckets
        return torch.cat([x.long(), bigram], dim=1), torch.cat([there, there[:, :-1] & there[:, 1:]], dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row, there = self.rows(x)
        weight = self.embedding.weight
        share = there.to(weight.dtype)
        share = share / share.sum(dim=1, keepdim=True).clamp(min=1)  # the mean of a text without words is 0
        mean = nn.functional.embedding_bag(row, weight, per_sample_weights=share, mode="sum")
        return self.output(mean)


class Encoder(nn.Module):
    """Maps (B, L) ids to (B, classes) logits by the mean of an encoder's outputs over a text's tokens.

    body       a transformer of the package transformers
    padding    the id behind texts of fewer than L tokens
    separator  the id at the end of a text, for encoders that distinguish first and second texts; else None
    facts      architecture and size of the encoder
    reads      True if numbers of a mini-batch decide the operations, so that no graph can be captured
    """

    reads = True

    def __init__(self, body: Any, classes: int, padding: int, separator: int | None):
        super().__init__()
        self.body, self.padding, self.separator = body, padding, separator
        shape = body.config
        self.facts = {
            "model_type": shape.model_type,
            "layers": shape.num_hidden_layers,
            "hidden_size": shape.hidden_size,
        }
        self.output = nn.Linear(body.get_input_embeddings().embedding_dim, classes)
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)
        self.train()

    def train(self, mode: bool = True) -> Encoder:
        """Keep evaluation mode, without dropout."""
        return super().train(False)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the (B, E) inputs of the linear layer."""
        there = x != self.padding
        if self.reads:
            longest = int(there.sum(dim=1).max())  # common padding costs nothing
            x, there = x[:, :longest], there[:, :longest]
            mask = there.long()
        else:  # transformers would read a mask of two axes, to find out if it masks anything
            mask = torch.where(there, 0.0, torch.finfo(torch.float32).min)[:, None, None, :]
        x = x.long()
        which = {}
        if self.separator is not None:
            ends = x == self.separator
            which["token_type_ids"] = ((ends.cumsum(dim=1) - ends.long()) > 0).long() * there
        out = self.body(input_ids=x, attention_mask=mask, **which).last_hidden_state
        share = there.to(out.dtype)
        return torch.einsum("ble,bl->be", out, share / share.sum(dim=1, keepdim=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.features(x))

    def stop_reading(self, x: torch.Tensor) -> None:
        """Stop reading numbers of (B, L) ids, if the encoder's outputs stay the same."""
        with torch.no_grad():
            expected = self.features(x)
            self.reads = False
            try:
                self.reads = not torch.allclose(self.features(x), expected, rtol=1e-3, atol=1e-3)
            except (TypeError, ValueError, RuntimeError):  # the encoder does not take such a mask
                self.reads = True


def resnet(
    shape: tuple[int, ...], classes: int, groups: int | None, width: int, stages: Sequence[int], what: str
) -> nn.Sequential:
    """Return torchvision's ResNet with a stem for small images, as sequential layers with torchvision's names.

    groups  of group normalisation; None for batch normalisation
    width   channels of the first stage; torchvision's has 64
    stages  residual blocks of each stage, at most four numbers
    what    the setting that chose it, for the message without torchvision
    """
    resnet = torchvision(what).models.resnet
    base: Any = resnet.ResNet
    # gcd: the stem of 64 channels, replaced below, may have channels that the groups do not divide
    norm = nn.BatchNorm2d if groups is None else lambda channels: nn.GroupNorm(gcd(groups, channels), channels)

    class Scaled(base):
        def _make_layer(self, block, planes, *args, **more):
            if planes == 64:  # of the first stage, behind the stem
                self.inplanes = width
            return super()._make_layer(block, planes // 64 * width, *args, **more)

    module = Scaled(resnet.BasicBlock, [*stages, 1, 1, 1][:4], num_classes=classes, norm_layer=norm)
    stem = nn.Conv2d(shape[0], width, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")  # as its other convolutions
    layers: dict[str, nn.Module] = dict(module.named_children())
    for unused in ("maxpool", *(f"layer{number}" for number in range(len(stages) + 1, 5))):
        del layers[unused]
    layers |= {"conv1": stem, "relu": nn.ReLU()}  # not in place: a cut may be before it
    if (width, len(stages)) != (64, 4):
        layers |= {"bn1": norm(width), "fc": nn.Linear(2 ** (len(stages) - 1) * width, classes)}
    return nn.Sequential(OrderedDict([*list(layers.items())[:-1], ("flatten", nn.Flatten()), ("fc", layers["fc"])]))


class Patches(nn.Module):
    """Maps (B, C, H, W) images to (B, 1 + patches, width): class token and patches, with positions added."""

    def __init__(self, shape: tuple[int, ...], patch: int, width: int):
        super().__init__()
        self.embedding = nn.Conv2d(shape[0], width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 1 + shape[1] // patch * (shape[2] // patch), width) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.embedding(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(x), -1, -1), rows], dim=1) + self.positions


class TransformerBlock(nn.Module):
    """A transformer layer on (B, tokens, width): attention and a perceptron, each after a normalisation."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.queries_keys_values(self.before_attention(x)).unflatten(2, (3, self.heads, -1))
        attended = nn.functional.scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4))
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.before_perceptron(x))


class Head(nn.Module):
    """Maps (B, tokens, width) to (B, classes) logits of the class token."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.normalisation, self.output = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.normalisation(x[:, 0]))


def vit(
    shape: tuple[int, ...], classes: int, patch: int, width: int, heads: int, hidden: int, blocks: int
) -> nn.Sequential:
    layers = [TransformerBlock(width, heads, hidden) for _ in range(blocks)]
    return nn.Sequential(Patches(shape, patch, width), *layers, Head(width, classes))
