"""Checks of a composed config against the dataclasses of its parts: overrides, unknown keys, types, ranges.

Every part has its dataclass of settings beside its code. A yaml names the class and its values. Nothing here imports
torch or loads data, so a mistake is reported before anything is loaded.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import os
from collections.abc import Iterable, Sequence
from typing import Any, cast, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..data.base import PrivateConfig
from ..errors import (
    MOST_LISTED,
    ConfigError,
    check,
    did_you_mean,
    format_value,
    list_some,
    locating_user_errors,
    naming_group,
)
from ..files import expand_home, sha256_of
from ..models.base import ModelConfig
from ..ranges import absent_settings, describe_range, setting_fields
from ..simulation.budget import TARGET
from .choices import choices_with
from .classes import digest_code, digest_modules, part_class
from .overrides import Override, describe_multirun
from .settings import (
    ABSENT,
    DATA_VARIABLE,
    DEFAULT_STEP,
    LISTED,
    NOT_IDENTITY,
    OBSERVERS,
    ORIGINS,
    PARTS,
    ROOT_SECTIONS,
    TRACKING,
    Component,
    RootConfig,
    Settings,
)
from .suggestions import suggest_setting

LARGEST = 3.4028234e38  # number of single precision, in which models are


@locating_user_errors()
def check_settings(tree: dict[str, Any], default_steps: bool = False) -> Settings:
    """Check a composed config. Raises ConfigError; touches neither data nor disk except to see that paths exist.

    tree           the config as plain containers, with the choice of each group in its section ``choices``
    default_steps  no step size was chosen or searched: the data set's one for the model is used
    """
    from .resolve import resolve, use_step

    choices = tree["choices"]
    tree = {key: value for key, value in tree.items() if key not in ("hydra", "choices", ABSENT, *ORIGINS)}
    root_names = [f.name for f in dataclasses.fields(RootConfig)]
    for key, value in tree.items():
        if key not in (known := (*root_names, *PARTS, *LISTED, *ROOT_SECTIONS)):
            near = did_you_mean(key, known)
            said = suggest_setting(key, format_value(value), tree) or f"is not a setting{near}"
            raise ConfigError(key, value, said)
    step = _default_step(tree, choices.get("model", ""))
    settings = Settings(
        default_steps=default_steps,
        root=to_dataclass(RootConfig, {k: v for k, v in tree.items() if k in root_names}, ""),
        parts=_build_parts(tree, choices),
        trackers=_build_listed(tree, TRACKING),
        observers=_build_listed(tree, OBSERVERS),
        choices={name: choices[name] for name in (*PARTS, *ORIGINS) if choices.get(name) is not None},
        **{name: to_dataclass(cls, _section(tree, name), name) for name, cls in ROOT_SECTIONS.items()},
    )
    _check_paths(settings.root)
    if default_steps and step is not None:
        use_step(settings, step)
    resolve(settings)
    for name, part in settings.parts.items():
        if name not in NOT_IDENTITY and (digest := _content_digest(name, part.config)) is not None:
            settings.digests[name] = digest
    settings.code = digest_modules(part.target for part in (*settings.parts.values(), *settings.observers.values()))
    deciding = (part.target for name, part in settings.parts.items() if name not in NOT_IDENTITY)
    settings.code_digest = digest_code(digest_modules(deciding))
    listed = {TRACKING: settings.trackers, OBSERVERS: settings.observers}
    settings.tree = dataclasses.asdict(settings.root)
    settings.tree |= {name: _part_tree(part) for name, part in settings.parts.items()}
    settings.tree |= {name: {one: _part_tree(part) for one, part in of.items()} for name, of in listed.items()}
    settings.tree |= {name: dataclasses.asdict(getattr(settings, name)) for name in ROOT_SECTIONS}
    settings.tree["choices"] = dict(settings.choices)
    absent = [name for name, part in settings.parts.items() if getattr(part.target, "absent", False)]
    for name, config in settings.configs.items():
        absent += absent_settings(config, f"{name}." if name else "")
    if absent:
        settings.tree[ABSENT] = absent
    return settings


def _default_step(tree: dict[str, Any], model: str) -> float | None:
    """Return the data set's step size for a model, None without one; the tree loses the step sizes by model.

    Raises ConfigError.
    """
    steps, section = None, tree.get("dataset")
    if isinstance(section, dict):
        steps = section.get(DEFAULT_STEP)
        tree["dataset"] = {key: value for key, value in section.items() if key != DEFAULT_STEP}
    check(isinstance(steps, dict | None), f"dataset.{DEFAULT_STEP}", steps, "a step size by model, {mlp: 0.1}")
    step = (steps or {}).get(model)
    ok = step is None or (isinstance(step, int | float) and step > 0)
    check(ok, f"dataset.{DEFAULT_STEP}.{model}", step, "a number > 0")
    return step


def _content_digest(name: str, config: Any) -> str | None:
    """Return the digest of the files that the setting ``path`` or ``folder`` names; None without one. Raises
    ConfigError."""
    if isinstance(config, ModelConfig | PrivateConfig):
        with naming_group(name):
            return config.content_digest()
    path = dataclasses.asdict(config).get("path")
    try:
        return sha256_of(path) if path else None
    except OSError as error:
        raise ConfigError(f"{name}.path", path, f"must be a file that can be read: {error.strerror}") from None


def _section(tree: dict, name: str, dotted: str = "") -> dict:
    section: Any = tree.get(name)
    key = f"{dotted}{name}"
    check(isinstance(section, dict), key, section, f"a section of settings, for example {key}.…=VALUE")
    return section


def _build_parts(tree: dict, choices: dict[str, str]) -> dict[str, Component]:
    """Return the part of each group. Raises ConfigError."""
    try:
        return {name: _build_part(tree.get(name), name, choices.get(name)) for name in PARTS}
    except ConfigError as error:
        if error.key in ("algorithm.eta", "algorithm.total_steps"):  # who chose a group did not write these keys
            why = f"with algorithm={choices.get('algorithm')}, whose server step is not c * sqrt(n / T)"
            check(choices.get("length") != "long", "length", "long", f"standard {why}")
            check(choices.get("profile") != "fair", "profile", "fair", f"published {why}")
        raise


def _build_part(node: Any, group: str, choice: str | None) -> Component:
    """Return the class and the checked settings of one section. Raises ConfigError."""
    if not isinstance(node, dict):
        raise ConfigError(group, node, f"must be one of the choices that afl-run --help {group} lists")
    if "_target_" not in node:
        raise ConfigError(group, choice, "its yaml names no class; write the line _target_: MODULE.CLASS into it")
    target = part_class(f"{group}._target_", str(node["_target_"]))
    values = {k: v for k, v in node.items() if k != "_target_"}
    return Component(target, to_dataclass(target.Config, values, group))


def _build_listed(tree: dict[str, Any], group: str) -> dict[str, Component]:
    """Return the chosen parts of a group that may have several, by name.

    Raises ConfigError, also for a tracker whose package is not installed.
    """
    chosen = tree.get(group)
    allowed = f"chosen when a run begins, for example {group}=[{'wandb,csv' if group == TRACKING else 'NAME'}]"
    check(isinstance(chosen, dict | None), group, chosen, allowed)
    if target := (chosen or {}).get("_target_"):
        raise ConfigError(group, target, "write its settings into a section: a line NAME: above _target_")
    parts = {name: _build_part(section, f"{group}.{name}", name) for name, section in (chosen or {}).items()}
    for name, part in parts.items() if group == TRACKING else ():
        if part.target.needs is not None and importlib.util.find_spec(part.target.needs[0]) is None:
            raise ConfigError(group, name, f"needs pip install 'asyncfl_bench[{part.target.needs[1]}]'")
    return parts


_DATACLASSES: dict[tuple, Any] = {}  # jobs of a sweep share most of their sections


def to_dataclass(schema: type, values: dict, prefix: str):
    """Return ``values`` as a new instance of the dataclass ``schema``.

    Raises ConfigError for unknown keys, wrong types and values outside their range.
    """
    key = (schema, prefix, repr(values))
    if key not in _DATACLASSES:
        _DATACLASSES[key] = _build_dataclass(schema, values, prefix)
    return copy.deepcopy(_DATACLASSES[key])


def _build_dataclass(schema: type, values: dict, prefix: str):
    """As ``to_dataclass``, without its cache."""
    known = setting_fields(schema)
    dotted = f"{prefix}." if prefix else ""
    hints: dict[str, Any] = get_type_hints(schema)
    nested = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    sections = {
        name: to_dataclass(cast(type, cls), _section(values, name, dotted) if name in values else {}, f"{dotted}{name}")
        for name, cls in nested.items()
    }
    values = {key: value for key, value in values.items() if key not in nested}
    for key, value in values.items():
        if key not in known:
            listed = f"known: {list_some(known)}" if known else "it has none"
            raise ConfigError(f"{dotted}{key}", value, f"is not a setting{did_you_mean(key, known)}; {listed}")
        _check_finite(f"{dotted}{key}", value)
        if hints[key] is bool and isinstance(value, int | float) and value not in (0, 1):
            raise ConfigError(f"{dotted}{key}", value, f"must be {describe_type('bool')}")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), values)
        converted = cast(dict[str, Any], OmegaConf.to_container(merged))
    except OmegaConfBaseException as error:
        key = str(error.full_key or error.key).partition("[")[0]
        annotation = str(known[key].type) if key in known else "value of the right type"
        value, must = values.get(key), describe_range(schema, key) or describe_type(annotation)
        if isinstance(value, list) and "list" not in annotation:
            must += f"; {describe_multirun(f'{dotted}{key}', ','.join(map(format_value, value)))}"
        raise ConfigError(f"{dotted}{key}", value, f"must be {must}") from None
    for key, value in converted.items():
        if value == "???":
            raise ConfigError(f"{dotted}{key}", None, f"must be set, for example {dotted}{key}=VALUE")
        _check_finite(f"{dotted}{key}", value)  # text, as of ${oc.env:LR}, is a number from here on
    with naming_group(prefix):
        return schema(**converted | sections)


def describe_type(annotation: str) -> str:
    """Return a type in words: ``int | None`` is "a whole number or null"."""
    annotation = annotation.removeprefix("Annotated[").partition(", absent(")[0]
    names = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "None": "null"}
    names["Any"] = "a value that the class takes"
    if annotation.startswith("list["):
        kind = {"list[int]": "whole numbers, for example [1, 2]", "list[str]": "words, for example [one, two]"}
        return f"a list of {kind.get(annotation.partition(' | ')[0], 'numbers, for example [0.5, 2]')}"
    words = [word.strip() for word in annotation.split("|")]
    return " or ".join(names.get(word, word) for word in words)


def _check_finite(key: str, value: Any) -> None:
    numbers = value if isinstance(value, list) else [value]
    if any(isinstance(number, float) and not abs(number) <= LARGEST for number in numbers):
        raise ConfigError(key, value, f"must be finite, at most {LARGEST:g} in single precision")


def _check_paths(root: RootConfig) -> None:
    for key in ("output_dir", "archive_dir"):
        expand_home(getattr(root, key), key)
    for key, given in (("data_dir", root.data_dir), (DATA_VARIABLE, os.environ.get(DATA_VARIABLE))):
        if given and not expand_home(given, key).is_dir():
            raise ConfigError(key, given, "must be an existing directory: create it, or leave the setting out")
        if given:
            return


def _part_tree(part: Component) -> dict:
    """Return the section of config.yaml for a part."""
    return {"_target_": f"{part.target.__module__}.{part.target.__qualname__}"} | dataclasses.asdict(part.config)


class UnknownSetting(ConfigError):
    """A setting that the composed parts do not have. Other choices may have it."""


def set_value(tree: dict[str, Any], one: Override, known_groups: dict[str, str]) -> bool:
    """Set one value in the tree. Returns True for a setting of a part that its yaml does not list.

    Raises UnknownSetting if there is no such setting.
    """
    *sections, last = one.key.split(".")
    node: Any = tree
    walked: list[str] = []
    is_added = False
    for part in (*sections, last):
        if not isinstance(node, dict) or part not in node:
            fields_below = _fields_below(tree, walked)
            if part not in fields_below:
                raise _unknown_setting(tree, one, walked, part, [*fields_below, *(known_groups if not walked else ())])
            node[part], is_added = {}, True
        parent, node = node, node[part]
        walked.append(part)
    parent[last] = copy.deepcopy(one.value)
    return is_added


def _fields_below(tree: dict[str, Any], walked: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a part, or of a section of it, with their types; without a part none."""
    node: Any = tree
    found: dict[str, Any] = {}
    for name in walked:
        node = node.get(name) if isinstance(node, dict) else None
        if isinstance(node, dict) and "_target_" in node:
            schema = part_class(f"{walked[0]}._target_", str(node["_target_"])).Config
        else:
            schema = found.get(name)
        hints = get_type_hints(schema) if dataclasses.is_dataclass(schema) else {}
        found = {name: hint for name, hint in hints.items() if name in setting_fields(schema)}
    return found


