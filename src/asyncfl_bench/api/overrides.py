"""Python values as overrides of a command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..config.overrides import MOST_RUNS, flat_items, quote_override
from ..errors import ConfigError, format_value

Overrides = Iterable[str] | Mapping[str, Any]
_PLAIN = re.compile(r"[\w./+-][\w./:+-]*")


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
            words.append(f"{key}={','.join(_format_value(key, one) for one in value)}")
        elif axes and isinstance(value, str):
            words.append(f"{key}={value}")  # algorithm="ace,asgd" is an axis too
        else:
            words.append(f"{key}={_format_value(key, value)}")
    return words


def _format_value(key: str, value: Any) -> str:
    """Return a Python value as an override has it. Raises ConfigError for other kinds of values."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of NumPy's or torch's
        value = value.item()
    if value is None or isinstance(value, (bool, int, float)):
        return format_value(value)
    if isinstance(value, (list, tuple, range)):
        return f"[{','.join(_format_value(key, one) for one in value)}]"
    if hasattr(value, "__fspath__"):
        value = str(value)
    if not isinstance(value, str):
        allowed = "must be text, a number, true or false, None, or a list of such"
        raise ConfigError(key, type(value).__name__, allowed)
    return value if _PLAIN.fullmatch(value) else quote_override("", value)[1:]
