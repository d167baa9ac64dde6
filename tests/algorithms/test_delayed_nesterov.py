"""Delayed Nesterov: what its momentum does to the arrivals of a window, and who gets how much work with DyLU."""

import numpy as np
import pytest
from toy import Scripted, random_delays, simulate

from asyncfl_bench.algorithms.common.trial import after_each
from asyncfl_bench.algorithms.delayed_nesterov import DelayedNesterov
from asyncfl_bench.simulation.observer import Observer
from asyncfl_bench.types import Workload

N = 5
WORLD = {"n": N, "delay": random_delays(N), "kind": "difference"}


def models(rule, lr=0.3):
    """(40, 3) global model after every server iteration, and what arrived."""
    _, recorder, _ = simulate(rule, server_iterations=40, lr=lr, **WORLD)
    return np.array(recorder.models), np.array([arrival.vector for arrival in recorder.arrivals])


@pytest.mark.parametrize(
    ("spread", "expected"), [(0.0, [-0.35, -2.66, -3.36, -5.124]), (0.5, [-0.35, -2.03, -3.36, -4.242])]
)
def test_a_window_of_two_by_hand(spread, expected):
    rule = DelayedNesterov(eta=0.7, beta=0.9, window=2, spread=spread)
    found = after_each(rule, (0, [-1.0]), (1, [-3.0]), (0, [-2.0]), (1, [0.0]))
    assert [model for (model,) in found] == pytest.approx(expected)


def test_a_window_of_one_is_nesterovs_sgd_at_each_arrival():
    found, arrived = models(DelayedNesterov(eta=0.5, beta=0.8, window=1))
    w, m, expected = np.zeros(3), 0.0, []
    for difference in arrived:
        m = 0.8 * m + difference
        w = w + 0.5 * (0.8 * m + difference)
        expected.append(w)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.25])
def test_a_window_as_a_whole_is_one_nesterov_step_on_its_mean_unless_momentum_is_spread(spread):
    found, arrived = models(DelayedNesterov(eta=0.5, beta=0.8, window=4, spread=spread))
    w, m = np.zeros(3), 0.0
    for start in range(0, 40, 4):
        mean, before = arrived[start : start + 4].mean(axis=0), m
        m = 0.8 * m + mean
        # of the momentum before the window 3 c b are applied on the way, of the new one 1 - 3 c
        w = w + 0.5 * (0.8 * (3 * spread * before + (1 - 3 * spread) * m) + mean)
        np.testing.assert_allclose(found[start + 3], w, rtol=1e-9)


class Steps(Observer):
    def __init__(self):
        self.k = {}

    def dispatched(self, work, model_d):
        self.k.setdefault(work.client, []).append(work.k)


class PerStep(Scripted):
    """A time for each local step instead of one for the work."""

    def duration(self, work):
        return super().duration(work) * work.k


def test_dylu_gives_each_client_work_in_proportion_to_the_speed_seen():
    def k_of(**settings):
        steps = Steps()
        world = WORLD | {"n": 3, "delay": PerStep([[1.0], [2.5], [100.0]]), "workload": Workload(k=8)}
        simulate(DelayedNesterov(**settings), uploads=40, observers=[steps], **world)
        return steps.k

    assert {k for own in k_of().values() for k in own} == {8}
    k = k_of(dylu=True)
    assert set(k[0]) == {8} and k[1][0] == 8 and set(k[1][1:]) == {3}  # floor(8 / 2.5)
    assert k[2] == [8]  # never heard


def test_at_least_one_step_is_done_however_slow_a_client_is():
    steps = Steps()
    world = WORLD | {"n": 2, "delay": PerStep([[1.0], [20.0]]), "workload": Workload(k=8)}
    simulate(DelayedNesterov(dylu=True), virtual_time=400, observers=[steps], **world)
    assert steps.k[1][:3] == [8, 1, 1]


@pytest.mark.parametrize("k", [2, 5, 7])
def test_dylu_takes_no_step_from_clients_of_equal_speed_by_the_clocks_rounding(k):
    steps = Steps()
    world = WORLD | {"n": 5, "delay": PerStep([[0.1 / 127]] * 5), "workload": Workload(k=k)}
    simulate(DelayedNesterov(dylu=True), uploads=400, observers=[steps], **world)
    assert {own for all_of in steps.k.values() for own in all_of} == {k}
