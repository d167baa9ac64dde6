"""Networks that are plain torch modules: objects of ``run(model=module)``, and classes named in a yaml file.

``data.given`` holds the objects during the run.

Legend: B samples of a mini-batch.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch import nn

from ..data.given import find_object
from ..errors import ConfigError, describe_error, user_location
from ..files import say_once
from ..ranges import settings_from_arguments
from ..types import Facts
from .base import Model, ModelConfig
from .networks import build_seeded


@dataclass
class GivenModelConfig(ModelConfig):
    """
    digest  of the network
    kind    class of the object it came as
    """

    digest: str = ""
    kind: str = ""


class GivenModel(Model):
    """A torch module, or a function that returns one. A module keeps its weights; the seed draws those of a function.

    The module maps (B, ...) samples to (B, classes) logits. It must not draw random numbers or have frozen parameters.
    """

    config: GivenModelConfig

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.config.kind

    def build(self, data_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
        given = find_object(self.config.digest, self.config.kind)
        module = copy.deepcopy(given) if isinstance(given, nn.Module) else _build_network(given, seed)
        _check_network(module.cpu(), data_shape, classes)
        return module


class NamedModelConfig(ModelConfig):
    """Settings of a torch module named in a yaml file: the arguments of its constructor, then ``digest``.

    digest  digest of the layers and their source, so that a changed network is another run; computed
    make    the constructor
    """

    digest = "auto"
    # attributes, as arguments may have these names and properties cannot be set
    normalised_groups, uncaptured = None, None
    make: ClassVar[Callable[..., nn.Module]]

    def resolve(self, facts: Facts) -> None:
        self.digest = _digest_of_call(self.make, json.dumps(self.arguments))

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``make``."""
        return {key: value for key, value in asdict(self).items() if key != "digest"}


class NamedModel(Model):
    """A model like ``GivenModel``, of a class or function named in a yaml file. The seed draws the weights."""

    config: NamedModelConfig

    def build(self, data_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
        config = self.config
        module = _build_network(partial(config.make, **config.arguments), seed)
        _check_network(module.cpu(), data_shape, classes)
        return module


@cache
def model_of(make: Callable[..., nn.Module]) -> type[Model]:
    """Return the model class of a torch module's class, or of a function that returns a module."""
    digest = (
        "digest",
        "str",
        field(default=NamedModelConfig.digest, kw_only=True),
    )  # after the arguments, by which a page names a run
    config = settings_from_arguments(make, NamedModelConfig, [digest])
    config.make = staticmethod(make)  # type: ignore[attr-defined]
    names = {"__module__": make.__module__, "__qualname__": make.__qualname__, "name": make.__name__}
    return type(make.__name__, (NamedModel,), {"Config": config, **names})


def digest_of_network(given: object) -> str:
    """Return a digest of 16 hex digits of a network, or of a function that returns one.

    It covers the layers with their plain attributes, the source of classes that are not torch's, and the weights; of a
    function, the weights of one seed. Functions that a ``forward`` calls are not covered.
    """
    if not isinstance(given, nn.Module) and not callable(given):
        allowed = "must be a torch module, or what makes one when called without arguments"
        raise ConfigError("model", type(given).__name__, allowed)
    hashed = hashlib.blake2b(str(isinstance(given, nn.Module)).encode(), digest_size=8)
    try:
        _hash_network(hashed, given if isinstance(given, nn.Module) else _build_network(given, 0), weights=True)
    except ConfigError as error:
        raise error.with_prefix("model") from error
    return hashed.hexdigest()


@cache
def _digest_of_call(make: Callable[..., nn.Module], arguments: str) -> str:
    """Return a digest as ``digest_of_network``, without the weights, which the seed draws. arguments: JSON."""
    hashed = hashlib.blake2b(_source(make), digest_size=8)
    _hash_network(hashed, _build_network(partial(make, **json.loads(arguments)), 0), weights=False)
    return hashed.hexdigest()


def _hash_network(hashed: hashlib.blake2b, module: nn.Module, weights: bool) -> None:
    """Add the layers, the source of classes that are not torch's, and the weights or only their shapes."""
    if lazy := [name for name, one in module.named_parameters() if nn.parameter.is_lazy(one)]:
        raise ConfigError("", lazy[0], "must have a shape: call the module on a sample once before")
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
        if weights:
            hashed.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().data)  # also of bfloat16


def _source(own: Any) -> bytes:
    """Return the source of a class or function, or its compiled methods without source, as in a prompt."""
    try:
        return inspect.getsource(own).encode()
    except (OSError, TypeError):
        codes = [value.__code__ for value in (own, *vars(own).values()) if inspect.isfunction(value)]
        return repr([(code.co_code, code.co_names, code.co_consts) for code in codes]).encode()


def _build_network(make: Callable[[], Any], seed: int) -> nn.Module:
    """Call ``make`` with the random state of ``seed``. Raises ConfigError unless it returns a torch module."""
    named = make.func if isinstance(make, partial) else make
    name = getattr(named, "__name__", "object")
    try:
        module = build_seeded(seed, make)
    except TypeError as error:
        if user_location(error):
            raise
        called = "from its settings" if isinstance(make, partial) else "when called without arguments"
        raise ConfigError("", name, f"must make a torch module {called}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError("", name, f"must make a torch module when called, made a {type(module).__name__}")
    return module


def _check_network(module: nn.Module, data_shape: tuple[int, ...], classes: int) -> None:
    """Raise ConfigError for a network that cannot be trained as one vector, or that is not repeatable."""

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
        require(False, f"must take samples of shape {shape}: {describe_error(error)}")
    drawn = not torch.equal(before, torch.get_rng_state())
    require(not drawn, "must draw no random numbers, or no run could be resumed: set the p of its dropout to 0")
    found = tuple(getattr(logits, "shape", ()))
    require(found == (2, classes), f"must give (2, {classes}) logits for two samples, gave {found or type(logits)}")
    if (logits >= 0).all() and torch.allclose(logits.sum(1), torch.ones(2), atol=1e-4):
        why = "gives probabilities, and the loss applies softmax again; leave out the softmax at its end"
        say_once(f"model={type(module).__name__}: {why}")
    grads = torch.autograd.grad(logits.sum(), list(trial.parameters()), allow_unused=True)
    unused = [name for name, grad in zip(named, grads, strict=True) if grad is None]
    require(
        not unused, f"must use all its parameters: {', '.join(unused[:3])} {'is' if len(unused) == 1 else 'are'} not"
    )
