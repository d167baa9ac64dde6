"""A quasi-random search: ranges among the axes of a multirun, a counted number of points in them.

The points are those of a scrambled Sobol sequence: the first 64 of 128 are the 64, so a search can be made longer, and
spread over machines by counting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..config.overrides import MOST_RUNS, Draw, parse_override
from ..errors import ConfigError, check
from .grid import OverrideGrid

if TYPE_CHECKING:
    from ..config.settings import Settings

SHORT = {"trials": "hydra.sweeper.search.trials", "shard": "hydra.sweeper.search.shard"}
_DIGITS = 4  # of a drawn number: its command can be read and typed


@dataclass(frozen=True)
class Search:
    """How many points are drawn, which of them are this command's, and from which sequence."""

    trials: int | None = None
    shard: str = "1/1"
    seed: int = 0
    declared: bool = False  # the ranges are those that the rules' yaml declare

    @classmethod
    def from_settings(cls, given: Mapping[str, Any]) -> Search:
        """Return the search with the settings of ``hydra.sweeper.search``. Raises ConfigError."""
        trials, seed = given.get("trials"), given.get("seed", 0)
        ok = trials is None or (type(trials) is int and 1 <= trials <= MOST_RUNS)
        check(ok, "trials", trials, f"a whole number from 1 to {MOST_RUNS}")
        check(type(seed) is int and seed >= 0, "hydra.sweeper.search.seed", seed, "a whole number >= 0")
        search = cls(trials, str(given.get("shard", "1/1")), seed, bool(given.get("declared")))
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


def drawn_keys(grid: OverrideGrid) -> list[str]:
    """Return the keys whose values a search draws."""
    return [*_ranges(grid)]


def draw_grids(grid: OverrideGrid, search: Search) -> list[OverrideGrid]:
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


def _ranges(grid: OverrideGrid) -> dict[str, Draw]:
    found = {key: parse_override(f"{key}={values[0]}").draw for key, values in sorted(grid.items()) if len(values) == 1}
    return {key: draw for key, draw in found.items() if draw is not None}


def _points(ranges: Sequence[Draw], search: Search) -> Iterator[tuple[str, ...]]:
    import numpy as np
    from scipy.stats import qmc

    assert search.trials is not None
    sequence = qmc.Sobol(len(ranges), scramble=True, rng=np.random.default_rng(search.seed))
    shares = sequence.random_base2(math.ceil(math.log2(search.trials)))[: search.trials]
    for row in shares:
        yield tuple(text_of_draw(draw, float(share)) for draw, share in zip(ranges, row, strict=True))


def text_of_draw(draw: Draw, share: float) -> str:
    """Return the value at ``share`` (0 <= share < 1) of the range, as text."""
    if draw.choices:
        return draw.choices[int(share * len(draw.choices))]
    low, high = draw.low, draw.high + draw.whole  # a whole number's end is one of the numbers
    value = low * (high / low) ** share if draw.log else low + share * (high - low)
    if draw.whole:
        return str(min(int(value), int(draw.high)))
    return f"{min(max(float(f'{value:.{_DIGITS}g}'), draw.low), draw.high):g}"


def check_objective(settings: Settings) -> None:
    """Raise ConfigError where a run will not measure what is to be searched by."""
    name, share = settings.root.objective, settings.evaluation.validation_share
    measured = not name.startswith("validation/") or share > 0
    why = "needs evaluation.validation_share above 0; objective=test/accuracy would choose by the test samples"
    if not measured:
        raise ConfigError("objective", name, why)
