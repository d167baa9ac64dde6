"""Who goes next."""

import numpy as np
from toy import Scripted, simulate

from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import StepConfig
from asyncfl_bench.simulation.schedules import RandomIdle, SameClient, ScheduleConfig


def uploads_per_client(schedule, delay, concurrency, iterations, n=20, seed=0):
    rule = Asgd(StepConfig(eta=0.01))
    _, recorder, _ = simulate(
        rule, n=n, delay=delay, schedule=schedule, concurrency=concurrency, seed=seed, server_iterations=iterations
    )
    return np.bincount([a.client for a in recorder.arrivals], minlength=n)


def test_the_same_client_contributes_in_proportion_to_its_speed():
    delay = Scripted([[1.0]] * 10 + [[4.0]] * 10)
    counts = uploads_per_client(SameClient(ScheduleConfig()), delay, 20, 2500)
    assert counts[:10].mean() / counts[10:].mean() == 4


def test_random_idle_evens_participation_out_whatever_the_speeds():
    delay = Scripted([[1.0]] * 10 + [[4.0]] * 10)
    counts = uploads_per_client(RandomIdle(ScheduleConfig()), delay, 4, 8000)
    assert counts.min() > 0
    assert counts[:10].mean() / counts[10:].mean() < 1.3


def test_every_client_keeps_contributing_over_a_long_run():
    # a snapshot of published code stopped using 80 of 100 clients after the first n - C arrivals
    rng = np.random.default_rng(0)
    counts = uploads_per_client(
        RandomIdle(ScheduleConfig()), Scripted(rng.exponential(size=(20, 50)).tolist()), 5, 4000
    )
    assert counts.min() > 100


def test_a_fixed_smaller_set_of_clients_is_chosen_by_the_seed():
    delay = Scripted([[1.0]] * 20)
    one = uploads_per_client(SameClient(ScheduleConfig()), delay, 5, 100)
    again = uploads_per_client(SameClient(ScheduleConfig()), delay, 5, 100)
    other = uploads_per_client(SameClient(ScheduleConfig()), delay, 5, 100, seed=1)
    assert (one > 0).sum() == 5
    np.testing.assert_array_equal(one, again)
    assert set(np.flatnonzero(one)) != set(np.flatnonzero(other))
