"""The groups of yaml files: where they are, what may be chosen, and Hydra's own composition of a choice."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .settings import PARTS, TRACKING
from .words import word


def config_directory() -> Path:
    """The folder of yaml groups: package data of an installed wheel, or the repository's own ``conf/``."""
    packaged = Path(__file__).parents[1] / "conf"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "conf"


def group_directory(group: str) -> Path:
    """The folder with the choices of ``group``: sweeps are beside ``conf/``."""
    return config_directory().parent / "sweeps" if group == "sweep" else config_directory() / group


def options(group: str) -> list[str]:
    """The choices of a group, in alphabetical order (``ace/figure2`` for a yaml in a subfolder)."""
    folder = group_directory(group)
    names = {str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml")}
    # what is below a choice (paper/ace/ below paper/ace.yaml) belongs to it
    return sorted(name for name in names if not any(str(above) in names for above in Path(name).parents))


def groups() -> dict[str, str]:
    """Config groups in the order of conf/config.yaml, each with the one-line description beside it there."""
    described = {}
    for line in (config_directory() / "config.yaml").read_text().splitlines():
        entry, _, comment = line.partition("#")
        name, colon, _ = entry.strip().removeprefix("- ").removeprefix("optional ").partition(":")
        if entry.strip().startswith("- ") and colon and "/" not in name and "@" not in name:
            described[name.strip()] = comment.strip()
    return described


def root_settings() -> list[str]:
    """The lines of config.yaml between the defaults list and hydra's own section, with their comments."""
    text = (config_directory() / "config.yaml").read_text()
    body = text.split("\n\n", 1)[1].split("\nhydra:", 1)[0]
    return [line for line in body.splitlines() if line.strip()]


def papers_with(profile: str) -> list[str]:
    """The papers that a profile other than `published` is there for; `none` is a run without a paper."""
    folder = config_directory() / "paper"
    return sorted(str(file.parent.relative_to(folder)) for file in folder.rglob(f"{profile}.yaml"))


def choices_with(group: str, setting: str) -> list[str]:
    """The choices of a part's group whose yaml has this setting."""
    files = sorted((config_directory() / group).glob("*.yaml")) if group in (*PARTS, TRACKING) else []
    return [file.stem for file in files if f"\n{setting}:" in file.read_text()]


def hydra_config(overrides: list[str]) -> Any:
    """The config that Hydra composes of ``overrides``, its own settings included. Shared: copy it before changing it.

    Raises ConfigError.
    """
    folders = (config_directory(), group_directory("sweep"))
    newest = max(path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*"))
    return _composed(tuple(overrides), newest)


@functools.lru_cache(maxsize=64)
def _composed(overrides: tuple[str, ...], newest: int) -> Any:
    """newest  time of the last change of a yaml: it may be edited while a process lives"""
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
        raise explained(error, list(overrides)) from None
    finally:
        GlobalHydra.instance().clear()
        if before is not None:
            GlobalHydra.instance().initialize(before)


def explained(error: Exception, overrides: list[str]) -> ConfigError:
    """An exception of Hydra's as one line. Mistyped groups and keys are caught earlier; this is for all the rest."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    culprit = next((o for o in overrides if word(o).key in text), overrides[-1] if overrides else "")
    key, _, value = culprit.lstrip("+~").partition("=")
    return ConfigError(key or "config", value, text)
