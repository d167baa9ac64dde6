"""The replication report of a paper: each claim once, what was run, and the commands that repeat it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from reports.chromium import Chromium, missing
from reports.claims_by_hand import demo, write_pages
from reports.runs_by_hand import write_run

from asyncfl_bench.reports import logbook
from asyncfl_bench.reports.cli import main
from asyncfl_bench.reports.pages.spec import PageSpec
from asyncfl_bench.tracking.archive import pack_archive

__all__ = ["demo"]  # a fixture

SENTENCES = {  # of every claim: how often its sentence is there
    "ACE is faster than FedBuff": 1,
    "ACE is more accurate than FedBuff": 1,
    "ACE ends highest (CIFAR)": 1,
    "ACE ends highest (MNIST)": 1,
    "ACE keeps": 1,
    "ACE ends higher in the same time": 1,
    "ACE converges": 1,
    "ACE is cheaper": 1,
}
SPECS = (
    PageSpec("demo/figure1", "Demo paper, figure 1: curves", "", (), (), problems=("cifar10 with resnet18",)),
    PageSpec("demo/figure8", "Demo paper, figure 8: a search", "", (), (), tuned=("algorithm.eta",)),
    PageSpec("demo/figure9", "Demo paper, figure 9: more clients", "", (), ()),
)
MADE_FOR = {"choices__sweep": "demo/figure1", "choices__profile": "published", "choices__scale": "medium"}
TAKEN = "it takes --out, --html, --archive and --config-dir"
MADE_FOR |= {"client__local_steps": 1, "client__batch_size": 50, "algorithm__eta": 0.2, "client__optimizer": "sgd"}


@pytest.fixture
def results(tmp_path, demo, monkeypatch) -> Path:
    """Pages of ``demo``, and an archive: five runs of figure 1 at scale medium, of which one diverged,
    and a search of FedBuff's step size."""
    monkeypatch.setattr(logbook, "paper_pages", lambda: {spec.sweep: spec for spec in SPECS})
    task = {"train_samples": 1437, "test_samples": 360, "classes": 10}
    versions = {"versions": {"asyncfl_bench": "0.1.0", "torch": "2.9.0"}, "git_revision": 40 * "a", "device": "cpu (4)"}
    versions |= {"parameters": 15010, "task": task}
    for seed in range(5):
        write_run(
            tmp_path / "runs",
            seed=seed,
            status="diverged" if seed == 4 else "ok",
            summary={"wall_seconds": 1800.0, **versions},
            budget={"uploads": 500, "virtual_time": None},
            **MADE_FOR,
        )
    for eta in (0.1, 0.2, 0.4, 0.8, 1.6):  # a search that no claim is about
        more = {"algorithm__eta": eta, "algorithm__buffer_size": 10, "client__local_epochs": 2, "concurrency": 5}
        write_run(
            tmp_path / "runs",
            "fedbuff",
            summary={"wall_seconds": 360.0, **versions},
            budget={"uploads": None, "virtual_time": 30.0},
            **MADE_FOR | {"choices__sweep": "demo/figure8", "choices__profile": "fair"} | more,
        )
    results = write_pages(tmp_path / "results")
    pack_archive([tmp_path / "runs"], results / "demo" / "archive")
    return results


def written(results: Path, *more: str) -> str:
    assert main(["demo", "--logbook", "--out", str(results), *more]) == 0
    return (results / "demo" / "logbook.md").read_text()


def section(text: str, heading: str) -> str:
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_each_claim_is_there_once_with_its_verdict(results):
    text = written(results)
    assert {sentence: text.count(sentence) for sentence in SENTENCES} == SENTENCES
    claims = section(text, "Claims of the paper")
    first, second, *_ = [line for line in claims.splitlines() if line.startswith("| [")]
    assert "**Abstract.** ACE is more accurate than FedBuff" in first
    assert "| **holds (preliminary)** | medium |" in first
    assert "2 of 3 as claimed, 1 contrary; ACE - FedBuff: +1.56 points [-0.87, +3.98], p 0.15, 5 seeds" in second
    assert "| late | **fails** | medium |" in second
    assert "runs do not decide a bound" in section(text, "What was not run")
    assert "**tie**" in section(text, "Controls and questions")
    assert "ACE keeps" in section(text, "Results by construction")


