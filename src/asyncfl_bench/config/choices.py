"""The groups of yaml files: what may be chosen, their sections for single choices, and Hydra's own composition.

A file of `paper` or `sweep` has settings for one profile, algorithm or scale in sections named after groups::

    profiles:
      fair:
        algorithms:
          fedbuff:
            client: {lr: 1.0}

Hydra asks for this as ``paper_algorithm/PAPER/fair/fedbuff`` (hydra_plugins/asyncfl_groups.py).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from ..errors import PACKAGE, ConfigError, check, did_you_mean, list_some, locating_yaml_errors, must_be_one_of
from ..files import read_yaml
from .classes import defaults_of_class, part_class
from .other_names import describe_other_choice
from .overrides import describe_multirun, parse_override
from .part_sources import bank_folder, class_names, part_sources
from .settings import DEFAULT_STEP, LISTED, PARTS, SEARCH_SPACE

# Sections of yaml files that are no settings. `instead`: group -> choice, made by a file that cannot override a choice;
# `refused`: group -> why its choice does not go with the file. The others are a sweep's: its `instead`, its overrides.
INSTEAD, REFUSED, SWEEP_INSTEAD, SWEEP_CHOICES = _NO_SETTINGS = ("instead", "refused", "sweep_instead", "sweep_choices")
Files = tuple[tuple[Path, ...], int]  # of _yaml_files
CHOSEN = "chosen.yaml"  # of the bank: the settings of profile=tuned, by world and rule
TUNED = "tuned"
_PROFILES = "profiles"
SECTIONS = {_PROFILES: "profile", "algorithms": "algorithm", "scales": "scale"}  # section -> the group of its choices
# group in conf/config.yaml -> the group of the file, and the sections from the outer one to the inner one
VARIANTS = {
    "paper_profile": ("paper", "profiles"),
    "paper_algorithm": ("paper", "profiles", "algorithms"),
    "paper_scale": ("paper", "scales"),
    "sweep_profile": ("sweep", "profiles"),
    "sweep_scale": ("sweep", "scales"),
    "sweep_profile_scale": ("sweep", "profiles", "scales"),
}


def options(group: str) -> list[str]:
    """Return the choices of a group in every source, in alphabetical order."""
    return sorted(set().union(*(source.choices(group) for source in part_sources())))


def choice_file(group: str, choice: str) -> Path:
    """Return the yaml of a choice. Raises ConfigError if there is none, or if two sources have one."""
    owners = [source for source in part_sources() if choice in source.choices(group)]
    if not owners and "," in choice:
        raise ConfigError(group, choice, f"must be one choice; {describe_multirun(group, choice.strip('[]'))}")
    if not owners:
        known = must_be_one_of(choice, options(group), f"afl-run --help {group}")
        raise ConfigError(group, choice, describe_other_choice(group, choice, known))
    if len(owners) > 1:
        both = " and ".join(source.label for source in owners)
        raise ConfigError(group, choice, f"is in {both}; give one of them another name")
    return owners[0].folder(group) / f"{choice}.yaml"


def groups() -> dict[str, str]:
    """Return the config groups in the order of conf/config.yaml, each with its description there."""
    described = {}
    for line in (part_sources()[0].conf / "config.yaml").read_text(encoding="utf-8").splitlines():
        entry, _, comment = line.partition("#")
        name, colon, _ = entry.strip().removeprefix("- ").removeprefix("optional ").partition(":")
        if entry.strip().startswith("- ") and colon and "/" not in name and "@" not in name:
            described[name.strip()] = comment.strip()
    return described


def choices_with(group: str, setting: str) -> list[str]:
    """Return the choices of a part's group that have this setting, by their yaml or by a class of this package."""
    searched = part_sources() if group in (*PARTS, *LISTED) else []
    files = [file for source in searched for file in source.folder(group).glob("*.yaml")]
    line = re.compile(rf"^(  )?{re.escape(setting)}:", re.M)  # indented in a file that sets other sections, too
    return sorted(
        file.stem
        for file in files
        if line.search(file.read_text(encoding="utf-8", errors="replace"))
        or any(
            setting in defaults_of_class(group, name) for name in class_names(file) if name.startswith(f"{PACKAGE}.")
        )
    )


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
    return _compose((*substituted_choices(overrides), *overrides), _yaml_files())


