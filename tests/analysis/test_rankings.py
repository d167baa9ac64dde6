"""The best method of a cell, from the comparisons of its pairs."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from asyncfl_bench.analysis.contrasts import Contrast, best_methods, pair_table, pairs_of_method


def compared(values: dict[str, list[float]], **more) -> pd.DataFrame:
    """All pairs of methods with these values by seed, in one cell, as one look."""
    methods, rows = list(values), []
    for place, first in enumerate(methods):
        for second in methods[place + 1 :]:
            by_seed = pd.Series(values[first]) - pd.Series(values[second])
            rows.append(("cell", first, second, Contrast("", by_seed=by_seed, margin=1.0, levels=None, **more)))
    return pd.DataFrame(rows, columns=["cell", "first", "second", "contrast"])


def test_a_pair_has_the_better_method_first_and_its_interval_above_zero():
    (pair,) = pair_table(compared({"a": [50.0, 51.0, 52.0], "b": [60.0, 62.0, 61.0]})).to_dict("records")
    assert (pair["better"], pair["other"], pair["word"]) == ("b", "a", "better")
    assert pair["difference"] == 10 and 0 < pair["low"] < 10 < pair["high"]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_pair_that_an_early_look_decided_keeps_its_order_when_later_seeds_reverse_the_mean(sign):
    contrast = Contrast("", by_seed=sign * pd.Series([2.0, 2.2, 2.1, *5 * [-9.0]]))
    row = pd.DataFrame([("cell", "a", "b", contrast)], columns=["cell", "first", "second", "contrast"])
    (pair,) = pair_table(row).to_dict("records")
    assert (pair["better"], pair["other"]) == (("a", "b") if sign == 1 else ("b", "a"))
    assert (pair["word"], pair["difference"], pair["seeds"], pair["total"]) == ("better", pytest.approx(-4.8375), 3, 8)


def test_the_best_method_is_better_than_every_rival_after_holm():
    values = {"a": [70.0, 70.1, 70.2, 70.1], "b": [60.0, 60.2, 60.1, 60.2], "c": [50.0, 50.1, 50.1, 50.3]}
    (best,) = best_methods(pair_table(compared(values))).to_dict("records")
    assert (best["best"], best["next"], best["verdict"], best["reason"]) == ("a", "b", "best", "")
    assert best["p_holm"] < 0.05 and best["difference"] == pytest.approx(9.975)


def test_a_lead_that_is_decided_and_smaller_than_the_margin_says_so():
    values = {"a": [70.1, 71.2, 72.3, 73.2], "b": [70.0, 71.0, 72.1, 73.0]}
    (best,) = best_methods(pair_table(compared(values))).to_dict("records")
    assert (best["verdict"], best["reason"]) == ("best", "by less than the margin of a tie")


def test_a_rival_inside_the_margin_ties_and_an_open_one_decides_nothing():
    values = {"a": [70.0, 70.1, 70.2, 70.1], "b": [69.8, 70.0, 70.1, 69.9], "c": [50.0, 50.1, 50.1, 50.3]}
    tied = pair_table(compared(values | {"b": [70.1, 69.9, 70.3, 69.9]}))
    (best,) = best_methods(tied).to_dict("records")
    assert (best["best"], best["next"], best["verdict"]) == ("a", "b", "tie")
    values["c"] = [40.0, 75.0, 60.0, 77.0]
    (best,) = best_methods(pair_table(compared(values))).to_dict("records")
    assert (best["next"], best["verdict"]) == ("c", "inconclusive") and best["reason"].startswith("needs about")


def test_a_pair_decided_alone_says_how_many_seeds_it_needs_after_holm():
    noisy = [66.0, 61.0, 68.0, 63.0]
    values = {"a": [70.0, 70.0, 70.0, 70.0], "b": noisy, "c": [10.0, 30.0, 10.0, 30.0], "d": [10.0, 30.0, 30.0, 11.0]}
    pairs = pair_table(compared(values))
    assert pairs_of_method(pairs, "a")["word"].tolist() == ["better"] * 3
    (best,) = best_methods(pairs).to_dict("records")
    assert best["verdict"] == "inconclusive" and best["p_holm"] > 0.05
    assert re.match("needs about \\d+ seeds with Holm's correction", best["reason"])


def test_methods_at_chance_are_in_no_order():
    values = {"a": [12.0, 12.1, 12.2], "b": [10.0, 10.1, 10.1]}
    pairs = pair_table(compared(values, no_answer="at chance"))
    assert pairs["word"].tolist() == ["inconclusive"] and best_methods(pairs)["reason"].tolist() == ["at chance"]


def test_a_method_that_trails_is_seen_from_its_side():
    pairs = pair_table(compared({"a": [70.0, 70.1, 70.2], "b": [60.0, 60.1, 60.3]}))
    (row,) = pairs_of_method(pairs, "b").to_dict("records")
    assert (row["rival"], row["word"]) == ("a", "worse") and row["low"] < row["difference"] < row["high"] < 0
