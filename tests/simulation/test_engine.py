"""The event loop on written-out timelines."""

import math

import numpy as np
import pytest
import torch
from toy import Scripted, ScriptedLoss, asgd, facts, simulate

from asyncfl_bench.algorithms.ace import Ace, AceConfig
from asyncfl_bench.algorithms.aced import Aced, AcedConfig
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import StepConfig
from asyncfl_bench.algorithms.fedbuff import FedBuff, FedBuffConfig
from asyncfl_bench.errors import BenchError
from asyncfl_bench.simulation.availability import Dropout, DropoutConfig
from asyncfl_bench.simulation.schedules import RandomIdle, SameClient, ScheduleConfig
from asyncfl_bench.types import Recorder


def test_arrivals_come_in_order_of_time_and_staleness_counts_the_iterations_in_between():
    # client 0 needs 1, then 1, ...; client 1 needs 2.5, then 1
    _, recorder, ended_by = simulate(asgd(), n=2, delay=Scripted([[1], [2.5, 1]]), server_iterations=5)
    assert facts(recorder) == [
        (1.0, 0, 0, 0),
        (2.0, 0, 1, 0),
        (2.5, 1, 0, 2),
        (3.0, 0, 2, 1),
        (3.5, 1, 3, 1),
    ]
    assert ended_by == "server_iterations"


def test_arrivals_at_the_same_time_come_in_order_of_dispatch():
    _, recorder, _ = simulate(asgd(), n=3, delay=Scripted([[2], [1], [2]]), server_iterations=6)
    # at time 2: client 0 (dispatched 1st) and 2 (3rd) before client 1, which was dispatched again at time 1
    assert [a.client for a in recorder.arrivals] == [1, 0, 2, 1, 1, 0]


def test_without_delay_clients_take_turns_and_time_stands_still():
    simulation, recorder, _ = simulate(asgd(), n=3, delay=Scripted([[0]] * 3), server_iterations=7)
    assert [a.client for a in recorder.arrivals] == [0, 1, 2, 0, 1, 2, 0]
    assert simulation.counters.virtual_time == 0


def test_a_tick_hands_over_all_its_arrivals_before_anyone_is_dispatched_again():
    _, recorder, _ = simulate(asgd(), n=3, delay=Scripted([[1], [1], [2]]), clock="ticks", server_iterations=7)
    assert facts(recorder) == [
        (1.0, 0, 0, 0),
        (1.0, 1, 0, 1),
        (2.0, 2, 0, 2),
        (2.0, 0, 2, 1),
        (2.0, 1, 2, 2),
        (3.0, 0, 5, 0),
        (3.0, 1, 5, 1),
    ]


def test_a_tick_clock_rounds_durations_down_to_whole_ticks_but_never_below_one():
    _, recorder, _ = simulate(asgd(), n=2, delay=Scripted([[0.2], [2.9]]), clock="ticks", server_iterations=5)
    assert [(a.time, a.client) for a in recorder.arrivals] == [(1, 0), (2, 1), (2, 0), (3, 0), (4, 1)]


def test_ace_takes_one_step_per_tick_also_in_a_tick_without_arrivals():
    rule = Ace(AceConfig(eta=0.1, step_on="tick"))
    targets = np.array([[1.0], [3.0]])
    simulation, recorder, _ = simulate(
        rule, n=2, delay=Scripted([[3]] * 2), clock="ticks", targets=targets, server_iterations=4
    )
    # the mean of the two first gradients, -2, moves the model at ticks 0, 1, 2; at tick 3 both report from w1 = 0.2
    np.testing.assert_allclose(np.array(recorder.models)[:, 0], [0.2, 0.4, 0.6, 0.6 + 0.1 * 1.8])
    assert simulation.counters.uploads == 4
    assert [a.changed for a in recorder.arrivals] == [False, True, False, True]


def test_the_first_round_takes_no_time_counts_n_uploads_and_one_iteration():
    rule = Ace(AceConfig(eta=0.1, step_on="arrival"))
    simulation, recorder, _ = simulate(rule, n=4, delay=Scripted([[1]] * 4), server_iterations=1)
    assert simulation.counters.uploads == 4
    assert simulation.counters.virtual_time == 0
    assert simulation.counters.iteration == 1
    assert [a.changed for a in recorder.arrivals] == [False, False, False, True]


def test_t_iterations_of_ace_cost_n_plus_t_minus_1_uploads():
    rule = Ace(AceConfig(eta=0.1, step_on="arrival"))
    simulation, _, _ = simulate(rule, n=7, delay=Scripted([[1, 3, 2]] * 7), server_iterations=30)
    assert simulation.counters.uploads == 7 + 30 - 1


