"""Data sets of real samples in arrays: digits, five image sets, and the user's own file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ..errors import check, list_some
from ..files import atomic_write, cache_folder, existing_file, expand_home
from ..randomness import Streams
from ..ranges import CheckedSettings, at_least, one_of, within
from . import sources
from .base import (
    Data,
    DataError,
    DataSet,
    MissingData,
    Outline,
    Scale,
    channels_first,
    check_labels,
    describe_search,
    samples_by_client,
)
from .npz import ARRAYS, build_cached, file_version, load_cached, read_npz


@dataclass
class DigitsConfig(CheckedSettings):
    """
    split_seed  chooses the 360 test samples, the same for every run seed
    """

    split_seed: Annotated[int, within("[0, 4294967295]")] = 0


class Digits(DataSet):
    """scikit-learn's 1797 handwritten digits of 8x8 pixels, 10 classes: 1437 to train, 360 to test.

    The split is stratified and the same for every run seed. Pixels 0 .. 16 become float32 0 .. 1, shape (1, 8, 8).
    Source: UCI "Optical Recognition of Handwritten Digits", test part, as shipped with scikit-learn. Needs no network.
    """

    config: DigitsConfig
    loads_once = True

    def load(self, data_dir: Path, streams: Streams, n_clients: int) -> Data:
        return load_cached(("digits", self.config.split_seed), self._read)

    def _read(self) -> Data:
        """Read the samples from the user's cache, as importing scikit-learn takes as long as a short run."""
        path = cache_folder() / f"digits-{metadata.version('scikit-learn')}-{self.config.split_seed}.npz"
        arrays: dict[str, Any]  # NumPy's hints take any keyword for its flag allow_pickle
        try:
            arrays = read_npz(path)
        except DataError:
            arrays = self._split()
            with suppress(OSError):  # the next process would take as long as this one
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(path) as file:
                    np.savez(file, **arrays)
        return Data(arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"], classes=10)

    def _split(self) -> dict[str, Any]:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        x, y = load_digits(return_X_y=True)
        x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
        split = train_test_split(x, y.astype(np.int64), test_size=0.2, stratify=y, random_state=self.config.split_seed)
        return dict(zip(("x_train", "x_test", "y_train", "y_test"), split, strict=True))


@dataclass(frozen=True)
class _ImageFacts:
    """Facts about an image set. mean, std: the customary ones of its training pixels by channel."""

    label: str  # torchvision's name
    train: int  # images
    test: int
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    folder: str  # of the original files, as torchvision names it

    @property
    def has_colors(self) -> bool:
        """Return True for images with three channels."""
        return len(self.mean) == 3

    @property
    def image(self) -> tuple[int, ...]:
        return (32, 32, 3) if self.has_colors else (28, 28)


KNOWN = {
    "mnist": _ImageFacts("MNIST", 60000, 10000, 10, (0.1307,), (0.3081,), "MNIST/raw"),
    "fashion_mnist": _ImageFacts("FashionMNIST", 60000, 10000, 10, (0.2860,), (0.3530,), "FashionMNIST/raw"),
    "cifar10": _ImageFacts(
        "CIFAR10", 50000, 10000, 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "cifar-10-batches-py"
    ),
    "cifar100": _ImageFacts(
        "CIFAR100", 50000, 10000, 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2761), "cifar-100-python"
    ),
    "cinic10": _ImageFacts("CINIC10", 90000, 90000, 10, (0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587), "CINIC-10"),
}


@dataclass
class TorchvisionImagesConfig(CheckedSettings):
    """
    name      of the set, read from <data_dir>/NAME.npz
    train_samples, test_samples  only the first N images
    download  true: download the images once if they are missing
    """

    name: Annotated[str, one_of(*KNOWN)] = "cifar10"
    train_samples: Annotated[int | None, at_least(1, null="for all")] = None
    test_samples: Annotated[int | None, at_least(1, null="for all")] = None
    download: bool = False


