"""Data sets as plain arrays with facts about them.

Legend: N samples, C channels, H height, W width, F features, L tokens, n clients.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..errors import ConfigError, InputError
from ..ranges import CheckedSettings, Configured

T = TypeVar("T")
# end of messages about data that are missing
DATA_DIRECTORY = (
    "The data directory is set by `data_dir=` or the environment variable ASYNCFL_BENCH_DATA; "
    "`dataset=digits` runs offline."
)


def describe_search(*searched: object) -> str:
    """Return where samples were looked for, and how to get them, for messages about missing data."""
    *others, last = map(str, searched)
    looked = f"{', '.join(others)} and {last}" if others else last
    return f"Looked for {looked}. `dataset.download=true` downloads it. {DATA_DIRECTORY}"


class DataError(InputError):
    """A data set is missing, broken or does not fit its config."""


class MissingData(DataError):
    """A data set is missing, and a download may help."""


def read_json_lines(path: Path, wanted: str, convert: Callable[[Any], T]) -> Iterator[T]:
    """Yield what ``convert`` returns for the value of each line. Raises DataError with the number of a wrong line.

    wanted   what a value must have;  convert  may raise for another value
    """
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    found = convert(json.loads(line))
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                    raise DataError(f"{path}, line {number}: must be a json object with {wanted}") from error
                yield found
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        wanted = "must be a file in UTF-8 with a json object on each line"
        raise DataError(f"{path}: not a readable text ({reason}); {wanted}") from error


class PrivateConfig(CheckedSettings):
    """Settings of data that each client keeps private, so that they must not be pooled."""

    def content_digest(self) -> str | None:
        """Return a digest of the files in ``folder``, as part of the identity; None without files."""
        return None


class DataSet(Configured):
    """Base of all data sets. ``load(data_dir, streams, n_clients)`` reads and returns ``Data``.

    loads_once  a second ``load`` in a process is free, so that a run checks its data before torch is imported
    """

    loads_once = False

    @staticmethod
    def count_clients(section: Mapping[str, Any]) -> int | None:
        """Return the number of natural clients of these settings; None without natural clients."""
        return None

    def file(self, data_dir: Path) -> Path | None:
        """Return the file with the samples in the data directory, made or downloaded if needed.

        None without such a file, or if its content is part of the identity. Raises MissingData.
        """
        return None

    def outline(self) -> Outline | None:
        """Return facts that are known without reading the data; None if there are none."""
        return None


class Outline(NamedTuple):
    """Facts about a named data set: shape of a sample, classes and training samples."""

    shape: tuple[int, ...]
    classes: int
    train_samples: int


class Scale(NamedTuple):
    """Conversion of uint8 pixels to floats: (pixel / 255 - mean) / std, by channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass
class Data:
    """A data set in memory.

    x_train, x_test  (N, C, H, W) uint8 images, (N, C, H, W) or (N, F) float32, or (N, L) uint8 or int32 token ids
    y_train, y_test  (N,) int64 labels, 0 .. classes - 1
    classes          number of labels
    scale            conversion of uint8 images; None for floats and token ids, which are not converted
    symbols          number of token ids, 0 .. symbols - 1; None for numbers
    padding          the id behind samples of fewer than L tokens; None if all have L
    natural          sample indices of each natural client, or None
    augmentable      True if random crops and flips make sense (colour photographs)
    x_other          samples that are neither for training nor for tests, or None
    source           origin of the samples, for data with several possible origins
    x_validation, y_validation  validation samples (``hold_back``), or None
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    scale: Scale | None = None
    natural: list[np.ndarray] | None = None
    augmentable: bool = False
    symbols: int | None = None
    padding: int | None = None
    x_other: np.ndarray | None = None
    source: str | None = None
    x_validation: np.ndarray | None = None
    y_validation: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: (C, H, W), (F,) or (L,)."""
        return self.x_train.shape[1:]

    @functools.cached_property
    def digest(self) -> str:
        """Digest that identifies the samples."""
        return digest_arrays(self.x_train, self.y_train, self.x_test, self.y_test)


