"""Splits of the training samples over the clients.

Legend: n clients, N training samples, C classes, K groups of clients. ``split`` returns n sorted int64 index arrays
that are disjoint and together have all samples. Every draw is from the stream `partition`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..errors import ConfigError, check
from ..randomness import Streams
from ..ranges import CheckedSettings, Configured, Count, NonNegative, Positive, at_least, greater_than
from ..types import ClientTable, Facts

Parts = list[np.ndarray]  # sample indices of each client


@dataclass
class PartitionConfig(CheckedSettings):
    """Base of the settings of a split."""

    @property
    def planted_groups(self) -> int:
        """Number of client groups with one label mix each; 0 without groups."""
        return 0


class Split(Configured, ABC):
    """Base of all splits.

    moved        samples that the last split moved so that each client has the minimum
    groups_n     (n,) planted group of each client in the last split, 0 .. K-1; None without groups
    labels_only  clients only differ in labels and sizes
    """

    config: PartitionConfig
    moved = 0
    groups_n: np.ndarray | None = None
    labels_only = True

    @abstractmethod
    def split(self, y_train: np.ndarray, n_clients: int, streams: Streams, natural: Parts | None = None) -> Parts:
        """Return n index arrays, see above. natural: those of the natural clients, or None"""


@dataclass
class DirichletConfig(PartitionConfig):
    """
    alpha        concentration: 0.1 is very skewed (each class with few clients), 100 nearly uniform
    min_samples  minimum number of a client's samples; an empty client uploads zeros
    tries        draws until all clients have the minimum; then samples move from the largest clients to the short ones
    cap          true: classes are dealt one after another, and a client with N / n samples gets no further classes |
                 false: only the shares determine the number of a client's samples
    """

    alpha: Positive = 0.3
    min_samples: Annotated[int, at_least(0)] = 5
    tries: Count = 100
    cap: bool = False

    def idle(self, facts: Facts) -> dict[str, str]:
        return {} if self.min_samples else {"tries": "with heterogeneity.min_samples=0: the first draw has it"}


class Dirichlet(Split):
    """Each class is split over the clients in shares drawn from Dirichlet(alpha, ..., alpha).

    Source   Hsu, Qi, Brown 2019 (arXiv:1909.06335) for the idea, in the usual class-wise form (Yurochkin et al. 2019,
             arXiv:1905.12022)
    Minimum  All shares are drawn again, up to ``tries`` times, until every client has ``min_samples``. If no draw has
             it, the draw that lacks fewest samples is repaired: the smallest client takes a random sample from the
             largest one, until no client is short. n min_samples > N is refused.
    Cap      ``cap`` makes sizes less uneven: no client is larger than N / n and one class. The released code of GAS
             (Yang, Liu 2024) and others deal like this.
    Clients  The split is exchangeable: a random offset rounds shares to whole samples, so every client gets its share
             on average. The columns are permuted at the end.
    Effect   Redrawing gives Dirichlet conditioned on the minimum. A repair makes sizes more even, and gives the
             smallest clients a mixture of the largest clients' classes, less skewed than alpha. Only clients below the
             minimum gain, and only up to it. The number of moved samples is in ``moved`` and in the run's summary.
    Memory   n C integers for a draw; samples are assigned once, at the end.
    """

    config: DirichletConfig

    def split(self, y_train: np.ndarray, n_clients: int, streams: Streams, natural: Parts | None = None) -> Parts:
        least = self.config.min_samples
        _check_samples("min_samples", least, len(y_train), n_clients)
        rng = streams.partition()
        _, label, size_c = np.unique(y_train, return_inverse=True, return_counts=True)
        count_cn = self._draw(size_c, n_clients, rng)
        self.moved = _repair(count_cn, least, rng)
        return [_sorted(held) for held in _deal_classes(label, count_cn[:, rng.permutation(n_clients)], rng)]

    def _draw(self, size_c: np.ndarray, n_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return (C, n) samples of each class for each client: the first draw without a short client, or the best."""
        alpha_n = np.full(n_clients, min(self.config.alpha, 1e12))  # above, the sum of n gammas could overflow
        best, best_short = None, None
        for _ in range(self.config.tries):
            share_cn = rng.dirichlet(alpha_n, size=len(size_c))
            count_cn = (_round_capped_shares if self.config.cap else _round_shares)(share_cn, size_c, rng)
            short = np.maximum(self.config.min_samples - count_cn.sum(axis=0), 0).sum()
            if best_short is None or short < best_short:
                best, best_short = count_cn, short
            if short == 0:
                break
        assert best is not None  # tries >= 1
        return best


def _check_samples(name: str, each: int, total: int, n_clients: int) -> None:
    """Raise ConfigError if there are too few samples for a setting that needs as many of each client."""
    allowed = f"at most {total // n_clients}: {total} samples over {n_clients} clients"
    check(n_clients * each <= total, name, each, allowed)


