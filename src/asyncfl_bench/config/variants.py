"""Settings that a file of `paper` or `sweep` has for one profile, algorithm or scale.

The file has them in sections, which are named after groups and hold settings for one choice of the group each::

    profiles:
      fair:
        algorithms:
          fedbuff:
            client: {lr: 1.0}

Hydra asks for this as ``paper_algorithm/PAPER/fair/fedbuff`` (hydra_plugins/asyncfl_groups.py).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ..errors import ConfigError, did_you_mean, list_some
from ..files import read_yaml
from .choices import locating_yaml_errors, options
from .places import bank_folder, places

CHOSEN = "chosen.yaml"  # of the bank: the settings of profile=tuned, by world and rule
TUNED = "tuned"

SECTIONS = {"profiles": "profile", "algorithms": "algorithm", "scales": "scale"}  # section -> the group of its choices
# group in conf/config.yaml -> the group of the file, and the sections from the outer one to the inner one
VARIANTS = {
    "paper_profile": ("paper", "profiles"),
    "paper_algorithm": ("paper", "profiles", "algorithms"),
    "paper_scale": ("paper", "scales"),
    "sweep_profile": ("sweep", "profiles"),
    "sweep_scale": ("sweep", "scales"),
    "sweep_profile_scale": ("sweep", "profiles", "scales"),
}


def variant(group: str, choice: str) -> dict[str, Any] | None:
    """The settings in one section, for ``paper_algorithm`` and ``PAPER/fair/fedbuff``; None without that section.

    The file's own settings replace those of a file that it includes. Raises ConfigError for a malformed section.
    """
    owner, *sections = VARIANTS[group]
    words = choice.split("/")
    name, chosen = "/".join(words[: -len(sections)]), words[-len(sections) :]
    return _find_section(owner, name, tuple(zip(sections, chosen, strict=False)))


def papers_with(profile: str) -> list[str]:
    """The papers that a profile other than `published` is there for; `none` is a run without a paper."""
    return [paper for paper in options("paper") if variant("paper_profile", f"{paper}/{profile}") is not None]


def _find_section(group: str, name: str, path: tuple[tuple[str, str], ...]) -> dict[str, Any] | None:
    """Return a section of a file or of a file it includes. path: (section, choice) from the outer to the inner one."""
    files = (place.folder(group) / f"{name}.yaml" for place in places())
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return None
    included, known = _read_sections(group, name, file, file.stat().st_mtime_ns)
    if own := known.get(path):
        return own
    inherited = (_find_section(group, one, path) for one in reversed(included))
    return next((found for found in inherited if found is not None), known.get(path))


@functools.lru_cache(maxsize=256)
def _read_sections(group: str, name: str, file: Path, changed: int) -> tuple[list[str], dict[tuple, dict[str, Any]]]:
    """Return (the files that it includes, the settings by sections and choices).

    changed: when the file was last changed, in ns; of the cache's key
    """
    with locating_yaml_errors(group, name, file):
        tree: Any = OmegaConf.to_container(OmegaConf.load(file))  # reads 3e-5 as a number, unlike PyYAML
    known: dict[tuple, dict[str, Any]] = {}
    if not isinstance(tree, dict):
        return [], known  # Hydra says what is wrong
    if group == "paper":
        tree = _add_tuned_profile(tree, name)
    _collect_sections(group, file, tree, (), known)
    defaults = tree.get("defaults")
    return [one for one in defaults if isinstance(one, str)] if isinstance(defaults, list) else [], known


def _add_tuned_profile(tree: dict[str, Any], world: str) -> dict[str, Any]:
    """Return the tree of a world of the bank with a profile of the chosen settings, those of ``published`` besides."""
    chosen = chosen_settings().get(world)
    if chosen is None:
        return tree
    profiles = tree.get("profiles", {})
    rules = {rule: OmegaConf.create(of) for rule, of in profiles.get("published", {}).get("algorithms", {}).items()}
    for rule, settings in chosen.items():
        for key, value in settings.items():
            OmegaConf.update(rules.setdefault(rule, OmegaConf.create()), key, value)
    tuned = {"algorithms": {rule: OmegaConf.to_container(rules[rule]) for rule in chosen}}
    return tree | {"profiles": profiles | {TUNED: tuned}}


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
