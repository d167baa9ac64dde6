"""The groups of yaml files: where they are, what may be chosen, and Hydra's own composition of a choice."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from ..errors import PACKAGE, BenchError, ConfigError, check, describe_place, list_some, must_be_one_of
from .classes import defaults_of_class, part_class
from .other_names import describe_other_choice
from .overrides import describe_multirun, parse_override
from .places import class_names, places
from .settings import DEFAULT_STEP, LISTED, PARTS, SEARCH_SPACE

# Sections of yaml files that are no settings. `instead`: group -> choice, made by a file that cannot override a choice;
# `refused`: group -> why its choice does not go with the file. The others are a sweep's: its `instead`, its overrides.
INSTEAD, REFUSED, SWEEP_INSTEAD, SWEEP_CHOICES = SECTIONS = ("instead", "refused", "sweep_instead", "sweep_choices")
Files = tuple[tuple[Path, ...], int]  # of _yaml_files


def options(group: str) -> list[str]:
    """The choices of a group in every place, in alphabetical order."""
    return sorted(set().union(*(place.choices(group) for place in places())))


def choice_file(group: str, choice: str) -> Path:
    """The yaml of a choice. Raises ConfigError where there is none, or where two places have one."""
    owners = [place for place in places() if choice in place.choices(group)]
    if not owners and "," in choice:
        raise ConfigError(group, choice, f"must be one choice; {describe_multirun(group, choice.strip('[]'))}")
    if not owners:
        known = must_be_one_of(choice, options(group), f"afl-run --help {group}")
        raise ConfigError(group, choice, describe_other_choice(group, choice, known))
    if len(owners) > 1:
        both = " and ".join(place.source for place in owners)
        raise ConfigError(group, choice, f"is in {both}; give one of them another name")
    return owners[0].folder(group) / f"{choice}.yaml"


@contextmanager
def locating_yaml_errors(group: str, choice: str, file: Path) -> Iterator[None]:
    """Turn an exception that arises when the yaml of a choice is read into a ConfigError with its file and line."""
    try:
        yield
    except BenchError:
        raise
    except Exception as error:
        raise ConfigError(group, choice, _describe_yaml_error(file, error)) from None


def _describe_yaml_error(file: Path, error: Exception) -> str:
    """Return what is wrong in a yaml file, with the line where that is known."""
    import yaml

    if (line := _line_of_loop(file)) is not None:
        return f"{describe_place(file, line)}: the alias is within what it repeats; write the values instead"
    problem = str(getattr(error, "problem", None) or error).strip()
    mark: Any = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    if mark is None:
        return f"{describe_place(file)}: cannot be read: {problem.partition(chr(10))[0]}"
    last = len(file.read_text(encoding="utf-8").splitlines())  # an error at the end is said of the line after it
    place = describe_place(file, min(mark.line + 1, last))
    if problem.startswith("found duplicate key"):
        return f"{place}: {problem.removeprefix('found duplicate ')} is set before; remove one of the two lines"
    wrong = "is not YAML" if not isinstance(error, yaml.constructor.ConstructorError) else "cannot be read"
    return f"{place}: {wrong}: {problem}; write a line KEY: VALUE for each setting"


def _line_of_loop(file: Path) -> int | None:
    """Return the line of an alias within the value that it repeats; None without one."""
    import yaml

    anchors: list[str | None] = []  # of the lists and mappings that are open
    with suppress(yaml.YAMLError, OSError, ValueError):
        for event in yaml.parse(file.read_text(encoding="utf-8"), yaml.SafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                anchors.append(event.anchor)
            elif isinstance(event, yaml.CollectionEndEvent):
                anchors.pop()
            elif isinstance(event, yaml.AliasEvent) and event.anchor in anchors:
                mark: Any = event.start_mark
                return int(mark.line) + 1
    return None


def groups() -> dict[str, str]:
    """Config groups in the order of conf/config.yaml, each with the one-line description beside it there."""
    described = {}
    for line in (places()[0].conf / "config.yaml").read_text(encoding="utf-8").splitlines():
        entry, _, comment = line.partition("#")
        name, colon, _ = entry.strip().removeprefix("- ").removeprefix("optional ").partition(":")
        if entry.strip().startswith("- ") and colon and "/" not in name and "@" not in name:
            described[name.strip()] = comment.strip()
    return described


def choices_with(group: str, setting: str) -> list[str]:
    """The choices of a part's group that have this setting, by their yaml or by a class of this package."""
    searched = places() if group in (*PARTS, *LISTED) else []
    files = [file for place in searched for file in place.folder(group).glob("*.yaml")]
    line = re.compile(rf"^(  )?{re.escape(setting)}:", re.M)  # indented in a file that sets other sections, too

    def has_setting(file: Path) -> bool:
        if line.search(file.read_text(encoding="utf-8", errors="replace")):
            return True
        own = [name for name in class_names(file) if name.partition(".")[0] == PACKAGE]
        return any(setting in defaults_of_class(group, name) for name in own)

    return sorted(file.stem for file in files if has_setting(file))


