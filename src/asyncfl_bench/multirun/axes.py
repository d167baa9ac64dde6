"""The axes of a multirun: those of the command line and of every file that is composed for one of its runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from ..config.choices import choice_file, groups
from ..config.composition import Compositions, compose
from ..config.interpolations import expand_overrides
from ..config.overrides import Override, parse_override
from ..config.settings import SEARCH_SPACE
from ..config.variants import papers_with
from ..errors import BenchError, ConfigError, check, describe_place, format_value
from .grid import OverrideGrid, combine
from .launchers import check_launcher, check_sweeper
from .search import SHORT, Search, draw_grids

MOST_DECLARED = 4  # settings of a rule's space: more need more trials


@dataclass(frozen=True)
class SearchedGrid:
    """A grid, and the search that draws from its ranges."""

    grid: OverrideGrid
    search: Search

    def draw(self) -> list[OverrideGrid]:
        """Return one grid per trial. Raises ConfigError."""
        return draw_grids(self.grid, self.search)


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
    """The grids of a multirun as the first choices of its axes name them, overridden by ``overrides``.

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

    has_stages  every rule must declare ranges: other people compare what is judged
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
            check(ok, "algorithm", rule, f"{must}; {write} {describe_place(choice_file('algorithm', rule))}")
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
    """Return what a composed config says of the axes of a multirun."""
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
    """The grids of a multirun with the values that its searches draw instead of ranges. Raises ConfigError."""
    return [drawn for one in searched_grids(overrides) for drawn in one.draw()]


def chosen_config(overrides: Sequence[str]) -> Any:
    """The config with what ``overrides`` choose, each at its first value: a sweep file's own settings depend on that.

    Raises ConfigError.
    """
    check_chosen(overrides)
    words = [one.text_of_first_value for one in map(parse_override, overrides) if one.values]
    return Compositions().compose_choices(map(parse_override, words)).config


def check_chosen(overrides: Sequence[str]) -> None:
    """Raise ConfigError for a launcher or a sweeper that there is not."""
    checks = {"hydra/launcher": check_launcher, "hydra/sweeper": check_sweeper}
    for one in map(parse_override, overrides):
        if one.key in checks:
            checks[one.key](",".join(one.values))
        elif (group := one.key.removesuffix("._target_").replace(".", "/")) in checks:
            raise ConfigError(one.key, ",".join(one.values), f"is chosen by name: {group}=NAME")


def asks_for_multirun(overrides: list[str]) -> bool:
    """Return True if the overrides name a sweep file, or a file or word that sets Hydra's mode to MULTIRUN."""
    if any(parse_override(text).key == "sweep" and text != "sweep=null" for text in overrides):
        return True
    mode = chosen_config(overrides).hydra.mode
    return mode is not None and mode.name == "MULTIRUN"


def sweep_name(overrides: list[str]) -> str | None:
    """``ace/figure2/published-small``, with ``-long`` for the greater length: a sweep's name, and the folder of its
    runs."""
    choices = chosen_config(overrides).hydra.runtime.choices
    if choices.sweep is None:
        return None
    parts = [choices.profile, choices.scale] + ([choices.length] if choices.length != "standard" else [])
    return f"{choices.sweep}/{'-'.join(parts)}"
