"""The server's own samples, without labels. They are drawn once for each seed and are never test samples of the task.

``draw(data, data_dir, generator)`` of a class returns the clients' remaining data and the samples. ``match_samples``
converts these to the form of the clients' samples. Raises ConfigError or DataError if nothing can be drawn.

Legend: N samples, u of them the server's, C channels, H height, W width, F features, L tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ..errors import ConfigError, check, naming_group
from ..files import existing_file, expand_home
from ..randomness import Streams
from ..ranges import CheckedSettings, Configured, at_least
from ..types import Facts
from .base import DATA_DIRECTORY, Data, DataError, MissingData, draw_samples, hold_back, remove_samples
from .datasets import KNOWN, TorchvisionImages, TorchvisionImagesConfig, check_samples
from .npz import UNREADABLE, describe_unreadable, read_npz

USUAL = 2000  # samples, as the FedEcho paper has
LARGEST_SHARE = 0.2  # of the training set that is held back by default
# data set -> the most similar one; other data sets need a name
ALIKE = {"cifar10": "cifar100", "cifar100": "cifar10", "mnist": "fashion_mnist", "fashion_mnist": "mnist"}
ALIKE |= {"digits": "mnist", "femnist": "fashion_mnist", "cinic10": "cifar100"}
# sets with common images, some of which may be test images: digits of the same writers, CIFAR-10 in CINIC-10, ImageNet
# in CINIC-10 and STL-10
SAME = {"femnist": ("mnist",), "cifar10": ("cinic10",), "cinic10": ("cifar10", "stl10")}

STL10, STL10_IMAGE = "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz", 3 * 96 * 96  # address, bytes

Drawn = tuple[Data, np.ndarray | None]


@dataclass
class UnlabelledConfig(CheckedSettings):
    def idle(self, facts: Facts) -> dict[str, str]:
        if facts.outputs or not fields(self):
            return {}
        why = f"with algorithm={facts.algorithm}, whose server uses no samples; distillation=fedecho does"
        return dict.fromkeys(("", *(field.name for field in fields(self))), why)


@dataclass
class SamplesConfig(UnlabelledConfig):
    """
    samples  u, number of samples
    """

    samples: Annotated[int | None, at_least(1, null="for 2000 or what can be had")] = None


class Unlabelled(Configured):
    """Base of the sources of samples."""

    config: SamplesConfig

    def file(self, data_dir: Path) -> Path | None:
        """Return the file with the samples, as ``DataSet.file``."""
        return None


class Nothing(Unlabelled):
    """No samples."""

    Config = UnlabelledConfig

    def draw(self, data: Data, data_dir: Path, generator: np.random.Generator) -> Drawn:
        return data, None


@dataclass
class HeldBackConfig(SamplesConfig):
    """
    samples  at most a fifth of the training set if null
    """

    def idle(self, facts: Facts) -> dict[str, str]:
        return {}  # it removes samples from the clients in any case


class HeldBack(Unlabelled):
    """Training samples that are removed from the clients."""

    config: HeldBackConfig

    def draw(self, data: Data, data_dir: Path, generator: np.random.Generator) -> Drawn:
        total = len(data.y_train)
        count = self.config.samples or max(1, min(USUAL, int(LARGEST_SHARE * total)))
        check(count < total, "samples", count, f"less than {total}, the training samples of the data set")
        held = draw_samples(total, count, generator)
        return remove_samples(data, held), data.x_train[held]


class Auto(Configured):
    """``HeldBack`` or ``Nothing``: see ``resolve_choice``."""

    config: HeldBackConfig

    @staticmethod
    def resolve_choice(config: HeldBackConfig, needed: bool) -> tuple[str, type[Any], UnlabelledConfig]:
        """Return (choice, class, config) of the part that replaces it."""
        if not needed:
            return "none", Nothing, UnlabelledConfig()
        return "held_back", HeldBack, config


@dataclass
class ImagesConfig(SamplesConfig):
    """
    name  mnist | fashion_mnist | cifar10 | cifar100 | cinic10 | stl10 (its unlabeled_X.bin); null: the set that is
          most similar to the clients' set
    """

    name: str | None = None

    def resolve(self, facts: Facts) -> None:
        others = [name for name in (*KNOWN, "stl10") if name not in (facts.dataset, *SAME.get(facts.dataset, ()))]
        if self.name is None:
            self.name = ALIKE.get(facts.dataset)
        allowed = (
            f"one of {', '.join(others)} with dataset={facts.dataset}; unlabelled=held_back takes of the clients' own"
        )
        check(self.name in others, "name", self.name, allowed)


class Images(Unlabelled):
    """Training images of another set, or the unlabelled images of STL-10."""

    config: ImagesConfig

    def draw(self, data: Data, data_dir: Path, generator: np.random.Generator) -> Drawn:
        check_images(data)
        name = str(self.config.name)
        images = open_stl10(data_dir) if name == "stl10" else self._other_set().read(data_dir).x_train
        return data, _choose_samples(images, self.config.samples, generator, name)

    def file(self, data_dir: Path) -> Path:
        return find_stl10(data_dir) if self.config.name == "stl10" else self._other_set().file(data_dir)

    def _other_set(self) -> TorchvisionImages:
        return TorchvisionImages(TorchvisionImagesConfig(str(self.config.name)))


def find_stl10(data_dir: Path) -> Path:
    """Return STL-10's file of images without labels. Raises MissingData."""
    paths = [Path(data_dir) / name for name in ("stl10_binary/unlabeled_X.bin", "unlabeled_X.bin")]
    if (path := next((path for path in paths if path.is_file()), None)) is not None:
        return path
    looked = f"Looked for {' and '.join(map(str, paths))}, which is in {STL10}"
    raise MissingData(f"the images of STL-10 are missing. {looked}. {DATA_DIRECTORY}")


