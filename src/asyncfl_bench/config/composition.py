"""Overrides composed with the yaml groups and checked, with mistakes answered in one line.

``compose`` is what a single run uses, with one composition by Hydra; ``Compositions`` shares compositions between the
jobs of a multirun.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from types import MappingProxyType
from typing import Any, get_type_hints

from omegaconf import OmegaConf

from ..errors import MOST_LISTED, PACKAGE, ConfigError, check, did_you_mean, list_some
from ..files import expand_home, read_yaml
from ..simulation.budget import TARGET
from .check import check_settings
from .choices import Composition, choice_file, choices_with, composition, groups
from .classes import part_class
from .interpolations import RunConfig
from .overrides import Override, check_hydra, check_hydra_of_single_run, check_hydra_words, parse_override
from .places import class_names, command_text
from .saved import START_AGAIN, saved_config
from .settings import LISTED, NOT_IDENTITY, PARTS, EarlierRun, RootConfig, Settings, identity_of_tree
from .suggestions import suggest_setting
from .variants import TUNED, papers_with, variant

_SERVER_STEPS = ("eta", "c", "total_steps", "alpha", "lam", "lam_over_eps", "server_lr")
STEPS = {"client.lr", *(f"algorithm.{name}" for name in _SERVER_STEPS)}

OWN = "own"  # the choice of a group whose part is an object of the Python program


def compose(overrides: list[str], own: Mapping[str, dict[str, Any]] = MappingProxyType({})) -> Settings:
    """Compose and check one run. own: sections that stand for objects, by group. Raises ConfigError."""
    words = [parse_override(text) for text in overrides]
    resumed = [w for w in words if w.key == "resume" and w.values and w.values[0] != "null"]
    if resumed:
        return _resumed_settings(str(resumed[-1].value), [w for w in words if w.key != "resume"])
    check_hydra_words(overrides, multirun=False)
    run = Compositions().config(overrides)
    settings = _placed_settings(run, overrides, own)
    check_hydra_of_single_run(run.hydra)
    return settings


def _placed_settings(run: RunConfig, overrides: list[str], own: Mapping[str, dict[str, Any]]) -> Settings:
    """Return the checked settings of a run, placed where Hydra's settings say if these name a place by hand."""
    settings = check_composed(run.tree, run.hydra, overrides, own)
    for one in map(parse_override, overrides):
        refuse_idle(one, settings.idle)
    if (folder := run.folder("hydra.run.dir")) is not None:
        if not folder:
            raise ConfigError("hydra.run.dir", "", "must be a directory")
        settings.place = expand_home(folder, "hydra.run.dir")
    return settings


class Compositions:
    """Settings of many jobs. Hydra takes tenths of a second for one composition, so jobs that choose the same yaml
    files share it."""

    def __init__(self) -> None:
        self._groups = groups()
        self._file = functools.cache(choice_file)
        self._composition = functools.cache(composition)
        self._clock = OmegaConf.create()

    def config(self, overrides: Iterable[str]) -> RunConfig:
        """Return the config of one run. Raises ConfigError for overrides that do not fit."""
        words = [parse_override(text) for text in overrides]
        composed, values = self._split(words)
        tree = copy.deepcopy(composed.raw)
        added = {one.key for one in values if _set_value(tree, one, self._groups)}
        run = RunConfig(composed, tree, words, self._clock, added)
        replace_limits(run.tree, [one.text for one in words])
        return run

    def compose_choices(self, words: Iterable[Override]) -> Composition:
        """Return what Hydra composes of the overrides that choose files. Raises ConfigError."""
        return self._split(list(words))[0]

    def _split(self, words: Sequence[Override]) -> tuple[Composition, list[Override]]:
        """Return (the composition of overrides that choose files, the others, which set values)."""
        for one in words:
            self._check_choice(one)
            if one.is_deletion and not one.is_for_hydra:
                raise ConfigError(one.text, "", "cannot be taken out; give it another value")
        specials = {one.key for one in words if one.special}
        values = [one for one in words if not self.chooses_files(one) and one.key not in specials]
        chosen = [one for one in words if one not in values]
        return self._composition(tuple(one.text for one in sorted(chosen, key=self._order))), values

    def settings(self, overrides: list[str]) -> Settings:
        """Return the checked settings of one job, placed as a single run is. Raises ConfigError."""
        return _placed_settings(self.config(overrides), overrides, {})

    def chooses_files(self, one: Override) -> bool:
        """Return True for an override that Hydra composes: a choice, ``hydra.…``, ``+key``; False for our settings."""
        return one.special or one.is_for_hydra or "/" in one.key or one.key in self._groups

    def _order(self, one: Override) -> str:
        """Key that sorts choices, so that jobs with the same ones in another order share a composition."""
        return "" if one.special or one.key not in self._groups else one.key

    def _check_choice(self, one: Override) -> None:
        """The choices of a group, before Hydra sees them."""
        for value in one.values:
            if one.key in self._groups and not (value == "null" and one.key == "sweep"):
                listed = one.value if one.key in LISTED and isinstance(one.value, list) else [value]
                for choice in listed:
                    self._file(one.key, choice)


