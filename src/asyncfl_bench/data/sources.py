"""Sources of samples that are not arrays yet: LEAF's json files, downloads, and the original files of image sets.

Samples of many clients are returned as parts for ``pool.join_parts``, images as arrays, texts as a plain file.
The only module that imports torchvision, also for ResNets.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import InputError, first_line
from .base import DataError, MissingData
from .npz import write_once

# the client of each sample, x (M, ...) uint8 and y (M,)
PoolPart = tuple[Iterable[str], np.ndarray, np.ndarray]
ROWS = 1000  # rows of a repository that are converted together
CINIC10 = "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz"
CINIC10_MD5 = "6ee4d0c996905fe93221de577967a372"
# classes of CIFAR-10 and CINIC-10, in the order of their labels
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def leaf_files(folder: Path) -> list[Path]:
    """Return LEAF's files below ``folder``, training files first; empty without files.

    LEAF's scripts keep the files of every stage. Files in folders `train` and `test` are used; without such folders
    the files `all_data*.json`, else all files.
    """
    found = sorted(folder.rglob("*.json"))
    parent = {path: path.parent.name for path in found}
    split = [path for path in found if parent[path] == "train"] + [path for path in found if parent[path] == "test"]
    return split or [path for path in found if path.name.startswith("all_data")] or found


def leaf_parts(files: list[Path], convert: Callable[[list, list], tuple[np.ndarray, np.ndarray]]) -> Iterator[PoolPart]:
    """Yield a part for each user in each file: `user_data: {USER: {x: [...], y: [...]}}`.

    convert  turns a user's lists into arrays, or raises ValueError with the expected and the found content
    Raises DataError with file and user.
    """
    for path in files:
        try:
            users = json.loads(path.read_bytes())["user_data"]
            lists = {user: (content["x"], content["y"]) for user, content in users.items()}
            if other := next((user for user, both in lists.items() if {*map(type, both)} != {list}), None):
                raise TypeError(f"x or y of user {other} is not a list")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            wanted = "user_data: {USER: {x: [...], y: [...]}}"
            raise DataError(f"{path}: not a json file of LEAF's with {wanted} ({_describe_error(error)})") from error
        for user, (x, y) in lists.items():
            if not x and not y:
                continue
            try:
                x_part, y_part = convert(x, y)
                if len(x_part) != len(y_part):
                    raise ValueError(f"{len(x_part)} samples with {len(y_part)} labels")
            except ValueError as error:
                raise DataError(f"{path}: user {user}: {error}") from error
            yield [user] * len(y_part), x_part, y_part


def torchvision(purpose: str) -> ModuleType:
    """Return the module. Raises InputError if it is missing or does not fit the installed torch."""
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
    """Return the arrays of the image set ``label`` from its original files.

    folder    of the files, in ``data_dir``
    download  fetch missing files
    Raises DataError; MissingData for files that a download can replace.
    """
    vision = torchvision(f"{'Downloading' if download else 'Reading the files of'} {label}")
    try:
        if label == "CINIC10":  # arXiv:1810.03505, which torchvision lacks
            if not folder.exists():
                part = data_dir / ".CINIC-10.part"  # a half unpacked folder would be read as complete
                shutil.rmtree(part, ignore_errors=True)
                unpack = vision.datasets.utils.download_and_extract_archive
                unpack(CINIC10, str(data_dir), str(part), md5=CINIC10_MD5, remove_finished=True)
                part.rename(folder)
            return _read_cinic10(vision, folder)
        arrays = {}
        for split in ("train", "test"):
            part = getattr(vision.datasets, label)(root=str(data_dir), train=split == "train", download=download)
            arrays[f"x_{split}"] = np.asarray(part.data, dtype=np.uint8)
            arrays[f"y_{split}"] = np.asarray(part.targets, dtype=np.int64)
        return arrays
    except Exception as error:  # no network, a broken transfer, a wrong checksum: the remedy is the same
        reason = " ".join(str(error).split())
        if not download:
            raise MissingData(f"{folder}: torchvision cannot read {label} there ({reason}). {ways_out}") from error
        raise DataError(f"{label} is missing and its download failed ({reason}). {ways_out}") from error


def _read_cinic10(vision: Any, folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of the images in ``folder``/SPLIT/CLASS, sorted by class and name; `valid` is left out."""
    arrays = {}
    for split in ("train", "test"):
        found = vision.datasets.ImageFolder(str(folder / split))
        if tuple(found.classes) != CLASS_NAMES:
            wanted = f"{split} must have the folders {', '.join(CLASS_NAMES)}"
            raise ValueError(f"{wanted}; found {', '.join(found.classes)}")
        arrays[f"x_{split}"] = np.stack([np.asarray(image) for image, _ in found])
        arrays[f"y_{split}"] = np.array(found.targets)
    return arrays


