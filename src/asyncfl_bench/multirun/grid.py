"""The jobs of a multirun: unions of grids in a sweep file, overridden by the command line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

from ..config.overrides import MOST_RUNS, parse_override
from ..errors import InputError

OverrideGrid = dict[str, list[str]]


def combine(
    params: Mapping[str, str], grids: Iterable[Mapping[str, str]], arguments: Iterable[str]
) -> list[OverrideGrid]:
    """Grids {key: values} whose union is the multirun.

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
    """The overrides of every job, in the order of the grids, each job once. Raises InputError for too many."""
    total = sum(math.prod(len(values) for values in grid.values()) for grid in union)
    if total > MOST_RUNS:
        raise InputError(f"this multirun has {total} runs: at most {MOST_RUNS} are planned at once; narrow an axis")
    jobs: dict[tuple[str, ...], list[str]] = {}
    for grid in union:
        for values in itertools.product(*grid.values()):
            job = [f"{key}={value}" for key, value in zip(grid, values, strict=True)]
            jobs.setdefault(tuple(sorted(job)), job)
    return list(jobs.values())
