"""results/README.md: a row for each claim, and counts of what decides them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from reports.claims_by_hand import demo, found, write_page, write_pages

from asyncfl_bench.analysis import claims
from asyncfl_bench.analysis.names import rule_classes
from asyncfl_bench.errors import BenchError
from asyncfl_bench.reports.board import CLAIMS, board_text, write_board
from asyncfl_bench.reports.judged_claims import judge_claims, read_pages, reasons_of

__all__ = ["demo"]  # a fixture


@pytest.fixture
def results(tmp_path, demo) -> Path:
    return write_pages(tmp_path / "results")


def table_after(text: str, heading: str) -> list[list[str]]:
    """The rows below a heading or sentence, without the header."""
    lines = text[text.index(heading) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| "))
    rows = [line.replace("\\|", "¦") for line in lines[start:]]
    end = next((number for number, line in enumerate(rows) if not line.startswith("|")), len(rows))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows[2:end]]


def test_a_row_is_one_claim_and_those_of_the_abstract_come_first(results):
    text = write_board(results).read_text()
    decided, rest = text[text.index("## Demo") :].split("<details>")[:2]
    rows = table_after(decided, "## Demo")
    items = [(sentence.partition(". Setup")[0], verdict) for _, sentence, _, verdict, _ in rows]
    assert items == [
        ("**Abstract.** ACE is more accurate than FedBuff", "**holds (preliminary)**"),
        ("ACE is faster than FedBuff", "**fails**"),
    ]
    link = "[figure 1](demo/figure1/published-medium/README.md), section 5"
    assert rows[1] == [
        link,
        "ACE is faster than FedBuff. Setup: a tick takes 11 to 37 uploads, the pseudo-code steps at each "
        "arrival. With a step at every arrival: holds",
        "ACE - FedBuff: +1.56 points [-0.87, +3.98]; 2 of 3 as claimed, 1 contrary",
        "**fails**",
        "medium, 5 seeds",
    ]
    assert rows[0][2].endswith("; claim changed after these runs") and rows[0][4] == "medium, 3 seeds"
    folded = [(sentence.partition(" (")[0], reason) for _, sentence, reason in table_after(rest, "<summary>")]
    assert folded == [
        ("ACE ends highest", "needs about 8 seeds"),
        ("ACE ends highest", "needs more than 200 seeds"),
        ("ACE converges", "blocked"),
        ("ACE is cheaper", "not run"),
    ]
    assert "<summary>4 further claims; most frequent reason: needs about 8 seeds</summary>\n\n| " in rest


def test_all_reasons_and_the_rules_of_a_claim_are_in_one_table(results):
    write_board(results)
    frame = pd.read_csv(results / CLAIMS, keep_default_na=False).set_index("id")
    assert frame.loc["faster", ["paper", "rules", "verdict"]].tolist() == ["demo", "ace fedbuff", "fails"]
    assert frame.loc["bound", ["rules", "reason"]].tolist() == ["ace", "runs do not decide a bound"]  # named in it
    assert set(frame["board"]) == {"claims of the papers", "by construction of the code", "questions of this project"}


def test_each_rule_has_a_row_and_a_page_that_ends_with_what_the_runs_say(results):
    text = write_board(results).read_text()
    index = table_after(text, "## Rules")
    names = re.findall(r"\(by_rule/(\w+)\.md\)", text)
    assert sorted(names) == sorted(rule_classes()) and all((results / f"by_rule/{name}.md").exists() for name in names)
    row = next(row for row in index if row[0].startswith("[FedBuff]"))
    assert row[1] == "one step per buffer of M differences (arXiv:2106.06639)"
    assert all(count.isdigit() for count in row[2:5])
    page = (results / "by_rule" / "fedbuff.md").read_text()
    assert page.startswith("# FedBuff\n") and "afl-run --help algorithm=fedbuff" in page and ">>>" not in page
    claim = next(row for row in table_after(page, "## Claims") if "ACE is faster" in row[1])
    assert claim[0] == "Demo [figure 1](../demo/figure1/published-medium/README.md), section 5"
    assert claim[3] == "**fails**"
    assert "ACE is faster" not in (results / "by_rule" / "port.md").read_text()
    assert page.index("## Claims") < page.index("## Bank")


def test_the_top_counts_the_papers_claims_and_never_an_indication_as_a_verdict(results):
    text = board_text(judge_claims(read_pages(results)))
    assert "6 claims of the papers by verdict" in text and "question" not in text.partition("## Demo")[0]
    assert table_after(text, "6 claims") == [
        ["final", "0", "1", "0", "2", "1", "1"],
        ["preliminary", "1", "0", "0", "", "", ""],
    ]
    assert table_after(text, "by reason") == [
        ["at chance", "1"],
        ["needs 5 to 20 seeds", "1"],
        ["needs more than 200 seeds", "1"],
    ]
    assert "at most 2.5 % are called **holds**" in text and "share of errors among decided claims is unknown" in text


@pytest.mark.parametrize(
    "reason, kinds",
    [
        ("needs about 20 seeds (3 of 24 open); at chance (21 of 24 open)", ["needs about 20 seeds", "at chance"]),
        ("runs missing: ACE - FedBuff, ACE - ASGD", ["runs missing"]),
        ("1 seed, where a test needs 3", ["fewer than 3 seeds"]),
        ("2 comparisons contrary, but not after Holm's correction", ["contrary, but not after Holm's correction"]),
        (
            "target never reached (2 of 3 open); partner diverged (1 of 3 open)",
            ["target never reached", "partner diverged"],
        ),
    ],
)
def test_a_reason_is_counted_without_its_numbers_and_names(reason, kinds):
    assert reasons_of(found("faster", "inconclusive", reason)) == kinds


def test_too_few_seeds_of_the_papers_size_stand_beside_the_verdict_of_a_smaller_one(tmp_path, demo):
    few = {"difference": -12.75, "low": float("nan"), "high": float("nan"), "contrasts": 4, "total": 1}
    reason = "1 seed, where a test needs 3"
    write_page(tmp_path, "figure1", found("faster", "inconclusive", reason, seeds=1, **few), scale="full")

    def row():
        return judge_claims(read_pages(tmp_path)).set_index("id").loc["faster"]

    assert row()[["scale", "word"]].tolist() == ["full", "inconclusive"]
    write_page(tmp_path, "figure1", found("faster", "holds"), scale="small")
    assert row()["scale"] == "full"  # digits say nothing about a paper's data
    write_page(tmp_path, "figure1", found("faster", "holds"))
    assert row()[["scale", "word"]].tolist() == ["medium", "holds"]
    assert row()["measured"].endswith(". Scale full, 1 seed, no verdict: ACE - FedBuff: -12.75 points")
    write_page(tmp_path / "enough", "figure1", found("faster", "inconclusive", seeds=3), scale="full")
    assert row()["scale_text"] == "full, 5 seeds, verdict after 3"


def test_construction_and_questions_have_their_own_short_tables(results):
    text = write_board(results).read_text()
    own = text[text.index("## Demo") : text.index("## By construction")]
    assert "vectors" not in own and "same time" not in own
    [row] = table_after(text, "## By construction of the code")
    assert (row[0], row[2], row[4]) == ("Demo", row[2], "**holds**") and row[2].startswith("ACE keeps ¦B¦ vectors")
    [row] = table_after(text, "## Questions of this project")
    assert row[2].startswith("ACE ends higher in the same time") and row[4] == "**tie**"


def test_without_pages_every_claim_has_its_reason(tmp_path, demo):
    rows = judge_claims(read_pages(tmp_path)).set_index("id")[["verdict", "measured"]]
    assert rows.loc["bound"].tolist() == ["**blocked**", "runs do not decide a bound"]
    assert rows.loc["cost"].tolist() == ["**not run**", "no sweep"]
    assert rows.loc["faster"].tolist() == ["**not run**", "no runs"]
    write_page(tmp_path, "figure1", replace(found("faster", "not run", "partner diverged"), difference=float("nan")))
    row = judge_claims(read_pages(tmp_path)).set_index("id").loc["faster"]
    assert row[["measured", "link"]].tolist() == ["partner diverged", ""]


def test_every_claim_of_this_package_has_a_row(tmp_path):
    rows = judge_claims({})
    every = [claim.key for paper in claims.papers_with_claims() for claim in claims.read_claims(paper)]
    assert sorted(rows["key"]) == sorted(every)
    tables = [line.replace("\\|", "") for line in board_text(rows).splitlines() if line.startswith("| ")]
    assert {line.count("|") for line in tables} <= {*range(3, 10)}  # |B|² makes no columns


def test_links_lead_to_pages_and_the_same_pages_give_the_same_bytes(results):
    first = write_board(results).read_bytes()
    links = {part.split(")")[0] for part in first.decode().split("](")[1:]}
    links = {link for link in links if not link.startswith(("../docs/", "#"))}
    assert all((results / link).exists() for link in links)
    pages = {link for link in links if not link.startswith("by_rule/")}
    assert pages == {"demo/figure1/published-medium/README.md", "claims.csv"}
    assert write_board(results).read_bytes() == first
    (results / "demo" / "claims.json").write_text("{}")
    with pytest.raises(BenchError, match=r"demo/claims\.json: .*format"):
        write_board(results)
