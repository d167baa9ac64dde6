"""The result of a search: its best trials, and the command that tests the best one over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..config.places import command_text
from .jobs import Job

_SHOWN, _SEEDS = 3, 5


def describe_best_trials(jobs: Sequence[Job], places: Mapping[str, Path]) -> str:
    """Return the result of a search as text: the best trials, and a command that tests the best one over seeds.

    places  see ``pending.places_of``
    The text is empty without a search. Trials with fewer finished seeds than others do not compete: a trial that
    diverges for some seeds must not win by its other seeds.
    """
    values: dict[tuple[str, ...], dict[tuple[str, ...], list[tuple[str, float]]]] = {}
    last: dict[tuple[str, ...], Job] = {}  # that of the greatest seed
    for job in jobs:
        if job.drawn and job.settings is not None:
            rest = tuple(text for text in job.overrides if text not in job.drawn and not text.startswith("seed="))
            last[rest] = max(job, last.get(rest, job), key=lambda one: one.settings.root.seed if one.settings else 0)
            trials = values.setdefault(rest, {})
            of_trial = trials.setdefault(job.drawn, [])
            result = job.finished_result(places, repeated=True)
            value = math.nan if result is None else result.value(job.settings.root.objective)
            if result is not None and not math.isnan(value):
                of_trial.append((result.summary.get("code_digest", ""), value))
    return "\n".join(_describe_trials(rest, last[rest], trials) for rest, trials in values.items())


def _describe_trials(rest: tuple[str, ...], last: Job, trials: dict[tuple[str, ...], list[tuple[str, float]]]) -> str:
    """Return the ranked trials of one search as text, and the command that tests the best one.

    trials  (digest of the user's code, value of the objective) of each seed; of several codes the present one counts
    """
    assert last.settings is not None
    root, code = last.settings.root, last.settings.code_digest
    objective = root.objective
    several = len({found for of in trials.values() for found, _ in of}) > 1
    values = {trial: [value for found, value in of if not several or found == code] for trial, of in trials.items()}
    most = max(map(len, values.values()))
    means = {trial: sum(of) / most for trial, of in values.items() if most and len(of) == most}
    what = " ".join(text for text in rest if text.startswith(("algorithm=", "sweep="))) or "the search"
    lines = [f"\n{what}: {len(means)} of {len(trials)} trials have {objective}"]
    lines += ["  runs of another code of its classes are left out; rerun=true repeats them"] if several else []
    ranked = sorted(means, key=lambda trial: means[trial], reverse=not objective.endswith("loss"))
    lines += [f"  {means[trial]:.4f}  {' '.join(trial)}" for trial in ranked[:_SHOWN]]
    if ranked:
        seeds = ",".join(str(root.seed + 1 + i) for i in range(_SEEDS))
        words = [text for text in last.hydra if not text.startswith("hydra.sweep.")]
        words += [*rest, *ranked[0], f"seed={seeds}", f"hydra.sweep.dir={Path(root.output_dir)}-best"]
        lines.append(f"the best on test samples, over seeds it was not chosen by:\n  {command_text(['-m', *words])}")
    return "\n".join(lines)
