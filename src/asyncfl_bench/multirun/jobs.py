"""Planning a multirun: its jobs with overrides, checked settings and directories, before the first one begins."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.check import UnknownSetting
from ..config.composition import FOLDERS, Compositions, check_composed, chosen_config, refuse_idle, refuse_listed_axis
from ..config.overrides import Override, check_hydra_words, parse_override, type_text
from ..config.part_sources import command_text
from ..config.settings import ORIGINS, SEARCH_SPACE, Settings
from ..errors import BenchError, ConfigError, check, list_some
from ..files import expand_home
from .axes import SHORT, check_objective, expand_short_settings, jobs_of, searched_grids
from .launchers import check_machine, check_numbers

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
    space     the ranges of them that the rule's yaml declares
    hydra     the command line's overrides of Hydra's settings, such as the folder; without those of the sweeper
    placing   overrides that place the run in its directory, where Hydra would count jobs and resolve by itself
    sent      what a launcher gets: both, with ``++`` at settings that no yaml file lists
    """

    overrides: list[str]
    settings: Settings | None
    error: str | None = None
    left_out: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    space: tuple[str, ...] = ()
    hydra: tuple[str, ...] = ()
    placing: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that runs this job alone, in the same directory."""
        multirun = ["-m", *self.hydra] if self.hydra else []
        return command_text([*multirun, *self.overrides])

    def finished_result(
        self, known_paths: Mapping[str, Path] | None = None, repeated: bool = False
    ) -> RunResult | None:
        """Return the result of a run that does not have to run again, or None. A diverged run counts as finished.

        repeated  also accept a finished run that was to be repeated
        """
        from ..experiment import finished_result

        if self.settings is None:
            return None
        return finished_result(self.settings, known_paths, or_diverged=True, repeated=repeated)

    def summary_stamp(self) -> int | None:
        """Return when the summary in its directory was written; None without one."""
        try:
            return None if self._summary is None else self._summary.stat().st_mtime_ns
        except OSError:
            return None

    @cached_property
    def _summary(self) -> Path | None:
        """The path, made once: a name has the hash of all settings, and a sweep asks at the end of each run."""
        return None if self.settings is None else self.settings.directory / "summary.json"


def plan(overrides: list[str], name: str | None = None) -> list[Job]:
    """Return every job of a multirun with its settings.

    name  folder of the runs below ``output_dir``; None: Hydra's settings name the folder
    A setting of the command line is left out of the jobs on which it has no effect.
    Raises ConfigError for a value that no job can have, a setting without effect on any, jobs that would be one run,
    and runs that would have one directory; a job that only fails in a combination has its error.
    """
    asked, overrides = {parse_override(text).key for text in overrides}, expand_short_settings(overrides)
    _check_words(overrides)
    shared = Compositions()
    grids = searched_grids(overrides, shared)
    ranged = {key for one in grids for key in one.ranges}
    for key in [] if ranged else asked & set(SHORT):
        example = "needs a range to draw from, for example algorithm.c=tag(log,interval(0.05,20))"
        raise ConfigError(key, getattr(grids[0].search, key), example)
    union = [drawn for one in grids for drawn in one.draw()]
    planner = _Planner([parse_override(text) for text in overrides], name, shared, ranged)
    for one in grids:
        texts = tuple(f"{key}={one.grid[key][0]}" for key in one.ranges if key not in planner.given)
        planner.spaces |= dict.fromkeys(one.grid.get("algorithm", []) if one.search.declared else [], texts)
    jobs: dict[tuple[str, ...], Job] = {}
    for number, words in enumerate(jobs_of(union)):
        job = planner.job(words, number)
        jobs.setdefault(tuple(sorted(job.overrides)), job)
    for grid in union:  # every value of every key must be possible with the first values of the others
        first_values = {key: values[0] for key, values in grid.items()}
        others = [first_values | {key: value} for key, values in grid.items() for value in values[1:]]
        for values in (first_values, *others):
            if refusal := planner.refused.get(tuple(sorted(f"{key}={value}" for key, value in values.items()))):
                raise refusal
    acting = {parse_override(text).key for job in jobs.values() for text in job.overrides}
    for key in planner.unknown.keys() - acting:
        raise planner.unknown[key]
    _refuse_idle(list(jobs.values()))
    first: dict[object, Job] = {}  # of the jobs that are one run: several protocols of a paper may have one stand-in
    for job in jobs.values():
        first.setdefault((job.settings.directory, job.settings.identity) if job.settings else id(job), job)
    refuse_shared_directories(first.values())
    return list(first.values())


def _check_words(overrides: Sequence[str]) -> None:
    """Raise ConfigError for overrides that no multirun can have."""
    check_hydra_words(overrides, multirun=True)
    for text in overrides:
        one = parse_override(text)
        if one.is_deletion:
            raise ConfigError(text, "", "cannot be taken out of a sweep; give it one value instead")
        refuse_listed_axis(one)
        if one.key in _FOLDERS and len(one.values) > 1:
            raise ConfigError(one.key, ",".join(one.values), "must be one choice: each has its own folder")
    hydra = chosen_config(overrides).hydra
    check_numbers(hydra)
    check_machine(hydra)


class _Planner:
    """Makes the jobs of one multirun.

    refused  the errors of jobs that cannot be, by their sorted words
    unknown  the errors of overrides that were left out of some jobs, which lack the setting, by their keys
    given    keys of the command line
    spaces   the ranges that the yaml of a rule declares, by rule
    """

    def __init__(self, words: Sequence[Override], name: str | None, shared: Compositions, ranged: set[str]) -> None:
        """words: those of the command line; ranged: keys whose values are drawn; name: as in ``plan``"""
        self._hydra = [one for one in words if one.is_for_hydra]
        used = ("hydra.sweeper.", *FOLDERS)  # by the plan; a job gets its folder
        self._kept = tuple(one.text for one in self._hydra if not one.key.startswith(used))
        self.given = {one.key for one in words if not one.is_for_hydra}
        self._name, self._shared, self._ranged = name, shared, ranged
        self.refused: dict[tuple[str, ...], BenchError] = {}
        self.unknown: dict[str, UnknownSetting] = {}
        self.spaces: dict[str, tuple[str, ...]] = {}

    def job(self, words: list[str], number: int) -> Job:
        """Return the job of these overrides. number: of the job in its multirun"""
        unlisted = tuple(sorted(self.given - {parse_override(text).key for text in words}))
        try:
            job = self._effective_job(words, number)
            job.unlisted, job.space = unlisted, self.spaces.get(_rule(job), ())
            job.drawn = tuple(text for text in job.overrides if parse_override(text).key in self._ranged)
            if job.drawn and job.settings is not None:
                check_objective(job.settings)
        except BenchError as error:
            drawn = {text.partition("=")[0] for space in self.spaces.values() for text in space}
            if type(error) is ConfigError and error.key in drawn:
                source = f"; {SEARCH_SPACE} of the rule's yaml has this value in its range"
                error = ConfigError(error.key, error.value, error.allowed + source)
            self.refused[tuple(sorted(words))] = error
            return Job(words, None, str(error), hydra=self._kept)
        return job

    def _effective_job(self, words: list[str], number: int) -> Job:
        """Return the job without overrides of the command line that have no effect on it. Raises ConfigError."""
        left_out: list[str] = []
        while True:
            try:
                job = self._placed_job([text for text in words if text not in left_out], number)
            except UnknownSetting as error:
                if error.key not in self.given:
                    raise
                self.unknown.setdefault(error.key, error)
                idle = {error.key}
            else:
                assert job.settings is not None
                job.left_out = tuple(left_out)
                used = {parse_override(text).key for text in job.overrides}
                if not (idle := self.given & used & {*job.settings.idle}):
                    return job
            left_out += [text for text in words if parse_override(text).key in idle]

    def _placed_job(self, words: list[str], number: int) -> Job:
        """Return the job of these overrides in its directory. Raises ConfigError."""
        run = self._shared.config([*(one.text for one in self._hydra), *words])
        settings = check_composed(run.tree, run.hydra, words)
        folder, below = (run.folder(f"hydra.sweep.{key}", number) for key in ("dir", "subdir"))
        check(folder != "", "hydra.sweep.dir", "", "a directory")
        default = settings.root.output_dir if self._name is None else f"{settings.root.output_dir}/{self._name}"
        place_run(settings, folder or default, below or ".")
        folder_word = type_text("hydra.sweep.dir", str(expand_home(folder or default, "hydra.sweep.dir")))
        placing = (folder_word, type_text("hydra.sweep.subdir", below or "."))
        hydra = self._kept if folder is None and below is None else (*self._kept, *placing)
        sent = tuple(f"++{text}" if parse_override(text).key in run.added else text for text in words)
        return Job(words, settings, hydra=hydra, placing=placing, sent=(*sent, *placing))


def refuse_shared_directories(jobs: Iterable[Job]) -> None:
    """Raise ConfigError for two runs in one directory: one of them would not run."""
    first: dict[str, Job] = {}
    for job in jobs:
        if job.settings is None:
            continue
        other = first.setdefault(os.path.abspath(job.settings.directory), job)
        if other.settings is not None and other.settings.identity != job.settings.identity:
            differing = [" ".join(sorted({*a.overrides} - {*b.overrides})) for a, b in ((other, job), (job, other))]
            key, _, value = job.placing[-1].partition("=")
            runs, apart = " and for ".join(differing), f"{key}='${{hydra.job.override_dirname}}' tells them apart"
            raise ConfigError(key, value, f"is one folder for {runs}; {apart}")


def describe_planning(jobs: Sequence[Job]) -> list[str]:
    """Return one line for the declared ranges of each rule, and one for each kind of override that some jobs ignore."""
    spaces = {_rule(job): " ".join(job.space) for job in jobs if job.space}
    lines = [f"search_space of {rule}: {space}" for rule, space in spaces.items()]
    rules = Counter(_rule(job) for job in jobs)
    left_out: dict[str, Counter[str]] = {}
    for job in jobs:
        for text in job.left_out:
            left_out.setdefault(parse_override(text).key, Counter())[_rule(job)] += 1
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


def _refuse_idle(jobs: list[Job]) -> None:
    """Raise ConfigError for a setting of the command line without effect on any job, and for jobs that differ in
    settings of the sweep's file alone that have none."""
    planned = [(job, job.settings) for job in jobs if job.settings is not None]
    acting = {parse_override(text).key for job, _ in planned for text in job.overrides}
    for job, settings in planned:
        for one in map(parse_override, job.left_out):
            if one.key not in acting:
                refuse_idle(one, settings.idle)
    first: dict[frozenset[str], Job] = {}
    for job, settings in planned:
        effective = (text for text in job.overrides if parse_override(text).key not in settings.idle)
        twin = first.setdefault(frozenset(effective), job)
        for text, other in zip(job.overrides, twin.overrides, strict=False):
            if text != other and (why := settings.idle.get(parse_override(text).key)) is not None:
                values = f"{parse_override(other).values[0]},{parse_override(text).values[0]}"
                raise ConfigError(parse_override(text).key, values, f"has no effect {why}; these would be one run")