def _deal_classes(label: np.ndarray, count_cn: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the samples of each column of the (C, n) counts, dealt at random class by class."""
    pieces_cn = [
        np.split(rng.permutation(np.flatnonzero(label == class_)), np.cumsum(count_n)[:-1])
        for class_, count_n in enumerate(count_cn)
    ]
    return [np.concatenate(pieces) for pieces in zip(*pieces_cn, strict=True)]


def _round_shares(share_cn: np.ndarray, size_c: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return (C, n) whole samples of each class, whose mean is exact. Shares sum to 1 over n."""
    offset_c = rng.random(len(size_c))  # E floor(a + U) = a: no class's shares are rounded down on average
    edge_cn = np.floor(np.cumsum(share_cn, axis=1) * size_c[:, None] + offset_c[:, None]).astype(np.int64)
    edge_cn = np.minimum(edge_cn, size_c[:, None])
    edge_cn[:, -1] = size_c  # the shares' sum may miss 1 by rounding
    return np.diff(edge_cn, axis=1, prepend=0)


def _round_capped_shares(share_cn: np.ndarray, size_c: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Round shares class by class. The shares of clients with N / n samples go to other clients."""
    held_n, count_cn = np.zeros(share_cn.shape[1], dtype=np.int64), []
    for share_n, size in zip(share_cn, size_c, strict=True):
        open_n = held_n < size_c.sum() / len(held_n)  # at least one: the class itself has not been dealt
        share_n = share_n * open_n if (share_n * open_n).sum() > 0 else open_n
        count_cn.append(_round_shares(share_n[None] / share_n.sum(), np.array([size]), rng)[0])
        held_n += count_cn[-1]
    return np.stack(count_cn)


def _repair(count_cn: np.ndarray, least: int, rng: np.random.Generator) -> int:
    """Move samples in place until every column of ``count_cn`` sums to ``least``. Returns the moved samples."""
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
class ClustersConfig(PartitionConfig):
    """
    groups        K, groups of clients with one label mix each, at most n_clients; the paper: 1, 3, 5, 10
    alpha         each class is split over the groups in Dirichlet(alpha) shares: 0.1 is very skewed, 100 nearly uniform
    volume_sigma  standard deviation of the logarithm of a client's number of samples; 0: equal numbers
    min_samples   minimum number of a client's samples; an empty client uploads zeros
    """

    groups: Count = 5
    alpha: Annotated[float | None, greater_than(0, null="for whole classes, class c in group c modulo groups")] = 0.1
    volume_sigma: NonNegative = 1.0
    min_samples: Annotated[int, at_least(0)] = 2

    @property
    def planted_groups(self) -> int:
        return self.groups

    def idle(self, facts: Facts) -> dict[str, str]:
        return {} if self.groups > 1 else {"alpha": "with heterogeneity.groups=1, which has all of every class"}


class Clusters(Split):
    """Groups of clients: label mixes differ between groups and are equal within one; all clients' sizes differ.

    Source   Lu et al. 2025, AFBS, arXiv:2506.12754, section 4 (K groups, alpha = 0.1, volumes log-normal with 1)
    Split    Each class is split over the K groups in shares from Dirichlet(alpha, ..., alpha). A group has n / K
             clients, the first groups one more if K does not divide n; the clients are drawn. Their sizes are
             proportional to log-normal draws and sum to the group's samples, which are dealt at random. Without alpha
             class c is in group c mod K as a whole.
    Minimum  All shares are drawn again until every group has 5 % of N / K samples, and enough for its clients' minimum.
             After TRIES draws the settings are refused. Short clients get samples from their group's largest client.
    Differs  The paper does not define the Dirichlet draw. FLGo, the authors' framework, draws class shares for each
             group from Dirichlet(alpha p) with p the class shares in the data: with 100 classes of alpha / 100 each a
             group has hardly more than one class.
    """

    config: ClustersConfig
    TRIES, LEAST_SHARE = 1000, 0.05

    def split(self, y_train: np.ndarray, n_clients: int, streams: Streams, natural: Parts | None = None) -> Parts:
        config, total, rng = self.config, len(y_train), streams.partition()
        check(config.groups <= n_clients, "groups", config.groups, f"at most the number of clients ({n_clients})")
        _check_samples("min_samples", config.min_samples, total, n_clients)
        clients_k = [len(part) for part in np.array_split(np.arange(n_clients), config.groups)]
        _, label, size_c = np.unique(y_train, return_inverse=True, return_counts=True)
        samples_k = _deal_classes(label, self._draw(size_c, np.array(clients_k), rng), rng)
        order = rng.permutation(n_clients)  # of clients over the groups
        self.groups_n = np.repeat(np.arange(config.groups), clients_k)[order]
        self.moved = 0
        held: Parts = []
        for samples, clients in zip(samples_k, clients_k, strict=True):
            log_n = config.volume_sigma * rng.standard_normal(clients)
            volume_n = np.exp(log_n - log_n.max())  # the largest is 1, whatever sigma
            size_1n = _round_shares(volume_n[None] / volume_n.sum(), np.array([len(samples)]), rng)
            self.moved += _repair(size_1n, config.min_samples, rng)
            held += np.split(rng.permutation(samples), np.cumsum(size_1n[0])[:-1])
        return [_sorted(held[index]) for index in order]

    def _draw(self, size_c: np.ndarray, clients_k: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return (C, K) samples of each class for each group."""
        config, groups = self.config, len(clients_k)
        least_k = np.maximum(self.LEAST_SHARE * size_c.sum() / groups, config.min_samples * clients_k)
        if config.alpha is None:
            count_ck = size_c[:, None] * (np.arange(len(size_c))[:, None] % groups == np.arange(groups))
            allowed = "fewer, or alpha a number: whole classes leave some group all but empty"
            check(bool((count_ck.sum(axis=0) >= least_k).all()), "groups", groups, allowed)
            return count_ck
        for _ in range(self.TRIES):
            share_ck = rng.dirichlet(np.full(groups, min(config.alpha, 1e12)), size=len(size_c))
            count_ck = _round_shares(share_ck, size_c, rng)
            if (count_ck.sum(axis=0) >= least_k).all():
                return count_ck
        allowed = f"must be fewer, or alpha={config.alpha:g} larger: in {self.TRIES} draws some group was all but empty"
        raise ConfigError("groups", groups, allowed)


class Iid(Split):
    """Samples dealt at random; sizes differ by at most one."""

    def split(self, y_train: np.ndarray, n_clients: int, streams: Streams, natural: Parts | None = None) -> Parts:
        order = streams.partition().permutation(len(y_train))
        return [_sorted(part) for part in np.array_split(order, n_clients)]


@dataclass
class ShardsConfig(PartitionConfig):
    """
    shards_per_client  s, about the number of a client's classes; 2 in the FedAvg paper
    per_class          true: each class is cut separately, into n s / C shards (a whole number), so that no client has
                       more than s classes | false: all samples are cut together, sorted by label
    """

    shards_per_client: Count = 2
    per_class: bool = False


class Shards(Split):
    """Samples sorted by label, cut into n s shards of equal size (to one sample), s random shards to each client.

    Source: McMahan et al. 2017, FedAvg, arXiv:1602.05629, section 3 (their s is 2). ``per_class`` is the split that GAS
    (Yang, Liu 2024) and others call shard = s. They drop remaining samples; here shards of a class differ by at most
    one sample.
    """

    config: ShardsConfig

    def split(self, y_train: np.ndarray, n_clients: int, streams: Streams, natural: Parts | None = None) -> Parts:
        each = self.config.shards_per_client
        _check_samples("shards_per_client", each, len(y_train), n_clients)
        rng = streams.partition()
        shuffled = rng.permutation(len(y_train))  # so that a shard is a random part of its class
        by_label = shuffled[np.argsort(np.asarray(y_train)[shuffled], kind="stable")]
        shards = self._cut(by_label, np.bincount(y_train), n_clients * each)
        deal_ns = rng.permutation(n_clients * each).reshape(n_clients, each)
        return [_sorted(np.concatenate([shards[shard] for shard in deal])) for deal in deal_ns]

    def _cut(self, by_label: np.ndarray, size_c: np.ndarray, count: int) -> list[np.ndarray]:
        if not self.config.per_class:
            return np.array_split(by_label, count)
        size_c = size_c[size_c > 0]
        allowed = f"false: {count} shards are no multiple of the {len(size_c)} classes"
        check(count % len(size_c) == 0, "per_class", True, allowed)
        classes = np.split(by_label, np.cumsum(size_c)[:-1])
        return [shard for samples in classes for shard in np.array_split(samples, count // len(size_c))]


class Natural(Split):
    """The natural clients of the data set, whose number must be n_clients."""

    labels_only = False

    def split(self, y_train: np.ndarray, n_clients: int, streams: Streams, natural: Parts | None = None) -> Parts:
        if natural is None:
            allowed = "this data set has no natural clients; use dirichlet, clusters, iid or shards"
            raise ConfigError("", "natural", allowed)  # the group is wrong, not one of its fields
        if len(natural) != n_clients:
            raise ConfigError("n_clients", n_clients, f"must be {len(natural)}, the clients this data set comes with")
        return [_sorted(part) for part in natural]


def count_samples(partition: Parts, y_train: np.ndarray, classes: int, groups_n: np.ndarray | None) -> ClientTable:
    """Count the samples of each class that each client of a split has."""
    samples_n = np.array([len(samples) for samples in partition], dtype=np.int64)
    labels_nc = np.stack([np.bincount(y_train[samples], minlength=classes) for samples in partition])
    return ClientTable(samples_n, labels_nc, groups_n)


def _sorted(samples: np.ndarray) -> np.ndarray:
    return np.sort(samples).astype(np.int64)
