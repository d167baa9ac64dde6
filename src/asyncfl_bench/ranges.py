"""What a setting may be, said once beside its type: ``momentum: Annotated[float, within("[0, 1)")] = 0.0``.

A subclass of ``CheckedSettings`` refuses other values. ``describe_range`` returns the range in words.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from .errors import check, check_choice

if TYPE_CHECKING:
    from .types import Facts


@dataclass(frozen=True)
class Range:
    """
    words    behind the kind of number
    null     what null means, behind "or null"
    choices  of a word, where the setting is not a number
    """

    words: str = ""
    holds: Callable[[float], bool] = bool
    null: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Absent:
    """A value at which a setting is left out of a run's identity."""

    value: object


def absent(value: object) -> Absent:
    """Leave the setting out of the identity at this value, so that a new setting renames no finished run.

    ``momentum: Annotated[float, within("[0, 1)"), absent(0.0)] = 0.0``
    """
    return Absent(value)


def at_least(least: float, null: str = "") -> Range:
    """Allow finite numbers >= least. Raises TypeError for a bound that is not a number."""
    _check_bound("at_least", least)
    return Range(f">= {least:g}", lambda value: least <= value < math.inf, null)


def greater_than(bound: float, null: str = "") -> Range:
    """Allow finite numbers > bound. Raises TypeError for a bound that is not a number."""
    _check_bound("greater_than", bound)
    return Range(f"> {bound:g}", lambda value: bound < value < math.inf, null)


def within(interval: str, null: str = "") -> Range:
    """Allow numbers of an interval in mathematical notation: ``[0, 1)`` has 0 and not 1.

    Raises TypeError for what is not written as an interval.
    """
    try:
        low, high = (float(end) for end in interval[1:-1].split(","))
    except (TypeError, ValueError):
        low, high = math.inf, -math.inf
    if not (low <= high and interval[0] in "[(" and interval[-1] in "])"):
        example = 'write the interval as text, within("[0, 1]"), or within("[0, 1)") without 1'
        raise TypeError(f"within({interval!r}, ...) is not an interval; {example}")
    no_low, no_high = interval[0] == "(", interval[-1] == ")"

    def holds(value: float) -> bool:
        return low <= value <= high and not (no_low and value == low) and not (no_high and value == high)

    return Range(f"in {interval}", holds, null)


def one_of(*choices: str) -> Range:
    """Allow one of these words. Raises TypeError for other types."""
    if not all(isinstance(one, str) for one in choices):
        raise TypeError('one_of takes words; write one_of("mean", "median")')
    return Range(choices=choices)


def _check_bound(name: str, bound: object) -> None:
    if not isinstance(bound, int | float):
        raise TypeError(f"{name}({bound!r}) has a bound that is not a number; write {name}(0)")


NonNegative = Annotated[float, at_least(0)]
Positive = Annotated[float, greater_than(0)]
Count = Annotated[int, at_least(1)]


def check_client_numbers(name: str, numbers: list[float] | None, n: int) -> None:
    """Raise ConfigError unless ``numbers`` is None or has one number > 0 for each of n clients."""
    ok = numbers is None or (len(numbers) == n and min(numbers) > 0)
    check(ok, name, numbers, f"a list of numbers > 0, one for each of the {n} clients, or null")


class CheckedSettings:
    """Base of dataclasses of settings. Raises ConfigError for a value outside its field's range."""

    def __post_init__(self) -> None:
        schema: Any = type(self)
        for name, (limits, _) in _ranges(schema).items():
            value = self.__dict__[name]
            if limits.choices:
                check_choice(name, value, limits.choices)
            else:
                check(value is None or limits.holds(value), name, value, describe_range(schema, name) or "")

    def resolve(self, facts: Facts) -> None:
        """Replace `auto` and null by values. Raises ConfigError for what does not fit the facts. Called for the groups
        of ``config.resolve.ORDER``."""

    def idle(self, facts: Facts) -> dict[str, str]:
        """Return the settings without effect in this run by name, with the reason and with what acts instead.

        An empty name is the choice as a whole. Called after all settings are resolved. A user who sets one of them gets
        a message.
        """
        return {}


class Configured:
    """Base of parts with settings, whose dataclass a class names as the type of its ``config``: ``config: MineConfig``.

    Config  this dataclass, which a class may also assign itself

    Raises TypeError, for the class, where its module does not have this name.
    """

    Config: ClassVar[Any]
    config: Any

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        hint = inspect.get_annotations(cls).get("config")
        named = getattr(sys.modules[cls.__module__], hint, None) if isinstance(hint, str) else hint
        if "Config" in vars(cls):
            return
        if hint is not None and named is None:
            where = f"{cls.__qualname__}: config: {hint}"
            known = f"is not a name of the module {cls.__module__}"
            raise TypeError(f"{where} {known}; import it there, or write Config = {hint}")
        if is_dataclass(named):
            cls.Config = named

    def __init__(self, config: Any):
        self.config = config


