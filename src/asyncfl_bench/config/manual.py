"""What ``afl-run --help`` prints, read from the yaml files and the parts' schemas, so that it is never out of date."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import OmegaConf

from ..errors import ConfigError, describe_location, did_you_mean, format_value, locating_yaml_errors
from ..ranges import default_values, describe_range, setting_fields, setting_texts
from .check import describe_type
from .choices import VARIANTS, choice_file, groups, options, variant
from .classes import class_sections, part_class
from .part_sources import part_sources
from .settings import LISTED, PARTS, ROOT_SECTIONS, RootConfig
from .suggestions import USAGE

LAUNCHERS = "hydra/launcher"
_WIDTH = 100


def overview() -> str:
    """Return the groups, one line each."""
    lines = [
        "afl-run: simulate asynchronous federated learning.",
        "",
        USAGE,
        "",
        "Groups (group=choice), then any setting in them (delay.beta=10):",
    ]
    described = groups()
    width = max(len(name) for name in described)
    for name, description in described.items():
        choices = " ".join(options(name)) or "(none)"
        lines.append(f"  {name:<{width}}  {description}: {choices}")
    lines += ["", "Settings outside the groups:"]
    lines += [line for row in describe_root_settings() for line in _lines_of_setting(row)]
    own, *others = part_sources()
    lines += [
        "",
        "afl-report DIR makes tables and curves of run directories. Hydra's own options: afl-run --hydra-help.",
        f"The yaml files are in {own.conf}.",
    ]
    lines += [f"Parts also come from {source.label}: {source.conf}" for source in others]
    return "\n".join(lines)


def describe_choices(words: list[str]) -> str:
    """Return the settings of a choice for ``algorithm=aced``, and the choices of a group for ``algorithm``.

    Raises ConfigError for an unknown group or choice.
    """
    texts = []
    for text in words:
        group, given, choice = text.partition("=")
        if group not in (known := {**groups(), LAUNCHERS: "how the runs of a multirun are started"}):
            wanted = f"must be a group, --help algorithm, or a choice, --help algorithm=ace{did_you_mean(group, known)}"
            raise ConfigError("--help", text, wanted)
        if given:
            texts.append(_describe_choice(group, choice))
            continue
        width = max(map(len, names := options(group)), default=0)
        lines = [f"  {group}={name:<{width}}  {describe_choice(group, name)}" for name in names]
        texts.append("\n".join([f"{group}: {known[group]}", "", *lines]))
    return "\n\n".join(texts)


def _describe_choice(group: str, choice: str) -> str:
    """Return the settings of one choice, with their allowed values and comments. Raises ConfigError."""
    path = choice_file(group, choice)
    lines = [f"{group}={choice}: {describe_choice(group, choice)}", f"in {path}", ""]
    settings = describe_settings(group, choice) if group in (*PARTS, *LISTED) else []
    if group not in PARTS and not settings:
        # sections of the file and of its included files: profile=fair|published, scale=medium
        sections = {
            part: [one for one in options(part) if variant(f"{group}_{part}", f"{choice}/{one}") is not None]
            for part in ("profile", "scale")
            if f"{group}_{part}" in VARIANTS
        }
        held = ", ".join(f"{part}={'|'.join(found)}" for part, found in sections.items() if found)
        says = f"It sets, with sections for {held}:" if held else "It sets:"
        return "\n".join([*lines, says, "", textwrap.indent("\n".join(_lines(path)[1:]), "  ")])
    if not settings:
        lines.append("It has no settings.")
    lines += [line for row in settings for line in _lines_of_setting(row)]
    return "\n".join(lines)


def _lines_of_setting(row: tuple[str, str, str, str]) -> list[str]:
    """Return the lines of a setting. row: as in ``describe_settings``"""
    key, value, limits, text = row
    indent = " " * 6
    said = textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    return [f"  {key}={value}    {limits}", *said]


def describe_settings(group: str, choice: str) -> list[tuple[str, str, str, str]]:
    """Return (key, value, allowed values, meaning) of every setting of a choice of a part, tracker or observer.

    Raises ConfigError for an unknown choice, and for a yaml that cannot be read or names no class for a part.
    """
    path = choice_file(group, choice)
    with locating_yaml_errors(group, choice, path):
        tree: Any = OmegaConf.to_container(OmegaConf.load(path))
    sections = class_sections(group, tree)
    if group in PARTS and not sections:
        why = "names no class; write the line _target_: MODULE.CLASS into it"
        raise ConfigError(group, choice, f"{describe_location(path)}: {why}")
    found, comments = [], _comments(path)
    for name, section in sections.items():
        schema = part_class(f"{group}._target_", str(section["_target_"])).Config
        inner = name and f"{name}."
        outer = f"{group}.{inner}" if group in LISTED else f"{group}."
        for key, value, limits, text in _settings(schema, section):
            said = "; ".join(filter(None, (text, comments.get(f"{inner}{key}"))))
            found.append((f"{outer}{key}", _format_value(value), limits, said))
    return found


def describe_root_settings() -> list[tuple[str, str, str, str]]:
    """Return (key, value, allowed values, meaning) of every setting outside the groups."""
    return [
        (key, _format_value(value), limits, text)
        for prefix, schema in {"": RootConfig, **ROOT_SECTIONS}.items()
        for key, value, limits, text in _settings(schema, {}, prefix and f"{prefix}.")
    ]


def describe_choice(group: str, choice: str) -> str:
    """Return the comment that the yaml of a choice begins with; an empty text without one."""
    first = next(iter(_lines(choice_file(group, choice))), "")
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _settings(schema: Any, values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object, str, str]]:
    """Return (key, value in the yaml, allowed values, meaning) of every setting."""
    hints, defaults, texts = get_type_hints(schema), default_values(schema), setting_texts(schema)
    for name, field in setting_fields(schema).items():
        key = f"{prefix}{name}"
        if dataclasses.is_dataclass(hints[name]):
            yield from _settings(hints[name], values.get(name) or {}, f"{key}.")
            continue
        limits = describe_range(schema, name) or describe_type(str(field.type))
        yield key, values.get(name, defaults.get(name)), limits, texts.get(name, "")


def _lines(path: Path) -> list[str]:
    """Return the lines of a yaml, of which the first may be its description."""
    return path.read_text(encoding="utf-8", errors="replace").removeprefix("# @package _global_\n").splitlines()


def _comments(path: Path) -> dict[str, str]:
    """Return the comment of each dotted key."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.lstrip()
        key, colon, rest = text.partition(":")
        if text.startswith(("#", "-")) or not colon:
            continue
        indent = len(line) - len(text)
        above = [(depth, name) for depth, name in above if depth < indent]
        above.append((indent, key))
        found[".".join(name for _, name in above)] = rest.partition(" #")[2].strip()
    return found


def _format_value(value: object) -> str:
    """Return a value as it is written on a command line."""
    return "[" + ",".join(map(format_value, value)) + "]" if isinstance(value, list) else format_value(value)
