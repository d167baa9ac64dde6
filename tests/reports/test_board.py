from __future__ import annotations

from pathlib import Path

import pytest

from asyncfl_bench.analysis import claims
from asyncfl_bench.analysis.claims import NAME, PageVerdicts, Verdict, to_json
from asyncfl_bench.analysis.verdicts import read_pages
from asyncfl_bench.errors import BenchError
from asyncfl_bench.reports.pages.board import board_text, write_board
from asyncfl_bench.reports.pages.provenance import RUNS_BY

FASTER = "ACE and CA2FL come to an accuracy in fewer server iterations"


def page(sweep: str, verdict: str, claim: str, profile="published", scale="small", length="standard", **more) -> tuple:
    found = Verdict(claim, verdict, difference=1.56, low=-0.87, high=3.98, p=0.15, seeds=5, unit="points", **more)
    return PageVerdicts(sweep, profile, scale, length, (found,))


def write(results: Path, folder: str, content: PageVerdicts) -> None:
    target = results / folder
    target.mkdir(parents=True)
    (target / NAME).write_text(to_json(content))
    (target / "README.md").write_text("# a page\n")


def row(text: str, sentence: str) -> list[str]:
    [line] = [line for line in text.splitlines() if sentence in line]
    return [cell.strip() for cell in line.strip("|").split(" |")]


@pytest.fixture
def results(tmp_path) -> Path:
    claim = "ace/figure2-faster"
    write(tmp_path, "ace/figure2/fair-small", page("ace/figure2", "undecided", claim, profile="fair"))
    write(tmp_path, "ace/figure2/published-full", page("ace/figure2", "fails", claim, scale="full", contrasts=24,
                                                       agree=20, against=1))  # fmt: skip
    write(tmp_path, "ace/figure2/published-small", page("ace/figure2", "holds", claim))
    write(tmp_path, "ace/figure2/published-small-long", page("ace/figure2", "holds", claim, length="long"))
    write(
        tmp_path, "ace/figure2_time_clock/published-full", page("ace/figure2_time_clock", "holds", claim, scale="full")
    )
    write(tmp_path, "ace/figure2/published-smoke", page("ace/figure2", "fails", claim, scale="smoke"))
    for task, verdict in (("synthetic", "holds"), ("femnist", "not run"), ("shakespeare", "not run")):
        claim = f"asyncfeded/figure3-best-{task}"
        write(tmp_path, f"asyncfeded/{task}/published-full", page("asyncfeded/figure3", verdict, claim, scale="full"))
    return tmp_path


def test_a_row_is_about_the_page_nearest_to_what_is_published_and_links_the_others(results):
    cells = row(board_text(read_pages(results)), FASTER)
    assert cells[0] == "ACE, figure 2" and "section 5" in cells[1]
    assert cells[2] == "+1.56 points [-0.87, +3.98]; 20 of 24 as claimed, 1 contrary"
    assert cells[3:6] == ["**fails**", "full, 5 seeds", "[page](ace/figure2/published-full/README.md)"]
    assert cells[6].split(" · ") == [
        "[small](ace/figure2/published-small/README.md): holds",
        "[long](ace/figure2/published-small-long/README.md): holds",
        "[fair](ace/figure2/fair-small/README.md): undecided",
        "[a step at every arrival](ace/figure2_time_clock/published-full/README.md): holds",
    ]


def test_each_reading_of_a_page_is_named_beside_the_others(results):
    laws, *others = (
        page("ace/figure2_delay_laws", verdict, "ace/figure2-faster", scale="full", reading=reading)
        for reading, verdict in (("clients alike", "fails"), ("clients' own speeds", "undecided"))
    )
    both = PageVerdicts(laws.sweep, laws.profile, laws.scale, laws.length, (*laws.verdicts, *others[0].verdicts))
    folder = "ace/figure2_delay_laws/published-full"
    write(results, folder, both)
    assert read_pages(results)[f"{folder}/README.md"] == both
    assert row(board_text(read_pages(results)), FASTER)[6].split(" · ")[3:5] == [
        f"[clients alike]({folder}/README.md): fails",
        f"[clients' own speeds]({folder}/README.md): undecided",
    ]


def test_links_lead_to_pages(results):
    text = write_board(results).read_text().partition("Pages of an earlier version")[0]
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert len(links) == 6 and all((results / link).exists() for link in links)


def test_data_sets_share_a_row_and_not_run_is_no_verdict_of_a_page(results):
    cells = row(board_text(read_pages(results)), "AsyncFedED has the highest best accuracy within 300 s")
    assert cells[3] == "Synthetic: **holds**; FEMNIST, Shakespeare: **not run**"
    assert cells[2] == "Synthetic: +1.56 points [-0.87, +3.98]"
    assert cells[5] == "[page](asyncfeded/synthetic/published-full/README.md)"


def test_every_claim_of_every_paper_is_counted_once(results):
    text = board_text(read_pages(results))
    every = [claim for paper in claims.papers_with_claims() for claim in claims.read_claims(paper)]
    blocked = sum(bool(claim.blocked) for claim in every)
    counts = f"1 holds, 1 fails, {len(every) - 2 - blocked} not run, {blocked} blocked"
    assert f"{len(every)} claims: {counts}." in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len({(claim.paper, claim.group) for claim in every})
    assert {line.replace("\\|", "").count("|") for line in rows} == {8}  # bars of |B|² do not make columns


def test_without_pages_every_claim_is_not_run_or_blocked_with_its_reason(tmp_path):
    text = write_board(tmp_path / "results").read_text()
    assert row(text, "The 36 accuracies of table a.2")[2:4] == [
        "DistilBERT and BERT were not run (model=bert model.path=… takes both); its settings contradict each other "
        "(n = 100 and T = 500, or 20 and 100)",
        "**blocked**",
    ]
    assert row(text, FASTER)[2:] == ["", "**not run**", "", "", ""]


def test_the_same_pages_give_the_same_bytes_and_a_strange_file_is_named(results):
    first = write_board(results).read_bytes()
    assert write_board(results).read_bytes() == first
    (results / "ace" / NAME).write_text("{}")
    with pytest.raises(BenchError, match=r"ace/claims\.json: .*format"):
        write_board(results)


def test_a_page_without_runs_is_named_below_the_table(tmp_path):
    folder = tmp_path / "asyncfeded/figure2/published-full"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("# An earlier page")
    other = tmp_path / "ace/table_a2/published-medium"  # no verdicts, but its runs
    other.mkdir(parents=True)
    (other / "README.md").write_text(f"# A page\n\n{RUNS_BY} 0.1.0")
    (tmp_path / "README.md").write_text("# the board itself is no page")
    last = write_board(tmp_path).read_text().splitlines()[-1]
    assert last.endswith("verdicts: [asyncfeded/figure2/published-full](asyncfeded/figure2/published-full/README.md).")