class Composition:
    """What Hydra composes of some overrides. Shared: copy what is changed."""

    def __init__(self, config: Any) -> None:
        self.config = config  # with Hydra's settings

    @functools.cached_property
    def raw(self) -> dict[str, Any]:
        """The settings as dicts and lists, with interpolations as text."""
        return _settings_alone(self.config, resolve=False)

    @functools.cached_property
    def raw_hydra(self) -> dict[str, Any]:
        """The same of Hydra's settings."""
        from omegaconf import OmegaConf

        return cast(dict[str, Any], OmegaConf.to_container(self.config.hydra))

    @functools.cached_property
    def substitutes(self) -> dict[str, str]:
        """The choices by group that yaml files list in ``instead``. A sweep's scale or profile is used before the sweep
        itself, and the sweep before its paper. (Hydra forbids a file that another choice selects to choose groups.)

        Raises ConfigError, also for a combination that a yaml file refuses.
        """
        composed = self.config
        refused, choices = composed.get(REFUSED, {}), composed.hydra.runtime.choices
        allowed = "a reason for each of some groups"
        check(hasattr(refused, "items") and {*refused} <= {*choices}, REFUSED, refused, allowed)
        for group, reason in refused.items():
            raise ConfigError(group, choices[group], reason)
        paper, sweep = _read_choices(composed, INSTEAD), _read_choices(composed, SWEEP_INSTEAD)
        own = {group: choice for group, choice in composed.get(SWEEP_CHOICES, {}).items() if group in paper}
        return paper | own | sweep


def composition(overrides: Sequence[str]) -> Composition:
    """Return what Hydra composes of ``overrides`` and of what ``instead`` adds to them. Raises ConfigError."""
    files = _yaml_files()
    return _compose([*_substitute(overrides, files), *overrides], files)


def substituted_choices(overrides: list[str]) -> list[str]:
    """Return the overrides that ``composition`` adds to the given ones. Raises ConfigError.

    Some choose what ``Composition.substitutes`` has for groups that the given ones do not name. The others take out
    settings that files have for a part that the given ones replace.
    """
    return _substitute(overrides, _yaml_files())


def _substitute(overrides: Sequence[str], files: Files) -> list[str]:
    parsed = [parse_override(text) for text in overrides]
    chosen, known = {one.key for one in parsed}, groups()
    # a setting of a part that is about to be chosen is unknown without it
    choosing = [one.text for one in parsed if "/" in one.key or one.key in known]
    composed = _compose(choosing, files)
    added = [f"{group}={choice}" for group, choice in composed.substitutes.items() if group not in chosen]
    # a rule without a setting of the length or profile is refused: it would be compared at another budget or step
    replaced = [group for group in PARTS if group in chosen and group != "algorithm"]
    return added + [word for group in replaced for word in _removals(group, composed, choosing)]


def _removals(group: str, composed: Composition, choosing: list[str]) -> list[str]:
    """Return overrides that take out settings of a replaced part that the chosen part does not have."""
    own: Any = composed.config[group]
    if not (foreign := {*own} - _settings_of(group, own)):
        return []
    others = composition([text for text in choosing if parse_override(text).key != group])
    foreign &= _settings_of(group, others.config[group])
    # Hydra deletes no null, so each gets a value before
    return [word for key in sorted(foreign) for word in (f"++{group}.{key}=0", f"~{group}.{key}")]


