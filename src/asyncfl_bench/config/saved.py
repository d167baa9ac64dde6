"""Settings that a run directory has, and runs that resume or repeat it.

Other people may have written these settings, so they name no code but known parts.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import PACKAGE, ConfigError, check, list_some
from ..files import expand_home, read_json, read_yaml
from .check import check_settings, replace_limits, set_value
from .classes import part_class
from .overrides import Override, has_interpolation, parse_override
from .part_sources import (
    BY_HAND,
    PartSource,
    allow_local_modules,
    class_names,
    command_text,
    module_folders,
    named_folders,
    part_sources,
)
from .settings import ABSENT, NOT_IDENTITY, PARTS, EarlierRun, RootConfig, Settings, fill_in_precision, identity_of_tree

ALLOW_VARIABLE = "ASYNCFL_BENCH_ALLOW"  # packages whose parts a run directory may name, with commas between
START_AGAIN = "start the run again with the words of its command"
_TARGET, _NONE = "_target_", "none"
# classes that no yaml names: of objects of a Python program, and of a live run's measured times
_WRITTEN = {
    "dataset": f"{PACKAGE}.data.given.GivenData",
    "model": f"{PACKAGE}.models.given.GivenModel",
    "delay": f"{PACKAGE}.live.choice.MeasuredDelay",
    "availability": f"{PACKAGE}.live.choice.MeasuredAvailability",
}


def saved_config(path: Path, key: str = "resume") -> dict[str, Any]:
    """Return the config of a run directory. Raises ConfigError for ``key`` as ``check_saved``, and if there is none
    that can be read."""
    try:
        tree = read_yaml(path / "config.yaml")
    except FileNotFoundError:
        raise ConfigError(key, path, "must be a run directory: there is no config.yaml in it") from None
    except (OSError, ValueError) as error:
        reason = f" ({error})" if isinstance(error, ValueError) and "\n" not in str(error) else ""
        said = f"must be a run directory: its config.yaml cannot be read{reason}"
        raise ConfigError(key, path, said) from None
    tree = check_saved(tree, path, key)
    with suppress(OSError, ValueError, AttributeError):  # an unfinished run has no summary
        tree = fill_in_precision(tree, read_json(path / "summary.json"))
    return tree


def identity_in(directory: Path) -> str | None:
    """Return the identity of the run in the directory's config.yaml; None if it cannot be read."""
    try:
        return check_settings(saved_config(directory)).identity
    except ConfigError:
        return None


def check_saved(tree: Any, origin: object, key: str) -> dict[str, Any]:
    """Return a resolved config that somebody else may have written, with the groups that it lacks.

    origin  where it is, for messages
    Raises ConfigError for ``key`` for anything else than a config, and for a class that it may not name: no part of
    this program, no part of a folder named by hand, and no class or function of an allowed package. An interpolation is
    refused, too: settings are saved resolved.
    """
    choices = tree.get("choices") if isinstance(tree, dict) else None
    if not isinstance(choices, dict) or not all(isinstance(name, str) for name in (*tree, *choices)):
        raise ConfigError(key, origin, "must be a run directory: its config.yaml is another kind of file")
    lacking = [group for group in PARTS if group not in tree]
    absent = {group: part for group in lacking if (part := _absent_part(group)) is not None}
    if unknown := [group for group in lacking if group not in absent]:
        raise ConfigError(key, origin, f"was made by another version: it has no {unknown[0]}; {START_AGAIN}")
    choices = choices | dict.fromkeys(absent, _NONE)
    tree = tree | {"choices": choices}
    if absent:  # else the tree lists what is left out of its identity
        tree |= absent | {ABSENT: [*tree.get(ABSENT, ()), *absent]}
    for group, choice in choices.items():  # becomes a part of the run's name, which is a folder
        plain = isinstance(choice, str) and choice.isprintable()
        ok = plain and ".." not in (path := Path(choice)).parts and not path.is_absolute()
        check(ok, f"choices.{group}", choice, f"the name of a choice, in {origin}")
    for dotted, name in _iter_values(tree):
        is_class = dotted.rpartition(".")[2] == _TARGET
        check(is_class or not has_interpolation(name), dotted, name, f"a value that refers to no other, in {origin}")
        if is_class and not _is_allowed(dotted.partition(".")[0], str(name)):
            allowed = f"is in {origin}, and neither a part of {PACKAGE} nor of a folder that {BY_HAND} names"
            raise ConfigError(dotted, name, f"{allowed}; {ALLOW_VARIABLE}=PACKAGE names a package that you trust")
    return tree


@functools.cache
def _absent_part(group: str) -> dict[str, Any] | None:
    """Return the part of a group that an earlier version lacked and that no identity has; None without one."""
    file = part_sources()[0].folder(group) / f"{_NONE}.yaml"
    section = read_yaml(file) if file.exists() else {}
    names = class_names(file) if section else []
    return section if names and getattr(part_class(f"{group}.{_TARGET}", names[0]), "absent", False) else None


