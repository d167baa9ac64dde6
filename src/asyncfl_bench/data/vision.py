"""The one place that imports torchvision, for ResNets and for the original files of image sets."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import numpy as np

from ..errors import InputError, first_line
from .base import DataError, MissingData
from .sources import read_class_folders

CINIC10 = "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz"
CINIC10_MD5 = "6ee4d0c996905fe93221de577967a372"
_CINIC10_IMAGE = (32, 32, 3)


def torchvision(purpose: str) -> ModuleType:
    """The module; InputError saying what to install when it is missing or does not fit the installed torch."""
    try:
        import torchvision as module
    except (ImportError, RuntimeError) as error:  # RuntimeError: its operators were built for another torch
        raise InputError(
            f"{purpose} needs torchvision, which cannot be imported ({first_line(error)}). Install torch and "
            "torchvision together from one index so that the two builds match (pip install torch torchvision); "
            "`dataset=digits model=mlp` runs without it."
        ) from error
    return module


def read_originals(label: str, folder: Path, data_dir: Path, download: bool, ways_out: str) -> dict[str, np.ndarray]:
    """Return the arrays of the data set ``label``.

    folder    of its files, in ``data_dir``;  download: fetch missing ones
    Raises DataError, MissingData for files that a download may replace.
    """
    if label == "CINIC10" and folder.exists():
        return read_class_folders(folder, _CINIC10_IMAGE)
    vision = torchvision(f"{'Downloading' if download else 'Reading the files of'} {label}")
    try:
        if label == "CINIC10":  # arXiv:1810.03505, which torchvision lacks
            part = data_dir / ".CINIC-10.part"  # a folder that is half unpacked would be read as the whole
            shutil.rmtree(part, ignore_errors=True)
            unpack = vision.datasets.utils.download_and_extract_archive
            unpack(CINIC10, str(data_dir), str(part), md5=CINIC10_MD5, remove_finished=True)
            part.rename(folder)
            return read_class_folders(folder, _CINIC10_IMAGE)
        arrays = {}
        for split in ("train", "test"):
            part = getattr(vision.datasets, label)(root=str(data_dir), train=split == "train", download=download)
            arrays[f"x_{split}"] = np.asarray(part.data, dtype=np.uint8)
            arrays[f"y_{split}"] = np.asarray(part.targets, dtype=np.int64)
        return arrays
    except Exception as error:  # no network, a refused or cut transfer, a wrong checksum: the same way out for all
        reason = " ".join(str(error).split())
        if not download:
            raise MissingData(f"{folder}: torchvision cannot read {label} there ({reason}). {ways_out}") from error
        raise DataError(f"{label} is missing and its download failed ({reason}). {ways_out}") from error
