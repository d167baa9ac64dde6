"""The runs of a multirun that chooses its seeds: planned jobs, their folders, and those that are finished."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from ..config import Settings
from ..errors import ConfigError
from ..files import expand_home
from ..tracking.archive import archive_folders
from ..tracking.records import MEASURED
from ..tracking.runs import load_runs
from . import pending
from .decide_words import Request
from .history import finished_in
from .jobs import Job, refuse_shared_directories
from .progress import count_runs
from .run import plan_multirun


def settings_of(jobs: Iterable[Job]) -> list[Settings]:
    """Return the settings of the jobs that can run."""
    return [job.settings for job in jobs if job.settings is not None]


@dataclass
class AskedRuns:
    """The runs that one command asks for, seed by seed: its grid, with the seeds of the looks.

    request  what ``decide`` asks
    words    the command's overrides without those of ``decide``
    folder   overrides that set the folder of the runs
    Raises ConfigError for a grid that cannot be compared, and for runs by another results version.
    """

    request: Request
    words: list[str]
    folder: list[str] = field(init=False)
    _jobs: dict[int, dict[str, Job]] = field(default_factory=dict)  # seed -> experiment -> job

    def __post_init__(self) -> None:
        planned, self.folder = plan_multirun([*self.words, "seed=0"])
        for job in planned:
            if job.settings is None or job.drawn:
                why = job.error or "is a search, whose trials have no pairs"
                raise ConfigError("decide", "true", f"cannot compare {' '.join(job.overrides)}: {why}")
        self._jobs[0] = {job.settings.experiment: job for job in planned if job.settings}
        self._check_versions()

    def jobs(self, seed: int) -> dict[str, Job]:
        """Return experiment -> job of a seed. Raises ConfigError for a folder that does not suit all seeds."""
        if seed not in self._jobs:
            planned, folder = plan_multirun([*self.words, f"seed={seed}"])
            if folder != self.folder:
                key, _, name = folder[0].partition("=")
                raise ConfigError(key, name, "must be one folder for all seeds with decide=true")
            self._jobs[seed] = {job.settings.experiment: job for job in planned if job.settings is not None}
            refuse_shared_directories(job for jobs in self._jobs.values() for job in jobs.values())
        return self._jobs[seed]

    @property
    def settings(self) -> list[Settings]:
        """Return the settings of every experiment."""
        return settings_of(self.jobs(0).values())

    @cached_property
    def own_folder(self) -> Path:
        """Return the folder of this command's runs."""
        return expand_home(self.settings[0].root.output_dir, "output_dir")

    @cached_property
    def outputs(self) -> list[Path]:
        """Return the folders in which runs are looked for."""
        return list(
            {expand_home(one.asked_output_dir or one.root.output_dir, "output_dir"): None for one in self.settings}
        )

    def finished_runs(self, seeds: int) -> pd.DataFrame | None:
        """Return the finished runs of the first seeds as ``load_runs`` does; None if there is none."""
        jobs = [job for seed in range(seeds) for job in self.jobs(seed).values()]
        places = pending.places_of(jobs)
        found = [result for result in pending.find_finished(jobs, places, repeated=True) if result is not None]
        if not found:
            return None
        runs = load_runs(*dict.fromkeys(result.directory for result in found))
        return self._of_present_code(runs[runs["identity"].isin({one.identity for one in settings_of(jobs)})])

    def _of_present_code(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return the runs without those that an archive has of another code too. Raises ConfigError if only another
        code has a run: further runs would have the present one."""
        codes = {one.experiment: one.code_digest for one in self.settings}
        present = runs["code"].fillna("") == runs["experiment"].map(codes)
        others = runs[~runs["identity"].isin(runs["identity"][present])]
        if len(others):
            what = f"has {count_runs(len(others))} of this multirun by another code, the first is {others.index[0]}"
            raise ConfigError("output_dir", self.own_folder, f"{what}; looks cannot mix codes, choose another folder")
        return runs[present]

    def _check_versions(self) -> None:
        """Raise ConfigError if runs of these experiments were made by another results version."""
        current = {one.experiment: one.results_version for one in self.settings}
        folder_names = {one.root.archive_dir for one in self.settings}
        archives = {place for name in folder_names for place in archive_folders(name)}
        folders = {"output_dir": self.outputs, "archive_dir": sorted(archives)}
        for key, places in folders.items():
            past = [one.summary for one in finished_in(places, MEASURED) if one.summary.get("experiment") in current]
            if other := [one for one in past if one.get("results_version") != current[one["experiment"]]]:
                versions = ", ".join(sorted({str(one.get("results_version")) for one in other}))
                now = ", ".join(sorted({str(current[one["experiment"]]) for one in other}))
                what = f"has {count_runs(len(other))} of this multirun by results version {versions}"
                how = "looks cannot mix them; choose another folder, or move them away"
                raise ConfigError(key, places[0], f"{what}, and this is {now}: {how}")
