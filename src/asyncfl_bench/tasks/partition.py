"""Which client holds which training samples.

Legend: n clients, N training samples, C classes. ``split`` gives n sorted int64 index arrays that share no sample and
together hold all of them. Every draw comes from the stream `partition`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..errors import ConfigError
from ..randomness import Streams
from ..ranges import Checked, above, at_least
from ..types import Facts


@dataclass
class DirichletConfig(Checked):
    """
    alpha        concentration: small is skewed (each class with few clients), large is uniform
    min_samples  every client holds at least so many samples; a client without any uploads zeros
    tries        draws before the rest is repaired by moving samples
    """

    alpha: Annotated[float, above(0)] = 0.3
    min_samples: Annotated[int, at_least(0)] = 5
    tries: Annotated[int, at_least(1)] = 100

    def idle(self, facts: Facts) -> dict[str, str]:
        return {} if self.min_samples else {"tries": "with heterogeneity.min_samples=0: the first draw has it"}


class Dirichlet:
    """Every class is cut over the clients in shares drawn from Dirichlet(alpha, ..., alpha).

    Source   Hsu, Qi, Brown 2019 (arXiv:1909.06335) for the idea, in the class-wise form in common use
             (Yurochkin et al. 2019, arXiv:1905.12022)
    Minimum  All shares are drawn again, up to ``tries`` times, until every client has ``min_samples``. When none of the
             draws has it, the one that lacks fewest samples is repaired: the client with fewest takes a random sample
             from the client with most, until nobody is short. So it always ends, unless n min_samples > N, which is
             refused.
    Clients  The split is exchangeable: an offset makes a class's shares whole samples, so every client gets its
             share on average, and which client takes which column is drawn at the end.
    Effect   Redrawing leaves Dirichlet conditioned on the minimum. A repair moves samples from the largest clients to
             the smallest: sizes become more even and the smallest clients hold a mixture of the largest clients'
             classes, less skewed than alpha says. Only clients below the minimum gain, and only up to it. The number of
             moved samples is in ``moved`` and in the run's summary.
    Memory   n C integers for a draw; samples are assigned once, at the end.
    """

    Config = DirichletConfig
    moved = 0  # samples that the last split's repair moved

    def __init__(self, config: DirichletConfig):
        self.config = config

    def split(
        self, y_train: np.ndarray, n_clients: int, streams: Streams, natural: list[np.ndarray] | None = None
    ) -> list[np.ndarray]:
        least = self.config.min_samples
        if n_clients * least > len(y_train):
            allowed = f"must be at most {len(y_train) // n_clients}: {len(y_train)} samples over {n_clients} clients"
            raise ConfigError("min_samples", least, allowed)
        rng = streams.partition()
        _, label, size_c = np.unique(y_train, return_inverse=True, return_counts=True)
        count_cn = self._draw(size_c, n_clients, rng)
        self.moved = _repair(count_cn, least, rng)
        count_cn = count_cn[:, rng.permutation(n_clients)]
        held_n: list[list[np.ndarray]] = [[] for _ in range(n_clients)]
        for class_, count_n in enumerate(count_cn):
            samples = rng.permutation(np.flatnonzero(label == class_))
            for held, part in zip(held_n, np.split(samples, np.cumsum(count_n)[:-1]), strict=True):
                held.append(part)
        return [_sorted(np.concatenate(held)) for held in held_n]

    def _draw(self, size_c: np.ndarray, n_clients: int, rng: np.random.Generator) -> np.ndarray:
        """(C, n) samples of each class for each client: the first draw without a short client, or the least short."""
        alpha_n = np.full(n_clients, min(self.config.alpha, 1e12))  # above, the sum of n gammas could overflow
        best, best_short = None, None
        for _ in range(self.config.tries):
            share_cn = rng.dirichlet(alpha_n, size=len(size_c))
            offset_c = rng.random(len(size_c))  # E floor(a + U) = a: nobody's shares are rounded down on average
            edge_cn = np.floor(np.cumsum(share_cn, axis=1) * size_c[:, None] + offset_c[:, None]).astype(np.int64)
            edge_cn = np.minimum(edge_cn, size_c[:, None])
            edge_cn[:, -1] = size_c  # the shares' sum may miss 1 by rounding
            count_cn = np.diff(edge_cn, axis=1, prepend=0)
            short = np.maximum(self.config.min_samples - count_cn.sum(axis=0), 0).sum()
            if best_short is None or short < best_short:
                best, best_short = count_cn, short
            if short == 0:
                break
        assert best is not None  # tries >= 1
        return best


def _repair(count_cn: np.ndarray, least: int, rng: np.random.Generator) -> int:
    """Moves samples in place until every column of ``count_cn`` sums to ``least`` or more; returns how many."""
    size_n = count_cn.sum(axis=0)
    moved = 0
    while size_n[taker := int(size_n.argmin())] < least:
        giver = int(size_n.argmax())
        # one of the giver's samples, all equally likely: found by its rank among them
        class_ = int(np.searchsorted(np.cumsum(count_cn[:, giver]), rng.integers(size_n[giver]), side="right"))
        count_cn[class_, giver] -= 1
        count_cn[class_, taker] += 1
        size_n[giver] -= 1
        size_n[taker] += 1
        moved += 1
    return moved


@dataclass
class IidConfig:
    """No settings."""


class Iid:
    """Samples dealt at random; sizes differ by at most one."""

    Config = IidConfig
    moved = 0

    def __init__(self, config: IidConfig):
        self.config = config

    def split(
        self, y_train: np.ndarray, n_clients: int, streams: Streams, natural: list[np.ndarray] | None = None
    ) -> list[np.ndarray]:
        order = streams.partition().permutation(len(y_train))
        return [_sorted(part) for part in np.array_split(order, n_clients)]


@dataclass
class ShardsConfig(Checked):
    """
    shards_per_client  s; a client sees at most about s classes
    """

    shards_per_client: Annotated[int, at_least(1)] = 2


class Shards:
    """Samples sorted by label, cut into n s shards of equal size (to one sample), s random shards to each client.

    Source: McMahan et al. 2017, FedAvg, arXiv:1602.05629, section 3 (their s is 2).
    """

    Config = ShardsConfig
    moved = 0

    def __init__(self, config: ShardsConfig):
        self.config = config

    def split(
        self, y_train: np.ndarray, n_clients: int, streams: Streams, natural: list[np.ndarray] | None = None
    ) -> list[np.ndarray]:
        each = self.config.shards_per_client
        if n_clients * each > len(y_train):
            allowed = f"must be at most {len(y_train) // n_clients}: {len(y_train)} samples over {n_clients} clients"
            raise ConfigError("shards_per_client", each, allowed)
        rng = streams.partition()
        shuffled = rng.permutation(len(y_train))  # so that a shard is a random part of its class
        by_label = shuffled[np.argsort(np.asarray(y_train)[shuffled], kind="stable")]
        shards = np.array_split(by_label, n_clients * each)
        deal_ns = rng.permutation(n_clients * each).reshape(n_clients, each)
        return [_sorted(np.concatenate([shards[shard] for shard in deal])) for deal in deal_ns]


@dataclass
class NaturalConfig:
    """No settings."""


class Natural:
    """The clients the data set comes with; n_clients must be their number."""

    Config = NaturalConfig
    labels_only = False  # clients differ in more than their labels and sizes
    moved = 0

    def __init__(self, config: NaturalConfig):
        self.config = config

    def split(
        self, y_train: np.ndarray, n_clients: int, streams: Streams, natural: list[np.ndarray] | None = None
    ) -> list[np.ndarray]:
        if natural is None:
            allowed = "this data set has no clients of its own; use dirichlet, iid or shards"
            raise ConfigError("", "natural", allowed)  # the whole group is at fault, not one of its fields
        if len(natural) != n_clients:
            raise ConfigError("n_clients", n_clients, f"must be {len(natural)}, the clients this data set comes with")
        return [_sorted(part) for part in natural]


def _sorted(samples: np.ndarray) -> np.ndarray:
    return np.sort(samples).astype(np.int64)
