"""A quasi-random search: ranges among the axes of a multirun, a counted number of points in them, and what came of it.

The points are those of a scrambled Sobol sequence: the first 64 of 128 are the 64, so a search can be made longer, and
spread over machines by counting.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.overrides import MOST_RUNS, Draw, parse_override
from ..errors import ConfigError, check
from .grid import Grid

if TYPE_CHECKING:
    from ..config.settings import Settings
    from .jobs import Job

SHORT = {"trials": "hydra.sweeper.search.trials", "shard": "hydra.sweeper.search.shard"}
_DIGITS = 4  # of a drawn number: its command can be read and typed
_SHOWN, _SEEDS = 3, 5


@dataclass(frozen=True)
class Search:
    """How many points are drawn, which of them are this command's, and from which sequence."""

    trials: int | None = None
    shard: str = "1/1"
    seed: int = 0

    @classmethod
    def from_sweeper(cls, sweeper: Any) -> Search:
        """Read the search settings of a composed ``hydra.sweeper``. Raises ConfigError."""
        given = dict(sweeper.get("search") or {})
        trials, seed = given.get("trials"), given.get("seed", 0)
        ok = trials is None or (type(trials) is int and 1 <= trials <= MOST_RUNS)
        check(ok, "trials", trials, f"a whole number from 1 to {MOST_RUNS}")
        check(type(seed) is int and seed >= 0, "hydra.sweeper.search.seed", seed, "a whole number >= 0")
        search = cls(trials, str(given.get("shard", "1/1")), seed)
        search.shard_position()
        return search

    def shard_position(self) -> tuple[int, int]:
        """Return (k - 1, N) of ``shard=k/N``. Raises ConfigError."""
        first, _, last = self.shard.partition("/")
        ok = re.fullmatch(r"\d{1,9}/\d{1,9}", self.shard) is not None and 1 <= int(first) <= int(last)
        check(ok, "shard", self.shard, "k/N with 1 <= k <= N, for example 3/16")
        return int(first) - 1, int(last)


def expand_short_settings(overrides: Iterable[str]) -> list[str]:
    """Replace the short keys ``trials`` and ``shard`` by the full keys of Hydra's sweeper."""
    words = [text.partition("=") for text in overrides]
    return [f"{SHORT.get(key, key)}{sign}{value}" for key, sign, value in words]


def drawn_keys(union: Iterable[Grid]) -> set[str]:
    """Return the keys whose values a search draws."""
    return {key for grid in union for key in _ranges(grid)}


def draw_grids(grid: Grid, search: Search) -> list[Grid]:
    """Return one grid per trial, with drawn values instead of ranges; the grid itself if it has no range.

    Only the first of several points with the same values counts, as for ranges of whole numbers. Raises ConfigError.
    """
    ranges = _ranges(grid)
    if not ranges:
        return [grid]
    if search.trials is None:
        key, value = next((key, grid[key][0]) for key in ranges)
        raise ConfigError(key, value, "is a range: say how many values are drawn from it, for example trials=16")
    points = dict.fromkeys(_points(list(ranges.values()), search))
    first, step = search.shard_position()
    return [
        grid | {key: [text] for key, text in zip(ranges, point, strict=True)} for point in list(points)[first::step]
    ]


def _ranges(grid: Grid) -> dict[str, Draw]:
    found = {key: parse_override(f"{key}={values[0]}").draw for key, values in sorted(grid.items()) if len(values) == 1}
    return {key: draw for key, draw in found.items() if draw is not None}


def _points(ranges: Sequence[Draw], search: Search) -> Iterator[tuple[str, ...]]:
    import numpy as np
    from scipy.stats import qmc

    assert search.trials is not None
    sequence = qmc.Sobol(len(ranges), scramble=True, rng=np.random.default_rng(search.seed))
    shares = sequence.random_base2(math.ceil(math.log2(search.trials)))[: search.trials]
    for row in shares:
        yield tuple(_text(draw, float(share)) for draw, share in zip(ranges, row, strict=True))


def _text(draw: Draw, share: float) -> str:
    """The value that lies at ``share`` (0 <= share < 1) of the range."""
    if draw.choices:
        return draw.choices[int(share * len(draw.choices))]
    low, high = draw.low, draw.high + draw.whole  # a whole number's end is one of the numbers
    value = low * (high / low) ** share if draw.log else low + share * (high - low)
    if draw.whole:
        return str(min(int(value), int(draw.high)))
    return f"{min(max(float(f'{value:.{_DIGITS}g}'), draw.low), draw.high):g}"


def check_objective(settings: Settings) -> None:
    """Raises ConfigError where a run will not measure what is to be searched by."""
    name, share = settings.root.objective, settings.evaluation.validation_share
    measured = not name.startswith("validation/") or share > 0
    why = "needs evaluation.validation_share above 0; objective=test/accuracy would choose by the test samples"
    if not measured:
        raise ConfigError("objective", name, why)


def describe_best_trials(jobs: Sequence[Job], places: Mapping[str, Path]) -> str:
    """Return the result of a search as text: the best trials, and a command that tests the best one over seeds.

    places  see ``pending.places_of``
    The text is empty without a search. Trials with fewer finished seeds than others do not compete: a trial that
    diverges for some seeds must not win by its other seeds.
    """
    values: dict[tuple[str, ...], dict[tuple[str, ...], list[float]]] = {}
    last: dict[tuple[str, ...], Settings] = {}  # that of the greatest seed
    for job in jobs:
        if job.drawn and job.settings is not None:
            rest = tuple(text for text in job.overrides if text not in job.drawn and not text.startswith("seed="))
            last[rest] = max(job.settings, last.get(rest, job.settings), key=lambda settings: settings.root.seed)
            trials = values.setdefault(rest, {})
            of_trial = trials.setdefault(job.drawn, [])
            result = job.finished_result(places, again=True)
            value = math.nan if result is None else result.value(job.settings.root.objective)
            if not math.isnan(value):
                of_trial.append(value)
    return "\n".join(_describe_trials(rest, last[rest], trials) for rest, trials in values.items())


def _describe_trials(rest: tuple[str, ...], settings: Settings, trials: dict[tuple[str, ...], list[float]]) -> str:
    """Return the ranked trials of one search as text, and the command that tests the best one."""
    objective = settings.root.objective
    most = max(map(len, trials.values()))
    means = {trial: sum(of) / most for trial, of in trials.items() if most and len(of) == most}
    what = " ".join(text for text in rest if text.startswith(("algorithm=", "sweep="))) or "the search"
    lines = [f"\n{what}: {len(means)} of {len(trials)} trials have {objective}"]
    ranked = sorted(means, key=lambda trial: means[trial], reverse=not objective.endswith("loss"))
    lines += [f"  {means[trial]:.4f}  {' '.join(trial)}" for trial in ranked[:_SHOWN]]
    if ranked:
        seeds = ",".join(str(settings.root.seed + 1 + i) for i in range(_SEEDS))
        folder = f"{Path(settings.root.output_dir)}-best"
        command = ["afl-run", "-m", *rest, *ranked[0], f"seed={seeds}", f"hydra.sweep.dir={folder}"]
        lines.append(f"the best on test samples, over seeds it was not chosen by:\n  {shlex.join(command)}")
    return "\n".join(lines)
