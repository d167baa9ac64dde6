"""What a multirun consists of: every job with its checked settings, planned before the first one begins."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.choices import groups, hydra_config, options
from ..config.composition import Compositions, check_composed, refuse_idle, refuse_listed_axis
from ..config.overrides import parse_override
from ..config.places import folder_options
from ..config.settings import ORIGINS, Settings
from ..config.variants import papers_with
from ..errors import BenchError, ConfigError, check, list_some
from . import search
from .grid import Grid, combine, jobs_of
from .launchers import check_launcher, check_numbers, check_sweeper

if TYPE_CHECKING:
    from ..experiment import RunResult

_FOLDERS = tuple(group for group in ORIGINS if group != "paper")  # what a sweep's folder is named after


@dataclass
class Job:
    """One run of a multirun: its overrides, and its settings (None where these cannot be composed).

    error     why they cannot be composed, or what the job raised instead of running
    left_out  overrides of the command line that would have no effect on it
    unlisted  keys of the command line that its grid of the sweep does not list, though another one does
    drawn     those of its overrides that a search has drawn
    hydra     the command line's overrides of Hydra's settings, such as the folder; without those of the sweeper
    """

    overrides: list[str]
    settings: Settings | None
    error: str | None = None
    left_out: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    hydra: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that runs this job alone, in the same directory."""
        multirun = ["-m", *self.hydra] if self.hydra else []
        return shlex.join(["afl-run", *folder_options(), *multirun, *self.overrides])

    def finished_result(self, places: Mapping[str, Path] | None = None, again: bool = False) -> RunResult | None:
        """Return the result of a run that does not have to run again, or None. A diverged run counts as finished.

        again  also accept a finished run that was to be repeated
        """
        from ..experiment import finished_result

        if self.settings is None:
            return None
        return finished_result(self.settings, places, or_diverged=True, again=again)

    def summary_stamp(self) -> int | None:
        """When the summary in its directory was written; None without one."""
        try:
            return None if self._summary is None else self._summary.stat().st_mtime_ns
        except OSError:
            return None

    @cached_property
    def _summary(self) -> Path | None:
        """The path, made once: a name has the hash of all settings, and a sweep asks at the end of each run."""
        return None if self.settings is None else self.settings.directory / "summary.json"


def plan(overrides: list[str], name: str | None = None) -> list[Job]:
    """Every job of a multirun with its settings.

    name  folder of the runs below ``output_dir``; None: Hydra's settings name the folder
    A setting of the command line is left out of the jobs on which it has no effect.
    Raises ConfigError for a value that no job can have, a setting without effect on any, and jobs that would be one
    run; a job that only fails in a combination has its error.
    """
    check_chosen(overrides)
    asked, overrides = {parse_override(text).key for text in overrides}, search.expand_short_settings(overrides)
    hydra_words = [text for text in overrides if parse_override(text).is_for_hydra]
    for text in overrides:
        one = parse_override(text)
        if one.is_deletion:
            raise ConfigError(text, "", "cannot be taken out of a sweep; give it one value instead")
        refuse_listed_axis(one)
        if one.key in _FOLDERS and len(one.values) > 1:
            raise ConfigError(one.key, ",".join(one.values), "must be one choice: each has its own folder")
    if hydra_words:
        check_numbers(hydra_config(hydra_words).hydra)
    ranges = sweep_grids(overrides)
    _check_one_search(overrides, ranges)
    ranged, points = search.drawn_keys(ranges), search.Search.from_sweeper(chosen_config(overrides).hydra.sweeper)
    for key in [] if ranged else asked & set(search.SHORT):
        example = "needs a range to draw from, for example algorithm.c=tag(log,interval(0.05,20))"
        raise ConfigError(key, getattr(points, key), example)
    union = drawn_grids(ranges, overrides)
    compositions = Compositions()

    def settings_of(words: list[str]) -> Settings:
        config, hydra = compositions.config([*hydra_words, *words], uses_folders=name is None)
        settings = check_composed(config, hydra, words)
        place_run(
            settings, hydra.sweep.dir if name is None else f"{settings.root.output_dir}/{name}", hydra.sweep.subdir
        )
        return settings

    given = {one.key for one in map(parse_override, overrides) if not one.is_for_hydra}
    jobs: dict[tuple[str, ...], Job] = {}
    refused: dict[tuple[str, ...], BenchError] = {}
    kept_words = tuple(text for text in hydra_words if not text.startswith("hydra.sweeper."))
    for words in jobs_of(union):
        try:
            settings = settings_of(words)
            idle = tuple(text for text in words if (key := parse_override(text).key) in given and key in settings.idle)
            kept = [text for text in words if text not in idle]
            drawn = tuple(text for text in kept if parse_override(text).key in ranged)
            unlisted = tuple(sorted(given - {parse_override(text).key for text in words}))
            job = Job(kept, settings_of(kept) if idle else settings, None, idle, unlisted, drawn, kept_words)
            if drawn:
                search.check_objective(settings)
        except BenchError as error:
            job = Job(words, None, str(error), hydra=kept_words)
            refused[tuple(sorted(words))] = error
        jobs.setdefault(tuple(sorted(job.overrides)), job)
    for probe in _jobs_to_check(union):
        if (refusal := refused.get(tuple(sorted(probe)))) is not None:
            raise refusal
    _refuse_idle(list(jobs.values()))
    return _unique_jobs(list(jobs.values()))


