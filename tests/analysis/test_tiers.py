"""Tiers of the bank: which rules differ significantly from the best one of a world."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import special

from asyncfl_bench.analysis.bank import agree_on_order, compare_rules, find_tiers, judge_world, measure_pairs
from asyncfl_bench.analysis.statistics import adjust_holm, paired_interval

RULES, SEEDS, WORLDS = 12, 8, 2000
EQUAL, UNEQUAL = np.ones(RULES), np.geomspace(1, 3, RULES)  # standard deviation of each rule [points]


def simulate_worlds(deviation_r: np.ndarray, mean_r: np.ndarray | float = 70.0) -> np.ndarray:
    """Return scores of shape (worlds, rules, seeds), in which a seed shifts all rules alike."""
    rng = np.random.default_rng(0)
    score_wrs = rng.normal(size=(WORLDS, RULES, SEEDS)) * deviation_r[:, None] + np.reshape(mean_r, (-1, 1))
    return score_wrs + 4 * rng.normal(size=(WORLDS, 1, SEEDS))


@pytest.mark.parametrize("deviation_r", [EQUAL, UNEQUAL], ids=["equal variances", "unequal variances"])
def test_at_most_5_percent_of_worlds_separate_two_equal_rules(deviation_r):
    _, _, p_wp = measure_pairs(simulate_worlds(deviation_r))  # all rules are equal: Holm's first step decides
    assert 0.02 < (p_wp.min(axis=1) * p_wp.shape[1] < 0.05).mean() <= 0.05
    is_high_r = np.arange(RULES) % 2 == 1  # and two groups of equal rules
    _, _, p_wp = measure_pairs(simulate_worlds(deviation_r, 70.0 + 30 * is_high_r))
    first_p, second_p = np.triu_indices(RULES, 1)
    is_equal_p = is_high_r[first_p] == is_high_r[second_p]
    decided_wp = np.array([adjust_holm(p_p) for p_p in p_wp]) < 0.05
    assert decided_wp[:, ~is_equal_p].mean() > 0.99 and decided_wp[:, is_equal_p].any(axis=1).mean() <= 0.05


def test_a_variance_pooled_over_pairs_separates_equal_rules_of_unequal_variances():
    """The reason why each pair has its own variance, as sweeps/bank.yaml declares."""

    def share_of_worlds(deviation_r: np.ndarray) -> float:
        mean_wp, error_wp, _ = measure_pairs(simulate_worlds(deviation_r))
        t_w = np.abs(mean_wp).max(axis=1) / np.sqrt((error_wp**2).mean(axis=1))
        return (2 * special.stdtr((RULES - 1) * (SEEDS - 1), -t_w) * mean_wp.shape[1] < 0.05).mean()

    assert share_of_worlds(EQUAL) <= 0.05 and share_of_worlds(UNEQUAL) > 0.07


def test_a_pair_has_the_interval_of_its_differences_and_holms_p():
    scores = pd.DataFrame(simulate_worlds(UNEQUAL, np.linspace(70, 75, RULES))[0])
    pairs = compare_rules(scores)
    assert len(pairs) == RULES * (RULES - 1) / 2 and (pairs["difference"] >= 0).all()
    row = pairs.iloc[7]
    found = paired_interval(scores.loc[row["better"]] - scores.loc[row["other"]])
    assert row[["difference", "low", "high", "p"]].tolist() == pytest.approx(
        [found.mean, found.low, found.high, found.p]
    )
    assert pairs["p_holm"].tolist() == adjust_holm(pairs["p"]).tolist()


def test_a_tier_has_what_does_not_differ_from_its_best_rule():
    scores = pd.DataFrame(np.arange(4.0), ["a", "b", "c", "d"]).mul(-1)
    decided = pd.DataFrame({"better": ["a", "a", "b"], "other": ["c", "d", "d"], "p_holm": [0.01, 0.01, 0.01]})
    assert find_tiers(scores, decided).to_dict() == {"a": 1, "b": 1, "c": 2, "d": 2}  # b and d differ, c and d do not
    alike = pd.DataFrame({0: [70.0, 70.0], 1: [71.0, 71.0]}, index=["a", "b"])
    assert compare_rules(alike)["p"].tolist() == [1.0]


def test_rules_that_diverged_or_are_at_chance_are_in_no_comparison():
    rows = [
        {"rule": rule, "seed": seed, "accuracy": level + seed % 3}
        | {"diverged": rule == "wild" and seed == 3, "at_chance": rule == "lost" or seed == 5}
        for rule, level in (("good", 90.0), ("bad", 80.0), ("wild", 85.0), ("lost", 10.0))
        for seed in range(8)
    ]
    rules, pairs = judge_world(pd.DataFrame(rows))
    assert rules["tier"].to_dict() == {"good": 1, "bad": 2, "wild": 0, "lost": 0}
    assert rules["why"].to_dict() == {"good": "", "bad": "", "wild": "diverged", "lost": "at chance"}
    assert pairs[["better", "other"]].to_numpy().tolist() == [["good", "bad"]]
    assert rules.loc["good", ["low", "mean", "high"]].is_monotonic_increasing and rules["seeds"].eq(8).all()


def test_the_order_of_a_paper_is_compared_with_that_of_each_seed():
    published = pd.Series({"ace": 60.0, "fedbuff": 55.0, "asgd": 50.0, "of no world": 70.0})
    orders = {200: [90, 80, 70], 201: [70, 80, 90], 202: [90, 70, np.nan], 203: [80, 90, 70]}  # tau 1, -1, 1, 1/3
    rows = [
        {"rule": rule, "seed": seed, "accuracy": accuracy}
        for seed, values in orders.items()
        for rule, accuracy in zip(("ace", "fedbuff", "asgd"), values, strict=True)
    ]
    found = agree_on_order(published, pd.DataFrame([*rows, *({**row, "rule": "of no paper"} for row in rows[::3])]))
    assert (found.n, found.mean) == (4, pytest.approx(1 / 3)) and found.low < 0 < found.high
