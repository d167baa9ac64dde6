"""The pages in ``results`` follow from the archives beside them: each is written again and compared.

The slow tier compares every byte of Markdown, CSV and JSON of three papers' pages. ``make pages-check`` has all pages,
draws their figures, and compares the overviews at scale small.
"""

from __future__ import annotations

import functools
import os
from importlib.metadata import version
from pathlib import Path

import pytest

from asyncfl_bench import load_bank
from asyncfl_bench.reports import board, cli
from asyncfl_bench.reports.bank_page import write_bank_page
from asyncfl_bench.reports.board import SCALE
from asyncfl_bench.reports.judged_claims import judge_claims, read_pages
from asyncfl_bench.reports.pages import write
from asyncfl_bench.reports.pages.page import Page
from asyncfl_bench.tracking import archive, runs

RESULTS = Path(__file__).parents[2] / "results"
CHECKS_ALL = "PAGES_CHECK" in os.environ
QUICK = ("asyncfeded", "fedecho", "gas")  # the other archives take minutes
PAGES = sorted(
    path.parent.relative_to(RESULTS).as_posix()
    for path in RESULTS.glob("*/*/*/README.md")
    if (CHECKS_ALL or path.parents[2].name in QUICK)
    and SCALE not in path.parent.name.split("-")  # not committed, but in their overview
)
OVERVIEWS = sorted(path.parents[1].name for path in RESULTS.glob(f"*/{SCALE}/README.md"))
DRAWN_BY = {"matplotlib": "3.11.2", "pillow": "13.0.0"}  # the committed figures; other versions draw other pixels

pytestmark = pytest.mark.slow
only_in_check = pytest.mark.skipif(not CHECKS_ALL, reason="takes minutes: make pages-check")
original_load_runs = runs.load_runs


@functools.lru_cache(maxsize=1)  # the cases of a paper follow each other, and the runs of all papers need 4 GB
def load_archived_runs(*places):
    archive._read_checked_records.cache_clear()
    return original_load_runs(*places)


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Call afl-report for pages of a paper, with the runs of its archive alone."""
    monkeypatch.setattr(runs, "load_runs", load_archived_runs)
    monkeypatch.setattr(Page, "pack_runs", lambda *_: None)
    if not CHECKS_ALL:
        monkeypatch.setattr(write, "write_picture", lambda *_: None)

    def call(paper, *words):
        places = ["--runs", str(RESULTS / paper), "--archive", str(RESULTS / paper)]
        assert cli.main([*words, *places, "--out", str(tmp_path)]) == 0

    return call


def skip_other_versions() -> None:
    if (here := {name: version(name) for name in DRAWN_BY}) != DRAWN_BY:
        pytest.skip(f"all text is equal; the figures are drawn by {DRAWN_BY}, not by {here}")


def compare_folders(written: Path, committed: Path) -> None:
    """Every file that is not a figure; the figures too if they are drawn by the versions of the committed ones."""
    found, expected = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (written, committed))
    figures = {name for name in expected if name.endswith(".png")}
    assert found.keys() - figures == expected.keys() - figures
    assert [name for name in sorted(expected.keys() - figures) if found[name] != expected[name]] == []
    if CHECKS_ALL and figures:
        skip_other_versions()
        assert [name for name in sorted(figures) if found.get(name) != expected[name]] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_written_again_is_the_committed_one(page, report, tmp_path):
    paper, sweep, name = page.split("/")
    flags = zip(("--profile", "--scale", "--length"), name.split("-"), strict=False)
    report(paper, f"{paper}/{sweep}", *(word for flag in flags for word in flag))
    compare_folders(tmp_path / page, RESULTS / page)


@only_in_check
@pytest.mark.parametrize("paper", OVERVIEWS)
def test_an_overview_of_pages_at_scale_small_written_again_is_the_committed_one(paper, report, tmp_path):
    report(paper, paper, "--scale", SCALE)
    compare_folders(tmp_path / paper / SCALE, RESULTS / paper / SCALE)


@only_in_check
def test_a_figure_of_two_profiles_drawn_again_is_the_committed_one(report, tmp_path):
    skip_other_versions()
    report("ace", "ace/figure2", "--scale", "medium", "--beside", "published", "fair")
    for path in (RESULTS / "ace" / "figure2").glob("*.png"):
        assert (tmp_path / "ace" / "figure2" / path.name).read_bytes() == path.read_bytes()


@only_in_check
def test_figures_of_the_bank_drawn_again_are_the_committed_ones(tmp_path):
    skip_other_versions()
    write_bank_page(load_bank(), tmp_path)
    for path in (RESULTS / "bank").glob("*.png"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_the_board_has_the_verdicts_of_the_committed_pages():
    rows = judge_claims(read_pages(RESULTS))
    assert (RESULTS / "README.md").read_text("utf-8") == board.board_text(rows)
    assert (RESULTS / board.CLAIMS).read_text("utf-8") == board.claims_csv(rows)


def test_the_page_of_a_rule_has_the_claims_bank_and_findings_of_today():
    texts = board.rule_texts(judge_claims(read_pages(RESULTS)), RESULTS)
    assert {path.stem: path.read_text("utf-8") for path in (RESULTS / "by_rule").iterdir()} == texts, "make rules"