def describe_ignored_overrides(jobs: Sequence[Job]) -> list[str]:
    """Return one line for each kind of override of the command line that some jobs ignore."""
    rules = Counter(_rule(job) for job in jobs)
    left_out: dict[str, Counter[str]] = {}
    for job in jobs:
        for text in job.left_out:
            left_out.setdefault(parse_override(text).key, Counter())[_rule(job)] += 1
    lines = []
    for key, found in sorted(left_out.items()):
        whole = [rule for rule, count in found.items() if count == rules[rule]]
        of = f" ({list_some(sorted(whole))})" if len(whole) == len(found) < len(rules) else ""
        lines.append(f"{key}: left out of {found.total()} of {len(jobs)} runs{of}, on which it has no effect")
    counts = Counter(key for job in jobs for key in job.unlisted)
    return lines + [
        f"{key}: ignored in {count} of {len(jobs)} runs; their grid in the sweep file does not list it"
        for key, count in sorted(counts.items())
    ]


def _rule(job: Job) -> str:
    return "" if job.settings is None else job.settings.choices["algorithm"]


def _unique_jobs(jobs: list[Job]) -> list[Job]:
    """Keep the first of all jobs with one run directory: several protocols of a paper may have one stand-in."""
    first: dict[object, Job] = {}
    for job in jobs:
        first.setdefault(job.settings.directory if job.settings else id(job), job)
    return list(first.values())


def _refuse_idle(jobs: list[Job]) -> None:
    """Raises ConfigError for a setting of the command line without effect on any job, and for jobs that differ in
    settings of the sweep's file alone that have none."""
    planned = [(job, job.settings) for job in jobs if job.settings is not None]
    acting = {parse_override(text).key for job, _ in planned for text in job.overrides}
    for job, settings in planned:
        for one in map(parse_override, job.left_out):
            if one.key not in acting:
                refuse_idle(one, settings)
    first: dict[frozenset[str], Job] = {}
    for job, settings in planned:
        effective = (text for text in job.overrides if parse_override(text).key not in settings.idle)
        twin = first.setdefault(frozenset(effective), job)
        for text, other in zip(job.overrides, twin.overrides, strict=False):
            if text != other and (why := settings.idle.get(parse_override(text).key)) is not None:
                values = f"{parse_override(other).values[0]},{parse_override(text).values[0]}"
                raise ConfigError(parse_override(text).key, values, f"has no effect {why}; these would be one run")


def _jobs_to_check(union: list[Grid]) -> Iterable[list[str]]:
    """Yield jobs with every value of every key once; the other keys have their first value."""
    for grid in union:
        first = {key: values[0] for key, values in grid.items()}
        others = [first | {key: value} for key, values in grid.items() for value in values[1:]]
        yield from ([f"{key}={value}" for key, value in job.items()] for job in (first, *others))