def _settings_of(group: str, section: Any) -> set[str]:
    """Return the names of the settings of a section's class, or of the section if the class cannot be used."""
    try:
        config = part_class(f"{group}._target_", str(section["_target_"])).Config
    except (ConfigError, LookupError):
        return {*section}
    return {"_target_", DEFAULT_STEP, *(one.name for one in fields(config))}


def _read_choices(composed: Any, section: str) -> dict[str, str]:
    """Return group -> choice of one section. Raises ConfigError for an unknown group or choice."""
    listed = composed.get(section, {})
    allowed = f"a choice for each of some of the groups {list_some(PARTS, 'afl-run --help')}"
    check(hasattr(listed, "items") and {*listed} <= {*PARTS}, INSTEAD, listed, allowed)
    for group, choice in listed.items():
        choice_file(group, choice)
    return dict(listed)


def to_containers(config: Any) -> dict[str, Any]:
    """Return a composed config as dicts and lists, without Hydra's settings. Raises ConfigError."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        return _settings_alone(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error.full_key), "?", str(error.msg).splitlines()[0]) from None


def _settings_alone(config: Any, resolve: bool) -> dict[str, Any]:
    """Return the settings of a composed config, without sections that are no settings."""
    from omegaconf import OmegaConf

    masked = OmegaConf.masked_copy(config, [key for key in config if key not in ("hydra", *SECTIONS)])
    tree = cast(dict[str, Any], OmegaConf.to_container(masked, resolve=resolve))
    if isinstance(rule := tree.get("algorithm"), dict):
        rule.pop(SEARCH_SPACE, None)
    return tree


def _yaml_files() -> Files:
    """Return (all folders of yaml files: see places.py; when one of the files was last changed, in ns)."""
    folders = tuple(dict.fromkeys(folder for place in places() for folder in (place.conf, place.sweeps)))
    newest = max(
        os.stat(os.path.join(place, name)).st_mtime_ns
        for folder in folders
        for place, _, files in os.walk(folder)
        for name in ("", *files)
    )
    return folders, newest


def _compose(overrides: Sequence[str], files: Files) -> Composition:
    """Return Hydra's composition of exactly these overrides. Raises ConfigError."""
    # Hydra knows no null among choices
    return _compose_cached(tuple(text for text in overrides if text != "sweep=null"), files)


@functools.lru_cache(maxsize=256)
def _compose_cached(overrides: tuple[str, ...], files: Files) -> Composition:
    """As ``_compose``, once for the same yaml files."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    before = GlobalHydra.instance().hydra  # a job of a multirun composes inside Hydra's own main
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(places()[0].conf), job_name="run", version_base="1.3"):
            composed = hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
        for key in ("mode", "output_subdir", "job.chdir", "sweeper.max_batch_size"):  # read once for all runs
            OmegaConf.select(composed, f"hydra.{key}")  # raises an error for an interpolation of nothing
        return Composition(composed)
    except KeyError as error:
        raise ConfigError("hydra.job.env_copy", error.args[0], "is not an environment variable") from None
    except (HydraException, ValueError, AttributeError, TypeError) as error:  # ValueError: hydra/launcher=null
        raise translate_error(error, list(overrides)) from None
    finally:
        GlobalHydra.instance().clear()
        if before is not None:
            GlobalHydra.instance().initialize(before)


def translate_error(error: Exception, overrides: list[str]) -> ConfigError:
    """Return an exception of Hydra as a ConfigError of one line. Mistyped groups and keys of the command line are found
    earlier."""
    lines = [line.strip() for one in (error, error.__cause__) for line in str(one or "").splitlines() if line.strip()]
    text = " ".join(lines[: 1 + lines[0].endswith(":")]) if lines else type(error).__name__
    if (absent := re.search(r"Could not find '(\w+)/([^']+)'", text)) and absent[1] in groups():
        try:
            choice_file(*absent.groups())
        except ConfigError as unknown:
            return unknown
    section = re.search(r"full_key: (\S+)", str(error))
    named = [o for o in overrides if (key := parse_override(o).key) in text or (section and key.startswith(section[1]))]
    key, _, value = [*overrides[-1:], *named[:1]][-1].lstrip("+~").partition("=") if overrides else ("config", "", "")
    return ConfigError(key, value, text.partition(", set env var HYDRA_FULL_ERROR")[0])
