"""FEMNIST: handwritten digits and letters, with their writers as clients."""

from __future__ import annotations

import reprlib
from contextlib import suppress
from typing import Any

import numpy as np

from .base import Scale
from .pool import PooledData
from .sources import PoolPart

CLASSES = 62  # digits, upper-case letters, lower-case letters, in this order
SIDE = 28  # pixels


class Femnist(PooledData):
    """LEAF's FEMNIST, 62 classes, (1, 28, 28) uint8, with its writers as clients (``heterogeneity=natural``).

    Files    ``<data_dir>/femnist.npz`` (arrays as in ``pool``). A missing file is made once, from LEAF's json files
             below ``<data_dir>/femnist/``, or from a download of `flwrlabs/femnist`, which was made with LEAF's code.
             Raises DataError if neither works.
    Pixels   as in LEAF, 0 .. 1, dark ink on white (1).
    Split    ``pool.split_pool``, shuffled, because a writer's samples may be sorted by kind.
    Source   Caldas et al. 2018, arXiv:1812.01097: 805 263 samples of 3 550 writers.
    """

    name, repository, shape, classes = "femnist", "flwrlabs/femnist", (SIDE, SIDE), CLASSES
    scale = Scale((0.0,), (1.0,))
    shuffled = True

    @staticmethod
    def convert_leaf(x: list, y: list) -> tuple[np.ndarray, np.ndarray]:
        pixel = None
        with suppress(ValueError, TypeError, OverflowError):  # lists of several lengths, no numbers, numbers too large
            pixel = np.asarray(x, dtype=np.float64)
        if pixel is None or pixel.shape != (len(x), SIDE * SIDE) or not (pixel.min() >= 0 and pixel.max() <= 1):
            raise ValueError(f"an image must be {SIDE * SIDE} pixels from 0 to 1")
        return np.rint(pixel * 255).astype(np.uint8).reshape(-1, SIDE, SIDE), _labels(y)

    @staticmethod
    def convert_hub(columns: dict[str, Any]) -> PoolPart:
        images = np.stack([np.asarray(image) for image in columns["image"]])
        if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE):
            raise ValueError(
                f"images must be uint8 of {SIDE}x{SIDE} pixels, found {images.dtype} of {images.shape[1:]}"
            )
        return columns["writer_id"], images, _labels(columns["character"])


def _labels(y: list) -> np.ndarray:
    for label in y:
        if type(label) is not int or not 0 <= label < CLASSES:
            raise ValueError(f"labels must be integers from 0 to {CLASSES - 1}, found {reprlib.repr(label)}")
    return np.array(y, dtype=np.uint8)
