"""The bank's table and chosen settings: found without an archive, and equal to what the archived runs say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from asyncfl_bench import load_bank, load_points, load_runs
from asyncfl_bench.analysis import bank
from asyncfl_bench.config import choices, compose
from asyncfl_bench.config.choices import CHOSEN
from asyncfl_bench.config.overrides import parse_override
from asyncfl_bench.files import read_yaml
from asyncfl_bench.reports import cli
from asyncfl_bench.reports.browser import html
from asyncfl_bench.reports.pages import write

FOLDER = Path(__file__).parents[2] / "results" / "bank"
ROBUST = {(1.0, "judged"): 8, (0.3333, "robustness"): 3, (3.0, "robustness"): 3}


def test_each_rule_is_judged_on_eight_seeds_with_the_chosen_settings_and_on_three_with_each_factor(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    frame, chosen = load_bank(), read_yaml(FOLDER / CHOSEN)
    assert (FOLDER / bank.JUDGED).stat().st_size < 2**21
    assert tuple(frame.columns) == bank.COLUMNS and frame["identity"].is_unique
    cells = frame.groupby(["world", "rule"])
    assert {*cells.groups} == {(world, rule) for world in chosen for rule in chosen[world]} >= {("bank/digits", "ace")}
    for (world, rule), of in cells:
        assert of.groupby(["factor", "stage"]).size().to_dict() == ROBUST, (world, rule)
        [words] = of.loc[of["stage"] == "judged", "settings"].unique()
        assert {one.key: one.value for one in map(parse_override, words.split())} == chosen[world][rule]


def test_a_row_has_the_late_accuracy_and_the_costs_until_the_validation_curve_reaches_the_target():
    runs = load_runs(min((FOLDER / "archive").glob("*.parquet"), key=lambda file: file.stat().st_size))
    frame = bank.judged_frame(runs)
    points = load_points(runs)
    reached = 0
    for _, row in frame[frame["world"] == "bank/synthetic"].iterrows():
        own = points[points["run"] == runs.index[runs["identity"] == row["identity"]][0]]
        assert row["accuracy"] == pytest.approx(100 * own.loc[own["uploads"] > 8000, "test/accuracy"].mean())
        hits = own[own["validation/accuracy"] >= 0.78]
        reached += len(hits) > 0
        first = hits.iloc[0] if len(hits) else None
        expected = [math.inf] * 3 if first is None else [*first[["uploads", "virtual_time", "bytes"]]]
        assert [row["uploads_to_target"], row["time_to_target"], row["bytes_to_target"]] == expected
        assert math.isnan(row["worst_tenth"]) and row["target"] == 78
    assert 0 < reached < 14
    assert frame.loc[frame["world"] == "bank/digits", "worst_tenth"].between(0, 100).all()


@pytest.mark.parametrize("rule", ["ca2fl", "fedecho"])  # worlds have no settings, and some settings, for the rule
def test_a_tuned_run_is_the_judged_run(rule):
    rows = load_bank().drop_duplicates(["world", "rule"])
    for row in rows[rows["rule"] == rule].itertuples():
        words = [f"paper={row.world}", "profile=tuned", f"algorithm={rule}", f"seed={row.seed}"]
        assert compose(words).identity == row.identity


def test_chosen_settings_are_added_to_those_that_a_world_has_for_the_rule(monkeypatch):
    chosen = {"ace": {"algorithm.eta": 0.5}, "fedecho": {"algorithm.eta": 2.0, "client.lr": 0.1}}
    monkeypatch.setattr(choices, "chosen_settings", lambda: {"bank/cifar10": chosen})
    found = {
        rule: choices.variant("paper_algorithm", f"bank/cifar10/tuned/{rule}") for rule in ("ace", "fedecho", "gas")
    }
    own = choices.variant("paper_algorithm", "bank/digits/published/fedecho")
    assert own == {"instead": {"unlabelled": "noise"}, "unlabelled": {"samples": 500}}
    assert found["fedecho"] == own | {"algorithm": {"eta": 2.0}, "client": {"lr": 0.1}}
    assert (found["ace"], found["gas"]) == ({"algorithm": {"eta": 0.5}}, None)
    assert choices.variant("paper_profile", "bank/digits/tuned") is None


def test_rows_of_a_rule_replace_its_earlier_rows():
    frame = load_bank()
    own = frame[(frame["rule"] == "ace") & (frame["world"] == "bank/digits")].assign(accuracy=1.0, seed=7)
    merged = bank.merge_frames(frame, own)
    changed = merged[merged["seed"] == 7]
    assert len(merged) == len(frame) and len(changed) == len(own) and set(changed["rule"]) == {"ace"}


@pytest.mark.slow
def test_the_page_is_what_the_archive_says_and_the_best_search_score_was_chosen(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(write, "write_picture", lambda *_: None)
    monkeypatch.setattr(html, "write_tables", lambda *_, **__: None)
    assert cli.main(["bank", "--archive", str(FOLDER.parent), "--out", str(tmp_path)]) == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / "bank").iterdir()}
    committed = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in (".csv", ".md", ".yaml")}
    assert written == {name: of for name, of in committed.items() if name != bank.TARGETS}, "run afl-report bank"
    runs = load_runs(FOLDER / "archive")
    assert runs["summary.used.client_steps"].max() == 10_000, "a rule computes one mini-batch an upload"
    assert set(runs["unlabelled"]) == {"none", "noise"} and set(runs["unlabelled.samples"].dropna()) == {500}
    scores = bank.late_values(load_points(runs), bank.TARGET_METRIC).reindex(runs.index)
    for world, rules in read_yaml(FOLDER / CHOSEN).items():
        for rule, settings in rules.items():
            of = runs[(runs["paper"] == world) & (runs["algorithm"] == rule) & runs["seed"].isin([100, 101])]
            means = scores[of.index].groupby([of[key] for key in settings]).agg(["mean", "size"])
            both = means.loc[means["size"] == 2, "mean"]
            values = tuple(settings.values())
            assert both[values if len(values) > 1 else values[0]] == both.max(), (world, rule)