def open_stl10(data_dir: Path) -> np.ndarray:
    """Return STL-10's images without labels as a memory-mapped (N, 3, 96, 96) uint8 array.

    The file has three planes of 96x96 bytes for each image, red first, each plane column by column. Raises DataError if
    the file is missing or has a part of an image.
    """
    path = find_stl10(data_dir)
    size = path.stat().st_size
    if not size or size % STL10_IMAGE:
        wanted = f"{STL10_IMAGE} bytes an image, 2764800000 in all; unpack {STL10} again"
        raise DataError(f"{path}: not whole images of 96x96 pixels (found {size} bytes); must have {wanted}")
    return np.memmap(path, np.uint8, "r").reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)


@dataclass
class OwnArrayConfig(SamplesConfig):
    """
    path  required; the file, absolute or relative to the current folder
    """

    path: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        existing_file(self.path, "an existing .npy file, or an .npz file with the array x")


class OwnArray(Unlabelled):
    """A user's own samples: floats of the shape and scale of the clients' samples, or uint8 images of any size."""

    config: OwnArrayConfig

    def draw(self, data: Data, data_dir: Path, generator: np.random.Generator) -> Drawn:
        path = expand_home(str(self.config.path), "path")
        x = check_samples(path, "x", _array(path))
        if x.dtype == np.uint8:
            check_images(data)
        known = sorted({1, 3, *data.shape[:-2]})
        ok = x.shape[1] in known if x.dtype == np.uint8 else (x.dtype, x.shape[1:]) == (data.x_train.dtype, data.shape)
        if not ok:
            wanted = f"uint8 images of {' or '.join(map(str, known))} channels, or floats of the clients' kind"
            raise DataError(f"{path}: x must be {wanted} ({_kind(data)}); found {x.dtype} of shape {x.shape}")
        return data, _choose_samples(x, self.config.samples, generator, str(self.config.path))


def _array(path: Path) -> np.ndarray:
    if path.suffix == ".npz":
        return read_npz(path, ("x",))["x"]
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except UNREADABLE as error:
        wanted = "must be an array, as numpy.save writes it, or an .npz file with the array x"
        raise DataError(f"{path}: not a readable .npy file ({describe_unreadable(error)}); {wanted}") from error


