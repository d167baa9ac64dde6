"""Composing yaml groups and overrides with Hydra, with mistakes answered in one line.

``compose(overrides)`` is what a single run uses; ``check_all(overrides)`` looks at every value of a multirun before its
first job starts.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from .config import NOT_IDENTITY, ORIGINS, PARTS, Settings, check_settings, renamed
from .errors import BenchError, ConfigError, did_you_mean
from .grids import Grid, jobs_of, laid_out, parsed, values_of
from .launchers import check_launcher
from .sweeping import Job

_PLACES = tuple(group for group in ORIGINS if group != "paper")  # what a sweep's folder is named after


def config_directory() -> Path:
    """The folder of yaml groups: package data of an installed wheel, or the repository's own ``conf/``."""
    packaged = Path(__file__).parent / "conf"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "conf"


def options(group: str) -> list[str]:
    """The choices of a group, in alphabetical order (``ace/figure2`` for a yaml in a subfolder)."""
    folder = config_directory().parent / "sweeps" if group == "sweep" else config_directory() / group
    found = {str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml")}
    # what lies below a choice (paper/ace/ below paper/ace.yaml) belongs to it
    return sorted(name for name in found if not any(f"{name}/".startswith(f"{other}/") for other in found - {name}))


def groups() -> dict[str, str]:
    """Config groups in the order of conf/config.yaml, each with the one-line description beside it there."""
    found = {}
    for line in (config_directory() / "config.yaml").read_text().splitlines():
        entry, _, comment = line.partition("#")
        name, colon, _ = entry.strip().removeprefix("- ").removeprefix("optional ").partition(":")
        if entry.strip().startswith("- ") and colon and "/" not in name and "@" not in name:
            found[name.strip()] = comment.strip()
    return found


def compose(overrides: list[str]) -> Settings:
    """Composes and checks one run. Raises ConfigError."""
    for text in overrides:
        if not isinstance(text, str):
            raise ConfigError("overrides", text, "must be text, for example 'algorithm=ace'")
    resume = [o for o in overrides if _key_of(o) == "resume" and o.partition("=")[2] != "null"]
    if resume:
        return _resumed(resume[-1].partition("=")[2], [o for o in overrides if _key_of(o) != "resume"])
    _check_overrides(overrides)
    return _compose(overrides)


def _resumed(directory: str, overrides: list[str]) -> Settings:
    """The settings a run directory was made with; only its budget and what leaves its identity alone may change."""
    from omegaconf import DictConfig, OmegaConf

    path = Path(directory).expanduser()
    config, choices = _saved_config(path)
    was = check_settings(config, choices)
    changeable = [key for key in (*NOT_IDENTITY, "budget") if key not in (*PARTS, "resume")]
    for text in overrides:
        key, _, value = text.partition("=")
        if key.partition(".")[0] not in changeable:
            raise ConfigError(key, value, f"cannot be changed by a resumed run; only {', '.join(changeable)} can")
        _check_key(key, value, config, {})
    config = cast(DictConfig, OmegaConf.merge(config, OmegaConf.from_dotlist(overrides)))
    config.resume = str(path)
    settings = check_settings(config, choices)
    settings.place, settings.resumed_identity = path, was.identity
    return settings


def _saved_config(path: Path):
    """(config, choices) of a run directory. Raises ConfigError when there is none that can be read."""
    from omegaconf import DictConfig, OmegaConf

    if not (path / "config.yaml").is_file():
        raise ConfigError("resume", path, "must be a run directory: there is no config.yaml in it")
    try:
        config = OmegaConf.load(path / "config.yaml")
        choices = OmegaConf.to_container(config.get("choices") or {}) if isinstance(config, DictConfig) else {}
    except Exception:  # yaml, unicode and OmegaConf each raise their own
        config, choices = None, {}
    if not choices:
        raise ConfigError("resume", path, "must be a run directory: its config.yaml cannot be read")
    return config, choices


def identity_of(config_path: Path) -> str | None:
    """The identity of the run a config.yaml belongs to; None when that cannot be told."""
    try:
        return check_settings(*_saved_config(config_path.parent)).identity
    except ConfigError:
        return None


def sweep_grids(overrides: list[str]) -> list[Grid]:
    """The grids of a multirun: those of its sweep file, with the overrides laid over.

    ``["sweep=ace/figure2", "scale=small", "seed=0"]`` gives every axis of the file as {key: values}, the
    seed narrowed to one value. Raises ConfigError.
    """
    return grids_of(_hydra_config(chosen(overrides)), overrides)


def grids_of(config, overrides: list[str]) -> list[Grid]:
    """The same of a config composed with what ``overrides`` choose. Raises ConfigError."""
    sweeper, profile = config.hydra.sweeper, config.hydra.runtime.choices.profile
    params = dict(sweeper.get("params") or {})
    if "paper" in params and profile != "published":  # a sweep file lists papers that the profile does not have
        listed = params["paper"].split(",")
        params["paper"] = ",".join(paper for paper in listed if paper in papers_with(profile))
        if not params["paper"]:
            raise ConfigError("profile", profile, "must be published: this sweep's papers have no other")
    return laid_out(params, sweeper.get("grids") or [], overrides)


def papers_with(profile: str) -> list[str]:
    """The papers that a profile other than `published` is there for; `none` is a run without a paper."""
    folder = config_directory() / "paper"
    return sorted(str(file.parent.relative_to(folder)) for file in folder.rglob(f"{profile}.yaml"))


def check_all(overrides: list[str]) -> int:
    """Checks every value of every swept key once, the others at their first value. Returns the number of jobs."""
    _check_overrides([o for o in overrides if _key_of(o) in groups()])
    for launcher in [o.partition("=")[2] for o in overrides if _key_of(o) == "hydra/launcher"]:
        check_launcher(launcher)
    for text in overrides:
        if _key_of(text) in _PLACES and len(values := values_of(parsed(text))) > 1:
            raise ConfigError(_key_of(text), ",".join(values), "must be one choice: each has a folder of its own")
        if text.startswith("~"):
            raise ConfigError(text, "", "cannot be taken out of a sweep; give it one value instead")
    union = sweep_grids(overrides)
    _check_one_search(overrides, union)
    compositions = Compositions(_hydra_config)
    for grid in union:
        first = {key: values[0] for key, values in grid.items()}
        others = [first | {key: value} for key, values in grid.items() for value in values[1:]]
        for job in (first, *others):
            words = [f"{key}={value}" for key, value in job.items()]
            _check_overrides(words)
            _checked(compositions.config(words))
    return len(jobs_of(union))


def _check_one_search(overrides: list[str], union: list[Grid]) -> None:
    """What a profile searches is one grid for the whole multirun: refuses papers that search in different ones."""
    papers = list(dict.fromkeys(paper for grid in union for paper in grid.get("paper", [])))
    others = [o for o in overrides if _key_of(o) != "paper"]
    searched = [
        dict(_hydra_config([*chosen(others), f"paper={paper}"]).hydra.sweeper.get("params") or {})
        for paper in papers[: len(papers) if len(papers) > 1 else 0]
        if paper in options("paper")
    ]
    if any(one != searched[0] for one in searched):
        raise ConfigError("paper", ",".join(papers), "must be papers that search the same grid under this profile")


def chosen(overrides: list[str]) -> list[str]:
    """What is chosen for groups, each at its first value: what a sweep file's own settings depend on."""
    known = {*groups(), "hydra/launcher"}  # a launcher's preset may say how many threads a job has

    def matters(text: str) -> bool:
        return "=" in text and (_key_of(text) in known or _key_of(text).startswith("hydra.sweeper."))

    return [f"{o.partition('=')[0]}={values_of(parsed(o))[0]}" for o in overrides if matters(o)]


def is_multirun(overrides: list[str]) -> bool:
    """True when the overrides name a sweep file that asks for a multirun by itself."""
    if not any(o.startswith("sweep=") and o != "sweep=null" for o in overrides):
        return False
    _check_overrides(chosen(overrides))
    return str(_hydra_config(chosen(overrides)).hydra.mode).endswith("MULTIRUN")


def sweep_name(overrides: list[str]) -> str | None:
    """``ace/figure2/published-small``, with ``-long`` for the greater length: a sweep's name, and where its runs are kept."""
    choices = _hydra_config(chosen(overrides)).hydra.runtime.choices
    if choices.sweep is None:
        return None
    words = [choices.profile, choices.scale] + ([choices.length] if choices.length != "standard" else [])
    return f"{choices.sweep}/{'-'.join(words)}"


def _compose(overrides: list[str]) -> Settings:
    config = _hydra_config(overrides)
    settings = _checked(config)
    if any(_key_of(o) == "hydra.run.dir" for o in overrides):
        settings.place = Path(config.hydra.run.dir).expanduser()
    return settings


def _checked(config) -> Settings:
    _check_profile(config.hydra.runtime.choices)
    _check_length(config)
    return check_settings(config, dict(config.hydra.runtime.choices))


def _check_length(config) -> None:
    """The long length counts uploads and takes the limit of iterations away; a limit of time would end it first."""
    from omegaconf import OmegaConf

    limit = OmegaConf.select(config, "budget.virtual_time")
    if config.hydra.runtime.choices.get("length") == "long" and limit is not None:
        raise ConfigError("length", "long", f"must be standard with budget.virtual_time={limit}, which ends a run")


def _check_profile(choices) -> None:
    """A profile other than `published` is a tuning of its own: refused where a paper has none."""
    if choices.profile == "published":
        return
    if choices.paper not in papers_with(choices.profile):
        there = ", ".join(papers_with(choices.profile))
        raise ConfigError(
            "profile", choices.profile, f"must be published for paper={choices.paper}; it is there for {there}"
        )


def settings_of_job(config, hydra_config) -> Settings:
    """The settings of one job of a multirun, placed where Hydra's own settings say."""
    settings = check_settings(config, dict(hydra_config.runtime.choices))
    folder, sub = str(hydra_config.sweep.dir), str(hydra_config.sweep.subdir)
    settings.root.output_dir = settings.tree["output_dir"] = folder
    if sub != ".":
        settings.place = Path(folder).expanduser() / sub
    return settings


class Compositions:
    """Configs of many jobs. Hydra takes tenths of a second for one, so jobs that choose the same yaml files share it.

    load  composes the config of a list of overrides, Hydra's settings included
    """

    def __init__(self, load: Callable[[list[str]], Any]):
        self._load = load
        self._known = {*groups(), "hydra"}
        self._bases: dict[tuple[str, ...], Any] = {}

    def config(self, overrides: list[str]) -> Any:
        """Raises ConfigError for overrides that do not fit."""
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        plain = {o: parsed(o) for o in overrides}
        special = {
            p.key_or_group for p in plain.values() if p.is_add() or p.is_force_add() or p.is_delete() or p.package
        }
        values = [p for p in plain.values() if self._is_value(p.key_or_group) and p.key_or_group not in special]
        kept = tuple(o for o, p in plain.items() if p not in values)
        try:
            if kept not in self._bases:
                self._bases[kept] = self._load(list(kept))
            config = copy.deepcopy(self._bases[kept])
            for override in values:
                OmegaConf.update(config, override.key_or_group, override.value())
        except (HydraException, OmegaConfBaseException) as error:
            raise _explained(error, overrides) from None
        return config

    def _is_value(self, key: str) -> bool:
        """Whether ``key`` is a setting, which chooses no yaml file: not ``paper``, not ``hydra/launcher``."""
        return "/" not in key and ("." in key or key not in self._known)


def settings_of_jobs(jobs: list[list[str]], load: Callable[[list[str]], Any]) -> list[Job]:
    """Every job of a multirun with its settings; one that cannot be composed has its error instead.

    load  as of Compositions
    """
    compositions = Compositions(load)
    found = []
    for overrides in jobs:
        try:
            config = compositions.config(overrides)
            found.append(Job(overrides, settings_of_job(config, config.hydra)))
        except BenchError as error:
            found.append(Job(overrides, None, str(error)))
    return found


def _hydra_config(overrides: list[str]):
    newest = max(path.stat().st_mtime_ns for path in config_directory().rglob("*"))  # a yaml may be edited meanwhile
    return copy.deepcopy(_composed(tuple(overrides), newest))


@functools.lru_cache(maxsize=16)
def _composed(overrides: tuple[str, ...], newest: int):
    """Hydra's own composition; a command asks for the same few again and again."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    before = GlobalHydra.instance().hydra  # a job of a multirun composes inside Hydra's own main
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            return hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
    except HydraException as error:
        raise _explained(error, list(overrides)) from None
    finally:
        GlobalHydra.instance().clear()
        if before is not None:
            GlobalHydra.instance().initialize(before)


def _explained(error: Exception, overrides: list[str]) -> ConfigError:
    """Hydra's exception as one line. Mistyped groups and keys are caught earlier; this is for all the rest."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    culprit = next((o for o in overrides if _key_of(o) and _key_of(o) in text), overrides[-1] if overrides else "")
    key, _, value = culprit.lstrip("+~").partition("=")
    return ConfigError(key or "config", value, text)


def _check_overrides(overrides: list[str]) -> None:
    """Names of groups, their choices and keys, before Hydra sees them."""
    known_groups = groups()
    tree = None
    for text in overrides:
        override = parsed(text)
        key = override.key_or_group
        values = values_of(override)
        for value in values:
            if (answer := renamed(key, value)) is not None:
                raise answer
        if key in known_groups:
            available = options(key)
            for value in values:
                if value not in available and not (value == "null" and key == "sweep"):
                    near = did_you_mean(value, available)
                    raise ConfigError(key, value, f"must be one of {', '.join(available)}{near}")
        elif not override.is_add() and not override.is_force_add() and not key.startswith("hydra"):
            if tree is None:
                chosen = [o for o in overrides if _key_of(o) in known_groups]
                tree = _hydra_config([f"{_key_of(o)}={values_of(parsed(o))[0]}" for o in chosen])
            _check_key(key, values[0] if values else "", tree, known_groups)


def _check_key(key: str, value: str, tree, known_groups: dict[str, str]) -> None:
    from omegaconf import DictConfig

    node = tree
    walked: list[str] = []
    for word in key.split("."):
        if not isinstance(node, DictConfig) or word not in node:
            names = [str(k) for k in node if k != "hydra"] if isinstance(node, DictConfig) else []
            if not walked:
                names = sorted({*names, *known_groups})
            inside = f" of {'.'.join(walked)}" if walked else ""
            shown = [name for name in names if name != "_target_"]
            known = f"; known: {', '.join(shown)}" if shown else ""
            others = _choices_with(walked[0], word) if len(walked) == 1 else []
            near = f", except with {walked[0]}={'|'.join(others)}" if others else did_you_mean(word, shown)
            raise ConfigError(key, value, f"no such setting{inside}{near}{known}")
        walked.append(word)
        node = node._get_node(word)


def _choices_with(group: str, setting: str) -> list[str]:
    """The choices of a group whose yaml has this setting."""
    files = sorted((config_directory() / group).glob("*.yaml")) if group in PARTS else []
    return [file.stem for file in files if f"\n{setting}:" in file.read_text()]


def _key_of(text: str) -> str:
    return text.lstrip("+~").partition("=")[0].partition("@")[0]


def swept_keys(overrides: list[str]) -> list[tuple[str, list[str]]]:
    """(key, values) of every override that lists several values."""
    found = [(text.partition("=")[0], parsed(text)) for text in overrides]
    return [(key, values_of(override)) for key, override in found if override.is_sweep_override()]
