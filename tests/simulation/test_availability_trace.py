"""Clients that come and go as a file says, on timelines worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import Scripted, asgd, facts, simulate

from asyncfl_bench.algorithms.fedavg import FedAvg, FedAvgConfig
from asyncfl_bench.randomness import Streams
from asyncfl_bench.simulation.availability_trace import AvailabilityTrace, AvailabilityTraceConfig
from asyncfl_bench.simulation.schedules import RandomIdle, SameClient, ScheduleConfig
from asyncfl_bench.types import Work


def online(*sessions_n, **settings):
    """A trace in which client i is online during sessions_n[i], a list of (online, offline)."""
    with open("o.csv", "w") as file:
        file.write("client,online,offline\n")
        file.writelines(f"{i},{a!r},{b!r}\n" for i, sessions in enumerate(sessions_n) for a, b in sessions)
    return AvailabilityTrace(AvailabilityTraceConfig(path="o.csv", **settings))


def outcomes(trace, starts_and_durations):
    trace.start(1, Streams(0))
    return [trace.outcome(Work(0, 0, 0, 0, 1, start=start), duration) for start, duration in starts_and_durations]


COMES_AND_GOES = ([(0, 100)], [(1, 5), (6, 100)])  # client 0 needs 2 for each piece of work, client 1 needs 3


def test_lost_work_never_arrives_and_its_client_starts_again_when_it_is_back():
    trace = online(*COMES_AND_GOES, interrupted="lost")
    simulation, recorder, _ = simulate(asgd(), n=2, delay=Scripted([[2], [3]]), availability=trace, server_iterations=6)
    assert facts(recorder) == [
        (2, 0, 0, 0),
        (4, 1, 0, 1),  # begins at 1; its next work, from 4 on, is cut off at 5 and the client back at 6
        (4, 0, 1, 1),
        (6, 0, 3, 0),
        (8, 0, 4, 0),
        (9, 1, 3, 2),
    ]
    assert simulation.counters.discarded == 1


def test_paused_work_goes_on_when_its_client_is_back():
    trace = online(*COMES_AND_GOES, interrupted="paused")
    simulation, recorder, _ = simulate(asgd(), n=2, delay=Scripted([[2], [3]]), availability=trace, server_iterations=6)
    # client 1 works from 4 to 5 and from 6 to 8; at 8 it was dispatched before client 0
    assert facts(recorder) == [(2, 0, 0, 0), (4, 1, 0, 1), (4, 0, 1, 1), (6, 0, 3, 0), (8, 1, 2, 2), (8, 0, 4, 1)]
    assert simulation.counters.discarded == 0


def test_on_the_tick_clock_clients_come_and_go_as_well():
    trace = online(*COMES_AND_GOES, interrupted="lost")
    simulation, recorder, _ = simulate(
        asgd(), n=2, delay=Scripted([[2], [3]]), availability=trace, clock="ticks", server_iterations=6
    )
    # as under the time clock, but whoever reports at a tick starts again after all of its arrivals
    assert facts(recorder) == [(2, 0, 0, 0), (4, 1, 0, 1), (4, 0, 1, 1), (6, 0, 3, 0), (8, 0, 4, 0), (9, 1, 4, 1)]
    assert simulation.counters.discarded == 1


def test_work_that_is_complete_as_the_session_ends_arrives_even_if_the_client_is_gone_then():
    trace = online([(0, 0.5)], [(0, 9)], repeat=False)
    for clock, times in (("time", [0.5, 0.5]), ("ticks", [1, 1])):
        _, recorder, _ = simulate(
            asgd(), n=2, delay=Scripted([[0.5], [0.5]]), availability=trace, clock=clock, server_iterations=2
        )
        assert [(a.time, a.client) for a in recorder.arrivals] == list(zip(times, [0, 1], strict=True))


def rounds(**world):
    schedule = SameClient(ScheduleConfig(dispatch="per_round"))
    rule = FedAvg(FedAvgConfig())
    simulation, recorder, ended_by = simulate(rule, n=2, kind="difference", schedule=schedule, **world)
    return simulation, [(a.time, a.client, a.changed) for a in recorder.arrivals], ended_by


def test_rounds_wait_for_a_client_until_it_is_online_again():
    trace = online([(0, 10)], [(3, 5)])
    _, arrivals, _ = rounds(delay=Scripted([[1], [1]]), availability=trace, server_iterations=3)
    assert arrivals == [(1, 0, False), (4, 1, True), (5, 0, False), (5, 1, True), (6, 0, False), (14, 1, True)]


@pytest.mark.parametrize("interrupted", ["lost", "paused"])
def test_rounds_go_on_without_a_client_that_does_not_come_back(interrupted):
    trace = online([(0, 100)], [(0, 2.5)], repeat=False, interrupted=interrupted)
    simulation, arrivals, _ = rounds(delay=Scripted([[1], [1, 5]]), availability=trace, server_iterations=3)
    # the second round has to wait until 2.5, when client 1 leaves with its work; it steps then, with what it has
    assert arrivals == [(1, 0, False), (1, 1, True), (2, 0, False), (3.5, 0, True)]
    assert (simulation.counters.iteration, simulation.counters.discarded) == (3, 1)
    assert [work.client for work in simulation.in_flight.values()] == [0]


@pytest.mark.parametrize("clock", ["time", "ticks"])
@pytest.mark.parametrize("interrupted", ["lost", "paused"])
def test_clients_that_do_not_come_back_hold_no_place(clock, interrupted):
    trace = online([(0, 3)], [(0, 3)], [(0, 99)], [(0, 99)], repeat=False, interrupted=interrupted)
    simulation, recorder, _ = simulate(
        asgd(),
        n=4,
        delay=Scripted([[1.1]] * 4),
        availability=trace,
        schedule=RandomIdle(ScheduleConfig()),
        concurrency=2,
        clock=clock,
        virtual_time=30,
    )
    assert {work.client for work in simulation.in_flight.values()} == {2, 3}
    assert {a.client for a in recorder.arrivals if a.time > 3} == {2, 3}


@pytest.mark.parametrize("clock", ["time", "ticks"])
def test_a_run_whose_clients_have_all_left_ends_and_says_so(clock):
    trace = online([(0, 3)], [(1, 4)], repeat=False)
    simulation, recorder, ended_by = simulate(
        asgd(), n=2, delay=Scripted([[1]] * 2), availability=trace, clock=clock, server_iterations=40
    )
    assert ended_by == "no_clients"
    assert [(a.time, a.client) for a in recorder.arrivals] == [(1, 0), (2, 1), (2, 0), (3, 1), (3, 0), (4, 1)]
    assert simulation.counters.discarded == 0


def test_a_fleet_that_is_always_online_is_availability_always_bit_for_bit():
    durations = np.random.default_rng(3).exponential(size=(4, 60)).tolist()
    runs = []
    for trace in (None, online([(0, 1)], [(0, 0.25), (0.25, 1)], [(0, 1)], [(0, 1)])):
        _, recorder, _ = simulate(asgd(), n=4, delay=Scripted(durations), availability=trace, server_iterations=200)
        runs.append(facts(recorder))
    assert runs[0] == runs[1]


def test_sessions_that_touch_are_one_also_over_the_end_of_the_trace():
    # online [0, 2), [8, 10) of every 10: work from 9 on has until 12, the gap of rounding in between is none
    trace = online([(0, 1), (1 + 1e-12, 2), (8, 10 - 1e-10)], period=10.0)
    assert outcomes(trace, [(0.5, 1.5), (9, 3), (19.5, 2.5), (9, 3.5), (1.5, 1)]) == [
        (1.5, True),
        (3, True),
        (2.5, True),
        (9, False),
        (6.5, False),
    ]


def test_paused_work_adds_up_over_many_turns():
    # 2 of every 10 units online: 7 units of work from 1 on need 1 in the first turn, then 2 in each of three
    trace = online([(0, 2)], interrupted="paused", period=10)
    assert outcomes(trace, [(1, 7), (1, 1), (5, 2), (5, 2.5)]) == [(31, True), (1, True), (7, True), (15.5, True)]


def test_the_trace_begins_again_after_its_period_or_after_its_last_session():
    for period, back in ((None, 7), (20, 21)):
        trace = online([(1, 2), (5, 6)], period=period)
        assert outcomes(trace, [(6, 0.5)]) == [(back + 0.5 - 6, True)]


@st.composite
def fleets(draw):
    moments = sorted(draw(st.sets(st.integers(0, 40), min_size=2, max_size=10)))
    sessions = list(zip(moments[::2], moments[1::2], strict=False))
    period = sessions[-1][1] + draw(st.sampled_from([0, 0, 5]))
    return sessions, period


@pytest.mark.slow
@given(fleets(), st.integers(0, 200), st.integers(0, 60), st.booleans(), st.sampled_from(["lost", "paused"]))
@settings(max_examples=250, deadline=None)
def test_every_outcome_is_that_of_living_through_the_trace_unit_by_unit(fleet, start, duration, repeat, interrupted):
    sessions, period = fleet

    def is_online(time):
        return any(a <= (time % period if repeat else time) < b for a, b in sessions)

    trace = online(sessions, interrupted=interrupted, repeat=repeat, period=float(period) if repeat else None)
    trace.start(1, Streams(0))
    horizon = start + 200 * period
    begin = next((time for time in range(start, horizon) if is_online(time)), None)
    assert trace.has_left(0, 0, float(start)) == (begin is None)
    if begin is None:
        return
    left, time, cut_off = duration, begin, False
    while left and time < horizon and not cut_off:
        if is_online(time):
            left -= 1
        elif interrupted == "lost":
            cut_off = True
            break
        time += 1
    if not left:
        expected = (time - start, True)
    else:
        back = next((t for t in range(time, horizon) if is_online(t)), None) if cut_off else None
        expected = ((back if back is not None else min(time, sessions[-1][1])) - start, False)
    assert trace.outcome(Work(0, 0, 0, 0, 1, start=float(start)), float(duration)) == expected
