"""From overrides on a command line to settings that are known to work.

Every part keeps its own dataclass of settings beside its code; a yaml names the class and its numbers. Here the yaml is
held against that dataclass (unknown keys, types, ranges), then the few checks that concern several groups are made.
Nothing here imports torch or data, so a mistake is answered before anything is loaded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from . import ranges
from .errors import ConfigError, check, check_choice, did_you_mean

DATA_VARIABLE = "ASYNCFL_BENCH_DATA"
# Raised whenever the same settings begin to give other numbers: a run finished under another version is run again.
# 3: the Dirichlet split is exchangeable over clients
RESULTS_VERSION = 3
PARTS = (
    "dataset",
    "heterogeneity",
    "model",
    "client",
    "delay",
    "availability",
    "schedule",
    "algorithm",
    "diagnostics",
    "tracking",
)
# groups that only set other settings; a run remembers what was chosen
ORIGINS = ("paper", "sweep", "profile", "scale", "length")
# Settings that came later than RESULTS_VERSION 3: at these values a run is the one it was without them, so a new setting
# renames no finished run. key: value
LATER: dict[str, object] = {}
# groups that came later: choice at which the whole group is left out of the identity
LATER_GROUPS: dict[str, str] = {}
# old name of a setting or a choice: the one it has now
RENAMED = {
    "horizon": "length",
    "algorithm.horizon": "algorithm.total_steps",
    "schedule.hand_out": "schedule.dispatch",
    "schedule.dispatch=at_flush": "after_update",
    "schedule.dispatch=at_round": "per_round",
    "profile=paper": "published",
    "scale=paper": "full",
}
# settings that say where and how to compute, not what: they leave a run's identity alone
NOT_IDENTITY = (
    "diagnostics",
    "tracking",
    "device",
    "threads",
    "executor",
    "output_dir",
    "data_dir",
    "checkpoint",
    "trace",
    "rerun",
    "resume",
    "progress",
)

_NEVER = object()  # equals no value


@dataclass
class EvaluationConfig:
    """every: server iterations between evaluations (>= 1); every_time: units of virtual time instead; every_uploads:
    uploads instead, at the first server iteration that completes so many.
    validation_share: of the training samples, held back before they are split over the clients, in [0, 1)."""

    every: int = 10
    every_time: float | None = None
    every_uploads: int | None = None
    validation_share: float = 0.0

    def __post_init__(self) -> None:
        check(self.every >= 1, "every", self.every, "a whole number >= 1")
        ok = self.every_time is None or self.every_time > 0
        check(ok, "every_time", self.every_time, "a number > 0, or null to count server iterations")
        ok = self.every_uploads is None or self.every_uploads >= 1
        check(ok, "every_uploads", self.every_uploads, "a whole number >= 1, or null to count server iterations")
        both = self.every_time is not None and self.every_uploads is not None
        check(not both, "every_uploads", self.every_uploads, "null when evaluation.every_time is set: choose one")
        check(0 <= self.validation_share < 1, "validation_share", self.validation_share, "a number in [0, 1)")


@dataclass
class CheckpointConfig:
    """every: server iterations between checkpoints; every_minutes: wall-clock minutes; null: none.
    at_end_mib: a finished run leaves a checkpoint (to go on with a larger budget) if its state is at most this big."""

    every: int | None = None
    every_minutes: float | None = 10.0
    at_end_mib: float = 64.0

    def __post_init__(self) -> None:
        check(self.every is None or self.every >= 1, "every", self.every, "a whole number >= 1, or null")
        ok = self.every_minutes is None or self.every_minutes > 0
        check(ok, "every_minutes", self.every_minutes, "a number > 0, or null")
        check(self.at_end_mib >= 0, "at_end_mib", self.at_end_mib, "a number >= 0")


@dataclass
class RootConfig:
    """The settings that belong to no group; conf/config.yaml says what each means."""

    seed: int = 0
    n_clients: int = 100
    concurrency: int | None = None
    clock: str = "auto"
    device: str = "auto"
    threads: int | None = None
    executor: str = "auto"
    trace: bool = False
    progress: bool = True
    rerun: bool = False
    resume: str | None = None
    output_dir: str = "runs"
    data_dir: str | None = None

    def __post_init__(self) -> None:
        check(self.seed >= 0, "seed", self.seed, "a whole number >= 0")
        check(self.n_clients >= 1, "n_clients", self.n_clients, "a whole number >= 1")
        ok = self.concurrency is None or self.concurrency >= 1
        check(ok, "concurrency", self.concurrency, "a whole number >= 1, or null for all clients")
        check_choice("clock", self.clock, ("auto", "time", "ticks"))
        check(self.threads is None or self.threads >= 1, "threads", self.threads, "a whole number >= 1, or null")
        ok = self.device in ("auto", "cpu") or self.device.split(":")[0] == "cuda"
        check(ok, "device", self.device, "auto, cpu, cuda or cuda:N")
        check_choice("executor", self.executor, ("auto", "sequential", "threads", "batched"))


@dataclass
class Part:
    """A class named by a yaml and its checked settings."""

    target: type[Any]
    config: Any

    def build(self, *args, **kwargs):
        return self.target(self.config, *args, **kwargs)


@dataclass
class Settings:
    """A run's settings, checked and with every `auto` and null resolved."""

    root: RootConfig
    budget: Any
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig
    parts: dict[str, Part]
    choices: dict[str, str]
    tree: dict = field(default_factory=dict)  # the resolved config, as it is written to config.yaml
    place: Path | None = None  # a run directory named by hand, instead of one under output_dir
    resumed_identity: str | None = None  # of the run that is gone on with, when its budget was changed
    digests: dict[str, str] = field(default_factory=dict)  # by part, of the file that its `path` names

    @property
    def identity(self) -> str:
        """8 hex digits of a hash over everything that decides the run's numbers."""
        return identity_of_tree(self.tree, self.digests)

    @property
    def experiment(self) -> str:
        """The same without the seed: runs of one experiment may be averaged."""
        return identity_of_tree({**self.tree, "seed": None}, self.digests)

    @property
    def name(self) -> str:
        choice = self.choices.get
        words = [choice("algorithm"), choice("dataset"), choice("delay"), f"seed{self.root.seed}", self.identity]
        return "-".join(str(word) for word in words)

    @property
    def directory(self) -> Path:
        return self.place or Path(self.root.output_dir).expanduser() / self.name

    @property
    def data_dir(self) -> Path:
        given = self.root.data_dir or os.environ.get(DATA_VARIABLE)
        return Path(given).expanduser() if given else Path.home() / ".cache" / "asyncfl_bench" / "data"


