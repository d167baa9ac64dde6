"""What every data set gives: plain arrays and the facts needed to use them.

Legend: N samples, C channels, H height, W width, F features, n clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import BenchError, ConfigError


class DataError(BenchError):
    """A data set that is missing, broken or not what its config says."""


class Scale(NamedTuple):
    """How uint8 pixels become floats: (pixel / 255 - mean) / std, one number per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass
class Data:
    """A data set in memory.

    x_train, x_test  (N, C, H, W) uint8 images, or (N, C, H, W) or (N, F) float32
    y_train, y_test  (N,) int64 labels, 0 .. classes - 1
    classes          number of labels
    scale            for uint8 images; None for floats, which are used as they are
    natural          sample indices of each client, for data that come with clients
    augmentable      whether random crops and flips make sense (colour photographs)
    x_validation, y_validation  samples held back from the training set, as ``hold_back`` makes them, or None
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    scale: Scale | None = None
    natural: list[np.ndarray] | None = None
    augmentable: bool = False
    x_validation: np.ndarray | None = None
    y_validation: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample: (C, H, W) or (F,)."""
        return self.x_train.shape[1:]


def hold_back(data: Data, share: float, generator: np.random.Generator) -> Data:
    """``data`` with a random share of its training samples moved to the validation set; natural clients keep the rest.

    Raises ConfigError when that leaves no training or no validation sample.
    """
    total = len(data.y_train)
    count = round(share * total)
    if not 0 < count < total:
        raise ConfigError("evaluation.validation_share", share, f"must leave samples on both sides of {total}")
    held = np.zeros(total, dtype=bool)
    held[generator.permutation(total)[:count]] = True
    natural = None
    if data.natural is not None:
        place = np.cumsum(~held) - 1  # of each sample among those that stay
        natural = [place[part[~held[part]]] for part in data.natural]
    return replace(
        data,
        x_train=data.x_train[~held],
        y_train=data.y_train[~held],
        x_validation=data.x_train[held],
        y_validation=data.y_train[held],
        natural=natural,
    )


def checked_labels(path: Path, arrays: dict[str, np.ndarray], split: str, classes: int | None) -> np.ndarray:
    """The split's labels as (N,) int64. DataError unless they are integers 0 .. classes - 1, one per sample."""
    x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
    name = f"{path}: y_{split}"
    if not np.issubdtype(y.dtype, np.integer) or y.ndim != 1:
        raise DataError(f"{name} must be a one-dimensional array of integers, found {y.dtype} of shape {y.shape}")
    if x.ndim == 0 or len(x) != len(y):
        raise DataError(f"{name} has {len(y)} labels, x_{split} has shape {x.shape}: one label per sample is needed")
    if len(y) == 0:
        raise DataError(f"{path}: the {split} set has no samples")
    if y.min() < 0 or (classes is not None and y.max() >= classes):
        allowed = "integers >= 0" if classes is None else f"integers 0 to {classes - 1}"
        raise DataError(f"{name} must hold {allowed}, found {y.min()} to {y.max()}")
    return y.astype(np.int64)


def channels_first(x: np.ndarray) -> np.ndarray:
    """(N, H, W) or (N, H, W, C) images as a contiguous (N, C, H, W) array."""
    return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))
