"""Data that are objects of the Python program: ``run(dataset=frame)``.

The identity of the run contains a digest of the objects. The objects are in ``HELD`` during the run, so another process
cannot resume it.

Legend: N samples.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError
from ..randomness import Streams
from .base import Data, DataError, DataSet
from .datasets import build_data
from .npz import ARRAYS

HELD: dict[str, Any] = {}  # digest: arrays or network
LABEL, CLIENT, TEST = "label", "client", "test"  # columns of a frame that are not features
TEST_SHARE = 0.2  # of data that come without a test set


@dataclass
class GivenDataConfig:
    """
    digest  of the samples
    kind    class of the object with the samples
    """

    digest: str = ""
    kind: str = ""


class GivenData(DataSet):
    """Samples of an object, see ``arrays_of``."""

    config: GivenDataConfig

    @staticmethod
    def count_clients(section: Mapping[str, Any]) -> int | None:
        client = HELD.get(section["digest"], {}).get("client_train")
        return None if client is None else len(np.unique(client))

    def load(self, data_dir: Path, streams: Streams, n_clients: int) -> Data:
        return build_data("dataset", find_object(self.config.digest, self.config.kind), self.config.kind)


def find_object(digest: str, kind: str) -> Any:
    """Return the object with this digest. Raises ConfigError if this process does not have it."""
    if digest not in HELD:
        said = f"is a {kind} of the Python program that made this run: the same run(...) there resumes it"
        raise ConfigError("", "object", said)
    return HELD[digest]


def arrays_of(given: object) -> dict[str, np.ndarray]:
    """Return the arrays of ``dataset=arrays`` from an object, which is one of

    a mapping          with these names, or four arrays in this order: x_train, y_train, x_test, y_test
    a pandas frame     a column ``label``, optional ``client`` and ``test`` (true or false), and features (numbers)
    a torch Dataset    of pairs (sample, label)
    a pair of either   for training and test; frames have the same columns, in any order

    Byte tensors (N, C, H, W) are images, as are bytes (C, H, W) of a Dataset. Without a test set a fifth of the samples
    is held out, the same for all seeds. Raises DataError.
    """
    if isinstance(given, (tuple, list)) and len(given) == len(ARRAYS):
        given = dict(zip(ARRAYS, given, strict=True))
    if isinstance(given, Mapping):
        arrays = {str(name): _array(value) for name, value in given.items()}
        if other := [f"{name} of {array.dtype}" for name, array in arrays.items() if array.dtype.kind not in "biuf"]:
            raise DataError(f"dataset: arrays must hold numbers: {', '.join(other)}")
        return arrays
    pair = given if isinstance(given, (tuple, list)) and len(given) == 2 else ()
    if pair and not all(map(_is_frame, pair)):
        train, test = (_columns(one) for one in pair)
    else:
        columns = _frame_columns(*pair) if pair else _columns(given)
        held_out = columns.pop(TEST, None)
        if held_out is None:
            total = len(columns["y"])
            chosen = np.random.default_rng(0).permutation(total)[: int(TEST_SHARE * total)]
            held_out = np.isin(np.arange(total), chosen)
        train = {name: values[~held_out] for name, values in columns.items()}
        test = {name: values[held_out] for name, values in columns.items()}
    arrays = {f"{name}_train": train[name] for name in ("x", "y", CLIENT) if name in train}
    return arrays | {f"{name}_test": test[name] for name in ("x", "y")}


def _columns(given: object) -> dict[str, np.ndarray]:
    """Return x, y and, if present, client and test."""
    if _is_frame(given):
        return _frame_columns(given)
    if isinstance(given, np.ndarray | torch.Tensor):
        four = "four arrays (x_train, y_train, x_test, y_test), or a mapping with these names"
        raise DataError(f"dataset: {type(given).__name__}: samples without labels; give {four}")
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        try:
            pairs = [given[index] for index in range(len(given))]
            x = np.stack([_array(x, image_dims=3) for x, _ in pairs])
            return {"x": x, "y": np.array([operator.index(_array(y).item()) for _, y in pairs])}
        except (TypeError, ValueError) as error:
            reason = f"its items must be pairs of a sample and an integer label, samples of one shape ({error})"
            raise DataError(f"dataset: {type(given).__name__}: {reason}") from error
    wanted = "a pandas frame, a torch Dataset, a pair of either, or the arrays x_train, y_train, x_test, y_test"
    raise DataError(f"dataset: {type(given).__name__}: must be {wanted}")


def _is_frame(given: object) -> bool:
    return hasattr(given, "columns") and hasattr(given, "to_numpy")


def _frame_columns(frame: Any, *tests: Any) -> dict[str, np.ndarray]:
    """Return the columns of a frame. tests: the second frame of a pair, where ``client`` is optional."""
    import pandas as pd

    for one in (frame, *tests):
        if LABEL not in one:
            raise DataError(f"dataset: the frame must have a column {LABEL}; found {', '.join(map(str, one.columns))}")
        if not one.columns.is_unique:
            twice = one.columns[one.columns.duplicated()]
            raise DataError(f"dataset: columns must have different names: {', '.join(map(str, twice))} is there twice")
    for test in tests:
        names, others = {*frame}, {*test}
        if wrong := (names ^ others) - (names & {CLIENT}) | (names | others) & {TEST}:
            same = f"the frames of a pair must have the same columns and no column {TEST}"
            raise DataError(f"dataset: {same}: {', '.join(sorted(map(str, wrong)))}")
        frame = pd.concat([frame.assign(**{TEST: False}), test.assign(**{TEST: True})])
    features = frame.drop(columns=[LABEL, CLIENT, TEST], errors="ignore")
    if words := [str(name) for name in features if not pd.api.types.is_numeric_dtype(features[name])]:
        raise DataError(f"dataset: columns must be numbers: {', '.join(words)}")
    label = frame[LABEL]
    whole = pd.api.types.is_integer_dtype(label)
    found = {"x": features.to_numpy(np.float32), "y": label.to_numpy() if whole else pd.factorize(label, sort=True)[0]}
    if CLIENT in frame:
        found[CLIENT] = pd.factorize(frame[CLIENT], sort=True)[0]
    if TEST in frame:
        found[TEST] = frame[TEST].to_numpy(bool)
    return found


def _array(value: Any, image_dims: int = 4) -> np.ndarray:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    try:
        array = value.detach().cpu().numpy()
    except TypeError as error:  # bfloat16, for example
        raise DataError(f"dataset: a tensor must have a type of NumPy, as tensor.float() has: {error}") from error
    images = array.dtype == np.uint8 and array.ndim == image_dims
    channels_last = images and array.shape[-1] <= 4 < array.shape[-3]
    return np.moveaxis(array, -3, -1) if images and not channels_last else array


def digest_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Return a digest of 16 hex digits over all numbers."""
    hashed = hashlib.blake2b(digest_size=8)
    for name, array in sorted(arrays.items()):
        hashed.update(f"{name} {array.dtype} {array.shape}".encode())
        hashed.update(np.ascontiguousarray(array).data)
    return hashed.hexdigest()