class TorchvisionImages(DataSet):
    """MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100 or CINIC-10 as (N, C, H, W) uint8.

    Reads ``<data_dir>/<name>.npz`` (x_train, y_train, x_test, y_test; images (N, 28, 28) or (N, 32, 32, 3) uint8).
    One of several jobs writes a missing file: from the folder of original files if ``data_dir`` has it, else from the
    network if ``download``. Raises DataError if nothing works.
    """

    config: TorchvisionImagesConfig
    loads_once = True

    def outline(self) -> Outline:
        known = KNOWN[self.config.name]
        height, width, *channels = known.image
        train = known.train if self.config.train_samples is None else min(known.train, self.config.train_samples)
        return Outline((*(channels or [1]), height, width), known.classes, train)

    def load(self, data_dir: Path, streams: Streams, n_clients: int) -> Data:
        path = self.file(Path(data_dir))
        return load_cached((file_version(path), self.config), lambda: self._read(path))

    def read(self, data_dir: Path) -> Data:
        """Return the data of ``load``, which later runs do not reuse."""
        return self._read(self.file(Path(data_dir)))

    def _read(self, path: Path) -> Data:
        arrays, known = read_npz(path), KNOWN[self.config.name]
        x, y = {}, {}
        for split, count in (("train", self.config.train_samples), ("test", self.config.test_samples)):
            images = arrays[f"x_{split}"]
            if images.dtype != np.uint8 or images.shape[1:] != known.image:
                wanted = ", ".join(map(str, known.image))
                found = f"found {images.dtype} of shape {images.shape}"
                raise DataError(f"{path}: x_{split} must be uint8 of shape (N, {wanted}), {found}")
            labels = check_labels(path, arrays, f"_{split}", known.classes)
            allowed = f"null or an integer from 1 to {len(labels)}, the {split} images in {path}"
            check(count is None or count <= len(labels), f"{split}_samples", count, allowed)
            x[split], y[split] = channels_first(images[:count]), labels[:count]
        samples, scale = (x["train"], y["train"], x["test"], y["test"]), Scale(known.mean, known.std)
        return Data(*samples, known.classes, scale, augmentable=known.has_colors)

    def file(self, data_dir: Path) -> Path:
        """Return the file of the images. Raises DataError if it is missing and may not be downloaded."""
        name, known = self.config.name, KNOWN[self.config.name]
        paths = [data_dir / f"{one}.npz" for one in dict.fromkeys((name.replace("_", "-"), name))]
        if (path := next(filter(Path.exists, paths), None)) is not None:
            return path
        folder, download = data_dir / known.folder, self.config.download
        *others, last = paths
        remedies = describe_search(*others, f"{last} (arrays {', '.join(ARRAYS)})", f"the original files in {folder}")
        if not (download or folder.exists()):
            raise MissingData(f"{known.label} is missing. {remedies}")
        given = (known.label, folder, data_dir, download, remedies)
        return build_cached(paths[0], lambda: sources.read_originals(*given), remedies)


@dataclass
class ArraysConfig:
    """
    path  required; an .npz file, absolute or relative to the current folder. Floats are used unchanged, uint8 images
          are normalised by x_train's mean and standard deviation per channel
    """

    path: str | None = None

    def __post_init__(self) -> None:
        existing_file(self.path, "an existing .npz file with the arrays x_train, y_train, x_test, y_test")


class Arrays(DataSet):
    """A user's own data from one .npz file.

    x_train, x_test  floats (N, F) or (N, C, H, W), used unchanged; or uint8 images (N, H, W) or (N, H, W, C), scaled to
                     0 .. 1 and normalised by the training set's mean and standard deviation per channel
    y_train, y_test  integers 0 .. classes - 1; the largest label decides the number of classes
    client_train     optional (N,) integers, one client id per training sample: the natural partition, by ascending id,
                     which is used unless heterogeneity is given
    Raises DataError with the array's name for another kind, NaN or infinite values, and different lengths.
    """

    config: ArraysConfig
    loads_once = True

    def load(self, data_dir: Path, streams: Streams, n_clients: int) -> Data:
        path, origin = expand_home(str(self.config.path), "path"), f"dataset.path={self.config.path}"
        return load_cached(file_version(path), lambda: build_data(origin, read_npz(path, optional=("client_train",))))

    @staticmethod
    def count_clients(section: Mapping[str, Any]) -> int | None:
        with suppress(OSError, DataError):  # reading the data will report the problem
            return _count_clients(file_version(expand_home(str(section["path"]), "path")))
        return None


