"""The pages in ``results`` show the runs in its archives."""

import json
from pathlib import Path

import pytest

from asyncfl_bench.analysis.grids import grid_of
from asyncfl_bench.analysis.place import page_overrides
from asyncfl_bench.papers import paper_pages
from asyncfl_bench.reports.assembly import measured_page
from asyncfl_bench.tracking.runs import load_runs

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.slow
@pytest.mark.parametrize("paper", sorted(path.parent.name for path in RESULTS.glob("*/archive")))
def test_every_page_has_all_archived_runs_of_its_sweep(paper):
    """A run that one sweep adds to an archive also belongs to the pages of the sweeps that share it."""
    runs, pages, stale = load_runs(RESULTS / paper), paper_pages(), []
    for verdicts in sorted(RESULTS.glob(f"{paper}/*/*/claims.json")):
        of = json.loads(verdicts.read_text("utf-8"))
        chosen = (of["sweep"], of["profile"], of["scale"], of["length"])
        page = measured_page(pages[of["sweep"]], grid_of(*chosen, page_overrides(runs, *chosen)), runs)
        if f" {len(page.runs)} used" not in verdicts.with_name("README.md").read_text("utf-8"):
            stale.append("afl-report {} --profile {} --scale {} --length {}".format(*chosen))
    assert not stale
