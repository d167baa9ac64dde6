"""Keys of Hydra's own section that a run or a multirun cannot have, each refused in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ..errors import ConfigError
from .overrides import Override, parse_override

# what Hydra sets itself, or reads for its own help alone
_SET_BY_HYDRA = ("env", "help", "hydra_help", "overrides", "runtime")
_SET_BY_HYDRA_FOR_JOBS = ("job.config_name", "job.id", "job.num", "job.override_dirname")
_OF_SINGLE_RUNS = ("run",)
_OF_MULTIRUNS = ("launcher", "sweep", "sweeper")
# what Hydra does around each job of a multirun alone, with the values that change nothing
_AROUND_JOBS = {"callbacks": {}, "job.env_copy": [], "job.env_set": {}, "verbose": False}
_LOGGING = ("hydra_logging", "job_logging")
_BY_RUN = ("job.name", "run.dir", "sweep.dir", "sweep.subdir")  # resolved for each run
_OF_A_RUN = re.compile(r"\$\{(?!hydra\.(?:sweep\.dir|job\.name|runtime\.\w+)\}|output_dir\})[^:}]*\}")  # ${seed}


def check_hydra_words(overrides: Iterable[str], *, multirun: bool) -> None:
    """Raise ConfigError for an override of Hydra's settings that would have no effect."""
    no_effect = _OF_SINGLE_RUNS if multirun else (*_OF_MULTIRUNS, *_AROUND_JOBS, *_LOGGING)
    kind, other = ("multirun", "hydra.sweep.dir names its folder") if multirun else ("single run", "goes with -m")
    for one in [one for one in map(parse_override, overrides) if one.is_for_hydra]:
        value = one.text.partition("=")[2]
        if _is_below(one, (*_SET_BY_HYDRA, *_SET_BY_HYDRA_FOR_JOBS)):
            raise ConfigError(one.key, value, "is set by Hydra itself; leave it out")
        if _is_below(one, no_effect):
            raise ConfigError(one.key, value, f"has no effect on a {kind}; {other}")
        if multirun and one.key == "hydra.mode" and one.value == "RUN":
            raise ConfigError(one.key, value, "does not go with a multirun; leave it out")
        if _is_below(one, ["searchpath"]):
            raise ConfigError(one.key, value, "from Python, config_dir names the folders")
        if "/" not in one.key and _is_below(one, _LOGGING):
            raise ConfigError(one.key, value, f"is chosen by name: hydra/{one.key.split('.')[1]}=NAME")
        if one.key == "hydra.verbose" and not isinstance(one.value, bool | str | list):
            raise ConfigError(one.key, value, "must be true, false, or names of loggers")
        if _OF_A_RUN.search(one.text) and not _is_below(one, _BY_RUN):
            raise ConfigError(one.key, value, "refers to what differs between runs; write the value")


def check_hydra(hydra: Any) -> None:
    """Raise ConfigError for settings of Hydra's, of whatever file, that no run can have. hydra: composed."""
    if hydra.job.chdir:
        raise ConfigError("hydra.job.chdir", True, "would give relative paths another meaning in each run; omit it")
    if hydra.output_subdir is not None:
        files = "has no effect: config.yaml in the run directory has all settings; omit it"
        raise ConfigError("hydra.output_subdir", hydra.output_subdir, files)


def check_hydra_of_single_run(hydra: Any) -> None:
    """Raise ConfigError for settings of Hydra's, of whatever file, that act on a multirun alone. hydra: composed."""
    from omegaconf import OmegaConf

    for key, default in _AROUND_JOBS.items():
        if (value := OmegaConf.select(hydra, key)) != default:
            raise ConfigError(f"hydra.{key}", value, "has no effect on a single run; goes with -m")


def _is_below(one: Override, keys: Iterable[str]) -> bool:
    """Return True for an override of one of Hydra's sections: ``hydra.launcher.n_jobs`` and ``hydra/launcher``."""
    path = one.key.replace("/", ".")
    return any(path == f"hydra.{key}" or path.startswith(f"hydra.{key}.") for key in keys)