def _has_default_steps(overrides: Iterable[str]) -> bool:
    """Return True if no override is a step size, or chooses a file that sets some: a paper, a sweep, a profile, or one
    of another group (``+experiment=mine``)."""
    words = [parse_override(text) for text in overrides]
    files = {one.key for one in words if one.special and "." not in one.key} - {one.name for one in fields(RootConfig)}
    return not files and not {one.key for one in words} & {*STEPS, "paper", "sweep", "profile"}


def refuse_listed_axis(one: Override) -> None:
    """Raise ConfigError for ``tracking=wandb,csv``, which would be two runs of one identity."""
    if one.key in LISTED and one.several:
        raise ConfigError(one.key, ",".join(one.values), f"several in one run are written [{','.join(one.values)}]")


def replace_limits(tree: dict[str, Any], overrides: Iterable[str]) -> None:
    """Limits among ``overrides`` replace all limits that yaml files set, except a target, which a run may miss.

    Raises ConfigError when none is left.
    """
    if not isinstance(tree["budget"], dict):
        return  # what it must be is said by the check of all settings
    words = [parse_override(text) for text in overrides]
    keys = [one.key.removeprefix("budget.") for one in words if one.key.startswith("budget.")]
    keys += [key for one in words if one.key == "budget" and isinstance(one.value, dict) for key in one.value]
    given = {key: tree["budget"].get(key) for key in keys if key != TARGET}
    if any(limit is not None for limit in given.values()):
        tree["budget"].update({key: None for key in tree["budget"] if key not in (*given, TARGET)})
    elif given and not any(limit for key, limit in tree["budget"].items() if key != TARGET):
        key = next(iter(given))
        raise ConfigError(f"budget.{key}", None, "must be a number, or another limit of budget must be")


def refuse_idle(one: Override, idle: Mapping[str, str]) -> None:
    """Raise ConfigError for a setting without effect (``Settings.idle``), unless it switches off what is off anyhow."""
    if one.value and (why := idle.get(one.key)) is not None:
        raise ConfigError(one.key, one.value, f"has no effect {why}")


