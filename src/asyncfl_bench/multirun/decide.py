"""Multiruns that choose their seeds: ``decide=true`` adds seeds, look by look, until comparisons are decided.

A look takes place at 3, 5, 8, 12 and 20 seeds (docs/reference/statistics.md, rules 2 to 4). What is open gets the seeds
of the next one; each look is one multirun. Everything is found again by the identities of finished runs, so the same
command resumes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from ..analysis.contrasts import POINTS_OF_A_TIE
from ..analysis.decisions import (
    FIRST_LOOK,
    Decision,
    Subject,
    cell_keys,
    judge_pairs,
    pair_table,
    pairs_of,
    read_decision,
)
from ..analysis.grids import Grid, grid_of, planned_frame
from ..analysis.judgements import Judgement, claims_of_sweep, evaluate_claims, experiments_of_claims, seen_seeds
from ..analysis.looks import LEVELS
from ..analysis.measured import RunMeasures
from ..analysis.measures import limiting_axis, shared_axis
from ..analysis.place import MatchedRuns, encoder_words, match_runs
from ..config import RESULTS_VERSION, Settings
from ..config.choices import hydra_config
from ..config.overrides import parse_override
from ..errors import EXIT_INTERRUPTED, BenchError, ConfigError, did_you_mean
from ..experiment.preflight import Preflight
from ..files import say
from ..papers import paper_pages
from ..reports.assembly import NoRuns, measured_page, tuned_keys
from ..tracking.archive import archive_folders
from ..tracking.records import MEASURED
from ..tracking.runs import build_frame, load_points, load_runs
from . import pending
from .decide_words import Request
from .estimate import describe_pending, estimate_runs
from .history import finished_in
from .jobs import Job
from .launchers import workers_of
from .progress import count_runs
from .run import group_overrides, plan_multirun, run_hydra

_DAMAGED = ("inconsistent", "other data")  # reasons of runs that no comparison may use


@dataclass
class Looks:
    """The looks of one command. words: its overrides without those of ``decide``. Raises ConfigError."""

    request: Request
    words: list[str]
    asked: dict[str, Job] = field(default_factory=dict)  # jobs of every look so far, by identity
    _launched: set[str] = field(default_factory=set)  # identities: a run that failed is not started again
    _failed: set[tuple[str, int]] = field(default_factory=set)  # (experiment, seed)
    _jobs: dict[int, dict[str, Job]] = field(default_factory=dict)  # seed -> experiment -> job
    _told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        planned, self.folder = plan_multirun([*self.words, "seed=0"])
        for job in planned:
            if job.settings is None or job.drawn:
                why = job.error or "is a search, whose trials have no pairs"
                raise ConfigError("decide", "true", f"cannot compare {' '.join(job.overrides)}: {why}")
        self._jobs[0] = {job.settings.experiment: job for job in planned if job.settings}
        self._check_versions()
        sweep = str(self.settings[0].choices.get("sweep"))
        question = _ClaimsQuestion if self._asks_claims(sweep) else _PairsQuestion
        self.question: _ClaimsQuestion | _PairsQuestion = question(self)

    def _asks_claims(self, sweep: str) -> bool:
        """Return True if claims of a page are asked. Raises ConfigError for a sweep where nothing is asked."""
        claims = claims_of_sweep(sweep)
        if self.request.claims and not claims:
            wanted = "needs a sweep with claims, for example sweep=ace/figure2; decide.compare=NAME compares methods"
            raise ConfigError("decide.claims", ",".join(self.request.claims), wanted)
        if sweep not in ("None", "null") and not claims and not self.request.compare:
            method = self.settings[0].choices["algorithm"]
            wanted = f"has no claims to decide; compare a method with the others: decide.compare={method}"
            raise ConfigError("sweep", sweep, wanted)
        known = [name for claim in claims for name in (claim.key, claim.id)]
        for name in self.request.claims:
            if name not in known:
                allowed = f"must be one of {', '.join(claim.id for claim in claims)}{did_you_mean(name, known)}"
                raise ConfigError("decide.claims", name, allowed)
        return bool(claims) and not self.request.compare

    def run(self) -> int:
        """Run looks until all is decided, nothing that is open can be, or the hours are spent. Returns the exit
        code."""
        self.decision.save(self._own_folder)
        try:
            return self._run_looks()
        finally:
            pending.state.planned = list(self.asked.values())

    def _run_looks(self) -> int:
        code, looks = 0, list(LEVELS)
        subjects = self.question.judge_subjects(looks[0])
        for number, (seeds, later) in enumerate(itertools.zip_longest(looks, looks[1:]), start=1):
            todo, judged = self.pending_jobs(subjects, seeds), None
            while todo:
                if why := self._lacking_hours(todo):
                    waits = f"so look {number} waits with {count_runs(len(todo))}; more hours resume"
                    say(f"decide.hours={self.request.hours:g}: {why}, {waits}")
                    self._say_end(subjects, seeds)
                    return code
                result = self._launch(todo)
                if result == EXIT_INTERRUPTED:
                    say("afl-run: stopped; the same command resumes at this look")
                    return result
                code = max(code, result)
                judged = self.question.judge_subjects(seeds)
                todo = self.pending_jobs(judged, seeds)  # more of them where seen seeds turn out not to count
            subjects = judged or self.question.judge_subjects(seeds)
            is_over = later is None or not self._wanted_runs(subjects, later)
            rest = f"{count_runs(len(self.pending_jobs(subjects, later)))} next" if not is_over else "no runs next"
            self._say_look(number, seeds, subjects, rest)
            if is_over:
                break
        self._say_end(subjects, seeds)
        return code

    def plan(self, measure: Callable[[Settings], float] | None = None, preflight: Preflight | None = None) -> str:
        """Return the runs and hours until the last look as text, as today's runs project them; runs nothing."""
        _ = self.decision  # reads what earlier looks left: a damaged file is refused here, too
        looks = list(LEVELS)
        subjects, reached = self.question.judge_subjects(looks[0]), 0
        while reached < len(looks) and not self.pending_jobs(subjects, looks[reached]):
            subjects, reached = self.question.judge_subjects(looks[reached]), reached + 1
        is_open = [one for one in subjects if not one.word]
        noun = self.question.noun.removesuffix("s" * (len(subjects) == 1))
        lines = [f"{len(subjects)} {noun}, {len(subjects) - len(is_open)} of them decided"]
        lines += [f"  {one.name}: {one.text}" for one in is_open]
        total: dict[str, Settings] = {}
        for number, seeds in enumerate(looks[reached:], start=reached + 1):
            jobs = self.pending_jobs(subjects, seeds, projected=True)
            new = {one.identity: one for one in _settings_of(jobs) if one.identity not in total}
            total |= new
            if new:
                lines.append(f"look {number}, {seeds} seeds: about {count_runs(len(new))}")
        if is_open and not total:
            lines.append(f"no runs: more seeds decide none of these {self.question.noun}")
        if settings := list(total.values()):
            workers = min(workers_of(hydra_config(group_overrides(self.words)).hydra), len(settings))
            lines.append(f"until look {len(looks)} about {count_runs(len(settings))}")
            lines += describe_pending(settings, self._outputs, workers, measure, preflight)
        return "\n".join(lines)

    def jobs(self, seed: int) -> dict[str, Job]:
        """Return experiment -> job of a seed."""
        if seed not in self._jobs:
            planned = plan_multirun([*self.words, f"seed={seed}"])[0]
            self._jobs[seed] = {job.settings.experiment: job for job in planned if job.settings is not None}
        return self._jobs[seed]

    def pending_jobs(self, subjects: Sequence[Subject], look: int, projected: bool = False) -> list[Job]:
        """Return the jobs of a look that are neither finished nor were launched by this command."""
        wanted = self._wanted_runs(subjects, look, projected)
        seeds = sorted({seed for _, seed in wanted})
        jobs = [job for seed in seeds for name, job in self.jobs(seed).items() if (name, seed) in wanted]
        if not projected:
            self.asked |= {one.identity: job for one, job in zip(_settings_of(jobs), jobs, strict=True)}
        places = pending.places_of(jobs)
        left = [job for job in jobs if job.settings and job.settings.identity not in self._launched]
        return [job for job in left if job.finished_result(places) is None]

    def _wanted_runs(self, subjects: Sequence[Subject], look: int, projected: bool = False) -> set[tuple[str, int]]:
        """Return (experiment, seed) of the runs that a look needs. A subject waits where one of its runs failed: a look
        with fewer seeds decides nothing, and the next one would pay for it."""
        wanted = [one.wanted_runs(look, projected) for one in subjects]
        return set().union(*(runs for runs in wanted if not runs & self._failed))

    def finished_runs(self, seeds: int) -> pd.DataFrame | None:
        """Return the finished runs of the first seeds as ``load_runs`` does; None if there is none."""
        jobs = [job for seed in range(seeds) for job in self.jobs(seed).values()]
        places = pending.places_of(jobs)
        found = [result for job in jobs if (result := job.finished_result(places, again=True)) is not None]
        if not found:
            return None
        runs = load_runs(*dict.fromkeys(result.directory for result in found))
        return runs[runs["identity"].isin({one.identity for one in _settings_of(jobs)})]

    @cached_property
    def decision(self) -> Decision:
        """What the folder of the runs says for reports and for a repeated command."""
        decision = self.question.decision
        path = decision.path(self._own_folder)
        before = read_decision(path).seconds_before if path.exists() else self._computed_seconds(decision.experiments)
        return replace(decision, seconds_before=before)

    @property
    def settings(self) -> list[Settings]:
        """Return the settings of every experiment."""
        return _settings_of(self.jobs(0).values())

    @cached_property
    def _own_folder(self) -> Path:
        return self.settings[0].directory.parent

    @cached_property
    def _outputs(self) -> list[Path]:
        return list({(one.asked_output_dir or Path(one.root.output_dir)).expanduser(): None for one in self.settings})

    def _computed_seconds(self, experiments: Sequence[str]) -> float:
        """Return the seconds that the runs in this command's folder took, which other sweeps' runs are not."""
        names = set(experiments)
        past = finished_in([self._own_folder], MEASURED)
        return sum(one.seconds for one in past if not one.is_archived and one.summary.get("experiment") in names)

    def _lacking_hours(self, jobs: Sequence[Job]) -> str:
        """Return why a look cannot begin within the hours; empty if it can, or if no finished run tells."""
        if self.request.hours == math.inf:
            return ""
        spent = (self._computed_seconds(self.decision.experiments) - self.decision.seconds_before) / 3600
        left = self.request.hours - spent
        estimates = estimate_runs(_settings_of(jobs), self._outputs)
        needed = sum(one.seconds for one in estimates if one is not None) / 3600
        if left > 0 and needed <= left:
            return ""
        return f"{spent:.2g} are spent, the next runs take about {needed:.2g}"

    def _launch(self, jobs: list[Job]) -> int:
        """Run these jobs as one multirun. Returns 75 if it was stopped, 1 if a run failed, else 0."""
        self._launched |= {one.identity for one in _settings_of(jobs)}
        pending.state.current, pending.state.stopped, pending.state.result = [], False, None
        pending.state.planned = jobs
        try:
            code = run_hydra(["-m", *group_overrides(self.words), *self.folder])
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        result = pending.state.result
        failed: list[Settings] = [] if result is None else _settings_of(job for job, _ in result.failed)
        self._failed |= {(one.experiment, one.root.seed) for one in failed}
        return code if code == EXIT_INTERRUPTED else int(bool(failed))

    def _say_look(self, number: int, seeds: int, subjects: Sequence[Subject], rest: str) -> None:
        decided = [one for one in subjects if one.word]
        listed = "; ".join(one.word for one in decided if one.word not in self._told)
        self._told |= {one.word for one in decided}
        count = f"{len(decided)} of {len(subjects)} {self.question.noun} decided{f' ({listed})' if listed else ''}"
        print(f"look {number}, {seeds} seeds: {count}; {rest}", flush=True)

    def _say_end(self, subjects: Sequence[Subject], seeds: int) -> None:
        print(self.question.describe(subjects), flush=True)
        if waiting := [one for one in subjects if one.wanted_runs(seeds) & self._failed]:
            counts = f"{len(waiting)} of {len(subjects)} {self.question.noun}"
            say(f"{counts} wait for failed runs; the same command tries them")

    def _check_versions(self) -> None:
        """Raise ConfigError if runs of these experiments were made by another results version."""
        names, folder_names = set(self.jobs(0)), {one.root.archive_dir for one in self.settings}
        archives = {place for name in folder_names for place in archive_folders(name)}
        folders = {"output_dir": self._outputs, "archive_dir": sorted(archives)}
        for key, places in folders.items():
            past = [one for one in finished_in(places, MEASURED) if one.summary.get("experiment") in names]
            if other := [one for one in past if one.summary.get("results_version") != RESULTS_VERSION]:
                versions = ", ".join(sorted({str(one.summary.get("results_version")) for one in other}))
                what = f"has {count_runs(len(other))} of this multirun by results version {versions}"
                how = "looks cannot mix them; choose another folder, or move them away"
                raise ConfigError(key, places[0], f"{what}, and this is {RESULTS_VERSION}: {how}")


