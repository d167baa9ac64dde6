"""Python values and objects in the place of words and of a chosen data set or network, before a run knows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..config.composition import expand_overrides
from ..config.overrides import MOST_RUNS, flat_items, parse_override, type_value
from ..errors import ConfigError

Overrides = Iterable[str] | Mapping[str, Any]
_OWN = ("dataset", "model")


def list_overrides(overrides: Overrides, settings: Mapping[str, Any], *, axes: bool = False) -> list[str]:
    """Return ``["seed=3"]`` for ``["seed=3"]``, ``{"seed": 3}`` or both. axes: a list gives the values of an axis."""
    if isinstance(overrides, str):
        raise ConfigError("overrides", overrides, "must be a list of texts, for example ['algorithm=ace']")
    given = [overrides, settings] if isinstance(overrides, Mapping) else [settings]
    words = [] if isinstance(overrides, Mapping) else list(overrides)
    for key, value in (pair for mapping in given for pair in flat_items(mapping)):
        if axes and isinstance(value, (list, tuple, range)):
            if len(value) > MOST_RUNS:
                shown = value if isinstance(value, range) else f"{len(value)} values"
                raise ConfigError(key, shown, f"must be at most {MOST_RUNS} values, each of which is a run")
            words.append(f"{key}={','.join(type_value(key, one) for one in value)}")
        elif axes and isinstance(value, str):
            words.append(f"{key}={value}")  # algorithm="ace,asgd" is an axis too
        else:
            words.append(f"{key}={type_value(key, value)}")
    return expand_overrides(words)


@dataclass
class Objects:
    """What was given as an object.

    others  (overrides, settings) without them
    nodes   group -> the section of the config that stands for the object: its class, and the digest that identifies it
    """

    others: tuple[Overrides, Mapping[str, Any]]
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    _held: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_arguments(cls, overrides: Overrides, settings: Mapping[str, Any]) -> Objects:
        """Separate objects from other overrides and settings.

        Raises ConfigError or DataError for an object that is neither data nor a network.
        """
        named = dict(overrides) if isinstance(overrides, Mapping) else {}
        given = {key: value for key, value in (named | dict(settings)).items() if key in _OWN and not _is_name(value)}
        rest = {key: value for key, value in named.items() if key not in given}
        others = (
            (rest if isinstance(overrides, Mapping) else overrides),
            {key: value for key, value in settings.items() if key not in given},
        )
        found = cls(others)
        if "dataset" in given:
            from ..data.given import GivenData, arrays_of, digest_of_arrays

            arrays = arrays_of(given["dataset"])
            found._add_node("dataset", given["dataset"], GivenData, digest_of_arrays(arrays), arrays)
        if "model" in given:
            from ..models.given import GivenModel, digest_of_network

            model = given["model"]
            found._add_node("model", model, GivenModel, digest_of_network(model), model)
        return found

    def _add_node(self, group: str, given: object, target: type, digest: str, value: object) -> None:
        """Add the section that stands for a given object. value: what a run gets by the digest"""
        kind = getattr(given, "__name__", type(given).__name__)
        name = f"{target.__module__}.{target.__qualname__}"
        self.nodes[group] = {"_target_": name, "digest": digest, "kind": kind}
        self._held[digest] = value

    def refuse_settings(self, words: list[str]) -> None:
        """Raise ConfigError for settings of a group that an object replaces."""
        for one in map(parse_override, words):
            if one.section in self.nodes:
                raise ConfigError(
                    one.key, "", f"does not go with an object as {one.section}; give it to the object itself"
                )

    @contextmanager
    def lending_objects(self) -> Iterator[None]:
        """Make the objects available to runs by their digests while the block is open."""
        if not self._held:
            yield
            return
        from ..data.given import HELD

        HELD.update(self._held)
        try:
            yield
        finally:
            for digest in self._held:
                HELD.pop(digest, None)


def _is_name(value: object) -> bool:
    """Return True for the name or the settings of a choice, or for names; these are no object."""
    if isinstance(value, Mapping):
        return "x_train" not in value and not any(hasattr(one, "shape") for one in value.values())
    return isinstance(value, str)