def test_the_report_says_what_ran_for_how_long_and_how_to_repeat_it(results):
    text = written(results)
    assert section(text, "Commands").count("sweep=demo/figure1 profile=published scale=medium\n") == 1
    assert "afl-report demo/figure1_arrivals --profile published --scale medium\n" in section(text, "Commands")
    setup = section(text, "Setup")
    row = next(line for line in setup.splitlines() if "[demo/figure1 published-medium]" in line)
    settings = "digits | mlp | 15010 | 10 | 0.1 | exp_beta5 | ticks"
    assert f"| {settings} | 500 |  | ace | 0 to 4 | cpu (4) | 5 | 1 | 2.50 |" in row
    assert f"| demo/figure8 fair-medium | {settings} |  | 30.0 | fedbuff | 0 | cpu (4) | 5 | 0 | 0.50 |" in setup
    assert "All 10 archived runs of the paper took 3.00 hours of computing." in setup
    assert "1797 handwritten digits of 8x8 pixels, 10 classes; needs no download | 1437 | 360 | 10 |" in setup
    assert "| demo/figure1 published-medium |  | 50 | 1 |  | sgd | 0.1 | 0.2 |  | printed |" in setup
    search = "0.1 to 1.6 (5 values) | 10 | searched: `algorithm.eta` |"
    assert f"| demo/figure8 fair-medium | 5 | 50 | 1 | 2 | sgd | 0.1 | {search}" in setup
    assert "- torch 2.9.0\n" in section(text, "Environment") and 40 * "a" in section(text, "Environment")
    assert "`demo/figure9`: figure 9: more clients" in section(text, "What was not run")


def test_deviations_are_named(results):
    text = section(written(results), "Deviations from the paper")
    assert (
        "- demo/figure1 published-medium: digits with mlp, where the paper has cifar10 with resnet18; reading: a tick"
        in text
    )
    assert "reading: a step at every arrival" in text and "; scale `medium`.\n" in text


@pytest.mark.slow
def test_the_same_inputs_give_the_same_bytes_and_the_authors_text_stays(results, capsys):
    first = written(results, "--html")
    assert capsys.readouterr().out.splitlines() == [
        f"written: {results}/demo/logbook.{kind}" for kind in ("md", "html")
    ]
    page = (results / "demo/logbook.html").read_bytes()
    assert written(results, "--html") == first and (results / "demo/logbook.html").read_bytes() == page
    (results / "demo/logbook.md").write_text(
        first.partition(logbook.REMARKS)[0] + f"{logbook.REMARKS}\n\nIt was easy.\n"
    )
    assert written(results).endswith(f"{logbook.REMARKS}\n\nIt was easy.\n")


def test_a_report_elsewhere_names_pages_without_links(results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = written(tmp_path / "elsewhere")  # the pages are those in ./results
    assert "](" not in text and "| demo/figure1 published-medium |" in text


def test_pages_without_an_archive_still_have_a_report(results):
    shutil.rmtree(results / "demo" / "archive")
    text = written(results)
    assert "hours and devices are unknown" in text and "| demo/figure1 published-medium |" not in text
    assert text.count("ACE is faster than FedBuff") == 1


@pytest.mark.parametrize(
    "words, line",
    [
        (["dmeo"], "--logbook dmeo: no such paper (did you mean 'demo'?); papers: demo"),
        (["demo", "--out", "empty"], "--logbook demo: no pages with claims in results; to write them: afl-report demo"),
        (["demo", "ace"], "--logbook demo ace: one paper at a time, for example demo"),
        (
            ["demo", "--metric", "test/loss", "--format", "svg", "--compare", "seed", "--all-figures"],
            f"--logbook: cannot be used together with --metric, --format, --all-figures, --compare; {TAKEN}",
        ),
        (["demo", "--watch"], f"--logbook: cannot be used together with --watch; {TAKEN}"),
        (["demo", "--pack", "a.parquet"], f"--logbook: cannot be used together with --pack; {TAKEN}"),
    ],
)
def test_a_mistake_is_one_line(demo, tmp_path, monkeypatch, capsys, words, line):
    monkeypatch.chdir(tmp_path)
    assert main(["--logbook", *words]) == 2
    assert capsys.readouterr().err == f"afl-report: {line}\n"


def test_a_file_in_the_way_is_not_replaced(results, capsys):
    (results / "demo" / "logbook.md").write_text("# Notes")
    assert main(["demo", "--logbook", "--out", str(results)]) == 1
    assert "not written by afl-report; choose another place with --out" in capsys.readouterr().err
    assert (results / "demo" / "logbook.md").read_text() == "# Notes"


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_the_browser_prints_all_of_the_report(results, tmp_path):
    written(results, "--html")
    with Chromium(tmp_path) as browser:
        browser.open(results / "demo/logbook.html")
        headings = browser.run("return [...document.querySelectorAll('h2')].map((one) => one.textContent)")
        assert headings[0] == "Result" and headings[-1] == "Remarks of the authors" and len(headings) == 11
        assert not browser.complaints() and len(browser.requests()) == 1
        assert browser.printed().startswith(b"%PDF")
