"""The class that a yaml names as ``_target_``, held against the group it is named for."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import sys
from typing import Any

from ..errors import (
    PACKAGE,
    ConfigError,
    check,
    describe_error,
    did_you_mean,
    list_some,
)
from ..ranges import Absent, CheckedSettings, Range, settings_from_arguments
from .member_checks import check_members, place_of_member
from .places import allow_local_modules, module_folders

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


def part_class(key: str, name: str) -> Any:
    """The class that a yaml names. Raises ConfigError: no such module, one that cannot be imported, no such class."""
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
    except Exception as error:
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
    bases = _base_classes(group)
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


def _base_classes(group: str) -> list[type]:
    """Return the classes that the parts of a group and their settings extend; an empty list if any class will do."""
    module, *names = _BASES.get(group, ("",))
    return [getattr(importlib.import_module(f"{PACKAGE}.{module}"), name) for name in names]


def _describe_import_error(module: str, error: Exception) -> str:
    """Return a message with the error that a module raised on import, and its line."""
    return f"must name an importable class; importing {module} ends in {describe_error(error)}"


@functools.cache
def _check_schema(key: str, name: str, schema: type, base: type) -> None:
    """Raise ConfigError for a dataclass of settings that does not extend ``base``, or with a field of no type."""
    if not issubclass(schema, base):
        write = f"write class {schema.__name__}({base.__name__}), imported from {base.__module__}"
        raise ConfigError(
            key, name, f"its {schema.__name__} must extend {base.__name__}; {write}{place_of_member(schema)}"
        )
    for cls in schema.__mro__:
        if cls.__module__.partition(".")[0] in (PACKAGE, "builtins"):
            continue
        annotations = inspect.get_annotations(cls)
        if annotations and "__dataclass_fields__" not in vars(cls):
            raise ConfigError(key, name, f"write @dataclass above class {cls.__name__}{place_of_member(cls)}")
        for field, annotation in annotations.items():
            problem = _annotation_problem(cls, field, annotation)
            if problem:
                raise ConfigError(key, name, f"the type of {field}: {problem}{place_of_member(cls, field)}")


def _annotation_problem(cls: type, field: str, annotation: object) -> str:
    """Return what is wrong with the type of a field; an empty string if it can be evaluated."""
    alone = type(cls.__name__, (), {"__annotations__": {field: annotation}, "__module__": cls.__module__})
    try:
        hint = inspect.get_annotations(alone, locals=dict(vars(cls)), eval_str=True)[field]
    except Exception as error:
        return describe_error(error)
    if isinstance(hint, Range | Absent):
        return "a range is not a type; write it beside one, for example Annotated[float, greater_than(0)]"
    return ""
