"""Mistakes in the members of a user's class that are known once it is loaded, each in one line with file and line."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from ..errors import ConfigError, describe_place, is_built_in, place_of_code

LIKENESS = 0.8  # ratio of difflib from which a name is taken for a misspelt one
NEED_SUPER = ("__init__", "__post_init__", "start", "resolve", "idle")  # where the method above does something
_MISSING = object()


@cache
def check_members(key: str, name: str, target: type) -> None:
    """Raise ConfigError(key, name, ...) for members of a user's class that cannot be meant as they are written.

    These are misspelt names, missing methods, other arguments than the program passes, an override without ``super()``,
    one text in the place of several, unknown kinds of upload, and names that the run sets.
    """
    bases = [cls for cls in target.__mro__ if is_built_in(cls)]
    own = [cls for cls in target.__mro__ if not is_built_in(cls) and issubclass(cls, tuple(bases))]
    for cls in own:
        for member, value in vars(cls).items():
            if problem := _member_problem(cls, member, value, own, bases):
                raise ConfigError(key, name, f"{cls.__name__}.{member}{problem}{place_of_member(cls, member)}")
    if missing := sorted(getattr(target, "__abstractmethods__", ())):
        headers = [f"{method}{_header(getattr(target, method))}" for method in missing]
        raise ConfigError(key, name, f"{target.__name__} must define {' and '.join(headers)}{place_of_member(target)}")


def place_of_member(cls: type, member: str = "") -> str:
    """Return `` (mine.py, line 9)`` for a class or a member of it; an empty string if its file is not known."""
    if (code := _code_of(vars(cls).get(member))) and (place := place_of_code(code)):
        return f" ({place})"
    try:
        file, (lines, first) = inspect.getfile(cls), inspect.getsourcelines(cls)
    except (OSError, TypeError):
        return ""
    begins = re.compile(rf"\s+(class )?{member}\b" if member else r"\s*class ").match
    return f" ({describe_place(file, first + next((at for at, line in enumerate(lines) if begins(line)), 0))})"


def _member_problem(cls: type, member: str, value: Any, own: list[type], bases: list[type]) -> str:
    """Return what is wrong with a member of the user's class ``cls``; an empty string if nothing is.

    own    the user's classes that ``cls`` is one of;  bases  those of this package that they extend
    """
    if member in getattr(cls, "_set_by_run", ()):
        return " is set by the run; choose another name"
    above = next((vars(base)[member] for base in bases if member in vars(base)), _MISSING)
    if above is _MISSING:
        near = _intended_name(cls, member, value, own, bases)
        return f": did you mean {near}? The program uses no {member}; call yours _{member}" if near else ""
    if inspect.isfunction(above):
        return _method_problem(member, value, above)
    if isinstance(above, tuple) and not isinstance(value, tuple | list):
        words = tuple(value) if isinstance(value, set | frozenset) else (value,)
        return f" must be a tuple; write {member} = {words!r}"
    if member == "upload_kinds":
        known = next(vars(base)[member] for base in reversed(bases) if member in vars(base))
        return "" if value and {*value} <= {*known} else f" must be of {' and '.join(map(repr, known))}, not {value!r}"
    return ""


def _method_problem(member: str, value: Any, above: FunctionType) -> str:
    """Return what is wrong with a member that overrides the method ``above``; an empty string if nothing is."""
    if not callable(value) and not hasattr(value, "__get__"):
        return f" must be a method, not {value!r:.40}"
    code = _code_of(value)
    if code is None or not place_of_code(code):  # written by a decorator
        return ""
    by_place, by_name = _parameters(above)
    try:
        inspect.signature(value).bind(*by_place, **dict.fromkeys(by_name))
    except TypeError:
        return f" must take {_header(above)}"
    if member in NEED_SUPER and above.__code__.co_names and member not in _names_in(code):
        return f" must call super().{member}({', '.join(by_place[1:])})"
    return ""


def _intended_name(cls: type, member: str, value: Any, own: list[type], bases: list[type]) -> str:
    """Return the name in ``bases`` that a user's member resembles, if the user's classes neither define that name nor
    use the member; else an empty string."""
    is_method = _code_of(value) is not None
    if member.startswith("_") or (dataclasses.is_dataclass(cls) and not is_method):  # a new setting
        return ""
    used = {name for one in own for other in vars(one).values() for name in _names_in(_code_of(other))}
    defined = {name for one in own for name in vars(one)}
    known = {
        name: _code_of(other) is not None for base in bases for name, other in vars(base).items() if name[0] != "_"
    }
    names = [name for name, has_code in known.items() if has_code == is_method and name not in defined]
    near = get_close_matches(member, names, n=1, cutoff=LIKENESS)
    return near[0] if near and member not in used else ""


def _code_of(value: Any) -> CodeType | None:
    """Return the code of a function, a property, or a static or class method; None for anything else."""
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    return getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None


def _names_in(code: CodeType | None) -> Iterator[str]:
    """The names of attributes and globals in a function and in the functions within it."""
    if code is not None:
        yield from code.co_names
        for constant in code.co_consts:
            yield from _names_in(constant if isinstance(constant, CodeType) else None)


def _parameters(method: FunctionType) -> tuple[list[str], list[str]]:
    """The parameters that the program passes: by place, by name."""
    kinds = {name: one.kind for name, one in inspect.signature(method).parameters.items()}
    by_place = [name for name, kind in kinds.items() if kind == inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return by_place, [name for name, kind in kinds.items() if kind == inspect.Parameter.KEYWORD_ONLY]


def _header(method: FunctionType) -> str:
    """The parameters as in a definition, without their types."""
    by_place, by_name = _parameters(method)
    return f"({', '.join([*by_place, *(['*', *by_name] if by_name else [])])})"
