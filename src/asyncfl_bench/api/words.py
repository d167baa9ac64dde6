"""Python values as the words of a command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..config.words import quoted
from ..errors import ConfigError, shown

Overrides = Iterable[str] | Mapping[str, Any]
_PLAIN = re.compile(r"[\w./+-][\w./:+-]*")


def words_of(overrides: Overrides, settings: Mapping[str, Any], *, axes: bool = False) -> list[str]:
    """``["seed=3"]`` of ``["seed=3"]``, ``{"seed": 3}`` or both. axes: a list is the values of an axis."""
    if isinstance(overrides, str):
        raise ConfigError("overrides", overrides, "must be a list of texts, for example ['algorithm=ace']")
    given = [overrides, settings] if isinstance(overrides, Mapping) else [settings]
    words = [] if isinstance(overrides, Mapping) else list(overrides)
    for key, value in (pair for mapping in given for pair in _flat(mapping)):
        if axes and isinstance(value, (list, tuple, range)):
            words.append(f"{key}={','.join(_text(key, one) for one in value)}")
        elif axes and isinstance(value, str):
            words.append(f"{key}={value}")  # algorithm="ace,asgd" is an axis too
        else:
            words.append(f"{key}={_text(key, value)}")
    return words


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """``{"client": {"lr": 1}}`` is ``client.lr``, as in yaml."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(key: str, value: Any) -> str:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of NumPy's or torch's
        value = value.item()
    if value is None or isinstance(value, (bool, int, float)):
        return shown(value)
    if isinstance(value, (list, tuple, range)):
        return f"[{','.join(_text(key, one) for one in value)}]"
    if hasattr(value, "__fspath__"):
        value = str(value)
    if not isinstance(value, str):
        allowed = "must be text, a number, true or false, None, or a list of such"
        raise ConfigError(key, type(value).__name__, allowed)
    return value if _PLAIN.fullmatch(value) else quoted("", value)[1:]