def test_immediate_dispatch_gives_the_buffers_last_client_the_new_model():
    rule = FedBuff(FedBuffConfig(eta=1.0, buffer_size=2))
    _, recorder, _ = simulate(rule, n=2, delay=Scripted([[1], [2]]), kind="difference", server_iterations=3)
    # client 0 at 1 fills half a buffer and starts again from w0; client 1 at 2 shares its time with client 0's second
    assert facts(recorder) == [(1, 0, 0, 0), (2, 1, 0, 0), (2, 0, 0, 1), (3, 0, 1, 0), (4, 1, 1, 1), (4, 0, 2, 0)]


def test_dispatch_after_the_update_makes_every_client_wait_for_the_new_model():
    rule = FedBuff(FedBuffConfig(eta=1.0, buffer_size=2))
    schedule = SameClient(ScheduleConfig(dispatch="after_update"))
    _, recorder, _ = simulate(
        rule, n=2, delay=Scripted([[1], [2]]), kind="difference", schedule=schedule, server_iterations=3
    )
    assert facts(recorder) == [(1, 0, 0, 0), (2, 1, 0, 0), (3, 0, 1, 0), (4, 1, 1, 0), (5, 0, 2, 0), (6, 1, 2, 0)]


def test_dropped_clients_lose_the_work_they_have_in_flight_and_never_return():
    dropout = Dropout(DropoutConfig(share=0.5, at_iteration=3))
    simulation, recorder, _ = simulate(
        asgd(), n=4, delay=Scripted([[1], [1.1], [1.2], [1.3]]), availability=dropout, server_iterations=12
    )
    dropped = {client for client in range(4) if dropout.departed_n[client]}
    assert len(dropped) == 2
    late = [a.client for a in recorder.arrivals[3:]]
    assert not dropped & set(late)
    assert simulation.counters.discarded == 2
    assert {w.client for w in simulation.executor.discarded} == dropped


def test_a_dropped_clients_place_goes_to_another_under_random_idle():
    dropout = Dropout(DropoutConfig(share=0.5, at_iteration=2))
    simulation, _, _ = simulate(
        asgd(),
        n=10,
        delay=Scripted([[1]] * 10),
        availability=dropout,
        schedule=RandomIdle(ScheduleConfig()),
        concurrency=4,
        server_iterations=40,
    )
    assert len(simulation.in_flight) == 4


def test_a_run_in_which_nobody_is_left_ends_and_says_so():
    dropout = Dropout(DropoutConfig(share=1.0, at_iteration=3))
    _, recorder, ended_by = simulate(asgd(), n=4, delay=Scripted([[1]] * 4), availability=dropout, server_iterations=50)
    assert ended_by == "no_clients"
    assert len(recorder.arrivals) == 3


@pytest.mark.parametrize(
    ("limit", "value", "expected"), [("uploads", 5, 5), ("client_steps", 6, 6), ("virtual_time", 2.5, 7)]
)
def test_the_budget_that_is_used_up_first_ends_the_run(limit, value, expected):
    simulation, recorder, ended_by = simulate(
        asgd(), n=3, delay=Scripted([[1], [1], [0.7]]), server_iterations=1000, **{limit: value}
    )
    assert ended_by == limit
    assert len(recorder.arrivals) == expected
    if limit == "virtual_time":  # arrivals at .7 1 1 1.4 2 2 2.1; the next, at 2.8, is beyond
        assert simulation.counters.virtual_time == 2.5


def test_a_run_of_fedbuff_with_more_places_than_clients_in_the_buffer_still_moves():
    rule = FedBuff(FedBuffConfig(eta=1.0, buffer_size=5))
    simulation, _, _ = simulate(rule, n=2, delay=Scripted([[1], [1.5]]), kind="difference", server_iterations=4)
    assert simulation.counters.uploads == 20


def test_no_more_versions_are_kept_than_work_in_flight_started_from():
    simulation, _, _ = simulate(asgd(), n=6, delay=Scripted([[1, 5, 2, 9]] * 6), server_iterations=100)
    started_from = {work.iteration for work in simulation.in_flight.values()}
    assert len(simulation.executor.versions) == len(started_from) <= 6


def test_a_rule_that_answers_neither_true_nor_false_is_named():
    class Vague(Asgd):
        def receive(self, upload):
            return None

    with pytest.raises(
        BenchError,
        match=r"test_engine.py, line \d+: Vague.receive returned None: it must return True if it changed the model",
    ):
        simulate(Vague(StepConfig(eta=1.0)), n=1, delay=Scripted([[1]]), server_iterations=1)


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_delays_of_applied_and_in_flight_work_sum_to_t_times_c_minus_1(concurrency):
    rng = np.random.default_rng(5)
    delay = Scripted(rng.exponential(size=(8, 200)).tolist())
    schedule = RandomIdle(ScheduleConfig())
    simulation, recorder, _ = simulate(
        asgd(), n=8, delay=delay, schedule=schedule, concurrency=concurrency, server_iterations=150
    )
    applied = sum(a.staleness for a in recorder.arrivals)
    in_flight = sum(simulation.counters.iteration - work.iteration for work in simulation.in_flight.values())
    assert applied + in_flight == 150 * (concurrency - 1)