def _unknown_setting(
    tree: dict[str, Any], one: Override, walked: Sequence[str], part: str, more: Iterable[str]
) -> UnknownSetting:
    """Return the error of a key whose ``part`` is not below the walked ones. more: names that are there besides."""
    node: Any = tree
    for name in walked:
        node = node[name]
    shown = [name for name in dict.fromkeys([*(node if isinstance(node, dict) else ()), *more]) if name != "_target_"]
    if not walked:
        shown.sort()
    inside = f" of {'.'.join(walked)}" if walked else ""
    known = f"; known: {list_some(shown, 'afl-run --help')}" if shown else ""
    value = one.text.partition("=")[2]
    others = choices_with(walked[0], part) if len(walked) == 1 else []
    if not others and (said := suggest_setting(one.key, value, tree)):
        return UnknownSetting(one.key, value, said)
    near = f", except with {walked[0]}={'|'.join(others[:MOST_LISTED])}" if others else did_you_mean(part, shown)
    return UnknownSetting(one.key, value, f"no such setting{inside}{near}{known}")


def replace_limits(tree: dict[str, Any], words: Sequence[Override]) -> None:
    """Replace all limits of yaml files by limits among ``words``, except a target, which a run may miss.

    Raises ConfigError when none is left.
    """
    if not isinstance(tree["budget"], dict):
        return  # what it must be is said by the check of all settings
    keys = [one.key.removeprefix("budget.") for one in words if one.key.startswith("budget.")]
    keys += [key for one in words if one.key == "budget" and isinstance(one.value, dict) for key in one.value]
    given = {key: tree["budget"].get(key) for key in keys if key != TARGET}
    if any(limit is not None for limit in given.values()):
        tree["budget"].update({key: None for key in tree["budget"] if key not in (*given, TARGET)})
    elif given and not any(limit for key, limit in tree["budget"].items() if key != TARGET):
        key = next(iter(given))
        raise ConfigError(f"budget.{key}", None, "must be a number, or another limit of budget must be")
