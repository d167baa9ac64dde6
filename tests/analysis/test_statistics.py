from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
from scipy import stats

from asyncfl_bench.analysis import statistics
from asyncfl_bench.analysis.statistics import (
    adjust_holm,
    interquartile_mean,
    order_agreement,
    paired_interval,
    prediction_interval,
    probability_of_improvement,
    sampling_error,
    stratified_bootstrap,
)

NAN = math.nan


def test_the_examples_in_docstrings_hold():
    assert doctest.testmod(statistics).failed == 0


def test_a_paired_interval_is_students():
    # ACE minus vanilla ASGD, alpha 0.1, beta 5 (five seeds of 360 test samples)
    differences = [0.28, 4.72, 2.22, 0.0, 0.56]
    found = paired_interval(differences)
    reference = stats.ttest_1samp(differences, 0)
    interval = reference.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(reference.pvalue) and found.n == 5
    assert found.mean == pytest.approx(1.556) and found.verdict == "open"


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([1.0, 1.1, 0.9], "larger"),
        ([-1.0, -1.1, -0.9], "smaller"),
        ([1.0, 3.0, 2.0], "open"),  # 2 ± 2 se without zero, t interval -0.48 .. 4.48 with it
        ([5.0, 5.1], "unknown"),
        ([5.0], "unknown"),
        ([], "unknown"),
        ([0.0, 0.0, 0.0], "open"),
        ([1.0, NAN, 1.1], "unknown"),
    ],
)
def test_two_seeds_are_unknown_and_three_need_more_than_two_standard_errors(differences, verdict):
    assert paired_interval(differences).verdict == verdict


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.2, 0.0, -0.2], "tie"),  # 0 ± 0.50
        ([0.6, 0.0, -0.6], "open"),  # 0 ± 1.49
        ([0.4, 0.5, 0.6], "larger"),  # 0.5 ± 0.25: within the margin too
        ([0.9, 1.1, 1.0], "larger"),
    ],
)
def test_an_interval_inside_the_margin_is_a_tie_unless_it_excludes_zero(differences, verdict):
    found = paired_interval(differences, margin=1.0)
    assert found.verdict == verdict
    assert (found.p_tie < 0.05) == (found.low > -1 and found.high < 1)


def test_the_level_of_an_interval_may_be_that_of_a_look():
    interval = stats.ttest_1samp([1.0, 1.2, 1.4], 0).confidence_interval(1 - 0.0156)
    found = paired_interval([1.0, 1.2, 1.4], level=0.0156)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.verdict == "larger" and found.error == pytest.approx(0.2 / math.sqrt(3))
    assert paired_interval([1.0, 1.2, 1.4], level=0.0005).verdict == "open"


def test_differences_that_agree_by_the_grid_of_a_small_test_set_are_not_certain():
    """Three times one sample of 360 more: s = 0, yet each value is rounded by up to half a step."""
    step = 100 / 360
    assert paired_interval([step] * 3).p == 0
    found = paired_interval([step] * 3, resolution=step)
    # error sqrt(step^2 / 6 / 3) = step / 4.243, t = 4.243, df 2
    assert found.p == pytest.approx(2 * stats.t.sf(math.sqrt(18), 2)) and found.verdict == "open"


def test_false_alarms_are_five_percent_where_two_standard_errors_gave_18_and_12():
    generator = np.random.default_rng(7)
    for seeds, old_rate in ((3, 0.18), (5, 0.12)):
        samples = generator.normal(size=(6000, seeds))
        rate = np.mean([paired_interval(sample).verdict != "open" for sample in samples])
        two_se = 2 * samples.std(axis=1, ddof=1) / math.sqrt(seeds)
        assert rate == pytest.approx(0.05, abs=0.009)  # three standard errors of 6000 draws
        assert np.mean(np.abs(samples.mean(axis=1)) >= two_se) == pytest.approx(old_rate, abs=0.015)
    assert all(paired_interval(sample).verdict == "unknown" for sample in generator.normal(size=(20, 2)))


def test_holm_steps_down_and_passes_over_tests_that_were_none():
    # sorted 0.01, 0.02, 0.03, 0.5 -> x4, x3, x2, x1 -> 0.04, 0.06, 0.06, 0.5
    assert adjust_holm([0.02, 0.5, NAN, 0.01, 0.03]) == pytest.approx([0.06, 0.5, NAN, 0.04, 0.06], nan_ok=True)
    assert adjust_holm([0.6, 0.9]) == pytest.approx([1.0, 1.0]) and adjust_holm([]).size == 0


def test_holm_keeps_a_page_of_sixteen_equal_pairs_below_five_percent():
    generator = np.random.default_rng(3)
    p = [[paired_interval(generator.normal(size=5)).p for _ in range(16)] for _ in range(400)]
    assert np.mean([min(adjust_holm(page)) < 0.05 for page in p]) < 0.085
    assert np.mean([min(page) < 0.05 for page in p]) > 0.4


