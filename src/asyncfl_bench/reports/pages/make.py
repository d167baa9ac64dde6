"""``afl-report ace/figure2``: from the run directories of a sweep to a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...errors import BenchError
from ..load import Run, find_run_directories, load_run
from .ace import ITEMS as ACE_ITEMS
from .asyncfeded import ITEMS as ASYNCFEDED_ITEMS
from .changed import SettingsOf, changed_settings
from .folder import PageFolder
from .frame import (
    Combination,
    coverage_part,
    diverged_part,
    origin_part,
    partly_tuned_part,
    standing,
    tuning_part,
    undecided_part,
)
from .item import Item, Page
from .selection import STEP, Grid, of_sweep, select
from .tuning import spent_on_tuning, tune

ITEMS = {item.sweep: item for item in (*ACE_ITEMS, *ASYNCFEDED_ITEMS)}
GridsOf = Callable[[list[str]], list[Grid] | None]  # the overrides of a sweep -> its grids; None: not at hand


class NoRuns(BenchError):
    """There are runs in a lender's folder only, and none of them is one of this sweep."""


def combinations(runs: Path, item: Item) -> list[Combination]:
    """Profile, scale and horizon of every folder of runs of the sweep or its lenders, in alphabetical order."""
    folders = [folder for sweep in (item.sweep, *item.lenders) if (folder := runs / sweep).is_dir()]
    names = {path.name: path for folder in folders for path in folder.iterdir() if find_run_directories([path])}
    found = [Combination.of_folder(name) for name in sorted(names)]
    return [one for one in found if one is not None]


def make_page(
    item: Item,
    combination: Combination,
    runs: Path,
    out: Path,
    grids_of: GridsOf,
    settings_of: SettingsOf | None = None,
) -> Path:
    """Writes ``<out>/<sweep>/<combination>/README.md`` with its figures and tables and returns its path.

    runs         folder that holds ``<sweep>/<combination>/``
    settings_of  tells at the paper's scale whether runs have settings of their own; without it none is looked for
    Raises BenchError when no run ended well or runs of one cell were configured differently, NoRuns when there is none.
    """
    source = runs / item.sweep / combination.folder
    overrides = combination.overrides(item.sweep)
    grids = grids_of(overrides)
    loaded = _loaded(source)
    tuned = item.tuned if combination.profile == "fair" else STEP
    for lender in item.lenders:
        own = {run.path.name for run in loaded}  # a directory's name tells its settings
        lent = of_sweep(_loaded(runs / lender / combination.folder), grids, tuned)
        loaded += [run for run in lent if run.path.name not in own]
    if not loaded:
        raise NoRuns(f"{source}: no runs found, and none that {' or '.join(item.lenders)} could lend")
    foreign = {
        key: sorted({run.choices[key] for run in loaded if run.choices.get(key, wanted) != wanted})
        for key, wanted in (("profile", combination.profile), ("scale", combination.scale))
    }
    for key, values in foreign.items():
        if values:
            raise BenchError(f"{source}: holds runs of {key}={', '.join(values)}; a page is about one {key} only")
    selection = select(loaded, item.cell_keys, grids, source, tuned)
    if not selection.runs:
        reasons = sorted({reason for _, reason in selection.coverage.left_out})
        raise BenchError(f"{source}: no run to show: {len(loaded)} found, all {' or '.join(reasons)}")
    evidence = tune(selection)
    target = out / item.sweep / combination.folder
    changed = {}
    if settings_of is not None and grids is not None and combination.scale == "paper":
        changed = changed_settings(selection, grids, overrides, settings_of)
    page = Page(item, combination, evidence, PageFolder(target), changed)
    runs_command = " ".join(["afl-run", "-m", *overrides])
    horizon = f" --horizon {combination.horizon}" if combination.horizon else ""
    page_command = f"afl-report {item.sweep} --profile {combination.profile} --scale {combination.scale}{horizon}"
    stands = standing(combination, selection.all_runs, item.problems, item.fair, changed)
    parts = [f"# {item.title}", stands, item.shows]
    parts += [undecided_part(evidence), partly_tuned_part(evidence), diverged_part(evidence, selection)]
    parts += item.build(page)
    if chosen := tuning_part(evidence):
        name = tuned.rpartition(".")[2]
        text = page.folder.table(f"chosen_{name}", *chosen)
        parts += [
            "## Steps chosen",
            f"`{tuned}` with the best mean validation accuracy [%] of its last evaluation, per algorithm and cell; "
            f"test accuracies are reported for this {name} only. {spent_on_tuning(evidence)}\n\n{text}",
        ]
    parts.append(coverage_part(selection.coverage, runs_command))
    parts.append(origin_part(selection.all_runs, [runs_command, page_command]))
    page.folder.page(parts)
    return target / "README.md"


def _loaded(folder: Path) -> list[Run]:
    return [load_run(path) for path in find_run_directories([folder])] if folder.is_dir() else []
