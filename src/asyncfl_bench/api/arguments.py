"""Python values as overrides of a command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..config.interpolations import expand_overrides
from ..config.overrides import MOST_RUNS, flat_items, type_value
from ..errors import ConfigError

Overrides = Iterable[str] | Mapping[str, Any]


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
