"""The axes of a multirun and the grids that they span: values of the command line and of files, and drawn points.

A quasi-random search draws a counted number of points from the ranges among the axes. The points are those of a
scrambled Sobol sequence: the first 64 of 128 are the 64, so a search can be made longer, and spread over machines by
counting.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from omegaconf import OmegaConf

from ..config.choices import choice_file, groups, papers_with
from ..config.composition import Compositions, chosen_config, compose, expand_overrides
from ..config.overrides import MOST_RUNS, Override, parse_override
from ..config.part_sources import page_name
from ..config.settings import SEARCH_SPACE, Settings
from ..errors import BenchError, ConfigError, InputError, check, describe_location, format_value

OverrideGrid = dict[str, list[str]]
SHORT = {"trials": "hydra.sweeper.search.trials", "shard": "hydra.sweeper.search.shard"}
_DIGITS = 4  # of a drawn number: its command can be read and typed
MOST_DECLARED = 4  # settings of a rule's space: more need more trials


def combine(
    params: Mapping[str, str], grids: Iterable[Mapping[str, str]], arguments: Iterable[str]
) -> list[OverrideGrid]:
    """Return the grids {key: values} whose union is the multirun.

    params     key -> comma-separated values, part of every grid
    grids      the same for parts of the union that have other keys, for example one algorithm's threshold
    arguments  overrides of the command line. A key that only some grids have applies to those: its values choose among
               theirs, and values no grid lists join the one that lists most of them; a range or its place taken by a
               value applies to all of them. Any other key applies to all.
    """
    union = [
        {key: list(parse_override(f"{key}={v}").values) for key, v in {**params, **grid}.items()}
        for grid in grids or [{}]
    ]
    for text in arguments:
        key, values = text.partition("=")[0], list(parse_override(text).values)
        owners = [grid for grid in union if key in grid]
        if key in params or not owners:
            for grid in union:
                grid[key] = values
            continue
        listed = {value for grid in owners for value in grid[key]}
        if any(parse_override(f"{key}={value}").draw is not None for value in (*values, *listed)):
            for grid in owners:
                grid[key] = values
            continue
        new = [value for value in values if value not in listed]
        widest = max(owners, key=lambda grid: len(grid[key]))
        for grid in owners:
            grid[key] = [value for value in values if value in grid[key]] + (new if grid is widest else [])
    return [grid for grid in union if all(grid.values())]


def jobs_of(union: list[OverrideGrid]) -> list[list[str]]:
    """Return the overrides of every job, in the order of the grids, each job once. Raises InputError for too many."""
    total = sum(math.prod(len(values) for values in grid.values()) for grid in union)
    if total > MOST_RUNS:
        raise InputError(f"this multirun has {total} runs: at most {MOST_RUNS} are planned at once; narrow an axis")
    jobs: dict[tuple[str, ...], list[str]] = {}
    for grid in union:
        for values in itertools.product(*grid.values()):
            job = [f"{key}={value}" for key, value in zip(grid, values, strict=True)]
            jobs.setdefault(tuple(sorted(job)), job)
    return list(jobs.values())


@dataclass(frozen=True)
class Search:
    """The number of drawn points, this command's share of them, and the seed of their sequence."""

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


@dataclass(frozen=True)
class SearchedGrid:
    """A grid, and the search that draws from its ranges."""

    grid: OverrideGrid
    search: Search

    @cached_property
    def ranges(self) -> dict[str, Any]:
        """The ranges by key. Their values are drawn."""
        values = {key: of[0] for key, of in sorted(self.grid.items()) if len(of) == 1}
        found = {key: parse_override(f"{key}={text}").draw for key, text in values.items()}
        return {key: draw for key, draw in found.items() if draw is not None}

    def draw(self) -> list[OverrideGrid]:
        """Return one grid per trial, with drawn values instead of ranges; the grid itself if it has no range.

        Only the first of several points with the same values counts, as for ranges of whole numbers. Raises
        ConfigError.
        """
        if not self.ranges:
            return [self.grid]
        points = list(dict.fromkeys(self._points()))
        first, step = self.search.shard_position()
        return [
            self.grid | {key: [text] for key, text in zip(self.ranges, point, strict=True)}
            for point in points[first::step]
        ]

    def _points(self) -> Iterator[tuple[str, ...]]:
        import numpy as np
        from scipy.stats import qmc

        trials = self.search.trials
        if trials is None:
            key = next(iter(self.ranges))
            how = "is a range: say how many values are drawn from it, for example trials=16"
            raise ConfigError(key, self.grid[key][0], how)
        sequence = qmc.Sobol(len(self.ranges), scramble=True, rng=np.random.default_rng(self.search.seed))
        for row in sequence.random_base2(math.ceil(math.log2(trials)))[:trials]:
            yield tuple(text_of_draw(draw, float(share)) for draw, share in zip(self.ranges.values(), row, strict=True))


