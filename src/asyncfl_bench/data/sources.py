"""Sources of samples: LEAF's json files and repositories on Hugging Face, as parts for ``pool.join_parts``.

Texts are downloaded from public copies into a plain file. CINIC-10's original files are read as arrays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .base import DataError, MissingData
from .npz import write_once
from .pool import PoolPart

ROWS = 1000  # of a repository, converted in one go
# of CIFAR-10 and CINIC-10, in the order of their labels
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLIT_FOLDERS = f"train and test, each with a folder of PNG files for each class ({', '.join(CLASS_NAMES)})"


def leaf_files(folder: Path) -> list[Path]:
    """LEAF's files below ``folder``, those to train first; empty if there are none.

    LEAF's scripts leave every stage of their work beside each other. If there are folders `train` and `test` these are
    taken, else the files `all_data*.json`, else all.
    """
    found = sorted(folder.rglob("*.json"))
    parent = {path: path.parent.name for path in found}
    split = [path for path in found if parent[path] == "train"] + [path for path in found if parent[path] == "test"]
    return split or [path for path in found if path.name.startswith("all_data")] or found


def leaf_parts(files: list[Path], convert: Callable[[list, list], tuple[np.ndarray, np.ndarray]]) -> Iterator[PoolPart]:
    """A part for each user in each file: `user_data: {USER: {x: [...], y: [...]}}`.

    convert  turns a user's lists into arrays, raising ValueError, which says what it allows and what it found
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


def read_class_folders(folder: Path, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Arrays of the PNG files in ``folder``/SPLIT/CLASS, as CINIC-10 has them, sorted by class and name.

    The splits are `train` and `test`; another one (`valid`) is left out.
    shape  of an image: (H, W, 3)
    Raises DataError, which names the folder or file, for what is missing and for other images.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: must be a folder with {SPLIT_FOLDERS}, found a file")
    arrays: dict[str, np.ndarray] = {}
    for split in ("train", "test"):
        paths = [_png_files(folder, folder / split / name) for name in CLASS_NAMES]
        arrays[f"y_{split}"] = np.repeat(np.arange(len(paths)), [len(of_class) for of_class in paths])
        images = arrays[f"x_{split}"] = np.empty((len(arrays[f"y_{split}"]), *shape), np.uint8)
        for image, path in zip(images, (path for of_class in paths for path in of_class), strict=True):
            image[:] = _read_png(folder, path, shape)
    return arrays


def _png_files(folder: Path, of_class: Path) -> list[Path]:
    """Return the files of a class by name; DataError if there are none."""
    found = sorted(path for path in of_class.glob("*") if not path.name.startswith("."))
    if not found:
        missing = next(path for path in (of_class.parent, of_class, of_class / "*.png") if not path.is_dir())
        raise DataError(f"{missing} is missing: {folder} must have {SPLIT_FOLDERS}")
    return found


def _read_png(folder: Path, path: Path, shape: tuple[int, ...]) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path) as image:
            found = f"{image.format}, {image.width}x{image.height} pixels of mode {image.mode}"
            if (image.format, image.mode, image.height, image.width) == ("PNG", "RGB", *shape[:2]):
                return np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:  # SyntaxError: a damaged PNG
        found = _describe_error(error)
    wanted = f"a PNG image of {shape[1]}x{shape[0]} pixels in colour (mode RGB), found {found}"
    remedy = f"replace it, or delete {folder} and add dataset.download=true"
    raise DataError(f"{path}: must be {wanted}; {remedy}")


def hub_parts(
    repository: str, convert: Callable[[dict[str, Any]], PoolPart], data_dir: Path, ways_out: str, download: bool
) -> Iterator[PoolPart]:
    """Parts of the split `train` of a repository on Hugging Face, which is downloaded into ``data_dir``/huggingface.

    convert  turns a dictionary of columns, each a list, into a part
    Raises DataError, with ``ways_out``, for whatever fails, and unless ``download`` allows it.
    """
    if not download:
        raise MissingData(f"{repository} is missing. {ways_out}")
    load_dataset = _load_dataset(repository, "leaf", ways_out)
    try:
        rows = load_dataset(repository, split="train", cache_dir=str(data_dir / "huggingface"))
        for columns in rows.iter(batch_size=ROWS):
            yield convert(columns)
    except Exception as error:  # no network, a refused or cut transfer, other columns: the same way out for all
        raise _download_error(repository, error, ways_out) from error


def downloaded_texts(name: str, path: Path, ways_out: str) -> Path:
    """Write the set of texts ``name`` (of data.texts) to ``path``, a json object a line, and return it.

    Of several jobs one downloads and the others wait for its file. Raises DataError, with ``ways_out``, for whatever
    fails.
    """

    def content() -> Callable[[BinaryIO], int]:
        lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in TEXTS[name](path.parent, ways_out)]
        return lambda file: file.write("".join(lines).encode())

    return write_once(path, content, ways_out)


def _newsgroups(data_dir: Path, ways_out: str) -> Iterator[dict[str, Any]]:
    """20 Newsgroups by date, whole posts, through scikit-learn."""
    from sklearn.datasets import fetch_20newsgroups

    try:
        for split in ("train", "test"):
            found = fetch_20newsgroups(data_home=str(data_dir), subset=split)
            for text, label in zip(found.data, found.target, strict=True):
                yield {"split": split, "label": int(label), "text": text}
    except Exception as error:  # as above
        raise _download_error("20 Newsgroups", error, ways_out) from error


def _read_hub(
    repository: tuple[str, ...], fields: dict[str, str], data_dir: Path, ways_out: str
) -> Iterator[dict[str, Any]]:
    """Lines of all splits of a repository on Hugging Face; those without a label are left out.

    fields  name of a text here -> its column there
    """
    load_dataset = _load_dataset(repository[0], "text", ways_out)
    try:
        for split, rows in load_dataset(*repository, cache_dir=str(data_dir / "huggingface")).items():
            for row in (row for row in rows if row["label"] >= 0):  # -1: GLUE keeps it to itself
                texts = {field: row[column] for field, column in fields.items()}
                yield {"split": {"validation": "dev"}.get(split, split), "label": row["label"], **texts}
    except Exception as error:  # as above
        raise _download_error(repository[0], error, ways_out) from error


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


def _download_error(what: str, error: Exception, ways_out: str) -> DataError:
    return DataError(f"{what} is missing and its download failed ({_describe_error(error)}). {ways_out}")


def _describe_error(error: Exception) -> str:
    """Return the error in one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
