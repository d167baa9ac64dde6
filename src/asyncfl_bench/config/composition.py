"""Overrides composed with the yaml groups and checked, with the values that interpolations have in a run.

``compose`` is what a single run uses, with one composition by Hydra; ``Compositions`` shares compositions between the
jobs of a multirun.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from types import MappingProxyType
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from ..errors import PACKAGE, ConfigError, check, first_line, list_some
from ..files import expand_home, read_yaml
from .check import check_settings, replace_limits, set_value
from .choices import TUNED, Composition, choice_file, composition, groups, options, papers_with, variant
from .classes import part_class
from .overrides import (
    Override,
    check_hydra,
    check_hydra_words,
    check_plugin,
    has_interpolation,
    parse_override,
    type_text,
    type_value,
)
from .part_sources import class_names, command_text
from .saved import resumed_settings
from .settings import LISTED, PARTS, RootConfig, Settings

_SERVER_STEPS = ("eta", "c", "total_steps", "alpha", "lam", "lam_over_eps", "server_lr")
STEPS = {"client.lr", *(f"algorithm.{name}" for name in _SERVER_STEPS)}

_NOT_PLAIN = "write it without quotes; if it needs them, or is a number, rename its file: letters, digits and _"
OWN = "own"  # the choice of a group whose part is an object of the Python program
# Hydra's folders, with what conf/config.yaml sets
FOLDERS = {"hydra.run.dir": "${output_dir}", "hydra.sweep.dir": "${output_dir}", "hydra.sweep.subdir": "."}


def compose(overrides: list[str], own: Mapping[str, dict[str, Any]] = MappingProxyType({})) -> Settings:
    """Compose and check one run. own: sections that stand for objects, by group. Raises ConfigError."""
    words = [parse_override(text) for text in overrides]
    resumed = [w for w in words if w.key == "resume" and w.values and w.values[0] != "null"]
    if resumed:
        return resumed_settings(str(resumed[-1].value), [w for w in words if w.key != "resume"])
    check_hydra_words(overrides, multirun=False)
    run = Compositions().config(overrides)
    settings = _placed_settings(run, overrides, own)
    check_hydra(run.hydra, multirun=False)
    return settings


def _placed_settings(run: RunConfig, overrides: list[str], own: Mapping[str, dict[str, Any]]) -> Settings:
    """Return the checked settings of a run, in the directory that Hydra's settings name by hand, if they do."""
    settings = check_composed(run.tree, run.hydra, overrides, own)
    for one in map(parse_override, overrides):
        refuse_idle(one, settings.idle)
    if (folder := run.folder("hydra.run.dir")) is not None:
        if not folder:
            raise ConfigError("hydra.run.dir", "", "must be a directory")
        settings.named_directory = expand_home(folder, "hydra.run.dir")
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
        added = {one.key for one in values if set_value(tree, one, self._groups)}
        run = RunConfig(composed, tree, words, self._clock, added)
        replace_limits(run.tree, words)
        return run

    def compose_choices(self, words: Iterable[Override]) -> Composition:
        """Return what Hydra composes of the overrides that choose files. Raises ConfigError."""
        return self._split(list(words))[0]

    def _split(self, words: Sequence[Override]) -> tuple[Composition, list[Override]]:
        """Return (the composition of overrides that choose files, the others, which set values)."""
        for one in words:
            for value in one.values if one.key in self._groups else ():
                listed = one.value if one.key in LISTED and isinstance(one.value, list) else [value]
                for choice in listed if (one.key, value) != ("sweep", "null") else ():
                    name = parse_override(f"{one.key}={value}").value
                    if name != value and str(name) in options(one.key):
                        raise ConfigError(one.key, value, _NOT_PLAIN)
                    self._file(one.key, choice)
            if one.is_deletion and not one.is_for_hydra:
                raise ConfigError(one.text, "", "cannot be taken out; give it another value")
        specials = {one.key for one in words if one.special}
        values = [one for one in words if not self.chooses_files(one) and one.key not in specials]
        chosen = [one for one in words if one not in values]
        # jobs with the same choices in another order share a composition
        chosen.sort(key=lambda one: "" if one.special or one.key not in self._groups else one.key)
        return self._composition(tuple(one.text for one in chosen)), values

    def settings(self, overrides: list[str]) -> Settings:
        """Return the checked settings of one job, placed as a single run is. Raises ConfigError."""
        return _placed_settings(self.config(overrides), overrides, {})

    def chooses_files(self, one: Override) -> bool:
        """Return True for an override that Hydra composes: a choice, ``hydra.…``, ``+key``; False for our settings."""
        return one.special or one.is_for_hydra or "/" in one.key or one.key in self._groups


