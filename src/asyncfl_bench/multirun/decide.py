"""The loop of ``decide=true``: it launches a look, judges it, and repeats until comparisons are decided.

A look takes place at 3, 5, 8, 12 and 20 seeds (docs/reference/statistics.md, rules 2 to 4). Open comparisons get the
seeds of the next look. Each look is one multirun. Finished runs are found by their identities, so the same command
resumes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..analysis.caveats import describe_default_steps, describe_mixed_makers
from ..analysis.decisions import Decision, Subject, read_decision
from ..analysis.statistics import LEVELS
from ..analysis.verdicts import claims_of_sweep
from ..config import Settings
from ..config.composition import chosen_config
from ..errors import EXIT_INTERRUPTED, ConfigError, did_you_mean
from ..experiment.preflight import Preflight
from ..files import say, show
from ..tracking.records import MEASURED
from . import pending
from .estimates import finished_in
from .jobs import Job, count_runs, settings_of
from .launchers import workers_of
from .preview import RunCost, RunTimer, estimate_cost, estimate_runs, past_runs
from .questions import AskedRuns, ClaimsQuestion, PairsQuestion
from .run import launch_jobs


@dataclass
class Looks(AskedRuns):
    """The looks of one command. Raises ConfigError."""

    asked: dict[str, Job] = field(default_factory=dict)  # jobs of every look so far, by identity
    _launched: set[str] = field(default_factory=set)  # identities: a run that failed is not started again
    _failed: set[tuple[str, int]] = field(default_factory=set)  # (experiment, seed)
    _told: set[str] = field(default_factory=set)
    subjects: Sequence[Subject] = ()  # as the last look judges them, or as a plan does
    rows: list[dict[str, int]] = field(default_factory=list)  # number, seeds and decisions or runs of each look
    cost: RunCost | None = None  # of the runs of a plan
    default_steps: str = ""  # methods with default step sizes, and the command that searches those of all

    def __post_init__(self) -> None:
        super().__post_init__()
        sweep = str(self.settings[0].choices.get("sweep"))
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
        question = ClaimsQuestion if claims and not self.request.compare else PairsQuestion
        self.question: ClaimsQuestion | PairsQuestion = question(self)

    def run(self) -> int:
        """Run looks until no open subject can be decided, or the hours are spent. Returns the exit code."""
        self.decision.save(self.own_folder)
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
            self.subjects, words = subjects, [one.word for one in subjects if one.word]
            self.rows.append({"look": number, "seeds": seeds, "decided": len(words)})
            listed = "; ".join(word for word in words if word not in self._told)
            self._told |= {*words}
            count = f"{len(words)} of {len(subjects)} {self.question.noun} decided{f' ({listed})' if listed else ''}"
            show(f"look {number}, {seeds} seeds: {count}; {rest}")
            if is_over:
                break
        self._say_end(subjects, seeds)
        return code

    def plan(self, measure: RunTimer | None = None, preflight: Preflight | None = None) -> str:
        """Return the runs and hours until the last look as text, as today's runs project them; runs nothing."""
        _ = self.decision  # reads what earlier looks left: a damaged file is refused here, too
        looks = list(LEVELS)
        subjects, reached = self.question.judge_subjects(looks[0]), 0
        while reached < len(looks) and not self.pending_jobs(subjects, looks[reached]):
            subjects, reached = self.question.judge_subjects(looks[reached]), reached + 1
        self.subjects = subjects
        is_open = [one for one in subjects if not one.word]
        noun = self.question.noun.removesuffix("s" * (len(subjects) == 1))
        lines = [f"{len(subjects)} {noun}, {len(subjects) - len(is_open)} of them decided"]
        lines += [f"  {one.name}: {one.text}" for one in is_open]
        total: dict[str, Settings] = {}
        for number, seeds in enumerate(looks[reached:], start=reached + 1):
            jobs = self.pending_jobs(subjects, seeds, projected=True)
            new = {one.identity: one for one in settings_of(jobs) if one.identity not in total}
            total |= new
            if new:
                self.rows.append({"look": number, "seeds": seeds, "runs": len(new)})
                lines.append(f"look {number}, {seeds} seeds: about {count_runs(len(new))}")
        if is_open and not total:
            lines.append(f"no runs: more seeds decide none of these {self.question.noun}")
        if settings := list(total.values()):
            workers = min(workers_of(chosen_config(self.words).hydra), len(settings))
            lines.append(f"until look {len(looks)} about {count_runs(len(settings))}")
            self.cost = estimate_cost(settings, self.outputs, workers, measure, preflight)
            lines += self.cost.lines
        return "\n".join(lines)

    def pending_jobs(self, subjects: Sequence[Subject], look: int, projected: bool = False) -> list[Job]:
        """Return the jobs of a look that are neither finished nor were launched by this command."""
        wanted = self._wanted_runs(subjects, look, projected)
        seeds = sorted({seed for _, seed in wanted})
        jobs = [job for seed in seeds for name, job in self.jobs(seed).items() if (name, seed) in wanted]
        if not projected:
            self.asked |= {one.identity: job for one, job in zip(settings_of(jobs), jobs, strict=True)}
        left = [job for job in jobs if job.settings and job.settings.identity not in self._launched]
        return [job for job, result in pending.find_finished(left) if result is None]

    def _wanted_runs(self, subjects: Sequence[Subject], look: int, projected: bool = False) -> set[tuple[str, int]]:
        """Return (experiment, seed) of the runs that a look needs. A subject with a failed run waits, since a
        look with fewer seeds decides nothing."""
        wanted = [one.wanted_runs(look, projected) for one in subjects]
        return set().union(*(runs for runs in wanted if not runs & self._failed))

    @cached_property
    def decision(self) -> Decision:
        """The decision that the folder of the runs keeps for reports and for a repeated command."""
        decision = self.question.decision
        path = decision.path(self.own_folder)
        before = read_decision(path).seconds_before if path.exists() else self._computed_seconds(decision.experiments)
        return replace(decision, seconds_before=before)

    def _computed_seconds(self, experiments: Sequence[str]) -> float:
        """Return the seconds that the runs in this command's folder took, which other sweeps' runs are not."""
        names = set(experiments)
        past = finished_in([self.own_folder], MEASURED)
        return sum(one.seconds for one in past if not one.is_archived and one.summary.get("experiment") in names)

    def _lacking_hours(self, jobs: Sequence[Job]) -> str:
        """Return the reason why a look does not fit into the hours; empty if it fits or no estimate exists."""
        if self.request.hours is None:
            return ""
        spent = (self._computed_seconds(self.decision.experiments) - self.decision.seconds_before) / 3600
        left = self.request.hours - spent
        settings = settings_of(jobs)
        estimates = estimate_runs(settings, past_runs(settings, self.outputs))
        needed = sum(one.seconds for one in estimates if one is not None) / 3600
        if left > 0 and needed <= left:
            return ""
        return f"{spent:.2g} are spent, the next runs take about {needed:.2g}"

    def _launch(self, jobs: list[Job]) -> int:
        """Run these jobs as one multirun. Returns 75 if it was stopped, 1 if a run failed, else 0."""
        self._launched |= {one.identity for one in settings_of(jobs)}
        code = launch_jobs(jobs, self.words, self.folder)
        result = pending.state.result
        failed: list[Settings] = [] if result is None else settings_of(job for job, _ in result.failed)
        self._failed |= {(one.experiment, one.root.seed) for one in failed}
        return code if code == EXIT_INTERRUPTED else int(bool(failed))

    def _say_end(self, subjects: Sequence[Subject], seeds: int) -> None:
        show(self.question.describe(subjects))
        runs = self.finished_runs(seeds)
        if runs is not None and (steps := describe_default_steps(runs)):
            self.default_steps = steps
            show(steps)
        if runs is not None and (mixed := describe_mixed_makers(runs)):
            say(mixed)
        if waiting := [one for one in subjects if one.wanted_runs(seeds) & self._failed]:
            counts = f"{len(waiting)} of {len(subjects)} {self.question.noun}"
            say(f"{counts} wait for failed runs; the same command tries them")