def _settings_of(jobs: Iterable[Job]) -> list[Settings]:
    return [job.settings for job in jobs if job.settings is not None]


def _check_damaged(placed: MatchedRuns, runs: pd.DataFrame, experiments: set[str], folder: Path) -> None:
    """Raise ConfigError if runs of these experiments are on other data or contradict their identity."""
    left = placed.left_out[placed.left_out["reason"].isin(_DAMAGED)]
    left = left[runs.loc[left.index, "experiment"].isin(experiments).to_numpy()]
    if len(left):
        reason, place = left["reason"].iloc[0], left.index[0]
        what = f"{count_runs(len(left))} of this multirun cannot be compared, the first ({reason}): {place}"
        raise ConfigError("output_dir", folder, f"{what}; move them away, or choose another folder")


class _PairsQuestion:
    """Which methods of a user's own grid are better, pair by pair in each cell."""

    noun = "pairs"

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        jobs = looks.jobs(0).values()
        values = [{parse_override(text).key: parse_override(text).values[0] for text in job.overrides} for job in jobs]
        keys = cell_keys(values)
        rows: list[dict[str, object]] = [
            {"algorithm": one.choices["algorithm"], **of, "identity": one.identity}
            | {"experiment": one.experiment, "seed": 0, "error": None}
            for of, one in zip(values, looks.settings, strict=True)
        ]
        self._grid = Grid("", "", "", "standard", pd.DataFrame(rows))
        self._planned = match_runs(self._grid, planned_frame(looks.settings), cells=keys)
        runs = self._planned.runs
        pairs_of(self._planned, looks.request.compare)
        axis = shared_axis(runs)
        if axis is None:
            limits = [str(key) for key in runs if str(key).startswith("budget.")]
            listed = {
                row["algorithm"]: [key[7:] for key in limits if row[key] == row[key]] for _, row in runs.iterrows()
            }
            told = "; ".join(f"{', '.join(of)} for {name}" for name, of in listed.items())
            raise ConfigError("budget", told, "cannot be compared; limit all alike, for example budget.uploads=5000")
        tie = POINTS_OF_A_TIE if looks.request.tie is None else looks.request.tie
        self.decision = Decision(looks.request.compare, tie, axis, tuple(keys), tuple(sorted(looks.jobs(0))))

    def judge_subjects(self, seeds: int) -> list[Subject]:
        """Return every pair as the finished runs of the first seeds judge it."""
        measured = None
        if (runs := self._looks.finished_runs(seeds)) is not None:
            placed = match_runs(self._grid, runs, cells=self._planned.cells)
            _check_damaged(placed, runs, set(self.decision.experiments), self._looks._own_folder)
            measured = RunMeasures(placed, load_points(placed.runs)) if len(placed.runs) else None
        return judge_pairs(measured, self._planned, self.decision, seeds)

    def describe(self, subjects: Sequence[Subject]) -> str:
        """Return the table of the pairs as text."""
        return str(pair_table([one.contrasts[0] for one in subjects]).to_string(index=False))