def describe_range(schema: type, name: str) -> str | None:
    """Return the allowed values of a setting in words; None for a setting without a range."""
    if name not in _ranges(schema):
        return None
    limits, hint = _ranges(schema)[name]
    if limits.choices:
        return f"one of {', '.join(limits.choices)}"
    kinds = get_args(hint) or (hint,)
    words = f"a whole number {limits.words}" if int in kinds else f"a number {limits.words}"
    return words + (f", or null {limits.null}".rstrip() if NoneType in kinds else "")


def setting_fields(schema: Any) -> dict[str, Any]:
    """Return the dataclass field of each setting by name, those of base classes last."""
    known = {one.name: one for one in fields(schema)}
    declared = (name for cls in schema.__mro__ for name in inspect.get_annotations(cls) if name in known)
    return {name: known[name] for name in dict.fromkeys([*declared, *known])}


def default_values(schema: Any) -> dict[str, Any]:
    """Return the default of each setting, those of nested sections as dicts. A setting that must be set is left out."""
    hints, found = get_type_hints(schema), {}
    for name, one in setting_fields(schema).items():
        if is_dataclass(hints[name]):
            found[name] = default_values(hints[name])
        elif one.default_factory is not MISSING:
            found[name] = one.default_factory()
        elif one.default is not MISSING:
            found[name] = one.default
    return found


@cache
def setting_texts(schema: Any) -> dict[str, str]:
    """Return what each setting means: the lines ``NAME  MEANING`` of the docstring, behind those of the base classes.

    ``NAME, NAME  MEANING`` is for several settings; the lines below are indented.
    """
    found: dict[str, list[str]] = {one.name: [] for one in fields(schema)}
    for cls in reversed(schema.__mro__):
        names: list[str] = []
        for line in inspect.cleandoc(vars(cls).get("__doc__") or "").splitlines():
            if match := re.fullmatch(r"(\w+(?:, \w+)*) {2,}(\S.*)", line):
                names = [name for name in match[1].split(", ") if name in found]
                for name in names:
                    found[name].append(match[2])
            elif line.startswith(" "):
                for name in names:
                    found[name][-1] += f" {line.strip()}"
            else:
                names = []
    return {name: "; ".join(texts) for name, texts in found.items() if texts}


def values_outside(schema: type) -> dict[str, object]:
    """Return a value outside of each range, by the name of the setting."""
    numbers = (-1, 0, 2, -1e9, 1e9)
    found: dict[str, object] = {}
    for name, (limits, _) in _ranges(schema).items():
        value = "no_such_choice" if limits.choices else next((v for v in numbers if not limits.holds(v)), None)
        if value is not None:
            found[name] = value
    return found


def absent_settings(config: Any, prefix: str) -> list[str]:
    """Return the dotted keys of settings, also of nested sections, that have their value of ``absent``."""
    schema: Any = type(config)
    marks = _annotated(schema, Absent)
    found = [f"{prefix}{name}" for name, mark in marks.items() if getattr(config, name) == mark.value]
    for name, value in vars(config).items():
        if is_dataclass(value):
            found += absent_settings(value, f"{prefix}{name}.")
    return found


@cache
def _ranges(schema: Any) -> dict[str, tuple[Range, Any]]:
    """Return (range, type) by field."""
    return {name: (limits, get_type_hints(schema)[name]) for name, limits in _annotated(schema, Range).items()}


@cache
def _annotated(schema: Any, kind: type) -> dict[str, Any]:
    """Return the annotation of that kind by field. A subclass that only changes a default keeps it."""
    found: dict[str, Any] = {}
    for cls in reversed(schema.__mro__):
        hints = get_type_hints(cls, include_extras=True)
        for name in inspect.get_annotations(cls):
            said = hints[name].__metadata__ if get_origin(hints[name]) is Annotated else ()
            found.update((name, one) for one in said if isinstance(one, kind))
    return found


_SETTING_TYPES = (bool, int, float, str, list[int], list[float], list[str], NoneType)


def settings_from_arguments(call: Callable[..., Any], base: type, last: Sequence[tuple[str, str, Any]] = ()) -> type:
    """Return a dataclass below ``base`` with a field for each argument of a class or function that has no Config.

    An argument without a default must be set. One whose default is not plain (a class, say) is left to the callee.
    last  (name, type, field) of more fields behind these
    """
    try:
        hints = get_type_hints(call.__init__ if inspect.isclass(call) else call)
    except Exception:  # a name that only a type checker knows
        hints = {}
    fields: list[Any] = []
    for name, argument in inspect.signature(call).parameters.items():
        default = MISSING if argument.default is argument.empty else argument.default
        plain = isinstance(default, bool | int | float | str | list | tuple | NoneType)
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD) or not (plain or default is MISSING):
            continue
        values: dict[str, Any] = {"default": default}
        if isinstance(default, list | tuple):
            values = {"default_factory": partial(list, default)}
        fields.append((name, _type_of_argument(hints.get(name)), field(**values, kw_only=True)))
    return make_dataclass("Config", [*fields, *last], bases=(base,), namespace={"__module__": __name__})


def _type_of_argument(hint: Any) -> str:
    """Return the type of a setting for the hint of an argument; ``Any`` for a hint that no setting can have."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if not all(kind in _SETTING_TYPES for kind in kinds):
        return "Any"
    return " | ".join("None" if kind is NoneType else str(kind) if get_args(kind) else kind.__name__ for kind in kinds)
