"""Dataclasses of texts and numbers from JSON that somebody may have edited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from ..files import clean_text

T = TypeVar("T")
_NUMBERS: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float)}
_LARGEST = 1e300  # a number of more digits is none of a page


def build_plain(schema: type[T], content: Mapping[str, Any]) -> T:
    """Return an instance of a dataclass of texts, numbers and tuples of texts.

    Raises ValueError that names the field for a value of another type, TypeError for an unknown or a missing field.
    """
    values = dict(content)
    for name, hint in get_type_hints(schema).items():
        if name in values:
            values[name] = _check_value(name, hint, values[name])
    return schema(**values)


def _check_value(name: str, hint: Any, value: Any) -> Any:
    """Return the value of a field, its text clean. Raises ValueError."""
    if hint is str and isinstance(value, str):
        return clean_text(value, one_line=True)
    if hint in _NUMBERS and type(value) in _NUMBERS[hint] and not abs(value) > _LARGEST:
        return value
    if hint == tuple[str, ...] and isinstance(value, list):
        return tuple(_check_value(name, str, one) for one in value)
    kinds = {str: "a text", int: "a whole number", float: "a number", tuple[str, ...]: "a list of texts"}
    if hint in kinds:
        raise ValueError(f"{name} must be {kinds[hint]}")
    return value