def place_run(settings: Settings, folder: str, below: str) -> None:
    """Set the folder of a job's run directory. below: the run directory in the folder; ``.``: named after the run."""
    settings.asked_output_dir = Path(settings.root.output_dir)
    settings.root.output_dir = settings.tree["output_dir"] = str(folder)
    if below != ".":
        settings.place = Path(folder).expanduser() / below


def drawn_grids(grids: Sequence[Grid], overrides: Sequence[str]) -> list[Grid]:
    """With the values that a search draws in the place of ranges. Raises ConfigError."""
    points = search.Search.from_sweeper(chosen_config(list(overrides)).hydra.sweeper)
    return [drawn for grid in grids for drawn in search.draw_grids(grid, points)]


def sweep_grids(overrides: list[str]) -> list[Grid]:
    """The grids of a multirun: those of its sweep file, overridden by ``overrides``.

    ``["sweep=ace/figure2", "scale=small", "seed=0"]`` gives every axis of the file as {key: values}, the
    seed narrowed to one value. Raises ConfigError.
    """
    hydra = chosen_config(overrides).hydra
    params, profile = dict(hydra.sweeper.get("params") or {}), hydra.runtime.choices.profile
    grids = hydra.sweeper.get("grids") or []
    for grid in (params, *grids):
        check(
            hasattr(grid, "items"), "hydra.sweeper.grids", grids, "a list of sections, each with lines KEY: VALUE,VALUE"
        )
        for key, values in grid.items():
            is_text = not hasattr(values, "__iter__") or isinstance(values, str)
            check(is_text or key not in groups(), key, values, "choices with commas between them, without brackets")
    if "paper" in params and profile != "published":  # a sweep file lists papers that the profile does not have
        listed = params["paper"].split(",")
        params["paper"] = ",".join(paper for paper in listed if paper in papers_with(profile))
        if not params["paper"]:
            raise ConfigError("profile", profile, "must be published: this sweep's papers have no other")
    return combine(params, grids, (text for text in overrides if not parse_override(text).is_for_hydra))


def _check_one_search(overrides: list[str], union: list[Grid]) -> None:
    """What a profile searches is one grid for the whole multirun: refuses papers that search in different ones."""
    papers = list(dict.fromkeys(paper for grid in union for paper in grid.get("paper", [])))
    others = [text for text in overrides if parse_override(text).key != "paper"]
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
    check_chosen(overrides)
    known = {*groups(), "hydra/launcher"}  # a launcher's preset may say how many threads a job has
    chosen = [w for text in overrides if (w := parse_override(text)).key in known or w.key.startswith("hydra.sweeper.")]
    Compositions().config([w.text_of_first_value for w in chosen if w.key in known and w.values])
    return hydra_config([w.text_of_first_value for w in chosen if w.values])


def check_chosen(overrides: list[str]) -> None:
    """Raises ConfigError for a launcher or a sweeper that there is not."""
    checks = {"hydra/launcher": check_launcher, "hydra/sweeper": check_sweeper}
    for one in map(parse_override, overrides):
        if one.key in checks:
            checks[one.key](",".join(one.values))
        elif (group := one.key.replace(".", "/")) in checks:
            raise ConfigError(one.key, ",".join(one.values), f"is chosen by name: {group}=NAME")


def asks_for_multirun(overrides: list[str]) -> bool:
    """Return True if the overrides name a sweep file."""
    return any(parse_override(text).key == "sweep" and text != "sweep=null" for text in overrides)


def sweep_name(overrides: list[str]) -> str | None:
    """``ace/figure2/published-small``, with ``-long`` for the greater length: a sweep's name, and the folder of its
    runs."""
    choices = chosen_config(overrides).hydra.runtime.choices
    if choices.sweep is None:
        return None
    parts = [choices.profile, choices.scale] + ([choices.length] if choices.length != "standard" else [])
    return f"{choices.sweep}/{'-'.join(parts)}"
