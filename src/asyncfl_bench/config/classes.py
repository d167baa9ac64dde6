"""The class that a yaml names as ``_target_``: whether it suits its group, mistakes in its members, and its code.

A digest of a user's code covers the modules of the classes that a run names, and the user's modules that these import.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..errors import (
    PACKAGE,
    ConfigError,
    check,
    describe_error,
    describe_location,
    did_you_mean,
    is_built_in,
    is_user_file,
    list_some,
    location_of_code,
)
from ..ranges import Absent, CheckedSettings, Range, default_values, settings_from_arguments
from .part_sources import allow_local_modules, module_folders
from .settings import LISTED

# group -> the module of the classes that its parts and their settings extend, and these classes
_BASES = {
    "heterogeneity": ("data.partition", "Split", "PartitionConfig"),
    "model": ("models.base", "Model", "ModelConfig"),
    "client": ("clients.local", "LocalTraining", "LocalConfig"),
    "delay": ("simulation.delay", "Delay", "DelayConfig"),
    "availability": ("simulation.availability", "Always", "AlwaysConfig"),
    "schedule": ("simulation.schedules", "SameClient", "ScheduleConfig"),
    "algorithm": ("algorithms.base", "ServerRule", "RuleConfig"),
    "diagnostics": ("diagnostics.base", "Diagnostics", "DiagnosticsConfig"),
    "observers": ("simulation.observer", "Observer"),
}
LIKENESS = 0.8  # ratio of difflib from which a name is taken for a misspelt one
NEED_SUPER = ("__init__", "__post_init__", "start", "resolve", "idle")  # where the method above does something
_MISSING = object()
UNKNOWN = "unknown"  # the digest of a run of an earlier version
_OTHERS = (PACKAGE, "torch", "torchvision")  # packages whose versions a summary has


def part_class(key: str, name: str) -> Any:
    """Return the class that a yaml names. Raises ConfigError if module or class is missing, or cannot be imported."""
    allow_local_modules()
    module_name, _, class_name = name.rpartition(".")
    check(bool(module_name), key, name, "a class as MODULE.CLASS")
    of_python = module_name.partition(".")[0] in sys.stdlib_module_names
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(key, name, _describe_import_error(module_name, error)) from None
        parent, _, last = str(error.name).rpartition(".")
        folders = getattr(sys.modules[parent], "__path__", []) if parent else map(str, module_folders())
        there = [PACKAGE] * (not parent) + [one.name for one in pkgutil.iter_modules(folders)]
        where = f"in {parent}" if parent else f"installed, or in {list_some(map(str, module_folders()))}"
        near = "" if of_python else did_you_mean(last, there)
        allowed = f"must name a class as MODULE.CLASS{near}; there is no module {last} {where}"
        raise ConfigError(key, name, allowed) from None
    except (Exception, SystemExit) as error:
        raise ConfigError(key, name, _describe_import_error(module_name, error)) from None
    target: Any = getattr(module, class_name, None)
    if target is None:
        if of_python:
            raise ConfigError(key, name, f"{module_name} is a module of Python; give your own module another name")
        near = did_you_mean(class_name, (one for one in vars(module) if not one.startswith("_")))
        raise ConfigError(key, name, f"must name a class of {module_name}{near}; there is no {class_name}")
    group = key.partition(".")[0]
    if group == "model" and _makes_network(target):
        from ..models.given import model_of

        return model_of(target)
    base_module, *names = _BASES.get(group, ("",))
    bases = [getattr(importlib.import_module(f"{PACKAGE}.{base_module}"), name) for name in names]
    if bases and not (inspect.isclass(target) and issubclass(target, bases[0])):
        also = ", or a torch.nn.Module" if group == "model" else ""
        must = f"must name a class for the group {group}: one that extends {bases[0].__name__} of {bases[0].__module__}"
        raise ConfigError(key, name, must + also)
    check_members(key, name, target)
    if group == "observers" and not hasattr(target, "Config"):
        return _with_config(target)
    if not dataclasses.is_dataclass(getattr(target, "Config", None)):
        raise ConfigError(key, name, "must name a class with a Config, the dataclass of its settings")
    _check_schema(key, name, target.Config, bases[1] if bases[1:] else object)
    check_members(key, name, target.Config)
    return target


def class_sections(group: str, tree: Any) -> dict[str, Any]:
    """Return the sections of a yaml that name a class, by their key in the file, which is empty for the file itself."""
    if not isinstance(tree, Mapping):
        return {}
    nested = isinstance(tree.get(group), Mapping)  # the file also changes another group
    named = tree if group in LISTED else {group: tree[group]} if nested else {"": tree}
    return {key: one for key, one in named.items() if isinstance(one, Mapping) and "_target_" in one}


def defaults_of_class(group: str, name: str) -> dict[str, Any]:
    """Return the section of a class with all its defaults; an empty one for a class that cannot be used."""
    try:
        return {"_target_": name, **default_values(part_class(f"{group}._target_", name).Config)}
    except ConfigError:  # the check of all settings says what is wrong
        return {}


@functools.cache
def _with_config(target: Any) -> Any:
    """Return the class with a Config: its settings are the arguments that it is made with."""

    def make(self: Any, config: Any) -> None:
        target.__init__(self, **vars(config))

    names = {"__module__": target.__module__, "__qualname__": target.__qualname__, "__init__": make}
    return type(target.__name__, (target,), {"Config": settings_from_arguments(target, CheckedSettings), **names})


def _makes_network(target: object) -> bool:
    """Return True for a torch module's class and for a function, which may make one."""
    torch = sys.modules.get("torch")  # a class of torch's has imported it
    of_torch = torch is not None and inspect.isclass(target) and issubclass(target, torch.nn.Module)
    return of_torch or inspect.isfunction(target)


