"""Tiers of the rules of a world, from one score of each rule and seed (docs/reference/statistics.md, rule 11).

Legend: r rules, s seeds, p pairs of rules.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import special

from .looks import ALPHA
from .statistics import Interval, adjust_holm, order_agreement, paired_interval

PAIR_COLUMNS = ["better", "other", "difference", "low", "high", "p", "p_holm"]


def measure_pairs(score_rs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean difference, its standard error [unit of the scores] and two-sided p of each pair of rows.

    score_rs  two or more seeds; axes before the last two are of several worlds, also of the results
    Pairs are in the order of ``np.triu_indices``. The variance is that of this pair's differences.
    """
    first_p, second_p = np.triu_indices(score_rs.shape[-2], 1)
    difference_ps = score_rs[..., first_p, :] - score_rs[..., second_p, :]
    seeds = score_rs.shape[-1]
    mean_p, error_p = difference_ps.mean(axis=-1), difference_ps.std(axis=-1, ddof=1) / np.sqrt(seeds)
    with np.errstate(divide="ignore", invalid="ignore"):
        t_p = np.nan_to_num(np.abs(mean_p) / error_p, nan=0.0, posinf=np.inf)  # 0 / 0: equal on every seed
    return mean_p, error_p, 2 * special.stdtr(seeds - 1, -t_p)


def compare_rules(scores: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each pair of rules, the one with the higher mean first: ``PAIR_COLUMNS``.

    scores  a row a rule, a column a seed, without gaps
    low and high are the 95 % interval of the difference of this pair alone. p_holm is Holm's p over all pairs.
    """
    ordered = scores.loc[scores.mean(axis=1).sort_values(ascending=False, kind="stable").index]
    mean_p, error_p, p_p = measure_pairs(ordered.to_numpy(float))
    half_p = special.stdtrit(scores.shape[1] - 1, 1 - ALPHA / 2) * error_p
    better, other = (ordered.index.to_numpy()[place] for place in np.triu_indices(len(ordered), 1))
    columns = (better, other, mean_p, mean_p - half_p, mean_p + half_p, p_p, adjust_holm(p_p))
    return pd.DataFrame(dict(zip(PAIR_COLUMNS, columns, strict=True)))


def find_tiers(scores: pd.DataFrame, pairs: pd.DataFrame) -> pd.Series:
    """Return the tier of each rule, 1 for the first.

    A tier has the rules that do not differ significantly from its best rule. The next tier starts with the best of the
    other rules. pairs: of ``compare_rules``.
    """
    means = scores.mean(axis=1)
    decided = pairs[pairs["p_holm"] < ALPHA]
    worse = decided.groupby("better")["other"].agg(set).to_dict()
    tiers = pd.Series(0, index=scores.index)
    left, tier = list(means.sort_values(ascending=False, kind="stable").index), 0
    while left:
        tier, behind = tier + 1, worse.get(left[0], set())
        tiers[[one for one in left if one not in behind]] = tier
        left = [one for one in left if one in behind]
    return tiers


def judge_world(judged: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rules of a world, and the compared pairs as ``compare_rules`` does.

    judged  a row a run: rule, seed, accuracy [%], diverged, at_chance; all rules have the same seeds
    The rules' table is indexed by rule: tier (0 for a rule with a diverged run, or with most runs at chance), why
    (this reason), mean, low, high (95 % interval over seeds), seeds.
    """
    scores = judged.pivot(index="rule", columns="seed", values="accuracy").astype(float)
    shares = judged.groupby("rule")[["diverged", "at_chance"]].mean()
    why = np.select([shares["diverged"] > 0, shares["at_chance"] > 0.5], ["diverged", "at chance"], "")
    compared = scores[why == ""]
    pairs = compare_rules(compared)
    rules = pd.DataFrame({"tier": find_tiers(compared, pairs)}).reindex(scores.index, fill_value=0)
    intervals = [paired_interval(row) for row in scores.to_numpy()]
    mean, low, high = zip(*((one.mean, one.low, one.high) for one in intervals), strict=True)
    return rules.assign(why=why, mean=mean, low=low, high=high, seeds=scores.notna().sum(axis=1)), pairs


def agree_on_order(published: pd.Series, judged: pd.DataFrame) -> Interval:
    """Return Kendall's tau between published values and the scores of each seed, with its interval over seeds.

    published  value by rule;  judged  a row a run: rule, seed, accuracy [%]. Only rules in both count.
    1: the same order, -1: the reverse. A diverged run is below all others.
    """
    scores = judged.fillna({"accuracy": -np.inf}).pivot(index="rule", columns="seed", values="accuracy")
    rules = published.index.intersection(scores.index)
    return paired_interval([order_agreement(score_r, published[rules]) for _, score_r in scores.loc[rules].items()])