def place_run(settings: Settings, folder: str, below: str) -> None:
    """Set the folder of a job's run directory. below: the run directory in the folder; ``.``: named after the run."""
    settings.asked_output_dir = Path(settings.root.output_dir)
    settings.root.output_dir = settings.tree["output_dir"] = str(folder)
    if below != ".":
        settings.named_directory = expand_home(folder, "hydra.sweep.dir") / below


def settings_of(jobs: Iterable[Job]) -> list[Settings]:
    """Return the settings of the jobs that can run."""
    return [job.settings for job in jobs if job.settings is not None]


def output_folders(settings: Iterable[Settings]) -> list[Path]:
    """Return the folders of the runs' output, in which finished runs are looked for."""
    folders = (expand_home(one.asked_output_dir or one.root.output_dir, "output_dir") for one in settings)
    return list(dict.fromkeys(folders))


def varied_values(jobs: Sequence[Job]) -> dict[str, list[str]]:
    """Return the values of each key whose overrides differ between jobs, or that only some jobs have."""
    values: dict[str, dict[str, None]] = {}
    for job in jobs:
        for text in job.overrides:
            key, _, value = text.partition("=")
            values.setdefault(key, {})[value] = None
    own = [{text.partition("=")[0] for text in job.overrides} for job in jobs]
    return {key: [*of] for key, of in values.items() if len(of) > 1 or not all(key in keys for keys in own)}


def count_runs(count: int) -> str:
    """Return a count with its noun: ``1 run``, ``2 runs``."""
    return f"{count} run{'s' * (count != 1)}"