def identity_of_tree(tree: dict, digests: Mapping[str, str] = MappingProxyType({})) -> str:
    """8 hex digits of a hash over what decides the numbers of a run with this resolved config.

    digests  by part, of the file that its `path` names: what is in the file decides the numbers, not where it is
    """
    kept = {key: value for key, value in tree.items() if key not in (*NOT_IDENTITY, "choices")}
    for name, choice in LATER_GROUPS.items():
        if tree["choices"].get(name) == choice:
            kept.pop(name, None)
    for name, section in kept.items():
        if isinstance(section, dict):
            kept[name] = {
                key: value for key, value in section.items() if LATER.get(f"{name}.{key}", _NEVER) != value
            } | ({"path": digests[name]} if name in digests else {})
    if cache := kept["algorithm"].get("cache"):  # its place changes no number
        kept["algorithm"]["cache"] = {key: value for key, value in cache.items() if key != "place"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]


def renamed(key: str, value: object) -> ConfigError | None:
    """The answer to a name that a setting or a choice had earlier; None for any other."""
    if key in RENAMED:
        now = RENAMED[key]
        return ConfigError(key, value, f"is called {now} now: {now}={RENAMED.get(f'{now}={value}', value)}")
    if (now := RENAMED.get(f"{key}={value}")) is not None:
        return ConfigError(key, value, f"is called {now} now: {key}={now}")
    return None


def check_settings(config: DictConfig, choices: dict[str, str]) -> Settings:
    """Checks a composed config. Raises ConfigError; touches neither data nor disk except to see that paths exist."""
    from .resolving import resolve
    from .simulation.engine import BudgetConfig

    try:
        tree = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=False))
    except OmegaConfBaseException as error:
        raise ConfigError(str(error.full_key), "?", str(error.msg).splitlines()[0]) from None
    tree.pop("hydra", None)
    tree.pop("choices", None)
    for group in ORIGINS:
        tree.pop(group, None)
    sections = {"budget": BudgetConfig, "evaluation": EvaluationConfig, "checkpoint": CheckpointConfig}
    root_names = [f.name for f in dataclasses.fields(RootConfig)]
    for key, value in tree.items():
        if key not in root_names and key not in PARTS and key not in sections:
            near = did_you_mean(key, (*root_names, *PARTS, *sections))
            raise ConfigError(key, value, f"is not a setting{near}")
    settings = Settings(
        root=_typed(RootConfig, {k: v for k, v in tree.items() if k in root_names}, ""),
        parts=_parts(tree, choices),
        choices={name: choices[name] for name in (*PARTS, *ORIGINS) if choices.get(name) is not None},
        **{name: _typed(cls, _section(tree, name), name) for name, cls in sections.items()},
    )
    _check_paths(settings)
    resolve(settings)
    for name, part in settings.parts.items():
        if name not in NOT_IDENTITY and (path := dataclasses.asdict(part.config).get("path")):
            settings.digests[name] = _digest(f"{name}.path", path)
    settings.tree = _resolved_tree(settings, sections)
    return settings


