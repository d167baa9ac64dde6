"""The runs of ``decide=true`` (``AskedRuns``), and how a look judges pairs or claims on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from ..analysis.claims import seen_seeds
from ..analysis.decisions import FIRST_LOOK, Decision, Subject, cell_keys, decision_table, judge_pairs, pairs_of
from ..analysis.evaluations import limiting_axis, shared_axis
from ..analysis.matching import MatchedRuns, match_runs
from ..analysis.measures import POINTS_OF_A_TIE, RunMeasures
from ..analysis.selection import Grid, grid_of, page_overrides, planned_frame
from ..analysis.verdicts import Judgement, claims_of_sweep, evaluate_claims, experiments_of_claims
from ..config import Settings
from ..config.overrides import parse_override
from ..config.part_sources import report_command
from ..errors import BenchError, ConfigError
from ..files import expand_home
from ..papers import paper_pages
from ..reports.assembly import NoRuns, measured_page, tuned_keys
from ..tracking.archive import archive_folders
from ..tracking.records import MEASURED
from ..tracking.runs import build_frame, load_points, load_runs
from . import pending
from .decide_words import Request
from .estimates import finished_in
from .jobs import Job, count_runs, output_folders, refuse_shared_directories, settings_of
from .run import plan_multirun

_DAMAGED = ("inconsistent", "other data")  # reasons of runs that no comparison may use


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
        current = {one.experiment: one.results_version for one in self.settings}
        archives = {path for name in {one.root.archive_dir for one in self.settings} for path in archive_folders(name)}
        for key, paths in {"output_dir": self.outputs, "archive_dir": sorted(archives)}.items():
            past = [one.summary for one in finished_in(paths, MEASURED) if one.summary.get("experiment") in current]
            if other := [one for one in past if one.get("results_version") != current[one["experiment"]]]:
                versions = ", ".join(sorted({str(one.get("results_version")) for one in other}))
                now = ", ".join(sorted({str(current[one["experiment"]]) for one in other}))
                what = f"has {count_runs(len(other))} of this multirun by results version {versions}"
                how = "looks cannot mix them; choose another folder, or move them away"
                raise ConfigError(key, paths[0], f"{what}, and this is {now}: {how}")

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
        return output_folders(self.settings)

    def finished_runs(self, seeds: int) -> pd.DataFrame | None:
        """Return the finished runs of the first seeds as ``load_runs`` does; None if there is none.

        Runs that an archive also has of another code are left out. Raises ConfigError if only another code has a run:
        further runs would have the present one.
        """
        jobs = [job for seed in range(seeds) for job in self.jobs(seed).values()]
        found = [result for _, result in pending.find_finished(jobs, repeated=True) if result is not None]
        if not found:
            return None
        runs = load_runs(*dict.fromkeys(result.directory for result in found))
        runs = runs[runs["identity"].isin({one.identity for one in settings_of(jobs)})]
        codes = {one.experiment: one.code_digest for one in self.settings}
        present = runs["code"].fillna("") == runs["experiment"].map(codes)
        others = runs[~runs["identity"].isin(runs["identity"][present])]
        if len(others):
            what = f"has {count_runs(len(others))} of this multirun by another code, the first is {others.index[0]}"
            raise ConfigError("output_dir", self.own_folder, f"{what}; looks cannot mix codes, choose another folder")
        return runs[present]


def _check_damaged(placed: MatchedRuns, runs: pd.DataFrame, experiments: set[str], folder: Path) -> None:
    """Raise ConfigError if runs of these experiments are on other data or contradict their identity."""
    left = placed.left_out[placed.left_out["reason"].isin(_DAMAGED)]
    left = left[runs.loc[left.index, "experiment"].isin(experiments).to_numpy()]
    if len(left):
        reason, run = left["reason"].iloc[0], left.index[0]
        what = f"{count_runs(len(left))} of this multirun cannot be compared, the first ({reason}): {run}"
        raise ConfigError("output_dir", folder, f"{what}; move them away, or choose another folder")


class PairsQuestion:
    """Which methods of a user's own grid are better, pair by pair in each cell."""

    noun = "pairs"

    def __init__(self, command: AskedRuns) -> None:
        self._asked = command
        jobs = command.jobs(0).values()
        values = [{parse_override(text).key: parse_override(text).values[0] for text in job.overrides} for job in jobs]
        keys = cell_keys(values)
        rows: list[dict[str, object]] = [
            {"algorithm": one.choices["algorithm"], **of, "identity": one.identity}
            | {"experiment": one.experiment, "seed": 0, "error": None}
            for of, one in zip(values, command.settings, strict=True)
        ]
        self._grid = Grid("", "", "", "standard", pd.DataFrame(rows))
        self._planned = match_runs(self._grid, planned_frame(command.settings), cells=keys)
        runs = self._planned.runs
        pairs_of(self._planned, command.request.compare)
        axis = shared_axis(runs)
        if axis is None:
            limits = [str(key) for key in runs if str(key).startswith("budget.")]
            listed = {
                row["algorithm"]: [key[7:] for key in limits if row[key] == row[key]] for _, row in runs.iterrows()
            }
            told = "; ".join(f"{', '.join(of)} for {name}" for name, of in listed.items())
            raise ConfigError("budget", told, "cannot be compared; limit all alike, for example budget.uploads=5000")
        tie = POINTS_OF_A_TIE if command.request.tie is None else command.request.tie
        self.decision = Decision(command.request.compare, tie, axis, tuple(keys), tuple(sorted(command.jobs(0))))

    def judge_subjects(self, seeds: int) -> list[Subject]:
        """Return every pair as the finished runs of the first seeds judge it."""
        measured = None
        if (runs := self._asked.finished_runs(seeds)) is not None:
            placed = match_runs(self._grid, runs, cells=self._planned.cells)
            _check_damaged(placed, runs, set(self.decision.experiments), self._asked.own_folder)
            known = len(placed.runs) + len(placed.diverged)
            measured = RunMeasures(placed, load_points(placed.runs)) if known else None
        return judge_pairs(measured, self._planned, self.decision, seeds)

    def describe(self, subjects: Sequence[Subject]) -> str:
        """Return the table of the pairs as text."""
        return str(decision_table([one.contrasts[0] for one in subjects]).to_string(index=False))