def substituted_choices(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that ``composition`` adds to the given ones. Raises ConfigError.

    Some choose what ``Composition.substitutes`` has for groups that the given ones do not name. The others take out
    settings that files have for a part that the given ones replace.
    """
    parsed = [parse_override(text) for text in overrides]
    chosen, known = {one.key for one in parsed}, groups()
    # a setting of a part that is about to be chosen is unknown without it
    choosing = tuple(one.text for one in parsed if "/" in one.key or one.key in known)
    composed = _compose(choosing, _yaml_files())
    added = [f"{group}={choice}" for group, choice in composed.substitutes.items() if group not in chosen]
    # a rule without a setting of the length or profile is refused: it would be compared at another budget or step
    for group in [group for group in PARTS if group in chosen and group != "algorithm"]:
        own: Any = composed.config[group]
        if foreign := {*own} - _settings_of(group, own):
            others = composition([text for text in choosing if parse_override(text).key != group])
            foreign &= _settings_of(group, others.config[group])
            # Hydra deletes no null, so each gets a value before
            added += [word for key in sorted(foreign) for word in (f"++{group}.{key}=0", f"~{group}.{key}")]
    return added


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

    masked = OmegaConf.masked_copy(config, [key for key in config if key not in ("hydra", *_NO_SETTINGS)])
    tree = cast(dict[str, Any], OmegaConf.to_container(masked, resolve=resolve))
    if isinstance(rule := tree.get("algorithm"), dict):
        rule.pop(SEARCH_SPACE, None)
    return tree


def _yaml_files() -> Files:
    """Return (all folders of yaml files: see part_sources.py; when one of the files was last changed, in ns)."""
    folders = tuple(dict.fromkeys(folder for source in part_sources() for folder in (source.conf, source.sweeps)))
    newest = max(
        os.stat(os.path.join(below, name)).st_mtime_ns
        for folder in folders
        for below, _, files in os.walk(folder)
        for name in ("", *files)
    )
    return folders, newest


@functools.lru_cache(maxsize=256)
def _compose(overrides: tuple[str, ...], files: Files) -> Composition:
    """Return Hydra's composition of exactly these overrides, once for the same yaml files. Raises ConfigError."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    before = GlobalHydra.instance().hydra  # a job of a multirun composes inside Hydra's own main
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(part_sources()[0].conf), job_name="run", version_base="1.3"):
            words = [text for text in overrides if text != "sweep=null"]  # Hydra knows no null among choices
            composed = hydra_compose("config", overrides=words, return_hydra_config=True)
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
    word = [*overrides[-1:], *named[:1]][-1] if overrides else "config"
    key, _, value = word.lstrip("+~").partition("=")
    if word.startswith("+") and (key in groups() or "already at" in text):
        return ConfigError(word.partition("=")[0], value, f"is set already; write {key}={value}")
    return ConfigError(key, value, text.partition(", set env var HYDRA_FULL_ERROR")[0])


def variant(group: str, choice: str) -> dict[str, Any] | None:
    """Return the settings of a section, as of ``paper_algorithm`` and ``PAPER/fair/fedbuff``; None without it.

    The file's own settings replace those of a file that it includes. Raises ConfigError for a malformed section.
    """
    owner, *sections = VARIANTS[group]
    words = choice.split("/")
    name, chosen = "/".join(words[: -len(sections)]), words[-len(sections) :]
    return _find_section(owner, name, tuple(zip(sections, chosen, strict=False)))


def papers_with(profile: str) -> list[str]:
    """Return the papers that have a profile other than `published`; `none` is a run without a paper."""
    return [paper for paper in options("paper") if variant("paper_profile", f"{paper}/{profile}") is not None]


