from __future__ import annotations

import math

import numpy as np
import pytest

from asyncfl_bench.reports.pages.statistics import kendall_tau, monotone, paired, value_at


def test_kendall_tau_counts_agreeing_and_disagreeing_pairs():
    assert kendall_tau([1, 2, 3, 4], [10, 20, 30, 40]) == 1
    assert kendall_tau([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert kendall_tau([1, 2, 3, 4], [2, 1, 3, 4]) == pytest.approx(4 / 6)  # 5 pairs agree, 1 does not
    assert math.isnan(kendall_tau([1], [2])) and math.isnan(kendall_tau([1, 1], [1, 2]))


def test_kendall_tau_with_ties_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    first, second = [1, 2, 2, 3, 5, 5], [2, 1, 3, 3, 4, 6]
    assert kendall_tau(first, second) == pytest.approx(stats.kendalltau(first, second).statistic)


def test_a_paired_difference_is_taken_seed_by_seed():
    # differences 1, 3 (seed 2 has no partner): mean 2, deviation sqrt(2), two standard errors 2 sqrt(2)/sqrt(2) = 2
    pair = paired({0: 11.0, 1: 23.0, 2: 99.0}, {0: 10.0, 1: 20.0, 3: 5.0})
    assert (pair.mean, pair.seeds) == (2.0, 2) and pair.two_se == pytest.approx(2.0)
    assert pair.verdict == "larger"  # not less than two standard errors
    # the seeds scatter by 10 points but always in the same way, so half a point is more than noise
    assert paired({0: 60.5, 1: 70.4, 2: 80.6}, {0: 60.0, 1: 70.0, 2: 80.0}).verdict == "larger"
    assert paired({0: 61.0, 1: 69.0}, {0: 60.0, 1: 70.0}).verdict == "noise"


def test_one_seed_says_nothing_about_noise_and_equal_values_are_no_difference():
    assert paired({0: 9.0}, {0: 1.0}).verdict == "unknown"
    assert paired({0: 9.0}, {1: 1.0}).seeds == 0
    assert paired({0: 5.0, 1: 6.0}, {0: 5.0, 1: 6.0}).verdict == "noise"


def test_a_curve_is_straight_between_points_and_unknown_outside():
    x, y = np.array([0.0, 10.0]), np.array([10.0, 50.0])
    assert value_at(x, y, 5) == 30 and value_at(x, y, 10) == 50
    assert math.isnan(value_at(x, y, 11)) and math.isnan(value_at(x[:0], y[:0], 1))


def test_of_several_points_within_one_tick_the_last_counts():
    x, y = monotone(np.array([0.0, 1.0, 1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert x.tolist() == [0, 1, 2] and y.tolist() == [1, 4, 5]
