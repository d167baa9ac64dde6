"""What a multirun consists of: every job with its checked settings, planned before the first one begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.choices import groups, hydra_config, options, papers_with
from ..config.composition import Compositions, check_composed
from ..config.settings import ORIGINS, Settings
from ..config.words import word
from ..errors import BenchError, ConfigError
from .grid import Grid, combine, jobs_of
from .launchers import check_launcher

_FOLDERS = tuple(group for group in ORIGINS if group != "paper")  # what a sweep's folder is named after


@dataclass
class Job:
    """One run of a multirun: its overrides, and its settings (None where these cannot be composed).

    error  why they cannot be composed, or what the job raised instead of running
    """

    overrides: list[str]
    settings: Settings | None
    error: str | None = None

    def summary_stamp(self) -> int | None:
        """When the summary in its directory was written; None without one."""
        try:
            return None if self.settings is None else (self.settings.directory / "summary.json").stat().st_mtime_ns
        except OSError:
            return None


def plan(overrides: list[str], hydra_words: Iterable[str] = ()) -> list[Job]:
    """Every job of a multirun with its settings.

    hydra_words  settings of Hydra's that hold for all jobs, for example ``hydra.sweep.dir=…``
    Raises ConfigError for a value that no job can have; a job that only fails in a combination has its error.
    """
    hydra_words = [*hydra_words, *(text for text in overrides if _of_hydra(text))]
    for text in overrides:
        one = word(text)
        if text.startswith("~"):
            raise ConfigError(text, "", "cannot be taken out of a sweep; give it one value instead")
        if one.key == "hydra/launcher":
            check_launcher(one.values[0])
        if one.key in _FOLDERS and len(one.values) > 1:
            raise ConfigError(one.key, ",".join(one.values), "must be one choice: each has a folder of its own")
    union = sweep_grids(overrides)
    _check_one_search(overrides, union)
    compositions = Compositions()
    jobs, refused = [], {}
    for words in jobs_of(union):
        try:
            config, hydra = compositions.config([*hydra_words, *words])
            jobs.append(Job(words, placed(check_composed(config, hydra), hydra)))
        except BenchError as error:
            jobs.append(Job(words, None, str(error)))
            refused[tuple(sorted(words))] = error
    for probe in _probes(union):
        if (refusal := refused.get(tuple(sorted(probe)))) is not None:
            raise refusal
    return jobs


def _probes(union: list[Grid]) -> Iterable[list[str]]:
    """Jobs that have every value of every key once, the other keys at their first value."""
    for grid in union:
        first = {key: values[0] for key, values in grid.items()}
        others = [first | {key: value} for key, values in grid.items() for value in values[1:]]
        yield from ([f"{key}={value}" for key, value in job.items()] for job in (first, *others))


def placed(settings: Settings, hydra: Any) -> Settings:
    """The settings of a job, whose run directory is where Hydra's own settings say."""
    folder, sub = str(hydra.sweep.dir), str(hydra.sweep.subdir)
    settings.root.output_dir = settings.tree["output_dir"] = folder
    if sub != ".":
        settings.place = Path(folder).expanduser() / sub
    return settings


def sweep_grids(overrides: list[str]) -> list[Grid]:
    """The grids of a multirun: those of its sweep file, overridden by ``overrides``.

    ``["sweep=ace/figure2", "scale=small", "seed=0"]`` gives every axis of the file as {key: values}, the
    seed narrowed to one value. Raises ConfigError.
    """
    hydra = chosen_config(overrides).hydra
    params, profile = dict(hydra.sweeper.get("params") or {}), hydra.runtime.choices.profile
    if "paper" in params and profile != "published":  # a sweep file lists papers that the profile does not have
        listed = params["paper"].split(",")
        params["paper"] = ",".join(paper for paper in listed if paper in papers_with(profile))
        if not params["paper"]:
            raise ConfigError("profile", profile, "must be published: this sweep's papers have no other")
    return combine(params, hydra.sweeper.get("grids") or [], (text for text in overrides if not _of_hydra(text)))


def _check_one_search(overrides: list[str], union: list[Grid]) -> None:
    """What a profile searches is one grid for the whole multirun: refuses papers that search in different ones."""
    papers = list(dict.fromkeys(paper for grid in union for paper in grid.get("paper", [])))
    others = [text for text in overrides if word(text).key != "paper"]
    searched = [
        dict(chosen_config([*others, f"paper={paper}"]).hydra.sweeper.get("params") or {})
        for paper in (papers if len(papers) > 1 else [])
        if paper in options("paper")
    ]
    if any(params != searched[0] for params in searched):
        raise ConfigError("paper", ",".join(papers), "must be papers that search the same grid under this profile")


def chosen_config(overrides: list[str]) -> Any:
    """The config with what ``overrides`` choose for groups, each at its first value: a sweep file's own settings
    depend on that. Raises ConfigError."""
    known = {*groups(), "hydra/launcher"}  # a launcher's preset may say how many threads a job has
    chosen = [w for text in overrides if (w := word(text)).key in known or w.key.startswith("hydra.sweeper.")]
    Compositions().config([w.first for w in chosen if w.key in known and w.values])
    return hydra_config([w.first for w in chosen if w.values])


def asks_for_multirun(overrides: list[str]) -> bool:
    """True when the overrides name a sweep file that asks for a multirun by itself."""
    if not any(word(text).key == "sweep" and text != "sweep=null" for text in overrides):
        return False
    return str(chosen_config(overrides).hydra.mode).endswith("MULTIRUN")


def sweep_name(overrides: list[str]) -> str | None:
    """``ace/figure2/published-small``, with ``-long`` for the greater length: a sweep's name, and the folder of its
    runs."""
    choices = chosen_config(overrides).hydra.runtime.choices
    if choices.sweep is None:
        return None
    parts = [choices.profile, choices.scale] + ([choices.length] if choices.length != "standard" else [])
    return f"{choices.sweep}/{'-'.join(parts)}"


def _of_hydra(text: str) -> bool:
    return word(text).key.partition(".")[0].partition("/")[0] == "hydra"
