"""Fetching an image set once with torchvision and keeping it as one .npz file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .archive import made_once
from .data import DATA_DIRECTORY, DataError
from .vision import torchvision


def fetch(label: str, data_dir: Path, paths: list[Path]) -> Path:
    """Downloads torchvision's data set ``label`` into ``data_dir`` and writes ``paths[0]``, which it returns.

    Of several jobs one downloads and the others wait for its file. DataError names the paths and the ways out.
    """
    return made_once(paths[0], lambda: _download(label, data_dir, paths), _ways_out(paths))


def _download(label: str, data_dir: Path, paths: list[Path]) -> dict[str, np.ndarray]:
    dataset = getattr(torchvision(f"Downloading {label}").datasets, label)
    arrays = {}
    for split in ("train", "test"):
        try:
            part = dataset(root=str(data_dir), train=split == "train", download=True)
        except Exception as error:  # no network, a refused or cut transfer, a wrong checksum: the same way out for all
            reason = " ".join(str(error).split())
            raise DataError(f"{label} is missing and its download failed ({reason}). {_ways_out(paths)}") from error
        arrays[f"x_{split}"] = np.asarray(part.data, dtype=np.uint8)
        arrays[f"y_{split}"] = np.asarray(part.targets, dtype=np.int64)
    return arrays


def _ways_out(paths: list[Path]) -> str:
    looked = " and ".join(str(path) for path in paths)
    return f"Looked for {looked} (arrays x_train, y_train, x_test, y_test). {DATA_DIRECTORY}"