def hub_parts(
    repository: str, convert: Callable[[dict[str, Any]], PoolPart], data_dir: Path, ways_out: str, download: bool
) -> Iterator[PoolPart]:
    """Yield parts of the split `train` of a Hugging Face repository, downloaded to ``data_dir``/huggingface.

    convert  turns a dictionary of columns, each a list, into a part
    Raises DataError with ``ways_out`` for any failure; MissingData if ``download`` is False.
    """
    if not download:
        raise MissingData(f"{repository} is missing. {ways_out}")
    load_dataset = _load_dataset(repository, "leaf", ways_out)
    with _downloading(repository, ways_out):
        rows = load_dataset(repository, split="train", cache_dir=str(data_dir / "huggingface"))
        for columns in rows.iter(batch_size=ROWS):
            yield convert(columns)


def downloaded_texts(name: str, path: Path, ways_out: str) -> Path:
    """Write the texts ``name`` (of data.texts) to ``path``, a json object for each line, and return the path.

    One of several jobs downloads, and the others wait. Raises DataError with ``ways_out`` for any failure.
    """

    def make() -> bytes:
        lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in TEXTS[name](path.parent, ways_out)]
        return "".join(lines).encode()

    return write_once(path, make, lambda file, content: file.write(content), ways_out)


def _newsgroups(data_dir: Path, ways_out: str) -> Iterator[dict[str, Any]]:
    """Yield the whole posts of 20 Newsgroups, split by date, from scikit-learn."""
    from sklearn.datasets import fetch_20newsgroups

    with _downloading("20 Newsgroups", ways_out):
        for split in ("train", "test"):
            found = fetch_20newsgroups(data_home=str(data_dir), subset=split)
            for text, label in zip(found.data, found.target, strict=True):
                yield {"split": split, "label": int(label), "text": text}


def _read_hub(
    repository: tuple[str, ...], fields: dict[str, str], data_dir: Path, ways_out: str
) -> Iterator[dict[str, Any]]:
    """Yield lines for all labelled rows of a Hugging Face repository.

    fields  name of a text -> column of the repository
    """
    load_dataset = _load_dataset(repository[0], "text", ways_out)
    with _downloading(repository[0], ways_out):
        for split, rows in load_dataset(*repository, cache_dir=str(data_dir / "huggingface")).items():
            for row in (row for row in rows if row["label"] >= 0):  # -1: GLUE does not publish the label
                texts = {field: row[column] for field, column in fields.items()}
                yield {"split": {"validation": "dev"}.get(split, split), "label": row["label"], **texts}


TEXTS: dict[str, Callable[[Path, str], Iterator[dict[str, Any]]]] = {
    "newsgroups20": _newsgroups,
    "sst2": partial(_read_hub, ("stanfordnlp/sst2",), {"text": "sentence"}),
    "mrpc": partial(_read_hub, ("nyu-mll/glue", "mrpc"), {"text1": "sentence1", "text2": "sentence2"}),
}


def _load_dataset(repository: str, extra: str, ways_out: str) -> Callable[..., Any]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        needs = f"its download needs the package datasets (pip install 'asyncfl_bench[{extra}]')"
        raise DataError(f"{repository} is missing and {needs}. {ways_out}") from error
    return load_dataset


@contextmanager
def _downloading(what: str, ways_out: str) -> Iterator[None]:
    """Replace any error in the block: no network, a broken transfer, other columns. The remedy is the same."""
    try:
        yield
    except Exception as error:
        raise DataError(f"{what} is missing and its download failed ({_describe_error(error)}). {ways_out}") from error


def _describe_error(error: Exception) -> str:
    """Return the error in one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