def _describe_import_error(module: str, error: BaseException) -> str:
    """Return a message with the error that a module raised on import, and its line."""
    return f"must name an importable class; importing {module} ends in {describe_error(error)}"


@functools.cache
def _check_schema(key: str, name: str, schema: type, base: type) -> None:
    """Raise ConfigError for a dataclass of settings that does not extend ``base``, or with a field of no type."""
    if not issubclass(schema, base):
        write = f"write class {schema.__name__}({base.__name__}), imported from {base.__module__}"
        raise ConfigError(
            key, name, f"its {schema.__name__} must extend {base.__name__}; {write}{location_of_member(schema)}"
        )
    for cls in schema.__mro__:
        if cls.__module__.partition(".")[0] in (PACKAGE, "builtins"):
            continue
        annotations = inspect.get_annotations(cls)
        if annotations and "__dataclass_fields__" not in vars(cls):
            raise ConfigError(key, name, f"write @dataclass above class {cls.__name__}{location_of_member(cls)}")
        for field, annotation in annotations.items():
            alone = type(cls.__name__, (), {"__annotations__": {field: annotation}, "__module__": cls.__module__})
            problem = ""
            try:
                hint = inspect.get_annotations(alone, locals=dict(vars(cls)), eval_str=True)[field]
                if isinstance(hint, Range | Absent):
                    example = "for example Annotated[float, greater_than(0)]"
                    problem = f"a range is not a type; write it beside one, {example}"
            except Exception as error:
                problem = describe_error(error)
            if problem:
                raise ConfigError(key, name, f"the type of {field}: {problem}{location_of_member(cls, field)}")


@functools.cache
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
                raise ConfigError(key, name, f"{cls.__name__}.{member}{problem}{location_of_member(cls, member)}")
    if missing := sorted(getattr(target, "__abstractmethods__", ())):
        headers = [f"{method}{_header(getattr(target, method))}" for method in missing]
        raise ConfigError(
            key, name, f"{target.__name__} must define {' and '.join(headers)}{location_of_member(target)}"
        )


def location_of_member(cls: type, member: str = "") -> str:
    """Return `` (mine.py, line 9)`` for a class or a member of it; an empty string if its file is not known."""
    if (code := _code_of(vars(cls).get(member))) and (location := location_of_code(code)):
        return f" ({location})"
    try:
        file, (lines, first) = inspect.getfile(cls), inspect.getsourcelines(cls)
    except (OSError, TypeError):
        return ""
    begins = re.compile(rf"\s+(class )?{member}\b" if member else r"\s*class ").match
    return f" ({describe_location(file, first + next((at for at, line in enumerate(lines) if begins(line)), 0))})"


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
    if code is None or not location_of_code(code):  # written by a decorator
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
    """Yield the names of attributes and globals in a function and in the functions within it."""
    if code is not None:
        yield from code.co_names
        for constant in code.co_consts:
            yield from _names_in(constant if isinstance(constant, CodeType) else None)


def _parameters(method: FunctionType) -> tuple[list[str], list[str]]:
    """Return the parameters that the program passes: by position, by name."""
    kinds = {name: one.kind for name, one in inspect.signature(method).parameters.items()}
    by_place = [name for name, kind in kinds.items() if kind == inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return by_place, [name for name, kind in kinds.items() if kind == inspect.Parameter.KEYWORD_ONLY]


def _header(method: FunctionType) -> str:
    """Return the parameters as in a definition, without types."""
    by_place, by_name = _parameters(method)
    return f"({', '.join([*by_place, *(['*', *by_name] if by_name else [])])})"


def is_own_class(name: str) -> bool:
    """Return True for the dotted name of a class that is neither of this package nor of torch's."""
    return name.partition(".")[0] not in _OTHERS


def digest_modules(targets: Iterable[Any]) -> dict[str, str]:
    """Return module -> SHA-256 of its file, of users' classes and of the user's modules that these import at their top.

    A file is read when a class of it is first named. One that cannot be read is left out, as in a notebook.
    """
    found: dict[str, str] = {}
    left = [target.__module__ for target in targets if is_own_class(target.__module__)]
    while left:
        name = left.pop(0)
        if name not in found and (module := sys.modules.get(name)) is not None:
            digest, imported = _read_module(module)
            found |= {name: digest} if digest else {}
            left += imported
    return found


def digest_code(modules: Mapping[str, str]) -> str:
    """Return 8 hex digits for the digests of modules; an empty text for none."""
    return hashlib.sha256(repr(sorted(modules.items())).encode()).hexdigest()[:8] if modules else ""


@functools.cache
def _read_module(module: ModuleType) -> tuple[str, list[str]]:
    """Return the SHA-256 of a module's file and the names of the user's modules that it imports at its top."""
    try:
        content = Path(str(module.__file__)).read_bytes()
        found = [name.split(".") for name in _imported_names(ast.parse(content).body, module)]
    except (OSError, SyntaxError, ValueError):  # a compiled module has no source
        return "", []
    names = {".".join(parts[: count + 1]) for parts in found for count in range(len(parts))}  # with their packages
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in sorted(names)}
    return hashlib.sha256(content).hexdigest(), [name for name, file in files.items() if file and is_user_file(file)]


def _imported_names(body: Iterable[ast.AST], module: ModuleType) -> Iterator[str]:
    """Yield the dotted names that statements import, without those inside functions."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = str(module.__package__).split(".")
            parents = above[: len(above) - node.level + 1] if node.level else []
            source = ".".join([*parents, *filter(None, [node.module])])
            yield from (f"{source}.{alias.name}" for alias in node.names)  # a module, or a name in ``source``
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _imported_names(ast.iter_child_nodes(node), module)
