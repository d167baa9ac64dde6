"""Data sets whose samples belong to many clients: one .npz with all of them, and the choice of those that take part.

Arrays  x (N, ...) uint8; y (N,) integers; client (N,) integers, one id per sample; source, where the samples came from
Legend: N samples, n clients that take part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from ..errors import ConfigError
from ..randomness import Streams
from ..ranges import CheckedSettings, at_least, within
from .base import DataError, check_labels, samples_by_client, train_count
from .npz import file_version, load_cached, read_npz

# the client of each sample, x (M, ...) uint8 and y (M,)
PoolPart = tuple[Iterable[str], np.ndarray, np.ndarray]


@dataclass
class PoolConfig(CheckedSettings):
    """
    min_samples  n_clients clients are drawn among those with at least this number of samples
    max_samples  only this number of a client's samples, before the split
    test_share   share of a client's samples in the common test set
    download     true: download missing data once
    """

    min_samples: Annotated[int, at_least(2)] = 10
    max_samples: Annotated[int | None, at_least(2, null="for all of a client's samples")] = None
    test_share: Annotated[float, within("(0, 1)")] = 0.1
    download: bool = False


@dataclass
class Pool:
    """All samples of all clients; ``own_samples``: the indices of each client's."""

    path: Path
    x: np.ndarray
    y: np.ndarray
    own_samples: list[np.ndarray]
    source: str


def join_parts(parts: Iterable[PoolPart], source: str, looked_at: object = None) -> dict[str, np.ndarray]:
    """Join ``parts`` into the arrays of a pool. Raises DataError, which names ``looked_at``, if there are no samples.

    A client's id is its name's position among all sorted names. The same names give the same ids from any source and in
    any order of files. A client's samples keep their order.
    """
    number: dict[str, int] = {}
    x, y, client = [], [], []
    for names, x_part, y_part in parts:
        client.append(np.array([number.setdefault(name, len(number)) for name in names], dtype=np.int64))
        x.append(x_part)
        y.append(y_part)
    if not number:
        raise DataError(f"{looked_at or source}: there are no samples in it")
    place = np.empty(len(number), dtype=np.int32)
    place[[number[name] for name in sorted(number)]] = np.arange(len(number))
    return {
        "x": np.concatenate(x),
        "y": np.concatenate(y),
        "client": place[np.concatenate(client)],
        "source": np.array(source),
    }


def read_pool(path: Path, shape: tuple[int, ...], values: int, classes: int) -> Pool:
    """The pool in a file, read once in a process. DataError unless x is uint8 of ``shape`` below ``values`` and y is
    0 .. classes - 1."""
    return load_cached(file_version(path), lambda: _read_pool(path, shape, values, classes))


def _read_pool(path: Path, shape: tuple[int, ...], values: int, classes: int) -> Pool:
    arrays = read_npz(path, required=("x", "y", "client"), optional=("source",))
    x, y = arrays["x"], check_labels(path, arrays, "", classes)
    if x.dtype != np.uint8 or x.shape[1:] != shape:
        wanted = ", ".join(map(str, shape))
        raise DataError(f"{path}: x must be uint8 of shape (N, {wanted}), found {x.dtype} of shape {x.shape}")
    if x.max() >= values:
        raise DataError(f"{path}: x must hold 0 to {values - 1}, found {x.max()}")
    own_samples = samples_by_client(path, "client", arrays["client"], len(y))
    return Pool(path, x, y, own_samples, str(arrays.get("source", path.name)))


def split_pool(
    pool: Pool, config: PoolConfig, streams: Streams, n_clients: int, *, shuffled: bool
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Sample indices to train and to test, client after client, and each client's places among those to train.

    Clients  All of the pool are put in an order drawn from the run's seed; the first n of them that have min_samples
             samples take part. More clients are the same and further ones, and no other setting exchanges any.
    Split    Of each client's samples, max_samples at most, floor((1 - test_share) size) are to train, the last ones to
             test; ``shuffled`` puts them in an order drawn from the run's seed before, or else they stay as they are.
    Raises ConfigError when the pool has too few such clients.
    """
    order = streams.dataset().permutation(len(pool.own_samples))
    able = [int(client) for client in order if len(pool.own_samples[client]) >= config.min_samples]
    if len(able) < n_clients:
        they = f"the clients with dataset.min_samples={config.min_samples} samples or more"
        allowed = f"must be at most {len(able)}, {they} among the {len(order)} in {pool.path}"
        raise ConfigError("n_clients", n_clients, allowed)
    train, test, natural, start = [], [], [], 0
    for client in able[:n_clients]:
        own = pool.own_samples[client]
        if shuffled:
            own = own[streams.dataset(client, 1).permutation(len(own))]  # count 0 of client 0 drew the clients' order
        own = own[: config.max_samples]
        n_train = train_count(len(own), config.test_share)
        train.append(own[:n_train])
        test.append(own[n_train:])
        natural.append(np.arange(start, start + n_train, dtype=np.int64))
        start += n_train
    return np.concatenate(train), np.concatenate(test), natural
