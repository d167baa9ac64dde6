"""Where samples of many clients are read from: LEAF's json files, and repositories on Hugging Face.

Both give parts for ``pool.pooled``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .data import DataError
from .pool import Part

ROWS = 1000  # of a repository, converted in one go


def leaf_files(folder: Path) -> list[Path]:
    """LEAF's files below ``folder``, those to train first; empty if there are none.

    LEAF's scripts leave every stage of their work beside each other. If there are folders `train` and `test` these are
    taken, else the files `all_data*.json`, else all.
    """
    found = sorted(folder.rglob("*.json"))
    parent = {path: path.parent.name for path in found}
    split = [path for path in found if parent[path] == "train"] + [path for path in found if parent[path] == "test"]
    return split or [path for path in found if path.name.startswith("all_data")] or found


def leaf_parts(files: list[Path], convert: Callable[[list, list], tuple[np.ndarray, np.ndarray]]) -> Iterator[Part]:
    """A part for each user in each file: `user_data: {USER: {x: [...], y: [...]}}`.

    convert  turns a user's lists into arrays, raising ValueError or TypeError for what it does not know
    Raises DataError with file and user.
    """
    for path in files:
        try:
            users = json.loads(path.read_bytes())["user_data"]
            lists = {user: (content["x"], content["y"]) for user, content in users.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            wanted = "user_data: {USER: {x: [...], y: [...]}}"
            raise DataError(f"{path}: not a json file of LEAF's with {wanted} ({_said(error)})") from error
        for user, (x, y) in lists.items():
            if not x and not y:
                continue
            try:
                x_part, y_part = convert(x, y)
                if len(x_part) != len(y_part):
                    raise ValueError(f"{len(x_part)} samples with {len(y_part)} labels")
            except (ValueError, TypeError) as error:
                raise DataError(f"{path}: user {user}: {_said(error)}") from error
            yield [user] * len(y_part), x_part, y_part


def hub_parts(
    repository: str, convert: Callable[[dict[str, Any]], Part], data_dir: Path, ways_out: str
) -> Iterator[Part]:
    """Parts of the split `train` of a repository on Hugging Face, which is downloaded into ``data_dir``/huggingface.

    convert  turns a dictionary of columns, each a list, into a part
    Raises DataError, with ``ways_out``, for whatever fails.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        needs = "its download needs the package datasets (pip install 'asyncfl_bench[leaf]')"
        raise DataError(f"{repository} is missing and {needs}. {ways_out}") from error
    try:
        rows = load_dataset(repository, split="train", cache_dir=str(data_dir / "huggingface"))
        for columns in rows.iter(batch_size=ROWS):
            yield convert(columns)
    except Exception as error:  # no network, a refused or cut transfer, other columns: the same way out for all
        raise DataError(f"{repository} is missing and its download failed ({_said(error)}). {ways_out}") from error


def _said(error: Exception) -> str:
    """In one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