def test_equal_durations_give_every_client_the_staleness_c_minus_1():
    _, recorder, _ = simulate(asgd(), n=5, delay=Scripted([[1]] * 5), server_iterations=40)
    assert [a.staleness for a in recorder.arrivals] == [0, 1, 2, 3, 4] + [4] * 35


@pytest.mark.parametrize(("dispatch", "expected"), [("immediate", (12 - 1) / 4), ("after_update", (12 - 4) / 4)])
def test_mean_staleness_with_a_buffer_tends_to_its_known_limit(dispatch, expected):
    rng = np.random.default_rng(6)
    rule = FedBuff(FedBuffConfig(eta=0.01, buffer_size=4))
    schedule = RandomIdle(ScheduleConfig(dispatch=dispatch))
    _, recorder, _ = simulate(
        rule,
        n=30,
        delay=Scripted(rng.exponential(size=(30, 400)).tolist()),
        kind="difference",
        schedule=schedule,
        concurrency=12,
        server_iterations=2000,
    )
    assert np.mean([a.staleness for a in recorder.arrivals]) == pytest.approx(expected, rel=0.03)


def test_exponential_delays_without_compute_time_give_the_same_arrivals_for_every_beta():
    draws = np.random.default_rng(8).exponential(size=(6, 300))
    orders = []
    for beta in (1.0, 30.0):
        _, recorder, _ = simulate(asgd(), n=6, delay=Scripted((beta * draws).tolist()), server_iterations=300)
        orders.append([a.client for a in recorder.arrivals])
    assert orders[0] == orders[1]


def test_next_time_is_infinite_when_nothing_is_to_come():
    dropout = Dropout(DropoutConfig(share=1.0, at_iteration=1))
    simulation, _, _ = simulate(asgd(), n=1, delay=Scripted([[1]]), availability=dropout, server_iterations=9)
    assert simulation.next_time == math.inf


@pytest.mark.parametrize("clock", ["time", "ticks"])
def test_everything_that_happens_at_the_last_moment_of_the_budget_counts(clock):
    rule = Ace(AceConfig(eta=0.1, step_on="tick" if clock == "ticks" else "arrival"))
    simulation, recorder, ended_by = simulate(rule, n=4, delay=Scripted([[1]] * 4), clock=clock, virtual_time=5)
    assert ended_by == "virtual_time"
    assert sum(a.time == 5 for a in recorder.arrivals) == 4
    assert simulation.counters.iteration == (1 + 5 if clock == "ticks" else 1 + 5 * 4)
    assert recorder.arrivals[-1].changed


def test_a_run_in_which_no_upload_moves_the_model_any_more_ends_as_stalled():
    rule = Aced(AcedConfig(eta=0.1, tau_algo=2, tstart="gradient", step_on="arrival"))
    simulation, _, ended_by = simulate(rule, n=12, delay=Scripted([[1]] * 12), server_iterations=500)
    assert ended_by == "stalled"
    assert simulation.counters.iteration < 20 and simulation.counters.uploads > 10_000


@pytest.mark.slow
def test_a_budget_of_time_alone_ends_as_stalled_when_time_stands_still():
    simulation, _, ended_by = simulate(asgd(), n=2, delay=Scripted([[0.0], [1.0]]), virtual_time=5)
    assert ended_by == "stalled"
    assert simulation.counters.virtual_time == 0.0


def test_bytes_are_a_model_at_every_dispatch_and_an_upload_at_every_arrival():
    # 3 numbers of 8 bytes; client 0 arrives at 1, 2, 3, client 1, whose second piece of work is lost, at 2
    world = {"n": 2, "delay": Scripted([[1], [2, 1, 9]]), "availability": ScriptedLoss({(1, 1)})}
    simulation, _, _ = simulate(asgd(), **world, virtual_time=3.5)
    assert simulation.counters.uploads == 4 and simulation.dispatches == 7
    assert (simulation.counters.uplink_bytes, simulation.counters.downlink_bytes) == (4 * 24, 7 * 24)


class Telling(Recorder, Ace):
    bytes_before = 1000


def test_clients_that_send_changes_send_doubles_and_a_rule_may_have_them_send_more_before():
    rule = Telling(AceConfig(eta=0.1, rule="incremental"))
    world = {"start": torch.zeros(3), "n": 4, "targets": np.ones((4, 3)), "delay": Scripted([[1]] * 4)}
    simulation, _, _ = simulate(rule, **world, uploads=10)
    assert simulation.counters.uplink_bytes == 1000 + 10 * 3 * 8
    assert simulation.counters.downlink_bytes == simulation.dispatches * 3 * 4


def test_a_budget_of_bytes_ends_with_the_message_that_reaches_it():
    # both directions: 2 models at first, then an upload and a model at each arrival
    simulation, _, ended_by = simulate(asgd(), n=2, delay=Scripted([[1], [1.5]]), bytes=24 * 7)
    assert ended_by == "bytes"
    assert simulation.counters.bytes == 24 * 8 and simulation.counters.uploads == 3