def digest_arrays(*arrays: np.ndarray, before: str = "") -> str:
    """Return a digest of 16 hex digits. before: digest that is continued.

    Only the shape of floats counts, as the last bit of generated data differs between machines.
    """
    hashed = hashlib.blake2b(before.encode(), digest_size=8)
    for array in arrays:
        hashed.update(str(array.shape).encode())
        if array.dtype.kind in "iu":
            hashed.update(np.ascontiguousarray(array).data)
    return hashed.hexdigest()


def hold_back(data: Data, share: float, generator: np.random.Generator) -> Data:
    """Return ``data`` with a random share of the training samples moved to the validation set.

    Raises ConfigError if one of the sets would be empty.
    """
    total = len(data.y_train)
    count = round(share * total)
    if not 0 < count < total:
        raise ConfigError("evaluation.validation_share", share, f"must leave samples on both sides of {total}")
    held = draw_samples(total, count, generator)
    return replace(remove_samples(data, held), x_validation=data.x_train[held], y_validation=data.y_train[held])


def draw_samples(total: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return (total,) bool that is True for ``count`` random samples."""
    held = np.zeros(total, dtype=bool)
    held[generator.permutation(total)[:count]] = True
    return held


def remove_samples(data: Data, held: np.ndarray) -> Data:
    """Return ``data`` without the training samples where ``held`` (N,) is True. Natural clients keep the rest."""
    natural = None
    if data.natural is not None:
        new_index = np.cumsum(~held) - 1  # of each sample among the remaining ones
        natural = [new_index[part[~held[part]]] for part in data.natural]
    return replace(data, x_train=data.x_train[~held], y_train=data.y_train[~held], natural=natural)


def check_labels(path: object, arrays: dict[str, np.ndarray], suffix: str, classes: int | None) -> np.ndarray:
    """Return the labels `y<suffix>` as (N,) int64.

    Raises DataError unless they are integers 0 .. classes - 1, one for each sample in `x<suffix>`.
    """
    x, y = arrays[f"x{suffix}"], arrays[f"y{suffix}"]
    name = f"{path}: y{suffix}"
    if not np.issubdtype(y.dtype, np.integer) or y.ndim != 1:
        raise DataError(f"{name} must be a one-dimensional array of integers, found {y.dtype} of shape {y.shape}")
    if x.ndim == 0 or len(x) != len(y):
        raise DataError(f"{name} has {len(y)} labels, x{suffix} has shape {x.shape}: one label per sample is needed")
    if len(y) == 0:
        raise DataError(f"{path}: x{suffix} has no samples")
    last = (classes or 2**63) - 1  # a larger unsigned integer would become negative
    if y.min() < 0 or int(y.max()) > last:
        allowed = f"integers 0 to {last}" if classes else "classes numbered from 0"
        raise DataError(f"{name} must hold {allowed}, found {y.min()} to {y.max()}")
    return y.astype(np.int64)


def samples_by_client(path: object, name: str, client: np.ndarray, samples: int) -> list[np.ndarray]:
    """Return the sample indices (int64, ascending) of each client, by ascending id.

    Raises DataError unless array ``name`` has an id >= 0 for each sample.
    """
    if not np.issubdtype(client.dtype, np.integer) or client.shape != (samples,):
        found = f"found {client.dtype} of shape {client.shape}"
        raise DataError(f"{path}: {name} must be {samples} integers, one per sample, {found}")
    if client.min() < 0:
        raise DataError(f"{path}: {name} must hold client ids >= 0, found {client.min()}")
    _, first = np.unique(np.sort(client), return_index=True)
    return np.split(np.argsort(client, kind="stable").astype(np.int64), first[1:])


def train_count(samples: int, test_share: float) -> int:
    """Return floor((1 - test_share) samples) with at least one sample on either side, of two samples or more."""
    # 1e-9: 0.9 * 50 must not fall below 45 by rounding
    return min(max(int((1 - test_share) * samples + 1e-9), 1), samples - 1)


def channels_first(x: np.ndarray) -> np.ndarray:
    """Return (N, H, W) or (N, H, W, C) images as a contiguous (N, C, H, W) array."""
    return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))