class Noise(Unlabelled):
    """Independent numbers, uniform between the lowest and the highest of the training set."""

    def draw(self, data: Data, data_dir: Path, generator: np.random.Generator) -> Drawn:
        shape = (self.config.samples or USUAL, *data.shape)
        if np.issubdtype(data.x_train.dtype, np.integer):
            return data, generator.integers(0, data.symbols or 256, shape, dtype=data.x_train.dtype)
        low, high = float(data.x_train.min()), float(data.x_train.max())
        return data, generator.uniform(low, high, shape).astype(np.float32)


class OtherSplit(Unlabelled):
    """Samples of the data set that are neither for training nor for tests, without their labels."""

    def draw(self, data: Data, data_dir: Path, generator: np.random.Generator) -> Drawn:
        if data.x_other is None:
            allowed = "one that the data set has: all its samples are to train or to test; held_back takes of these"
            raise ConfigError("", "other_split", f"must be {allowed}")
        return data, _choose_samples(data.x_other, self.config.samples, generator, "the other split")


def load_and_draw(
    dataset: Any,
    unlabelled: Any,
    *,
    n_clients: int,
    data_dir: Path,
    streams: Streams,
    augment: bool = False,
    validation_share: float = 0.0,
) -> Drawn:
    """Return the clients' data and the server's samples, (u, ...) or None. Torch is not imported.

    validation_share  of the training samples, held back before the server's samples are drawn
    Raises ConfigError with the full key for settings that do not fit the data, DataError if data are not available.
    """
    with naming_group("dataset"):
        data = dataset.load(data_dir, streams, n_clients)
    if validation_share:
        data = hold_back(data, validation_share, streams.validation())
    with naming_group("unlabelled"):
        data, x_server = unlabelled.draw(data, data_dir, streams.unlabelled())
    samples = len(data.y_train)
    allowed = f"at most {samples}, the training samples that clients can have"
    check(n_clients <= max(samples, len(data.natural or ())), "n_clients", n_clients, allowed)
    allowed = "false: random crops and flips are for cifar10, cifar100 and cinic10 only"
    check(data.augmentable or not augment, "client.augment", True, allowed)
    return data, x_server


def _choose_samples(x: np.ndarray, samples: int | None, generator: np.random.Generator, where: str) -> np.ndarray:
    check(samples is None or samples <= len(x), "samples", samples, f"at most {len(x)}, the samples of {where}")
    return x[np.sort(generator.permutation(len(x))[: samples or USUAL])]


def match_samples(x: np.ndarray, data: Data) -> np.ndarray:
    """Convert samples to the form of the clients' samples. Floats do not change; uint8 images get the shape and range.

    x  floats, or (N, C, H, W) uint8. Sizes change by linear interpolation, colours become grey by their mean, and grey
       images are repeated in three channels. Raises ConfigError if the clients' samples are not images.
    """
    if x.dtype != np.uint8 or (x.dtype, x.shape[1:]) == (data.x_train.dtype, data.shape):
        return x
    check_images(data)
    import torch
    from torch.nn import functional as F

    images = torch.from_numpy(x).float()
    channels, *size = data.shape
    if images.shape[1] != channels:
        images = images.mean(dim=1, keepdim=True).expand(-1, channels, -1, -1)
    if list(images.shape[2:]) != size:
        images = F.interpolate(images, size, mode="bilinear", antialias=True)
    if data.x_train.dtype == np.uint8:
        return images.round().clamp(0, 255).to(torch.uint8).contiguous().numpy()
    low, high = float(data.x_train.min()), float(data.x_train.max())
    return (images * ((high - low) / 255) + low).contiguous().numpy()


def check_images(data: Data) -> None:
    """Raise ConfigError if the clients' samples are not images."""
    if len(data.shape) != 3 or data.symbols is not None:
        raise ConfigError("", "images", f"must be held_back, noise or arrays of floats: clients have {_kind(data)}")


def _kind(data: Data) -> str:
    return "token ids" if data.symbols is not None else f"{data.x_train.dtype} {'x'.join(map(str, data.shape))}"