class ClaimsQuestion:
    """The claims of a paper's page, judged as the page judges them."""

    noun = "claims"

    def __init__(self, command: AskedRuns) -> None:
        choices = command.settings[0].choices
        self._asked, self._spec = command, paper_pages()[choices["sweep"]]
        frame = planned_frame(command.settings)
        named = (choices["sweep"], choices["profile"], choices["scale"], choices.get("length") or "standard")
        self._grid = replace(grid_of(*named, page_overrides(frame, *named)), planned=frame)  # cells of this command
        self._seen = seen_seeds(self._grid.sweep, self._grid.scale)
        self._claims = {claim.key: claim for claim in claims_of_sweep(self._grid.sweep)}
        asked = set(command.request.claims) or {*self._claims}
        tuned = tuned_keys(self._spec, self._grid.profile)
        planned = match_runs(self._grid, frame, cells=self._spec.cells, tuned=tuned)
        needed = experiments_of_claims(
            self._grid.sweep, RunMeasures(planned, load_points(planned.runs)), self._spec.readings
        )
        self._needed = {one: of for one, of in needed.items() if {one[0], self._claims[one[0]].id} & asked}
        if not any(self._needed.values()):
            words = " ".join(command.words)
            raise ConfigError("decide", "true", f"no claim compares these runs; take changed settings out of: {words}")
        if command.request.tie is not None:
            raise ConfigError(
                "decide.tie", f"{command.request.tie:g}", "goes with decide.compare; claims have their own"
            )
        axis, cells = limiting_axis(planned.runs), tuple(self._spec.cells)
        self.decision = Decision("", POINTS_OF_A_TIE, axis, cells, tuple(sorted(command.jobs(0))))

    def judge_subjects(self, seeds: int) -> list[Subject]:
        """Return every claim as the runs of its first seeds judge it."""
        judged: dict[tuple[str, str], Judgement] = {}
        runs = self._load_runs()
        runs = runs[runs["seed"].isin(range(self._seen + seeds)) & runs["status"].isin(MEASURED)]
        there = {str(name): set(of) for name, of in runs.groupby("experiment")["seed"]}
        try:
            if len(runs):
                page = measured_page(self._spec, self._grid, runs)
                _check_damaged(page.placed, runs, set(self.decision.experiments), self._asked.own_folder)
                found = evaluate_claims(self._grid.sweep, page.measured, self._grid.scale, self._spec.readings, seeds)
                judged = {(one.claim.key, one.verdict.reading): one for one in found}
        except NoRuns:
            pass
        subjects = []
        for (claim, reading), needed in self._needed.items():
            one, name = judged.get((claim, reading)), ", ".join(filter(None, (claim, reading)))
            if one is None:
                first = self._seen if self._claims[claim].changed else 0
                text = "no runs" if needed else "this command has none of its runs: another length or scale may"
                subjects.append(Subject(name, "", text, needed, (), first, False))
                continue
            wanted = set(range(one.first_seed, one.first_seed + FIRST_LOOK))
            begun = one.claim.decide.get("counted") or all(wanted <= there.get(of, set()) for of in needed)
            text = f"{one.verdict.marked_word}; {one.verdict.details_text}"
            contrasts = [of.for_seeds(one.first_seed, one.first_seed + seeds) for of in one.contrasts]
            word = f"{name} {one.verdict.verdict}" if one.is_decided and begun else ""
            subjects.append(Subject(name, word, text, needed, tuple(contrasts), one.first_seed, bool(begun)))
        return subjects

    def _load_runs(self) -> pd.DataFrame:
        """Return the runs that the page would have: those of ``output_dir`` and of the paper's archive."""
        archives = archive_folders(self._asked.settings[0].root.archive_dir)
        packed = [own if (own := path / self._spec.paper).is_dir() else path for path in archives]
        paths = [path for path in (*self._asked.outputs, *packed) if path.is_dir()]
        try:
            return load_runs(*paths)
        except BenchError:  # no run is there yet
            return build_frame({})

    def describe(self, subjects: Sequence[Subject]) -> str:
        """Return a line a claim, and the command that writes the page."""
        grid = self._grid
        page = report_command(grid.sweep, grid.profile, grid.scale, grid.length)
        return "\n".join([*(f"{one.name}: {one.text}" for one in subjects), f"the page: {page}"])