def chosen_config(overrides: Sequence[str]) -> Any:
    """Return the config chosen by ``overrides``, each at its first value. A sweep file's own settings depend on it.

    Raises ConfigError.
    """
    words = [parse_override(text) for text in overrides]
    for one in words:
        check_plugin(one)
    first = [parse_override(one.text_of_first_value) for one in words if one.values]
    return Compositions().compose_choices(first).config


def asks_for_multirun(overrides: list[str]) -> bool:
    """Return True if the overrides name a sweep file, or a file or word that sets Hydra's mode to MULTIRUN."""
    if any(parse_override(text).key == "sweep" and text != "sweep=null" for text in overrides):
        return True
    mode = chosen_config(overrides).hydra.mode
    return mode is not None and mode.name == "MULTIRUN"


def refuse_listed_axis(one: Override) -> None:
    """Raise ConfigError for ``tracking=wandb,csv``, which would be two runs of one identity."""
    if one.key in LISTED and one.several:
        raise ConfigError(one.key, ",".join(one.values), f"several in one run are written [{','.join(one.values)}]")


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
    check_hydra(hydra, multirun=True)  # one of several, for all that is known here
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
    words = [parse_override(text) for text in overrides]
    _use_own_clients(config, {one.section for one in words})
    keys = {one.key for one in words}
    # a file of another group may set step sizes, too (+experiment=mine)
    files = {one.key for one in words if one.special and "." not in one.key} - {one.name for one in fields(RootConfig)}
    settings = check_settings(config, default_steps=not (files or keys & {*STEPS, "paper", "sweep", "profile"}))
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


def expand_overrides(overrides: Iterable[str]) -> list[str]:
    """Return overrides where globs over a group and interpolations that need no config are as if typed in full.

    ``algorithm=glob(fed*)`` lists choices, ``seed=${oc.env:ID}`` has a number. An interpolation that refers to settings
    stays, and one that cannot be resolved, which is refused when it is composed. Raises ConfigError.
    """
    return [_resolve_alone(parse_override(_expand_glob(text))) for text in overrides]


