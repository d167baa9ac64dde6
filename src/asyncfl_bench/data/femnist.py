"""FEMNIST: handwritten digits and letters whose writers are the clients."""

from __future__ import annotations

import reprlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..randomness import Streams
from .base import DATA_DIRECTORY, Data, DataSet, Scale, channels_first
from .npz import build_cached
from .pool import PoolConfig, PoolPart, join_parts, read_pool, split_pool

CLASSES = 62  # digits, upper-case letters, lower-case letters, in this order
SIDE = 28  # pixels
REPOSITORY = "flwrlabs/femnist"


class Femnist(DataSet):
    """LEAF's FEMNIST, 62 classes, (1, 28, 28) uint8, with its writers as clients (``heterogeneity=natural``).

    Files    ``<data_dir>/femnist.npz`` (arrays as in ``pool``). Else it is made, once, of LEAF's own json files below
             ``<data_dir>/femnist/`` or of a download of `flwrlabs/femnist`, which was made with LEAF's code; DataError
             when neither works.
    Pixels   as LEAF gives them, 0 .. 1, dark ink on white (1).
    Clients  and the split: ``pool.split_pool``, shuffled, since a writer's samples may come sorted by kind.
    Source   Caldas et al. 2018, arXiv:1812.01097: 805 263 samples of 3 550 writers.
    """

    Config = PoolConfig
    loads_once = True

    def load(self, data_dir: Path, streams: Streams, n_clients: int) -> Data:
        pool = read_pool(self.file(Path(data_dir)), (SIDE, SIDE), values=256, classes=CLASSES)
        train, test, natural = split_pool(pool, self.config, streams, n_clients, shuffled=True)
        return Data(
            channels_first(pool.x[train]),
            pool.y[train],
            channels_first(pool.x[test]),
            pool.y[test],
            CLASSES,
            Scale((0.0,), (1.0,)),
            natural,
            source=pool.source,
        )

    def file(self, data_dir: Path) -> Path:
        """Return ``femnist.npz``, made if need be. Raises DataError."""
        path, folder = data_dir / "femnist.npz", data_dir / "femnist"
        if path.exists():
            return path
        looked = f"{path} (arrays x, y, client) and {folder}/**/*.json (LEAF's own)"
        ways_out = f"Looked for {looked}. `dataset.download=true` downloads it. {DATA_DIRECTORY}"

        def make() -> dict[str, np.ndarray]:
            from . import sources  # here only: with the file there is no need of them

            if files := sources.leaf_files(folder):
                return join_parts(sources.leaf_parts(files, _from_leaf), "json files of LEAF's", folder)
            parts = sources.hub_parts(REPOSITORY, _from_hub, data_dir, ways_out, self.config.download)
            return join_parts(parts, REPOSITORY)

        return build_cached(path, make, ways_out)


def _from_leaf(x: list, y: list) -> tuple[np.ndarray, np.ndarray]:
    pixel = None
    with suppress(ValueError, TypeError, OverflowError):  # lists of several lengths, no numbers, numbers too large
        pixel = np.asarray(x, dtype=np.float64)
    if pixel is None or pixel.shape != (len(x), SIDE * SIDE) or not (pixel.min() >= 0 and pixel.max() <= 1):
        raise ValueError(f"an image must be {SIDE * SIDE} pixels from 0 to 1, found {_find_odd_image(x)}")
    return np.rint(pixel * 255).astype(np.uint8).reshape(-1, SIDE, SIDE), _labels(y)


def _find_odd_image(x: list) -> str:
    """Return what is wrong with the first image that is not a list of pixels from 0 to 1."""
    for image in x:
        if not isinstance(image, list):
            return reprlib.repr(image)
        if len(image) != SIDE * SIDE:
            return f"{len(image)} pixel{'s' * (len(image) != 1)}"
        for pixel in image:
            if not isinstance(pixel, (int, float)) or not 0 <= pixel <= 1:
                return f"the pixel {reprlib.repr(pixel)}"
    return f"{len(x)} images"


def _from_hub(columns: dict[str, Any]) -> PoolPart:
    images = np.stack([np.asarray(image) for image in columns["image"]])
    if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE):
        raise ValueError(f"images must be uint8 of {SIDE}x{SIDE} pixels, found {images.dtype} of {images.shape[1:]}")
    return columns["writer_id"], images, _labels(columns["character"])


def _labels(y: list) -> np.ndarray:
    for label in y:
        if type(label) is not int or not 0 <= label < CLASSES:
            raise ValueError(f"labels must be integers from 0 to {CLASSES - 1}, found {reprlib.repr(label)}")
    return np.array(y, dtype=np.uint8)