def text_of_draw(draw: Any, share: float) -> str:
    """Return the value at ``share`` (0 <= share < 1) of ``Override.draw``, as text."""
    if isinstance(draw, tuple):
        return str(draw[int(share * len(draw))])
    is_whole = isinstance(draw.start, int) and isinstance(draw.end, int)
    low, high = draw.start, draw.end + is_whole  # a whole number's end is one of the numbers
    value = low * (high / low) ** share if "log" in draw.tags else low + share * (high - low)
    if is_whole:
        return str(min(int(value), draw.end))
    return f"{min(max(float(f'{value:.{_DIGITS}g}'), draw.start), draw.end):g}"


def check_objective(settings: Settings) -> None:
    """Raise ConfigError if a run will not measure the objective of its search."""
    name, share = settings.root.objective, settings.evaluation.validation_share
    measured = not name.startswith("validation/") or share > 0
    why = "needs evaluation.validation_share above 0; objective=test/accuracy would choose by the test samples"
    if not measured:
        raise ConfigError("objective", name, why)


def searched_grids(overrides: list[str], shared: Compositions | None = None) -> list[SearchedGrid]:
    """Return the grids whose union is the multirun, each with its search.

    shared  compositions that planned runs will use again
    Every combination of choices is composed, as the file of a choice may name axes as well: where these differ from
    the axes that the first choices name, the combination has its own grids. Raises ConfigError.
    """
    shared = shared or Compositions()
    base, found = chosen_config(overrides), []
    axes = _axes_of(base)
    given = {key: parse_override(f"{key}={text}").value for key, text in _expand(axes.get("search", {})).items()}
    search = Search.from_settings(given)
    for grid in sweep_grids(overrides):
        pieces = list(_split_by_choices(grid, shared))
        same = [_composed_axes(piece, overrides, shared) in (axes, None) for piece in pieces]
        if all(same):
            pieces, same = [grid], [True]
        for piece, is_same in zip(pieces, same, strict=True):
            if is_same:
                found.append(SearchedGrid(piece, search))
                continue
            chosen = _choices(piece, shared)
            rest = [text for text in overrides if text.partition("=")[0] not in chosen]
            found += searched_grids([*rest, *(f"{key}={values[0]}" for key, values in chosen.items())], shared)
    return found


def sweep_grids(overrides: list[str]) -> list[OverrideGrid]:
    """Return the grids of a multirun at the first choices of its axes, changed by ``overrides``.

    ``["sweep=ace/figure2", "scale=small", "seed=0"]`` gives every axis of the file as {key: values}, the
    seed narrowed to one value. Raises ConfigError.
    """
    config = chosen_config(overrides)
    axes, profile = _axes_of(config), config.hydra.runtime.choices.profile
    params, *grids = [_expand(grid) for grid in (axes.get("params", {}), *axes.get("grids", []))]
    if axes.get("search", {}).get("declared"):
        rules = params.pop("algorithm", config.hydra.runtime.choices.algorithm)
        grids += _declared_grids(rules, overrides, config.hydra.sweeper.get("stages") is not None)
    if "paper" in params and profile != "published":  # a sweep file lists papers that the profile does not have
        listed = params["paper"].split(",")
        params["paper"] = ",".join(paper for paper in listed if paper in papers_with(profile))
        if not params["paper"]:
            raise ConfigError("profile", profile, "must be published: this sweep's papers have no other")
    return combine(params, grids, (text for text in overrides if not parse_override(text).is_for_hydra))


def _declared_grids(rules: str, overrides: Sequence[str], has_stages: bool) -> list[dict[str, str]]:
    """Return grids with the ranges that the yaml of each rule declares: of the rules of ``overrides``, else ``rules``.

    has_stages  every rule must declare ranges, because judged results are compared with those of others
    Raises ConfigError for a rule without ranges, if the overrides have none either.
    """
    words = [parse_override(text) for text in overrides]
    rest = [one.text for one in words if one.key != "algorithm"]
    named = [one.values for one in words if one.key == "algorithm"] or [parse_override(f"algorithm={rules}").values]
    grids: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for rule in named[-1]:
        choice = [*rest, f"algorithm={rule}"]
        section: Any = OmegaConf.to_container(chosen_config(choice).algorithm)
        space = section.get(SEARCH_SPACE, {})
        key, example = f"algorithm.{SEARCH_SPACE}", '{algorithm.eta: "tag(log,interval(0.003,3))"}'
        ok = isinstance(space, dict) and len(space) <= MOST_DECLARED
        check(ok, key, space, f"at most {MOST_DECLARED} settings with ranges, for example {example}")
        for setting, text in space.items():
            ends = "finite ends a < b (above 0 for log)"
            given, must = f"{{{setting}: {text}}}", f"a range for each setting, with {ends}, for example {example}"
            check(_is_range(setting, text), key, given, must)
        if not space and (has_stages or not any(one.draw or one.key.startswith("algorithm.") for one in words)):
            space = _step_ranges(map(parse_override, choice))
            write = f"write {SEARCH_SPACE}: {_suggested_space(space)} into"
            must = (
                "a rule that declares ranges" if has_stages else "a rule with a step size, or one that declares ranges"
            )
            ok = bool(space) and not has_stages
            check(ok, "algorithm", rule, f"{must}; {write} {describe_location(choice_file('algorithm', rule))}")
        grids.setdefault(tuple(space.items()), []).append(rule)
    return [{"algorithm": ",".join(of), **dict(space)} for space, of in grids.items()]


