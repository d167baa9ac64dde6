"""Searches that end with a judged setting: all points on one seed, the best on another, the best of these on new seeds.

Finished runs are found by their identities, so the same command resumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..analysis.evaluations import late_values
from ..config.composition import chosen_config
from ..config.overrides import parse_override
from ..config.search_stages import BANK, STAGES_KEY, STEPS, Point, Stages, multiply_step, step_key
from ..config.settings import NOT_IDENTITY, SEARCH_SPACE, Settings
from ..data.base import MissingData
from ..errors import EXIT_INTERRUPTED, BenchError, ConfigError, InputError
from ..experiment import RunResult
from ..experiment.preflight import Preflight
from ..files import say, show
from ..tracking.progress_bar import clock_text
from . import pending
from .jobs import Job, count_runs, describe_planning, output_folders, settings_of
from .launchers import workers_of
from .preview import RunTimer, estimate_cost
from .run import launch_jobs, plan_multirun, run_all

SCORE = "validation/accuracy"

Cell = tuple[str, ...]  # the other overrides, without the seed: a rule in a world


def run_multirun(overrides: list[str]) -> int:
    """Run a multirun, in stages if its sweep file names some, and return the exit code. See ``pending.state``."""
    stages = stages_or_none(overrides)
    return run_all(overrides) if stages is None else StagedSearch(overrides, stages).run()


def stages_or_none(overrides: Sequence[str]) -> Stages | None:
    """Return the stages that the sweep file of the overrides names; None without any. Raises ConfigError."""
    from omegaconf import OmegaConf

    sweeper: Any = OmegaConf.to_container(chosen_config(overrides).hydra.sweeper)
    return None if sweeper.get("stages") is None else Stages.from_settings(sweeper["stages"])


@dataclass
class StagedSearch:
    """A multirun in stages. Raises ConfigError for overrides that fix what the stages choose."""

    words: list[str]
    stages: Stages
    folder: list[str] = field(default_factory=list)
    _jobs: dict[str, Job] = field(default_factory=dict)  # of all stages, by identity
    _cells: dict[str, Cell] = field(default_factory=dict)  # of each planned run, by identity
    _planned: dict[tuple[Cell, Point, tuple[int, ...]], list[Job]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in map(parse_override, self.words):
            if one.key in ("seed", "resume", "rerun", "hydra/sweeper", "trials", "shard") or one.draw is not None:
                how = f"is chosen by {STAGES_KEY} of the sweep file; leave it out"
                raise ConfigError(one.key, one.text.partition("=")[2], how)
        jobs, self.folder = plan_multirun([*self.words, f"seed={self.stages.search_seeds[0]}"])
        self.refused = [job for job in jobs if job.settings is None]
        self.points: dict[Cell, dict[Point, Job]] = {}
        for job in jobs:
            if job.settings is not None:
                rest = tuple(text for text in job.overrides if text not in job.drawn and not text.startswith("seed="))
                point = tuple(text for text in job.drawn if parse_override(text).key not in job.settings.idle)
                self.points.setdefault(rest, {})[point] = job
                self._cells[job.settings.identity] = rest
        if not self.points:
            raise InputError(str(self.refused[0].error))
        for points in self.points.values():  # the factors of the last stage multiply a searched step
            point, job = next(iter(points.items()))
            if self.stages.factors and step_key(point) is None:
                fixed = [one.text for one in map(parse_override, self.words) if one.key in STEPS]
                leave = f", and leave {' '.join(fixed)} out" if fixed else ""
                how = f"needs a range of {' or '.join(STEPS)}, which the last stage multiplies"
                rule = settings_of([job])[0].choices["algorithm"]
                raise ConfigError("algorithm", rule, f"{how}; declare it in {SEARCH_SPACE} of the rule's yaml{leave}")

    def run(self) -> int:
        """Run the stages one after another. Returns the exit code."""
        for job in self.refused:
            say(f"left out, {' '.join(job.overrides)}: {job.error}")
        self._leave_out_missing_data()
        code, stages = 0, self._stages
        try:
            for number, name in enumerate(stages, start=1):
                jobs = self._stage_jobs(name)
                say(f"stage {number} of {len(stages)}, {name}: {count_runs(len(jobs))}")
                if not jobs:
                    continue
                result = launch_jobs(jobs, self.words, self.folder)
                if result == EXIT_INTERRUPTED:
                    say("afl-run: stopped; the same command resumes at this stage")
                    return result
                sweep = pending.state.result
                code = max(code, int(sweep is None or bool(sweep.failed)))
        finally:
            pending.state.planned = list(self._jobs.values())
        show(self.describe())
        if self._is_bank:
            self._write_bank_page(code)
        return code

    def _leave_out_missing_data(self) -> None:
        """Leave out unfinished searches whose data are missing, with one line for each data set.

        Raises MissingData if no search is left.
        """
        preflight, missing = Preflight(), dict[str, MissingData]()
        for cell, points in list(self.points.items()):
            try:
                preflight.check(settings_of(points.values())[0])
            except MissingData as error:
                jobs = [*points.values(), *self._judged_jobs(cell), *self._factor_jobs(cell)]
                if self._best_point(cell) is None or None in self._results(jobs):
                    missing[str(error)] = error
                    del self.points[cell]
            except BenchError:
                pass  # the run says so
        if not self.points:
            raise next(iter(missing.values()))
        for text in missing:
            say(f"left out: {text}")

    def plan(self, measure: RunTimer | None = None, preflight: Preflight | None = None) -> str:
        """Return the runs and hours of all stages as text; runs nothing."""
        count = len(self.points)
        most = max(map(len, self.points.values()))
        lines = [f"{count} search{'es' * (count > 1)} of at most {most} point{'s' * (most > 1)}"]
        lines += describe_planning(self._stage_jobs("search"))
        lines += [f"  left out, {' '.join(job.overrides)}: {job.error}" for job in self.refused]
        pending_runs: list[Settings] = []
        for number, name in enumerate(self._stages, start=1):
            jobs = self._stage_jobs(name)
            left = [job for job, result in pending.find_finished(jobs, repeated=True) if result is None]
            pending_runs += settings_of(left)
            lines.append(f"stage {number}, {name}: {count_runs(len(jobs))}, {len(jobs) - len(left)} of them finished")
            if left and (later := sum(self.stages.most_runs[number - 1 :])):
                lines.append(f"later stages: at most {count_runs(later * count)}, chosen by this stage")
                pending_runs += [one for one in self._first_settings() for _ in range(later)]
                break
        outputs = output_folders(self._first_settings())
        workers = max(1, min(workers_of(chosen_config(self.words).hydra), len(pending_runs)))
        cost = estimate_cost(pending_runs, outputs, workers, measure, preflight)
        refusal = self._page_refusal()
        if cost.seconds_known_for < len(pending_runs) and self._is_bank and not refusal:
            cost.time = self._describe_bank_time(pending_runs, workers)
        return "\n".join([*lines, *cost.lines, *filter(None, [refusal])])

    def describe(self) -> str:
        """Return the chosen point of each search, with its scores, as text."""
        lines = []
        for cell in self.points:
            name = " ".join(text for text in cell if text.startswith(("algorithm=", "paper=")))
            if (point := self._best_point(cell)) is None:
                lines.append(f"{name}: no point was chosen; a run is missing, or all diverged")
                continue
            judged = [
                late_score(one, "test/accuracy") for one in self._results(self._judged_jobs(cell)) if one is not None
            ]
            scores = [score for score in judged if not math.isnan(score)]
            mean = sum(scores) / max(1, len(scores))
            text = f"test accuracy {mean:.1f} % over {len(scores)} seeds" if scores else "not judged"
            lines.append(f"{name}: {' '.join(point)}; {text}")
        return "\n".join(lines)

    def _write_bank_page(self, code: int) -> None:
        """Write the page of the bank with these rules among all others, and print where it is."""
        from ..analysis.bank import judged_frame, load_bank, merge_frames
        from ..reports.bank_page import judge_worlds, write_bank_page
        from ..tracking.runs import load_runs

        if refusal := self._page_refusal():
            say(refusal)
            return
        if code:
            say("no page: it needs all runs; the same command runs those that failed again")
            return
        known = {one.directory for one in self._results(list(self._jobs.values())) if one is not None}
        runs = load_runs(*sorted(known)).drop_duplicates("identity")
        runs = runs[runs["identity"].isin(self._jobs)]
        cells = [self._cells[identity] for identity in runs["identity"]]
        worlds, rules = (
            [" ".join(text for text in cell if text.startswith(keys)).removeprefix(keys[0]) for cell in cells]
            for keys in (("paper=",), ("algorithm=", "algorithm."))
        )
        own = judged_frame(runs.assign(paper=worlds, algorithm=rules))
        folder = self._first_settings()[0].directory.parent / "page"
        if own.empty:  # no point has a score
            return
        frame = merge_frames(load_bank(), own)
        for world in judge_worlds(frame)[0]:
            for rule in own.loc[own["world"] == world.name, "rule"].unique():
                show(f"paper={world.name} algorithm={rule}: {world.describe_tier(rule)}")
        for page in write_bank_page(frame, folder):
            show(f"written: {page}")

    @property
    def _is_bank(self) -> bool:
        """Return True for the sweep of the bank."""
        return bool(chosen_config(self.words).hydra.runtime.choices.sweep == BANK)

    def _page_refusal(self) -> str:
        """Return why runs of the bank's sweep cannot be compared with the bank; empty if they can.

        Overrides or searched settings make their worlds others than those of the bank.
        """
        if not self._is_bank:
            return ""
        same = {"sweep", "paper", "algorithm", *NOT_IDENTITY}
        words = map(parse_override, self.words)
        given = [one.text for one in words if not (one.is_for_hydra or {one.key, one.section} & same)]
        drawn = {parse_override(text).key for points in self.points.values() for point in points for text in point}
        others = [key for key in sorted(drawn) if key not in STEPS and not key.startswith("algorithm.")]
        changed = [*given, *(f"{key} in {SEARCH_SPACE}" for key in others)]
        return f"no page with {', '.join(changed)}: the bank has no such runs to compare" if changed else ""

    def _describe_bank_time(self, runs: Sequence[Settings], workers: int) -> str:
        """Return the time of these runs with a rule that is as fast as the median of the bank."""
        from ..analysis.bank import load_bank

        seconds_w = load_bank().groupby("world")["wall_seconds"].median()
        known = [seconds_w[world] for one in runs if (world := str(one.choices["paper"])) in seconds_w]
        if not known:
            return "time: unknown, the bank has no runs of these worlds"
        others = len(runs) - len(known)
        text = f"time: about {clock_text(sum(known) / workers)} for {count_runs(len(known))}"
        text += f", {workers} at once" * (workers > 1) + ", at the median of the bank's rules"
        return text + f" (unknown for {count_runs(others)} of other worlds)" * (others > 0)

    @property
    def _stages(self) -> dict[str, Callable[[Cell], list[Job]]]:
        """Return stage -> function that returns its jobs for a rule in a world, from the results of earlier stages."""
        return {
            "search": lambda cell: [*self.points[cell].values()],
            "finalists": lambda cell: [
                job
                for point in self._finalists(cell)
                for job in self._cell_jobs(cell, point, self.stages.search_seeds[1:])
            ],
            "judged": self._judged_jobs,
            "robustness": self._factor_jobs,
        }

    def _stage_jobs(self, name: str) -> list[Job]:
        """Return the jobs of a stage, which are remembered."""
        found = [job for cell in self.points for job in self._stages[name](cell)]
        self._jobs |= {job.settings.identity: job for job in found if job.settings is not None}
        return found

    def _first_settings(self) -> list[Settings]:
        """Return the settings of one run of each rule and world."""
        return settings_of(next(iter(points.values())) for points in self.points.values())

    def _judged_jobs(self, cell: Cell) -> list[Job]:
        point = self._best_point(cell)
        return [] if point is None else self._cell_jobs(cell, point, self.stages.judged_seeds)

    def _factor_jobs(self, cell: Cell) -> list[Job]:
        point = self._best_point(cell)
        steps = [] if point is None else [multiply_step(point, factor) for factor in self.stages.factors]
        return [job for step in steps for job in self._cell_jobs(cell, step, self.stages.factor_seeds)]

    def _finalists(self, cell: Cell) -> list[Point]:
        """Return the points with the highest scores on the first search seed."""
        scores = self._scores(cell, self.points[cell], self.stages.search_seeds[:1])
        return sorted(scores, key=lambda point: -scores[point])[: self.stages.finalists]

    def _best_point(self, cell: Cell) -> Point | None:
        """Return the finalist with the highest mean score over the search seeds; None if none has all."""
        scores = self._scores(cell, self._finalists(cell), self.stages.search_seeds)
        return max(scores, key=lambda point: scores[point], default=None)

    def _scores(self, cell: Cell, points: Iterable[Point], seeds: Sequence[int]) -> dict[Point, float]:
        """Return the mean score of each point that has one on all seeds; none while a run of them is missing."""
        found = {}
        for point in points:
            results = self._results(self._cell_jobs(cell, point, seeds))
            if None in results:
                return {}  # it could change the choice: the later stages of this rule wait
            values = [late_score(one, SCORE) for one in results if one is not None]
            if not math.isnan(mean := math.fsum(values) / len(values)):
                found[point] = mean
        return found

    def _cell_jobs(self, cell: Cell, point: Point, seeds: Sequence[int]) -> list[Job]:
        """Return the job of a point on each seed. Raises ConfigError for a point that cannot run."""
        if seeds[:1] == self.stages.search_seeds[:1] and point in self.points[cell]:
            rest = self._cell_jobs(cell, point, seeds[1:]) if len(seeds) > 1 else []
            return [self.points[cell][point], *rest]
        key = (cell, point, tuple(seeds))
        if key not in self._planned:
            jobs, folder = plan_multirun([*self.words, *cell, *point, f"seed={','.join(map(str, seeds))}"])
            assert folder == self.folder, "the folder of a sweep does not depend on its axes"
            if error := next((job.error for job in jobs if job.settings is None), None):
                raise InputError(error)
            self._planned[key] = jobs
            self._cells |= {job.settings.identity: cell for job in jobs if job.settings is not None}
        return self._planned[key]

    def _results(self, jobs: list[Job]) -> list[RunResult | None]:
        return [result for _, result in pending.find_finished(jobs, repeated=True)]


def late_score(result: RunResult, metric: str) -> float:
    """Return ``late`` of a metric [%, or its own unit]: its mean over the last fifth of the run's uploads.

    NaN for a diverged run, or without the metric.
    """
    points = result.metrics.assign(run=0)
    return float(late_values(points, metric).get(0, math.nan)) if result.ok else math.nan
