"""Data and networks that are objects of the Python program: ``run(dataset=frame, model=module)``.

A run knows them by a digest of what decides its numbers, which is a part of its identity. The objects themselves are in
``HELD`` while the run lasts; another process cannot go on with it.

Legend: N samples.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import ConfigError
from ..randomness import Streams
from .archive import ARRAYS
from .data import Data, DataError
from .datasets import build_data
from .models import Model, ModelConfig
from .networks import build_seeded

HELD: dict[str, Any] = {}  # digest: arrays or network
LABEL, CLIENT, TEST = "label", "client", "test"  # columns of a frame that are no features
TEST_SHARE = 0.2  # of data that come without a test set
Network = nn.Module | Callable[[], nn.Module]


@dataclass
class GivenDataConfig:
    """
    digest  of the samples
    kind    class of the object they came as
    """

    digest: str = ""
    kind: str = ""


class GivenData:
    """Samples given as an object, see ``arrays_of``."""

    Config = GivenDataConfig

    def __init__(self, config: GivenDataConfig):
        self.config = config

    def load(self, data_dir: Path, streams: Streams, n_clients: int) -> Data:
        return build_data("dataset", _find_object(self.config.digest, self.config.kind), self.config.kind)


@dataclass
class GivenModelConfig(ModelConfig):
    """
    digest  of the network
    kind    class of the object it came as
    """

    digest: str = ""
    kind: str = ""


class GivenModel(Model):
    """A torch module, trained from the weights it has, or what makes one when called, whose weights the seed draws.

    It takes (B, ...) samples and gives (B, classes) logits. Nothing in it may draw random numbers or be frozen.
    """

    Config = GivenModelConfig
    config: GivenModelConfig

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.config.kind

    def build(self, data_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
        given = _find_object(self.config.digest, self.config.kind)
        module = copy.deepcopy(given) if isinstance(given, nn.Module) else _build_network(given, seed)
        _check_network(module, data_shape, classes)
        return module.cpu()


def _find_object(digest: str, kind: str) -> Any:
    """Return the object with this digest. Raises ConfigError if this process does not have it."""
    if digest not in HELD:
        said = f"is a {kind} of the Python program that made this run: the same run(...) there goes on with it"
        raise ConfigError("", "object", said)
    return HELD[digest]


def arrays_of(given: object) -> dict[str, np.ndarray]:
    """Arrays as in the file of ``dataset=arrays``, of

    a mapping          with those names, or four of them in that order: x_train, y_train, x_test, y_test
    a pandas frame     a column ``label``; ``client`` and ``test`` (true or false), if there are any; all else numbers
    a torch Dataset    of pairs (sample, label)
    a pair of either   to train, to test

    Tensors of bytes (N, C, H, W) are images. What has no test set gives a fifth of its samples, the same for all seeds.
    Raises DataError.
    """
    if isinstance(given, (tuple, list)) and len(given) == len(ARRAYS):
        given = dict(zip(ARRAYS, given, strict=True))
    if isinstance(given, Mapping):
        arrays = {str(name): _array(value) for name, value in given.items()}
        if other := [f"{name} of {array.dtype}" for name, array in arrays.items() if array.dtype.kind not in "biuf"]:
            raise DataError(f"dataset: arrays must hold numbers: {', '.join(other)}")
        return arrays
    if isinstance(given, (tuple, list)) and len(given) == 2:
        train, test = (_columns(one) for one in given)
    else:
        columns = _columns(given)
        held_out = columns.pop(TEST, None)
        if held_out is None:
            total = len(columns["y"])
            chosen = np.random.default_rng(0).permutation(total)[: int(TEST_SHARE * total)]
            held_out = np.isin(np.arange(total), chosen)
        train = {name: values[~held_out] for name, values in columns.items()}
        test = {name: values[held_out] for name, values in columns.items()}
    parts = [(name, "train", train) for name in ("x", "y", CLIENT) if name in train]
    parts += [(name, "test", test) for name in ("x", "y")]
    return {f"{name}_{split}": columns[name] for name, split, columns in parts}


def _columns(given: object) -> dict[str, np.ndarray]:
    """x, y and, where there are such, client and test."""
    if hasattr(given, "columns") and hasattr(given, "to_numpy"):
        return _frame_columns(given)
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        try:
            pairs = [given[place] for place in range(len(given))]
            return {"x": np.stack([_array(x) for x, _ in pairs]), "y": np.array([int(y) for _, y in pairs])}
        except (TypeError, ValueError) as error:
            reason = f"its items must be pairs of a sample and a label, samples of one shape ({error})"
            raise DataError(f"dataset: {type(given).__name__}: {reason}") from error
    wanted = "a pandas frame, a torch Dataset, a pair of either, or the arrays x_train, y_train, x_test, y_test"
    raise DataError(f"dataset: {type(given).__name__}: must be {wanted}")


def _frame_columns(frame: Any) -> dict[str, np.ndarray]:
    import pandas as pd

    if LABEL not in frame:
        raise DataError(f"dataset: the frame must have a column {LABEL}; found {', '.join(map(str, frame.columns))}")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()]
        raise DataError(f"dataset: columns must have different names: {', '.join(map(str, twice))} is there twice")
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


def _array(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        array = value.detach().cpu().numpy()
        return array.transpose(0, 2, 3, 1) if array.dtype == np.uint8 and array.ndim == 4 else array
    return np.asarray(value)


def digest_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """16 hex digits over every number."""
    hashed = hashlib.blake2b(digest_size=8)
    for name, array in sorted(arrays.items()):
        hashed.update(f"{name} {array.dtype} {array.shape}".encode())
        hashed.update(np.ascontiguousarray(array).data)
    return hashed.hexdigest()


def digest_of_network(given: object) -> str:
    """16 hex digits over the layers with their plain attributes, the source of classes that are not torch's, and the
    weights; of what makes a network those of one seed. What a ``forward`` calls elsewhere is not looked into."""
    if not isinstance(given, nn.Module) and not callable(given):
        allowed = "must be a torch module, or what makes one when called without arguments"
        raise ConfigError("model", type(given).__name__, allowed)
    module = given if isinstance(given, nn.Module) else _build_network(given, 0)
    if lazy := [name for name, one in module.named_parameters() if nn.parameter.is_lazy(one)]:
        raise ConfigError("model", lazy[0], "must have a shape: call the module on a sample once before")
    hashed = hashlib.blake2b(str(isinstance(given, nn.Module)).encode(), digest_size=8)
    hashed.update(repr(module).encode())
    for name, layer in module.named_modules():
        simple = (bool, int, float, str, tuple, list, type(None))
        plain = {key: value for key, value in vars(layer).items() if key[0] != "_" and isinstance(value, simple)}
        hashed.update(f"{name} {sorted(plain.items())}".encode())
    for own in sorted({type(layer) for layer in module.modules()}, key=lambda own: own.__qualname__):
        if own.__module__.partition(".")[0] not in ("torch", "torchvision"):
            hashed.update(_source(own))
    for name, tensor in module.state_dict().items():
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
    return hashed.hexdigest()


def _source(own: type) -> bytes:
    """The text of a class; its compiled methods where there is no text, as in a prompt."""
    try:
        return inspect.getsource(own).encode()
    except (OSError, TypeError):
        codes = [value.__code__ for value in vars(own).values() if inspect.isfunction(value)]
        return repr([(code.co_code, code.co_names, code.co_consts) for code in codes]).encode()


def _build_network(make: Callable[[], Any], seed: int) -> nn.Module:
    """Call ``make`` with the random state of ``seed``. Raises ConfigError unless it returns a torch module."""
    try:
        module = build_seeded(seed, make)
    except TypeError as error:
        name = getattr(make, "__name__", "object")
        raise ConfigError("model", name, f"must make a torch module when called without arguments: {error}") from error
    if not isinstance(module, nn.Module):
        allowed = f"must make a torch module when called, made a {type(module).__name__}"
        raise ConfigError("model", getattr(make, "__name__", "object"), allowed)
    return module


def _check_network(module: nn.Module, data_shape: tuple[int, ...], classes: int) -> None:
    """Raise ConfigError for a network that cannot be trained as one vector, or whose runs are not repeatable."""

    def require(ok: bool, allowed: str) -> None:
        if not ok:
            raise ConfigError("", type(module).__name__, allowed)

    named = dict(module.named_parameters())
    require(bool(named), "must have parameters")
    frozen = [name for name, parameter in named.items() if not parameter.requires_grad]
    require(not frozen, f"must have no frozen parameters: {', '.join(frozen[:3])}")
    other = [name for name, parameter in named.items() if parameter.dtype != torch.float32]
    require(not other, f"must have float32 parameters: {', '.join(other[:3])} is not")
    trial, before = copy.deepcopy(module).train(), torch.get_rng_state()
    try:
        logits = trial(torch.zeros(2, *data_shape))
    except Exception as error:
        shape = "x".join(map(str, data_shape))
        require(
            False, f"must take samples of shape {shape}: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
        )
    drawn = not torch.equal(before, torch.get_rng_state())
    require(not drawn, "must draw no random numbers, or no run could be resumed: set the p of its dropout to 0")
    found = tuple(getattr(logits, "shape", ()))
    require(found == (2, classes), f"must give (2, {classes}) logits for two samples, gave {found or type(logits)}")
    grads = torch.autograd.grad(logits.sum(), list(trial.parameters()), allow_unused=True)
    unused = [name for name, grad in zip(named, grads, strict=True) if grad is None]
    require(
        not unused, f"must use all its parameters: {', '.join(unused[:3])} {'is' if len(unused) == 1 else 'are'} not"
    )
