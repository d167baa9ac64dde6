"""``afl-report ace/figure2``: from the run directories of a sweep to a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...errors import BenchError
from ..load import find_run_directories, load_run
from .ace import ITEMS as ACE_ITEMS
from .folder import PageFolder
from .frame import Combination, coverage_part, diverged_part, origin_part, standing, tuning_part, undecided_part
from .item import Item, Page
from .selection import Grid, select
from .tuning import spent_on_tuning, tune

ITEMS = {item.sweep: item for item in ACE_ITEMS}
GridsOf = Callable[[list[str]], list[Grid] | None]  # the overrides of a sweep -> its grids; None: not at hand


def combinations(runs: Path, sweep: str) -> list[Combination]:
    """Profile, scale and horizon of every folder of runs of the sweep, in alphabetical order."""
    folder = runs / sweep
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    found = [one for one in (Combination.of_folder(name) for name in names) if one is not None]
    return [one for one in found if find_run_directories([folder / one.folder])]


def make_page(item: Item, combination: Combination, runs: Path, out: Path, grids_of: GridsOf) -> Path:
    """Writes ``<out>/<sweep>/<combination>/README.md`` with its figures and tables and returns its path.

    runs      folder that holds ``<sweep>/<combination>/``
    Raises BenchError when no run ended well or runs of one cell were configured differently.
    """
    source = runs / item.sweep / combination.folder
    loaded = [load_run(path) for path in find_run_directories([source])]
    foreign = {
        key: sorted({run.choices[key] for run in loaded if run.choices.get(key, wanted) != wanted})
        for key, wanted in (("profile", combination.profile), ("scale", combination.scale))
    }
    for key, values in foreign.items():
        if values:
            raise BenchError(f"{source}: holds runs of {key}={', '.join(values)}; a page is about one {key} only")
    overrides = combination.overrides(item.sweep)
    selection = select(loaded, item.cell_keys, grids_of(overrides), source)
    if not selection.runs:
        reasons = sorted({reason for _, reason in selection.coverage.left_out})
        raise BenchError(f"{source}: no run to show: {len(loaded)} found, all {' or '.join(reasons)}")
    evidence = tune(selection)
    target = out / item.sweep / combination.folder
    page = Page(item, combination, evidence, PageFolder(target))
    runs_command = " ".join(["afl-run", "-m", *overrides])
    horizon = f" --horizon {combination.horizon}" if combination.horizon else ""
    page_command = f"afl-report {item.sweep} --profile {combination.profile} --scale {combination.scale}{horizon}"
    parts = [f"# {item.title}", standing(combination, selection.all_runs, item.problems), item.shows]
    parts += [undecided_part(evidence), diverged_part(evidence, selection)]
    parts += item.build(page)
    if tuned := tuning_part(evidence):
        text = page.folder.table("chosen_c", *tuned)
        parts += [
            "## Server steps chosen",
            "`algorithm.c` with the best mean validation accuracy [%] of its last evaluation, per algorithm and cell; "
            f"test accuracies are reported for this c only. {spent_on_tuning(evidence)}\n\n{text}",
        ]
    parts.append(coverage_part(selection.coverage, runs_command))
    parts.append(origin_part(selection.all_runs, [runs_command, page_command]))
    page.folder.page(parts)
    return target / "README.md"
