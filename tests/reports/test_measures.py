"""What was reached in time, on curves of a few points whose numbers can be read off."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asyncfl_bench.reports.pages.measures import (
    best_within,
    first_time_at,
    held_at,
    time_to_share_of_best,
    unsteadiness,
)
from asyncfl_bench.reports.pages.scores import Scores
from asyncfl_bench.reports.pages.selection import Series

TIME = np.array([0.0, 2.0, 4.0, 6.0, 8.0])
ACCURACY = np.array([10.0, 70.0, 72.0, 80.0, 95.0])


def test_the_best_is_the_highest_evaluation_up_to_and_at_the_limit():
    assert best_within(TIME, ACCURACY, 6.0) == 80 and best_within(TIME, ACCURACY, 5.9) == 72
    assert best_within(TIME, ACCURACY[::-1].copy(), 300.0) == 95  # not the last one
    assert math.isnan(best_within(TIME[1:], ACCURACY[1:], 1.0))


def test_ninety_percent_is_of_the_best_within_the_limit_and_reached_at_the_first_such_evaluation():
    assert time_to_share_of_best(TIME, ACCURACY, 6.0) == 4  # 0.9 * 80 = 72, exactly there
    assert time_to_share_of_best(TIME, ACCURACY, 8.0) == 8  # 0.9 * 95 = 85.5: what comes later moves the target
    assert time_to_share_of_best(TIME, ACCURACY / 100, 6.0) == 4  # 0.9 * 0.8 is not 0.72 in binary
    assert time_to_share_of_best(TIME, ACCURACY, 6.0, share=0.5) == 2
    assert math.isnan(time_to_share_of_best(TIME[1:], ACCURACY[1:], 1.0))


def test_a_target_that_is_not_reached_in_time_has_no_time():
    assert first_time_at(TIME, ACCURACY, 75.0, 300.0) == 6
    assert math.isnan(first_time_at(TIME, ACCURACY, 75.0, 5.0)) and math.isnan(first_time_at(TIME, ACCURACY, 96.0, 300))


def test_a_value_is_held_until_the_next_point_and_unknown_before_the_first():
    assert [held_at(TIME, ACCURACY, at) for at in (0.0, 3.9, 4.0, 99.0)] == [10, 70, 72, 95]
    assert math.isnan(held_at(TIME[1:], ACCURACY[1:], 1.9))


def test_unsteadiness_is_the_mean_change_between_evaluations_after_ninety_percent():
    accuracy = np.array([0.0, 90.0, 100.0, 92.0, 95.0])  # 90 % of 100 at time 2; changes 10, 8, 3
    assert unsteadiness(TIME, accuracy, 8.0) == pytest.approx(7.0)
    assert unsteadiness(TIME, accuracy, 6.0) == pytest.approx(9.0)
    assert math.isnan(unsteadiness(TIME, ACCURACY, 8.0))  # one evaluation only


def test_of_times_the_smallest_mean_leads_and_one_missed_seed_ranks_last():
    fast, slow, lost = (Series(name) for name in ("asyncfeded", "fedavg", "fedprox"))
    final = {slow: {0: 30.0, 1: 50.0}, fast: {0: 20.0, 1: 30.0}, lost: {0: 1.0, 1: math.nan}}
    times = Scores(cell=(), final=final, lower=True)
    assert times.ranking == [fast, slow, lost] and times.leaders == [fast]
    better, next_, pair = times.neighbours[0]
    assert (better, next_, pair.mean, pair.seeds) == (fast, slow, -15.0, 2)
    assert times.neighbours[1][2].seeds == 1  # the seed that has a number
    assert Scores(cell=(), final=final).leaders == [slow]  # as accuracies the highest
    assert Scores(cell=(), final={lost: final[lost]}).leaders == []
