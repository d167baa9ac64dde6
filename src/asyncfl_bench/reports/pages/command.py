"""The part of ``afl-report`` that writes pages."""

from __future__ import annotations

import sys
from pathlib import Path

from ...config import choices as composing
from ...errors import BenchError, ConfigError, did_you_mean
from ...sweep import jobs as planning
from ..load import flatten
from .frame import Combination
from .item import Item
from .make import ITEMS, NoRuns, combinations, make_page
from .selection import Grid


class NoPage(BenchError):
    """A name or a choice for which there is no page."""

    exit_code = ConfigError.exit_code


def sweeps_named(name: str) -> list[str]:
    """The sweeps with a page that ``name`` means: one, those of a paper, or all; none for any other name."""
    return [sweep for sweep in ITEMS if name in (sweep, sweep.partition("/")[0], "all")]


def items_of(names: list[str]) -> list[Item] | None:
    """The pages that ``names`` mean: a sweep, a paper, or ``all``; None when they mean directories.

    Raises NoPage when a name is neither, or when pages and directories are mixed.
    """
    found: dict[str, Item] = {}
    others = []
    for name in names:
        sweeps = sweeps_named(name)
        found |= {sweep: ITEMS[sweep] for sweep in sweeps}
        if not sweeps:
            others.append(name)
    unknown = [name for name in others if not Path(name).is_dir()]
    papers = {sweep.partition("/")[0] for sweep in ITEMS}
    for name in unknown:
        if name in composing.options("sweep"):
            raise NoPage(f"{name}: a sweep that has no page; compare its runs with: afl-report runs/{name}")
        near = did_you_mean(name, ITEMS)
        if near or name.partition("/")[0] in papers:
            raise NoPage(f"{name}: neither a directory nor a page{near}; pages: {', '.join(ITEMS)}")
    if others and found:
        raise NoPage(f"{others[0]}: a directory cannot be asked for together with the page {next(iter(found))}")
    return list(found.values()) or None


def write_pages(items: list[Item], runs: Path, out: Path, wanted: dict[str, str]) -> int:
    """Writes every page for which there are runs. One page that fails does not take the others with it.

    wanted   profile, scale, horizon: only these
    Returns the exit code: 0, or 1 when a page failed. Raises NoPage when there are no runs for any of them.
    """
    for key, value in wanted.items():
        if value not in composing.options(key):
            raise NoPage(f"--{key} {value}: must be one of {', '.join(composing.options(key))}")
    jobs = [(item, one) for item in items for one in combinations(runs, item) if _matches(one, wanted)]
    code, empty = 0, 0
    for item, combination in jobs:
        try:
            print(f"written: {make_page(item, combination, runs, out, sweep_grids, _settings)}")
        except NoRuns:  # of a page that only borrows: there is nothing wrong with the lender
            empty += 1
        except BenchError as error:
            print(f"afl-report: {error}", file=sys.stderr)
            code = 1
        except OSError as error:
            raise BenchError(f"cannot write to {out}: {error.strerror}; choose another place with --out") from error
    if empty == len(jobs):
        sweep = items[0].sweep
        chosen = " ".join(f"{key}={value}" for key, value in (_FIRST | wanted).items())
        raise NoPage(f"{runs / sweep}: no runs found; to make them: afl-run -m sweep={sweep} {chosen}")
    return code


_FIRST = {"profile": "paper", "scale": "small"}


def _matches(combination: Combination, wanted: dict[str, str]) -> bool:
    return all((getattr(combination, key) or "standard") == value for key, value in wanted.items())


def sweep_grids(overrides: list[str]) -> list[Grid] | None:
    """The grids of a sweep; None when its file is not part of this installation."""
    sweep = overrides[0].partition("=")[2]
    if sweep not in composing.options("sweep"):
        return None
    chosen = {text.partition("=")[0] for text in overrides}  # the same for all runs of a folder
    return [
        {key: values for key, values in grid.items() if key not in chosen} for grid in planning.sweep_grids(overrides)
    ]


def _settings(jobs: list[list[str]]) -> list[dict[str, object]]:
    from ...config.composition import compose

    composed = [compose(job) for job in jobs]
    return [flatten(settings.tree) for settings in composed]
