"""LEAF's data sets: one .npz file with the samples of many clients, of which n take part in a run.

Arrays  x (N, ...) uint8; y (N,) integers; client (N,) integers, one id per sample; source, the origin of the samples
Legend: N samples, n clients that take part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ..errors import ConfigError
from ..randomness import Streams
from ..ranges import CheckedSettings, at_least, within
from . import sources
from .base import (
    Data,
    DataError,
    DataSet,
    Scale,
    channels_first,
    check_labels,
    describe_search,
    samples_by_client,
    train_count,
)
from .npz import build_cached, file_version, load_cached, read_npz
from .sources import PoolPart


@dataclass
class PoolConfig(CheckedSettings):
    """
    min_samples  fewest samples of a client; n_clients clients are drawn among these
    max_samples  most samples of a client that are used, before the split
    test_share   share of a client's samples in the common test set
    download     true: download missing data once
    """

    min_samples: Annotated[int, at_least(2)] = 10
    max_samples: Annotated[int | None, at_least(2, null="for all of a client's samples")] = None
    test_share: Annotated[float, within("(0, 1)")] = 0.1
    download: bool = False


@dataclass
class Pool:
    """All samples of all clients. own_samples: the indices of each client's samples"""

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
    rank = np.empty(len(number), dtype=np.int32)
    rank[[number[name] for name in sorted(number)]] = np.arange(len(number))
    return {
        "x": np.concatenate(x),
        "y": np.concatenate(y),
        "client": rank[np.concatenate(client)],
        "source": np.array(source),
    }


def read_pool(path: Path, shape: tuple[int, ...], values: int, classes: int) -> Pool:
    """Read a file. Raises DataError unless x is uint8 of ``shape`` below ``values`` and y is 0 .. classes - 1."""
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
    """Return the indices of training and test samples by client, and each client's positions among the former.

    Clients  All clients are ordered by a draw from the run's seed. The first n with min_samples samples take part, so
             a larger n only adds clients.
    Split    Of a client's samples (at most max_samples) the first floor((1 - test_share) size) are for training.
             ``shuffled`` orders them by a draw from the run's seed before.
    Raises ConfigError if the pool has too few such clients.
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


class PooledData(DataSet):
    """Base of LEAF's data sets, whose clients are the natural ones (``heterogeneity=natural``).

    name           of ``<data_dir>/NAME.npz``, and of the folder with LEAF's json files
    repository     on Hugging Face, of data made by LEAF's code
    convert_leaf, convert_hub  see ``sources.leaf_parts`` and ``sources.hub_parts``
    read_other     returns the arrays of a pool from one of ``other_files``
    shape, values  of a sample x, whose numbers are below ``values``; other facts as in ``Data``
    shuffled       see ``split_pool``
    """

    config: PoolConfig
    loads_once = True
    name, repository = "", ""
    convert_leaf: Any
    convert_hub: Any
    read_other: Any
    shape: tuple[int, ...]
    classes: int
    values = 256
    symbols: int | None = None
    scale: Scale | None = None
    shuffled = False

    def load(self, data_dir: Path, streams: Streams, n_clients: int) -> Data:
        path = self.file(Path(data_dir))
        pool = load_cached(file_version(path), lambda: read_pool(path, self.shape, self.values, self.classes))
        train, test, natural = split_pool(pool, self.config, streams, n_clients, shuffled=self.shuffled)
        x_train, x_test = pool.x[train], pool.x[test]
        if len(self.shape) == 2:
            x_train, x_test = channels_first(x_train), channels_first(x_test)
        samples = (x_train, pool.y[train], x_test, pool.y[test])
        return Data(*samples, self.classes, self.scale, natural, symbols=self.symbols, source=pool.source)

    def file(self, data_dir: Path) -> Path:
        """Return the file of the pool, which is made if it is missing. Raises DataError."""
        path, folder, download = data_dir / f"{self.name}.npz", data_dir / self.name, self.config.download
        if path.exists():
            return path
        others = self.other_files(data_dir)
        ways_out = describe_search(f"{path} (arrays x, y, client)", f"{folder}/**/*.json (LEAF's own)", *others)

        def make() -> dict[str, np.ndarray]:
            if files := sources.leaf_files(folder):
                return join_parts(sources.leaf_parts(files, self.convert_leaf), "json files of LEAF's", folder)
            if other := next(filter(Path.exists, others), None):
                return self.read_other(other)
            parts = sources.hub_parts(self.repository, self.convert_hub, data_dir, ways_out, download)
            return join_parts(parts, self.repository)

        return build_cached(path, make, ways_out)

    def other_files(self, data_dir: Path) -> list[Path]:
        """Return further files with samples."""
        return []