def _is_range(setting: str, text: object) -> bool:
    """Return True if the value that a rule's yaml declares for a setting is a range."""
    try:
        return parse_override(f"{setting}={text}").draw is not None
    except ConfigError:
        return False  # the user typed the yaml, not this override


def _step_ranges(words: Iterable[Override]) -> dict[str, str]:
    """Return ranges of the step sizes that have an effect, for a rule that declares none: a tenth to ten times the
    default. Raises ConfigError."""
    chosen = [one for one in words if one.key not in SHORT and not one.is_for_hydra]
    settings = compose([f"{one.key}={one.values[0]}" if one.several else one.text for one in chosen])
    tree = settings.tree
    steps = {"algorithm.eta": tree["algorithm"].get("eta"), "client.lr": tree["client"]["lr"]}
    used = {key: step for key, step in steps.items() if step and key not in settings.idle}
    return {key: f"tag(log,interval({step / 10:.3g},{step * 10:.3g}))" for key, step in used.items()}


def _suggested_space(steps: Iterable[str]) -> str:
    """Return ranges of these step sizes, as built-in rules declare them: three decades wide."""
    of_differences = "client.lr" in steps
    bounds = {"algorithm.eta": "0.03,30" if of_differences else "0.003,3", "client.lr": "0.001,1"}
    keys = [*steps] or ["algorithm.eta"]
    return "{" + ", ".join(f'{key}: "tag(log,interval({bounds[key]}))"' for key in keys) + "}"


def _expand(grid: Any) -> dict[str, str]:
    """Return the values of a grid of a file as they are typed. Raises ConfigError."""
    check(isinstance(grid, dict), "hydra.sweeper.grids", grid, "a list of sections, each with lines KEY: VALUE,VALUE")
    for key, values in grid.items():
        is_text = not isinstance(values, list | dict)
        check(is_text or key not in groups(), key, values, "choices with commas between them, without brackets")
    words = expand_overrides(f"{key}={format_value(values)}" for key, values in grid.items())
    return {key: text.partition("=")[2] for key, text in zip(grid, words, strict=True)}


def _axes_of(config: Any) -> dict[str, Any]:
    """Return the axes of a multirun in a composed config."""
    sweeper = config.hydra.sweeper
    return {key: OmegaConf.to_container(sweeper[key]) for key in ("params", "grids", "search") if sweeper.get(key)}


def _split_by_choices(grid: OverrideGrid, shared: Compositions) -> Iterator[OverrideGrid]:
    """Yield the parts of a grid that have one value for each key that chooses files."""
    chosen = _choices(grid, shared)
    for values in itertools.product(*chosen.values()):
        yield grid | {key: [value] for key, value in zip(chosen, values, strict=True)}


def _choices(grid: OverrideGrid, shared: Compositions) -> OverrideGrid:
    """Return the axes of a grid that choose files."""
    return {key: of for key, of in grid.items() if shared.chooses_files(parse_override(f"{key}={of[0]}"))}


def _composed_axes(grid: OverrideGrid, overrides: Sequence[str], shared: Compositions) -> dict[str, Any] | None:
    """Return the axes that the files of one combination of choices name; None if it cannot be composed."""
    of_hydra = [text for text in overrides if parse_override(text).is_for_hydra]
    words = [*of_hydra, *(f"{key}={values[0]}" for key, values in _choices(grid, shared).items())]
    try:
        return _axes_of(shared.compose_choices(map(parse_override, words)).config)
    except BenchError:  # the plan says so
        return None


def drawn_grids(overrides: list[str]) -> list[OverrideGrid]:
    """Return the grids of a multirun, with drawn values instead of its searches' ranges. Raises ConfigError."""
    return [drawn for one in searched_grids(overrides) for drawn in one.draw()]


def sweep_name(overrides: list[str]) -> str | None:
    """Return ``ace/figure2/published-small``, with ``-long`` for the greater length: a sweep's name and the folder of
    its runs."""
    choices = chosen_config(overrides).hydra.runtime.choices
    if choices.sweep is None:
        return None
    return f"{choices.sweep}/{page_name(choices.profile, choices.scale, choices.length)}"
