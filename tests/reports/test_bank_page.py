"""The page of the bank: rules by tier in each world, what is missing, and rules of the user among the others."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from reports.chromium import Chromium, missing

from asyncfl_bench.config.search_stages import declared_choices, declared_stages
from asyncfl_bench.errors import BenchError
from asyncfl_bench.reports import bank_page
from asyncfl_bench.reports.bank_page import write_bank_page
from asyncfl_bench.reports.pages import write

RULES, SEEDS = declared_choices("algorithm"), declared_stages().judged_seeds
GOOD = ("ace", "fedbuff", "mine")


def judged_runs(rules: list[str], world: str = "bank/digits") -> pd.DataFrame:
    """Return runs of which ``GOOD`` end at 90 %, others at 80 %, PORT at chance; FedOpt diverged once."""
    rng, rows = np.random.default_rng(0), []
    for rule in rules:
        level = 90.0 if rule in GOOD else 10.0 if rule == "port" else 80.0
        for factor, seeds in (
            (1.0, SEEDS),
            (0.3333, [200, 201, 202]),
            (3.0, [200, 201, 202]),
        ):
            for seed in seeds:
                lost = (rule, factor, seed) == ("fedopt", 1.0, 203) or (rule, factor) == ("asgd", 3.0)
                score = np.nan if lost else level + 0.1 * rng.normal() - 2 * (factor != 1)
                row = {"world": world, "rule": rule, "stage": "judged" if factor == 1 else "robustness", "seed": seed}
                row |= {"factor": factor, "identity": "", "settings": "algorithm.eta=1", "accuracy": score}
                row |= {"worst_tenth": score - 20, "diverged": lost, "at_chance": rule == "port", "uploads": 100}
                reached = np.inf if level < 90 else 50.0 + seed % 2
                row |= {f"{kind}_to_target": reached for kind in ("uploads", "time", "bytes")}
                row |= {"uplink_bytes": 6e6 if rule == "aced" else 3e6, "downlink_bytes": 3e6}
                rows.append(row | {"server_state_bytes": 6e4, "client_state_bytes": 0})
    return pd.DataFrame(rows)


@pytest.fixture
def write_page(tmp_path, monkeypatch):
    """Write a page without its figures, and return the text of README.md."""
    monkeypatch.setattr(write, "write_picture", lambda *_: None)
    monkeypatch.setattr(bank_page, "draw_picture", lambda *_: [])

    def call(frame: pd.DataFrame) -> str:
        assert write_bank_page(frame, tmp_path) == [tmp_path / "README.md", tmp_path / "index.html"]
        return (tmp_path / "README.md").read_text(encoding="utf-8")

    return call


def table_rows(text: str, heading: str) -> dict[str, list[str]]:
    """Return the rows of the first table below a heading by their first cell."""
    below = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*$", below, re.M)]
    return {first: rest for first, *rest in cells[2:]}


def test_a_page_has_rules_by_tier_and_says_first_what_was_decided(write_page, tmp_path):
    text = write_page(judged_runs(RULES))
    decided = text.partition("## Decided\n\n")[2].partition("\n")[0]
    assert decided == (
        "- **digits**: 28 rules in 2 tiers. Tier 1 has 2: ACE, FedBuff. "
        "In no tier: PORT (at chance), FedOpt (diverged)."
    )
    rows = table_rows(text, "Digits")
    assert [*rows][:3] == ["ACE", "FedBuff", "ACED"] and [*rows][-2:] == ["PORT", "FedOpt"]  # not by their means
    assert rows["ACE"][0] == "1" and rows["ACED"][0] == "2" and rows["PORT"][0] == "at chance"
    assert rows["ACE"][3:7] == ["50", "50.5", "0", "8 of 8"] and rows["ACED"][3:7] == ["never"] * 3 + ["0 of 8"]
    assert len(pd.read_csv(tmp_path / "pairs_digits.csv")) == 26 * 25 / 2
    assert "rank" not in text.lower().replace("ranks", "") and not re.search(r"\b(first|second|third) place", text)


def test_a_page_shows_the_cost_of_wrong_steps_and_what_rules_send(write_page):
    text = write_page(judged_runs(RULES))
    wrong = table_rows(text, "Wrong step sizes")
    assert wrong["ACE"][0].startswith("-2.") and wrong["vanilla ASGD"][1] == "3 of 3 diverged"
    assert table_rows(text, "Sent and kept")["ACED"] == ["2.0", "1.0", "2.0", "0.0"]


def test_a_world_without_all_rules_is_one_line_that_says_what_to_type(write_page):
    text = write_page(pd.concat([judged_runs(RULES), judged_runs(RULES[:26], "bank/synthetic")]))
    missing = text.partition("## Missing\n\n")[2].partition("\n\n")[0]
    command = "afl-run sweep=bank paper=bank/synthetic algorithm=ringleader,ringmaster"
    assert missing == f"- **synthetic** is left out, as it lacks judged runs of 2 of 28 rules: `{command}`"
    assert "\n## Digits\n" in text and "\n## Synthetic\n" not in text


def test_a_rule_of_the_user_is_among_the_others_or_named_as_missing(write_page, tmp_path):
    text = write_page(judged_runs([*RULES, "mine"]))
    assert "Tier 1 has 3: ACE, FedBuff, mine." in text and table_rows(text, "Digits")["mine"][0] == "1"
    assert len(table_rows(text, "Digits")) == 29
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'id="table-rules"' in html and "<td>mine</td>" in html
    half = judged_runs([*RULES, "mine"]).query("rule != 'mine' or seed < 204")
    assert "lacks judged runs of mine: `afl-run sweep=bank paper=bank/digits algorithm=mine`" in write_page(half)


def test_figures_show_the_tiers_of_all_rules(tmp_path, monkeypatch):
    monkeypatch.setattr(bank_page, "declared_choices", lambda group: ["ace", "aced"] if group == "algorithm" else [])
    write_bank_page(judged_runs(["ace", "aced"]), tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"tiers.png", "forest_digits.png"}


def test_a_file_that_is_not_a_page_is_not_overwritten(write_page, tmp_path):
    (tmp_path / "README.md").write_text("# Mine", encoding="utf-8")
    with pytest.raises(BenchError, match=r"README\.md is not a page of afl-report; choose another place with --out"):
        write_page(judged_runs(RULES))


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_filters_show_the_rules_that_have_every_chosen_text(write_page, tmp_path):
    write_page(judged_runs(RULES))
    choose = """const one = document.getElementById(`filter-${arguments[0]}`); one.value = arguments[1];
      one.dispatchEvent(new Event("change"));
      return [...document.querySelectorAll("#table-rules tbody tr")].filter((row) => row.offsetParent).length"""
    options = "return [...document.getElementById(`filter-${arguments[0]}`).options].map((one) => one.value)"
    with Chromium(tmp_path) as browser:
        browser.open(tmp_path / "index.html")
        assert browser.run(options, "tier") == ["", "1", "2", "at chance", "diverged"]
        assert browser.run(choose, "world", "digits") == 28
        assert browser.run(choose, "tier", "1") == 2 and browser.run(choose, "rule", "ACE") == 1
        assert browser.run("return document.getElementById('count').textContent") == "1 of 28 rows"
        assert not browser.complaints() and len(browser.requests()) == 1