def _find_section(group: str, name: str, path: tuple[tuple[str, str], ...]) -> dict[str, Any] | None:
    """Return a section of a file or of a file it includes. path: (section, choice) from the outer to the inner one."""
    files = (source.folder(group) / f"{name}.yaml" for source in part_sources())
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return None
    included, known = _read_sections(group, name, file, file.stat().st_mtime_ns)
    if group == "paper" and path[0] == (_PROFILES, TUNED):  # settings chosen in one world are of no other
        return _tuned_section(name, path) if name in chosen_settings() else known.get(path)
    if own := known.get(path):
        return own
    inherited = (_find_section(group, one, path) for one in reversed(included))
    return next((found for found in inherited if found is not None), known.get(path))


@functools.lru_cache(maxsize=256)
def _read_sections(group: str, name: str, file: Path, changed: int) -> tuple[list[str], dict[tuple, dict[str, Any]]]:
    """Return (the choices of the group that it includes, the settings by sections and choices).

    changed: when the file was last changed, in ns; of the cache's key
    """
    with locating_yaml_errors(group, name, file):
        tree: Any = OmegaConf.to_container(OmegaConf.load(file))  # reads 3e-5 as a number, unlike PyYAML
    known: dict[tuple, dict[str, Any]] = {}
    if not isinstance(tree, dict):
        return [], known  # Hydra says what is wrong
    _collect_sections(group, file, tree, (), known)
    defaults = tree.get("defaults")
    entries = defaults if isinstance(defaults, list) else []
    names = [entry.partition("@")[0] for entry in entries if isinstance(entry, str)]
    return [one.removeprefix(f"/{group}/") for one in names], known  # Hydra's absolute names have the group


def _tuned_section(world: str, path: tuple[tuple[str, str], ...]) -> dict[str, Any] | None:
    """Return a section of ``profile=tuned`` of a world of the bank: a rule's ``published`` and chosen settings."""
    if len(path) == 1:
        return {}
    (_, rule) = path[1]
    if (chosen := chosen_settings()[world].get(rule)) is None:
        return None
    settings = OmegaConf.create(_find_section("paper", world, ((_PROFILES, "published"), path[1])) or {})
    for key, value in chosen.items():
        OmegaConf.update(settings, key, value)
    tuned: Any = OmegaConf.to_container(settings)
    return tuned


@functools.cache
def chosen_settings() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the settings that the bank chose: world -> rule -> key -> value."""
    file = bank_folder() / CHOSEN
    return read_yaml(file) if file.is_file() else {}


def _collect_sections(
    group: str, file: Path, node: dict[str, Any], path: tuple, known: dict[tuple, dict[str, Any]]
) -> None:
    """Add the sections of a node to `known`. Raises ConfigError for sections that no run reads."""
    for section in [key for key in node if key in SECTIONS]:
        outer = ".".join(word for step in path for word in step)
        key = f"{outer}.{section}" if outer else section
        walked = (group, *(name for name, _ in path), section)
        if all(walked != sections[: len(walked)] for sections in VARIANTS.values()):
            raise ConfigError(key, "", f"is a section that {group}s do not have there; in {file}")
        held, choices = node[section], options(SECTIONS[section])
        if not isinstance(held, dict):
            raise ConfigError(key, held, f"must hold settings for each of some of {list_some(choices)}; in {file}")
        for choice, settings in held.items():
            if choice not in choices:
                near = did_you_mean(str(choice), choices)
                named = f"must be named after a choice of {SECTIONS[section]}{near}: {list_some(choices)}"
                raise ConfigError(f"{key}.{choice}", "", f"{named}; in {file}")
            if not isinstance(settings, dict):
                raise ConfigError(f"{key}.{choice}", settings, f"must hold settings; in {file}")
            inner = (*path, (section, choice))
            known[inner] = {name: value for name, value in settings.items() if name not in SECTIONS}
            _collect_sections(group, file, settings, inner, known)