def test_a_new_run_falls_into_the_prediction_interval():
    # n = 3, mean 96, s = 1: 96 ± 4.3027 sqrt(1 + 1/3) = 96 ± 4.968
    assert prediction_interval([95.0, 96.0, 97.0]) == pytest.approx((91.032, 100.968), abs=1e-3)
    # another test set with an error of one point: sqrt(4/3 + 1)
    assert prediction_interval([95.0, 96.0, 97.0], 1.0) == pytest.approx((89.428, 102.572), abs=1e-3)
    assert all(math.isnan(end) for end in prediction_interval([95.0, 96.0]))
    draws = np.random.default_rng(1).normal(size=(4000, 6))
    inside = [low <= draw[5] <= high for draw in draws for low, high in [prediction_interval(draw[:5])]]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.011)


def test_the_interquartile_mean_leaves_out_a_quarter_at_either_end():
    assert interquartile_mean([0.0, 10.0, 20.0, 90.0]) == 15.0
    assert interquartile_mean([0.0, 10.0, 20.0, 90.0, NAN]) == 15.0
    assert interquartile_mean([1.0, 2.0, 6.0]) == 3.0  # fewer than four: the plain mean
    assert math.isnan(interquartile_mean([]))


def test_the_bootstrap_takes_a_seed_with_all_its_cells():
    """Seeds differ, cells do not: sixteen cells know no more than one of them."""
    seeds = np.array([84.0, 86.0, 88.0, 90.0, 92.0, 94.0, 96.0, 98.0])
    one = stratified_bootstrap([seeds])
    assert stratified_bootstrap(np.tile(seeds, (16, 1))) == pytest.approx(one)
    assert 84.0 <= one[0] < 88.0 and 94.0 < one[1] <= 98.0
    assert stratified_bootstrap([seeds]) == one  # the same bytes again
    assert all(math.isnan(end) for end in stratified_bootstrap([seeds[:4]]))


def test_bootstrap_intervals_of_correlated_cells_miss_the_truth_seldom(monkeypatch):
    monkeypatch.setattr(statistics, "DRAWS", 100)
    generator = np.random.default_rng(5)
    missed = 0
    for _ in range(150):
        values = generator.normal(size=(1, 8)) + generator.normal(size=(8, 8))
        low, high = stratified_bootstrap(values)
        missed += not low <= 0 <= high
    assert missed / 150 < 0.13  # drawn apart for each cell: above 0.4


def test_probability_of_improvement_counts_pairs_of_runs_and_halves_ties():
    # (3,5) against (1,3,4): 3>1, 3=3, 3<4, 5>1, 5>3, 5>4 -> 4.5 of 6
    assert probability_of_improvement([3.0, 5.0], [1.0, 3.0, 4.0])[0] == 4.5 / 6
    reference = stats.mannwhitneyu([3.0, 5.0, 9.0], [1.0, 3.0, 4.0]).statistic / 9
    assert probability_of_improvement([3.0, 5.0, 9.0], [1.0, 3.0, 4.0])[0] == pytest.approx(reference)
    # two cells: 1 and 0 on average one half; a missing seed counts nowhere
    assert probability_of_improvement([[2.0, 2.0], [0.0, NAN]], [[1.0, 1.0], [1.0, 1.0]])[0] == 0.5
    share, low, high = probability_of_improvement([[9, 8, 7, 6, 5]], [[4, 5, 6, 7, 8]])
    assert share == pytest.approx(17 / 25)  # 5 + 4.5 + 3.5 + 2.5 + 1.5
    assert 0 <= low < share < high <= 1


def test_bootstrapped_shares_of_improvement_are_those_of_the_samples_themselves(monkeypatch):
    monkeypatch.setattr(statistics, "DRAWS", 50)
    generator = np.random.default_rng(3)
    a, b = (np.round(generator.normal(90, 2, size=(4, seeds))) for seeds in (5, 6))
    a[0, 1] = NAN
    draws = np.random.default_rng(0)
    samples = [
        [values[:, draws.integers(values.shape[1], size=values.shape[1])] for values in (a, b)] for _ in range(50)
    ]
    found = [probability_of_improvement(*sample)[0] for sample in samples]
    quantiles = statistics._percentiles(np.array(found), 5)
    assert probability_of_improvement(a, b)[1:] == pytest.approx(quantiles, rel=1e-12)


def test_the_interquartile_mean_is_scipys_trimmed_mean():
    for size in range(1, 40):
        values = np.random.default_rng(size).normal(size=size)
        assert interquartile_mean(values) == stats.trim_mean(values, 0.25)


def test_the_sampling_error_is_binomial():
    assert sampling_error(90.0, 360) == pytest.approx(100 * math.sqrt(0.9 * 0.1 / 360))
    assert sampling_error(100.0, 201) == pytest.approx(100 * math.sqrt(0.5 / 201 * (1 - 0.5 / 201) / 201))


def test_order_agreement_is_tau_b_and_nan_where_it_is_undefined():
    assert order_agreement([1, 2, 3, 4], [2, 1, 3, 4]) == pytest.approx(4 / 6)
    first, second = [1, 2, 2, 3, 5, 5], [2, 1, 3, 3, 4, 6]
    assert order_agreement(first, second) == pytest.approx(stats.kendalltau(first, second).statistic)
    assert math.isnan(order_agreement([1, 1], [1, 2])) and math.isnan(order_agreement([1], [1]))