class _ClaimsQuestion:
    """The claims of a paper's page, judged as the page judges them."""

    noun = "claims"

    def __init__(self, looks: Looks) -> None:
        choices = looks.settings[0].choices
        self._looks, self._spec = looks, paper_pages()[choices["sweep"]]
        frame = planned_frame(looks.settings)
        named = (choices["sweep"], choices["profile"], choices["scale"], choices.get("length") or "standard")
        self._grid = replace(grid_of(*named, encoder_words(frame, *named)), planned=frame)  # cells of this command
        self._seen = seen_seeds(self._grid.sweep, self._grid.scale)
        self._claims = {claim.key: claim for claim in claims_of_sweep(self._grid.sweep)}
        asked = set(looks.request.claims) or {*self._claims}
        tuned = tuned_keys(self._spec, self._grid.profile)
        planned = match_runs(self._grid, frame, cells=self._spec.cells, tuned=tuned)
        needed = experiments_of_claims(
            self._grid.sweep, RunMeasures(planned, load_points(planned.runs)), self._spec.readings
        )
        self._needed = {one: of for one, of in needed.items() if {one[0], self._claims[one[0]].id} & asked}
        if not any(self._needed.values()):
            words = " ".join(looks.words)
            raise ConfigError("decide", "true", f"no claim compares these runs; take changed settings out of: {words}")
        if looks.request.tie is not None:
            raise ConfigError("decide.tie", f"{looks.request.tie:g}", "goes with decide.compare; claims have their own")
        axis, cells = limiting_axis(planned.runs), tuple(self._spec.cells)
        self.decision = Decision("", POINTS_OF_A_TIE, axis, cells, tuple(sorted(looks.jobs(0))))

    def judge_subjects(self, seeds: int) -> list[Subject]:
        """Return every claim as the runs of its first seeds judge it."""
        judged: dict[tuple[str, str], Judgement] = {}
        runs = self._load_runs()
        runs = runs[runs["seed"].isin(range(self._seen + seeds)) & runs["status"].isin(MEASURED)]
        there = {str(name): set(of) for name, of in runs.groupby("experiment")["seed"]}
        try:
            if len(runs):
                page = measured_page(self._spec, self._grid, runs)
                _check_damaged(page.placed, runs, set(self.decision.experiments), self._looks._own_folder)
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
            text = f"{one.verdict.marked_word}; {one.verdict.result_text}"
            contrasts = [of.for_seeds(one.first_seed, one.first_seed + seeds) for of in one.contrasts]
            word = f"{name} {one.verdict.verdict}" if one.is_decided and begun else ""
            subjects.append(Subject(name, word, text, needed, tuple(contrasts), one.first_seed, bool(begun)))
        return subjects

    def _load_runs(self) -> pd.DataFrame:
        """Return the runs that the page would have: those of ``output_dir`` and of the paper's archive."""
        archives = archive_folders(self._looks.settings[0].root.archive_dir)
        packed = [own if (own := place / self._spec.paper).is_dir() else place for place in archives]
        places = [place for place in (*self._looks._outputs, *packed) if place.is_dir()]
        try:
            return load_runs(*places)
        except BenchError:  # no run is there yet
            return build_frame({})

    def describe(self, subjects: Sequence[Subject]) -> str:
        """Return a line a claim, and the command that writes the page."""
        grid = self._grid
        length = "" if grid.length == "standard" else f" --length {grid.length}"
        page = f"afl-report {grid.sweep} --profile {grid.profile} --scale {grid.scale}{length}"
        return "\n".join([*(f"{one.name}: {one.text}" for one in subjects), f"the page: {page}"])
