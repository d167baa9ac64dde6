"""Data of clients that each have one private file of samples.

Legend: N samples, n clients, C classes.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from ..errors import check, list_some
from ..files import expand_home, open_regular, sha256_of
from ..randomness import Streams
from ..ranges import Configured, at_least
from .base import Data, DataError, MissingData, PrivateConfig, Scale, check_labels, digest_arrays
from .datasets import check_samples
from .npz import UNREADABLE, describe_unreadable, read_npz

TEST, COUNTS = "test.npz", "counts.npy"
_MOST = 2**27  # samples in all counts, of which each takes memory


@dataclass
class LocalDataConfig(PrivateConfig):
    """
    folder   required; folder of the files, absolute or relative to the current folder
    classes  required; number of classes C, as a client may lack some. Labels are 0 to C - 1
    """

    folder: str | None = None
    classes: Annotated[int, at_least(2)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.folder is not None, "folder", None, "a folder with 0.npz, 1.npz, … of the clients, and test.npz")

    def content_digest(self) -> str | None:
        """Return the SHA-256 of the readable files in the folder; None without a folder.

        The processes of a server and of each client have different files.
        """
        folder, hashed = expand_home(str(self.folder), "folder"), hashlib.sha256()
        for path in sorted(folder.glob("*.np[yz]")):
            if os.access(path, os.R_OK) and (path.name in (TEST, COUNTS) or path.stem.isdecimal()):
                hashed.update(f"{path.name} {sha256_of(path)} ".encode())
        return hashed.hexdigest() if folder.is_dir() else None


@dataclass
class LocalData(Data):
    """counts_nc: samples of each label at each client, from which a server without samples has the same digest"""

    counts_nc: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    @functools.cached_property
    def digest(self) -> str:
        return digest_arrays(self.counts_nc, self.x_test.view(np.uint8), self.y_test)


class Local(Configured):
    """The clients of ``<folder>/0.npz``, ``1.npz``, … and the test set of ``test.npz``, each with arrays x and y.

    x  floats (N, F) or (N, C, H, W), used unchanged; or uint8 images (N, H, W) or (N, H, W, C), scaled to -1 .. 1
    y  integers 0 .. classes - 1
    clients      of this process, whose samples it has; none for a live server, None for all
    counts_file  used instead of the folder's ``counts.npy`` if it exists
    A live server does not read the clients' samples. It reads their number for each label, from ``counts.npy`` (n, C)
    or from the files of the clients. A client's process only reads its own file. Raises DataError with the file.
    """

    config: LocalDataConfig

    def __init__(self, config: LocalDataConfig, clients: Sequence[int] | None = None, counts_file: Path | None = None):
        self.config, self._clients, self._counts_file = config, clients, counts_file

    def load(self, data_dir: Path, streams: Streams, n_clients: int) -> Data:
        folder = expand_home(str(self.config.folder), "folder")
        if not folder.is_dir():
            found = "is a file, not a folder" if folder.exists() else f"no such folder ({folder.absolute()})"
            said = f"{found}; name the folder with {TEST} and the clients' files"
            raise MissingData(f"dataset.folder={self.config.folder}: {said}")
        files = [folder / f"{client}.npz" for client in range(n_clients)]
        if self._clients:
            return self._load_clients(files, self._clients)
        test, given = self._read(folder / TEST), self._counts_file
        counts_nc = self._read_counts(given if given and given.exists() else folder / COUNTS, n_clients)
        if self._clients is None or counts_nc is None:
            _refuse_other_number(folder, n_clients)
        if self._clients is None:
            data = self._load_clients(files, range(n_clients), test)
            if counts_nc is not None and (wrong := np.flatnonzero((counts_nc != data.counts_nc).any(axis=1))).size:
                raise DataError(f"{folder / COUNTS}: has other numbers for client {wrong[0]} than {wrong[0]}.npz")
            return data
        if counts_nc is None:
            counts_nc = np.stack([self._count_labels(path) for path in files])
        y = np.tile(np.arange(self.config.classes), n_clients).repeat(counts_nc.ravel())
        return self._build(test[0][:1], y, counts_nc, test)  # one sample has the kind of the clients' samples

    def _load_clients(
        self, files: list[Path], clients: Sequence[int], test: tuple[np.ndarray, np.ndarray] | None = None
    ) -> LocalData:
        """Return the samples of these clients; others have none. test: test set, or None"""
        parts = {client: self._read(files[client]) for client in clients}
        first = test or parts[clients[0]]
        for client, (x, _) in parts.items():
            if x.shape[1:] != first[0].shape[1:] or x.dtype != first[0].dtype:
                wanted, found = (f"{one.dtype} {one.shape[1:]}" for one in (first[0], x))
                raise DataError(f"{files[client]}: x must have samples of {wanted}, as {TEST} has; found {found}")
        counts_nc = np.zeros((len(files), self.config.classes), np.int64)
        for client, (_, y) in parts.items():
            counts_nc[client] = np.bincount(y, minlength=self.config.classes)
        x, y = (np.concatenate([parts[client][index] for client in sorted(clients)]) for index in range(2))
        return self._build(x, y, counts_nc, test or (x[:0], y[:0]))

    def _build(
        self, x: np.ndarray, y: np.ndarray, counts_nc: np.ndarray, test: tuple[np.ndarray, np.ndarray]
    ) -> LocalData:
        scale = Scale((0.5,) * x.shape[1], (0.5,) * x.shape[1]) if x.dtype == np.uint8 else None
        natural = np.split(np.arange(len(y)), np.cumsum(counts_nc.sum(axis=1))[:-1])
        return LocalData(x, y, *test, self.config.classes, scale, natural, counts_nc=counts_nc)

    def _read(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        if not path.exists():
            whose = "the test set" if path.name == TEST else f"client {path.stem}"
            raise MissingData(f"{path}: no such file; put the arrays x and y of {whose} there")
        arrays = read_npz(path, ("x", "y"))
        y = check_labels(path, arrays, "", self.config.classes)
        return check_samples(path, "x", arrays["x"]), y

    def _count_labels(self, path: Path) -> np.ndarray:
        """Return the (C,) samples of each label in a client's file. Its x is not read."""
        y = read_npz(path, ("y",))["y"]
        y = check_labels(path, {"x": y, "y": y}, "", self.config.classes)
        return np.bincount(y, minlength=self.config.classes)

    def _read_counts(self, path: Path, n: int) -> np.ndarray | None:
        """Return the (n, C) samples of each label at each client; None without a file."""
        if not path.exists():
            return None
        try:
            with open_regular(path):
                counts_nc = np.load(path, mmap_mode="r")  # a false header takes no memory
        except UNREADABLE as error:
            raise DataError(f"{path}: not a readable .npy file ({describe_unreadable(error)})") from None
        shape = (n, self.config.classes)
        whole = isinstance(counts_nc, np.ndarray) and counts_nc.dtype.kind in "iu" and counts_nc.shape == shape
        if not whole or counts_nc.min() < 0 or not 0 < counts_nc.sum(dtype=float) <= _MOST:
            wanted = f"whole numbers >= 0 of shape {shape}, clients and classes, with a sum of 1 to {_MOST}"
            raise DataError(f"{path}: must hold {wanted}")
        return counts_nc.astype(np.int64)


def _refuse_other_number(folder: Path, n: int) -> None:
    """Raise ConfigError unless the folder has exactly the files of all clients."""
    there = {int(path.stem) for path in folder.glob("*.npz") if path.stem.isdecimal()}
    if there != {*range(n)}:
        found = f"the number of files 0.npz, 1.npz, … in {folder}; found {list_some(map(str, sorted(there))) or 'none'}"
        check(False, "n_clients", n, f"{found}. A live server or a replay without them needs {COUNTS}")