def check_composed(
    config: dict[str, Any],
    hydra: Any,
    overrides: Iterable[str],
    own: Mapping[str, dict[str, Any]] = MappingProxyType({}),
) -> Settings:
    """Check a composed config with what was chosen for it. own: as in compose. Raises ConfigError."""
    check_hydra(hydra)
    choices = dict(hydra.runtime.choices)
    profile, paper = choices["profile"], choices["paper"]
    if profile != "published" and paper not in papers_with(profile):
        there = list_some(papers_with(profile))
        raise ConfigError("profile", profile, f"must be published for paper={paper}; it is there for {there}")
    rule = choices["algorithm"]
    if profile == TUNED and variant("paper_algorithm", f"{paper}/{profile}/{rule}") is None:
        how = f"afl-run sweep=bank algorithm={rule} searches them, profile=published has the defaults"
        raise ConfigError("algorithm", rule, f"has no chosen settings for profile=tuned; {how}")
    if choices.get("length") == "long":
        budget = config["budget"]
        limit = budget.get("virtual_time") if isinstance(budget, dict) else None
        # the greater length counts uploads: a limit of time would end it first
        check(limit is None, "length", "long", f"standard with budget.virtual_time={limit}, which ends a run")
        why = "with profile=fair, whose budget is the same for all already"
        check(profile != "fair", "length", "long", f"standard {why}")
    for group in PARTS:  # a user's class named in the place of the chosen one has its own name
        section = config.get(group)
        target = str(section.get("_target_", PACKAGE)) if isinstance(section, dict) else PACKAGE
        if target.partition(".")[0] != PACKAGE and target not in class_names(choice_file(group, choices[group])):
            choices[group] = target.rpartition(".")[2].lower()
    config |= {**own, "choices": choices | dict.fromkeys(own, OWN)}
    _use_own_clients(config, {parse_override(text).key.partition(".")[0] for text in overrides})
    settings = check_settings(config, _has_default_steps(overrides))
    settings.command = None if own else command_text(overrides)
    return settings


def _use_own_clients(config: dict[str, Any], given: Container[str]) -> None:
    """Give the samples to the clients that they come with, and set the number of clients, where these are not given."""
    section = config["dataset"]
    if "heterogeneity" in given or not isinstance(section, dict) or "_target_" not in section:
        return
    target = part_class("dataset._target_", str(section["_target_"]))
    if (clients := getattr(target, "count_clients", lambda section: None)(section)) is not None:
        config["choices"]["heterogeneity"] = "natural"
        config["heterogeneity"] = read_yaml(choice_file("heterogeneity", "natural"))
        config |= {} if "n_clients" in given else {"n_clients": clients}


class UnknownSetting(ConfigError):
    """A setting that the composed parts do not have. Other choices may have it."""


def _set_value(tree: dict[str, Any], one: Override, known_groups: dict[str, str]) -> bool:
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
        found = get_type_hints(schema) if is_dataclass(schema) else {}
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


def _with_own_targets(tree: dict, checked: dict) -> dict:
    """The tree with each class under the path of its module, as ``checked`` has it: one class may have several."""
    targets = {
        name: part["_target_"] for name, part in checked.items() if isinstance(part, dict) and "_target_" in part
    }
    return {name: value | {"_target_": targets[name]} if name in targets else value for name, value in tree.items()}


def _change_saved(tree: dict, words: Iterable[Override], run: str, more: Iterable[str] = ()) -> None:
    """Set values in a saved config: settings outside its identity, and ``more``. Raises ConfigError for others."""
    changeable = [key for key in (*NOT_IDENTITY, *more) if key not in (*PARTS, "resume")]
    for one in words:
        if not {one.key, one.key.partition(".")[0]} & {*changeable}:
            value = one.text.partition("=")[2]
            raise ConfigError(one.key, value, f"cannot be changed by {run}; only {list_some(changeable)} can")
        _set_value(tree, one, {})


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


def _resumed_settings(directory: str, words: list[Override]) -> Settings:
    """Return the settings of a run directory, changed by overrides of its budget and of settings outside its identity.

    With another budget it is another run, in another directory beside the earlier one. Raises ConfigError.
    """
    path = expand_home(directory, "resume")
    tree = saved_config(path)
    was = check_settings(tree)
    if identity_of_tree(_with_own_targets(tree, was.tree), was.digests) != was.identity:
        raise ConfigError("resume", path, f"was made by another version, which had other settings; {START_AGAIN}")
    _change_saved(tree, words, "a resumed run", ["budget"])
    replace_limits(tree, [one.text for one in words])
    tree["resume"] = str(path)
    settings = check_settings(tree)
    settings.place = path
    settings.command = command_text(["--resume", str(path), *(one.text for one in words)])
    if settings.identity != was.identity:
        named = path if path.name not in ("", "..") else path.resolve()
        settings.place, settings.earlier = named.parent / settings.name, EarlierRun(path, was.identity)
    return settings