@cache
def _count_clients(version: tuple[str, int, int]) -> int | None:
    """Return the number of clients in a file of arrays; None without ``client_train``."""
    client = read_npz(Path(version[0]), (), ("client_train",)).get("client_train")
    return None if client is None else len(np.unique(client))


def build_data(origin: object, arrays: dict[str, np.ndarray], source: str | None = None) -> Data:
    """Build a data set from a user's arrays, see ``Arrays``. Raises DataError with their ``origin``."""
    if missing := [name for name in ARRAYS if name not in arrays]:
        raise DataError(f"{origin}: no array {', '.join(missing)} in it (found {', '.join(arrays) or 'nothing'})")
    y_train, y_test = (check_labels(origin, arrays, suffix, None) for suffix in ("_train", "_test"))
    x_train, x_test = (check_samples(origin, f"x_{split}", arrays[f"x_{split}"]) for split in ("train", "test"))
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        found = f"found {x_train.dtype} {x_train.shape[1:]} and {x_test.dtype} {x_test.shape[1:]}"
        raise DataError(f"{origin}: samples of x_train and x_test must be of one kind and shape, {found}")
    classes = 1 + int(max(y_train.max(), y_test.max()))
    if len(unseen := np.setdiff1d(y_test, y_train)):
        known = "must be labels of training samples; leave out the samples of"
        raise DataError(f"{origin}: y_test {known} {list_some(map(str, unseen))}")
    if classes > (samples := len(y_train) + len(y_test)):  # codes or identifiers, which would make a huge last layer
        raise DataError(f"{origin}: labels must be numbered from 0, found {classes - 1} among {samples} samples")
    scale = _own_scale(x_train) if x_train.dtype == np.uint8 else None
    client = arrays.get("client_train")
    natural = None if client is None else samples_by_client(origin, "client_train", client, len(y_train))
    return Data(x_train, y_train, x_test, y_test, classes, scale, natural, source=source)


def check_samples(path: object, name: str, x: np.ndarray) -> np.ndarray:
    """Return float32 samples, or uint8 images with channels first. Raises DataError for other arrays."""
    if x.dtype == np.uint8 and x.ndim in (3, 4) and x.size:
        if x.ndim == 4 and x.shape[3] > 4 >= x.shape[1]:  # else rows would be taken for channels
            raise DataError(f"{path}: {name} must have its channels last, (N, H, W, C), found uint8 of shape {x.shape}")
        return channels_first(x)
    if np.issubdtype(x.dtype, np.floating) and x.ndim in (2, 4) and x.size:
        with np.errstate(over="ignore"):  # a float64 too large for float32 is reported as infinite, below
            x = np.ascontiguousarray(x, np.float32)
        if not np.isfinite(x).all():
            raise DataError(f"{path}: {name} has NaN or infinite values (as float32)")
        return x
    wanted = "floats (N, F) or (N, C, H, W), or uint8 images (N, H, W) or (N, H, W, C)"
    raise DataError(f"{path}: {name} must be {wanted}, found {x.dtype} of shape {x.shape}")


def _own_scale(x: np.ndarray) -> Scale:
    """Return the exact mean and standard deviation per channel of (N, C, H, W) uint8 images."""
    count_cv = np.zeros((x.shape[1], 256), np.int64)
    for start in range(0, len(x), 4096):  # in blocks, because bincount makes int64 copies
        for channel, counts in enumerate(count_cv):
            counts += np.bincount(x[start : start + 4096, channel].ravel(), minlength=256)
    value = np.arange(256) / 255
    share_cv = count_cv / count_cv.sum(axis=1, keepdims=True)
    mean = share_cv @ value
    std = np.sqrt((share_cv * (value - mean[:, None]) ** 2).sum(axis=1))
    std[std == 0] = 1.0  # a constant channel becomes 0, not NaN
    return Scale(tuple(mean.tolist()), tuple(std.tolist()))