def _iter_values(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every ``_target_`` and of every plain value, whatever it is nested in."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if items is None or key.rpartition(".")[2] == _TARGET:
        yield key, node
        return
    for name, value in items:
        yield from _iter_values(value, f"{key}.{name}" if key else str(name))


def _is_allowed(group: str, name: str) -> bool:
    """Return True if a saved config may name this class, or function that makes a network, for a group."""
    own, *others = part_sources()
    if name == _WRITTEN.get(group) or name in _classes_of_group(own, group):
        return True
    known = {one for source in others for path in source.conf.rglob("*.yaml") for one in class_names(path)}
    if name in known:
        return True
    last = name.rpartition(".")[2]
    if any(_defined_name(one) == name for one in known if one.rpartition(".")[2] == last):  # a yaml may name an alias
        return True
    # only where it is defined: a module that is allowed has imported others
    return _is_allowed_package(name.partition(".")[0], known) and _defined_name(name) in (name, None)


@functools.cache
def _classes_of_group(source: PartSource, group: str) -> frozenset[str]:
    """Return the classes that the yaml files of a group name."""
    return frozenset(name for path in source.folder(group).rglob("*.yaml") for name in class_names(path))


def _defined_name(name: str) -> str | None:
    """Import a class or function that is allowed and return its name where it is defined; None without one."""
    allow_local_modules()
    module, _, last = name.rpartition(".")
    try:
        target = getattr(importlib.import_module(module), last)
    except (Exception, SystemExit):  # a user's module raises anything; ``part_class`` says what
        return None
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', '')}"


def _is_allowed_package(top: str, known: set[str]) -> bool:
    """Return True for a package of $ASYNCFL_BENCH_ALLOW and for a module in, or named in, a folder named by hand.

    known  classes that yaml files of such folders name; those of installed modules allow nothing else there
    """
    if top == PACKAGE:
        return False
    if top in {one.strip() for one in os.environ.get(ALLOW_VARIABLE, "").split(",")}:
        return True
    allow_local_modules()
    with suppress(ImportError, ValueError):
        if (spec := importlib.util.find_spec(top)) is not None:
            files = [*(spec.submodule_search_locations or []), *([spec.origin] if spec.origin else [])]
            folder = Path(files[0]).parent if files else None
            named = top in {one.partition(".")[0] for one in known}
            return folder in named_folders() or (named and folder in module_folders())
    return False


def _change_saved(tree: dict, words: Iterable[Override], run: str, more: Iterable[str] = ()) -> None:
    """Set values in a saved config: settings outside its identity, and ``more``. Raises ConfigError for others."""
    changeable = [key for key in (*NOT_IDENTITY, *more) if key not in (*PARTS, "resume")]
    for one in words:
        if not {one.key, one.section} & {*changeable}:
            value = one.text.partition("=")[2]
            raise ConfigError(one.key, value, f"cannot be changed by {run}; only {list_some(changeable)} can")
        set_value(tree, one, {})


def repeated_settings(tree: dict, identity: str, overrides: Iterable[str]) -> Settings:
    """Return the settings that repeat a saved run, changed by overrides of settings outside its identity.

    tree  of ``check_saved``; a file that a setting ``path`` names may be elsewhere on this machine
    Raises ConfigError, also for a run of a version whose settings had another meaning.
    """
    tree = asdict(RootConfig()) | tree
    paths = [f"{name}.path" for name in PARTS if isinstance(tree[name], dict) and "path" in tree[name]]
    _change_saved(tree, map(parse_override, overrides), "a repeated run", paths)
    settings = check_settings(tree)
    if settings.identity != identity:
        raise ConfigError(
            "--repeat", identity, f"is now {settings.identity}: made by another version, or of other files"
        )
    return settings


def resumed_settings(directory: str, words: list[Override]) -> Settings:
    """Return the settings of a run directory, changed by overrides of its budget and of settings outside its identity.

    With another budget it is another run, in another directory beside the earlier one. Raises ConfigError.
    """
    path = expand_home(directory, "resume")
    tree = saved_config(path)
    was = check_settings(tree)
    # each class under the path of its module: one class may have several
    targets = {name: {"_target_": part["_target_"]} for name, part in was.tree.items() if name in PARTS}
    same = {name: value | targets[name] if name in targets else value for name, value in tree.items()}
    if identity_of_tree(same, was.digests) != was.identity:
        raise ConfigError("resume", path, f"was made by another version, which had other settings; {START_AGAIN}")
    _change_saved(tree, words, "a resumed run", ["budget"])
    replace_limits(tree, words)
    tree["resume"] = str(path)
    settings = check_settings(tree)
    settings.named_directory = path
    settings.command = command_text(["--resume", str(path), *(one.text for one in words)])
    if settings.identity != was.identity:
        named = path if path.name not in ("", "..") else path.resolve()
        settings.named_directory, settings.earlier = named.parent / settings.name, EarlierRun(path, was.identity)
    return settings