def _expand_glob(text: str) -> str:
    """Raise ConfigError for a glob that no choice matches."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, _, value = text.partition("=") if isinstance(text, str) else ("", "", "")
    if not value.startswith("glob(") or (group := key.lstrip("+")) not in groups():
        return text
    try:
        glob: Any = OverridesParser.create().parse_override(text).value()
        found = glob.filter(options(group))
    except HydraException:
        return text  # refused when it is parsed
    if not found:
        raise ConfigError(key, value, f"must match a choice: {list_some(options(group), f'afl-run --help {group}')}")
    return f"{key}={','.join(found)}"


def _resolve_alone(one: Override) -> str:
    """Return an override with what its interpolations are without a config."""
    from hydra.core.utils import setup_globals

    if "${" not in one.text or one.draw is not None or one.is_deletion:
        return one.text
    setup_globals()
    key, texts = one.key, []
    for text in one.values:
        try:
            tree = OmegaConf.create({"value": parse_override(f"{key}={text}").value})
            value = cast(dict[str, Any], OmegaConf.to_container(tree, resolve=True))["value"]
        except OmegaConfBaseException:
            texts.append(text)
        else:
            texts.append(type_text(key, value).partition("=")[2] if isinstance(value, str) else type_value(key, value))
    return f"{one.text.partition('=')[0]}={','.join(texts)}"


class RunConfig:
    """What is composed for one run, where each interpolation has the value of this run.

    tree    the settings as dicts and lists
    hydra   Hydra's settings, shared by runs of the same files; ``folder`` has those that differ
    refers  True if a setting refers to another one
    added   keys of settings that no yaml file lists, which Hydra takes as ``++key`` only
    Raises ConfigError for an interpolation that cannot be resolved.
    """

    def __init__(
        self, composed: Composition, tree: dict[str, Any], words: Sequence[Override], clock: Any, added: set[str]
    ) -> None:
        """tree: the settings, with interpolations as text; clock: an empty config that keeps ``${now:…}`` of all runs
        equal."""
        self.hydra, self.added = composed.config.hydra, added
        self._composed, self._raw, self._words, self._clock = composed, tree, words, clock
        self._full_configs: dict[int | None, Any] = {}
        self.tree, self.refers = tree, has_interpolation(tree)
        if self.refers:
            with self._resolving(None) as full:
                alone = OmegaConf.masked_copy(full, [*tree])  # as a run has it: Hydra removes its own section
                self.tree = cast(dict[str, Any], OmegaConf.to_container(alone, resolve=True))

    def folder(self, key: str, number: int | None = None) -> str | None:
        """Return one of Hydra's folders; None if neither a word nor a file names it. number: of the job in its
        multirun.

        Raises ConfigError.
        """
        text = _value_at(self._composed.raw_hydra, key.removeprefix("hydra."))
        if text == FOLDERS[key] and key not in {one.key for one in self._words}:
            return None
        if not has_interpolation(text):
            return str(text)
        with self._resolving(number, key) as full:
            folder = OmegaConf.select(full, key, throw_on_missing=True)
        if folder is None:
            raise ConfigError(key, text, "must be a directory")
        return str(folder)

    def _full_config(self, number: int | None) -> Any:
        """Return the config of this run with Hydra's settings."""
        hydra = self._composed.raw_hydra
        style, words = hydra["job"]["config"]["override_dirname"], [one for one in self._words if not one.is_for_hydra]
        shown = sorted(one.text for one in words if one.key not in style["exclude_keys"])
        dirname = style["item_sep"].join(shown).replace("=", style["kv_sep"])
        numbers = {} if number is None else {"num": number, "id": str(number)}
        own = {
            "job": {**hydra["job"], "override_dirname": dirname, **numbers},
            "overrides": {**hydra["overrides"], "task": [one.text for one in words]},
        }
        return OmegaConf.create({**self._raw, "hydra": {**hydra, **own}})

    @contextmanager
    def _resolving(self, number: int | None, key: str = "") -> Iterator[Any]:
        """Yield the config of this run, which ``${hydra:…}`` reads, too. Raises ConfigError for what cannot be
        resolved in the block."""
        from hydra.core.hydra_config import HydraConfig

        if number not in self._full_configs:
            self._full_configs[number] = self._full_config(number)
        full, held = self._full_configs[number], HydraConfig.instance()
        before, held.cfg = held.cfg, full
        OmegaConf.copy_cache(self._clock, full)
        try:
            yield full
        except OmegaConfBaseException as error:
            key = key or str(error.full_key)
            is_unset = isinstance(error, InterpolationToMissingValueError)
            why = "refers to a value that is not set" if is_unset else f"cannot be resolved: {first_line(error)}"
            text = _value_at({**self._raw, "hydra": self._composed.raw_hydra}, key)
            raise ConfigError(key, text, why) from None
        finally:
            OmegaConf.copy_cache(full, self._clock)
            held.cfg = before


def _value_at(tree: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key, or the list or text that holds it."""
    node: Any = tree
    for name in key.replace("[", ".[").split("."):
        node = node[name] if isinstance(node, Mapping) else node
    return node