def _digest(key: str, path: str) -> str:
    try:
        with open(Path(path).expanduser(), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(key, path, f"must be a file that can be read: {error.strerror}") from None


def _section(tree: dict, name: str, dotted: str = "") -> dict:
    section: Any = tree.get(name)
    key = f"{dotted}{name}"
    check(isinstance(section, dict), key, section, f"a section of settings, for example {key}.…=VALUE")
    return section


def _parts(tree: dict, choices: dict[str, str]) -> dict[str, Part]:
    try:
        return {name: _part(tree.get(name), name) for name in PARTS}
    except ConfigError as error:
        if error.key in ("algorithm.eta", "algorithm.total_steps"):  # who chose a group did not write these keys
            why = f"with algorithm={choices.get('algorithm')}, whose server step is no c * sqrt(n / T)"
            check(choices.get("length") != "long", "length", "long", f"standard {why}")
            check(choices.get("profile") != "fair", "profile", "fair", f"published {why}")
        raise


def _part(node: Any, group: str) -> Part:
    if not isinstance(node, dict) or "_target_" not in node:
        raise ConfigError(group, node, f"must be one of the choices of the group {group}")
    target_name = node["_target_"]
    try:
        module, _, name = target_name.rpartition(".")
        target = getattr(importlib.import_module(module), name)
        schema = target.Config
    except (ImportError, AttributeError, ValueError):
        raise ConfigError(f"{group}._target_", target_name, "must name an importable class with a Config") from None
    return Part(target, _typed(schema, {k: v for k, v in node.items() if k != "_target_"}, group))


def _typed(schema: type, values: dict, prefix: str):
    """``values`` as an instance of the dataclass ``schema``: unknown keys, types and ranges are errors."""
    known = {f.name: f for f in dataclasses.fields(schema)}
    dotted = f"{prefix}." if prefix else ""
    hints: dict[str, Any] = get_type_hints(schema)
    nested = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    sections = {
        name: _typed(cast(type, cls), _section(values, name, dotted) if name in values else {}, f"{dotted}{name}")
        for name, cls in nested.items()
    }
    values = {key: value for key, value in values.items() if key not in nested}
    for key, value in values.items():
        if key not in known:
            if (answer := renamed(f"{dotted}{key}", value)) is not None:
                raise answer
            raise ConfigError(f"{dotted}{key}", value, f"is not a setting{did_you_mean(key, known)}{_listed(known)}")
        if value == "???":
            raise ConfigError(f"{dotted}{key}", None, f"must be set, for example {dotted}{key}=VALUE")
        _check_finite(f"{dotted}{key}", value)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), values)
        converted = cast(dict[str, Any], OmegaConf.to_container(merged))
    except OmegaConfBaseException as error:
        key = str(error.full_key or error.key)
        kind = str(known[key.split("[")[0]].type) if key.split("[")[0] in known else "value of the right type"
        words = ranges.allowed(schema, key) or _kind(kind)
        raise ConfigError(f"{dotted}{key}", values.get(key), f"must be {words}") from None
    for key, value in converted.items():
        if value == "???":
            raise ConfigError(f"{dotted}{key}", None, f"must be set, for example {dotted}{key}=VALUE")
    try:
        return schema(**converted | sections)
    except ConfigError as error:
        raise (error.under(prefix) if prefix else error) from None


def _listed(known: dict) -> str:
    return f"; known: {', '.join(known)}" if known else "; it has none"


def _kind(annotation: str) -> str:
    names = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "None": "null"}
    if annotation.startswith("list["):
        return "a list, for example [1, 2]" if "str" not in annotation else "a list of words, for example [one, two]"
    words = [word.strip() for word in annotation.split("|")]
    return " or ".join(names.get(word, word) for word in words)


def _check_finite(key: str, value: Any) -> None:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        raise ConfigError(key, value, "must be finite")


def _check_paths(settings: Settings) -> None:
    for key, given in (("data_dir", settings.root.data_dir), (DATA_VARIABLE, os.environ.get(DATA_VARIABLE))):
        if given and not Path(given).expanduser().is_dir():
            raise ConfigError(key, given, "must be an existing directory: create it, or leave the setting out")
        if given:
            return


def _resolved_tree(settings: Settings, sections: dict) -> dict:
    tree = dataclasses.asdict(settings.root)
    for name, part in settings.parts.items():
        target = f"{part.target.__module__}.{part.target.__qualname__}"
        tree[name] = {"_target_": target} | dataclasses.asdict(part.config)
    for name in sections:
        tree[name] = dataclasses.asdict(getattr(settings, name))
    tree["choices"] = dict(settings.choices)
    return tree
