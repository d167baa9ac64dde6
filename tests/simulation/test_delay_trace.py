"""Durations from a file."""

import numpy as np
import pytest
from toy import Scripted, simulate

from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import StepConfig
from asyncfl_bench.randomness import Streams
from asyncfl_bench.simulation.delay_trace import DelayTrace, DelayTraceConfig
from asyncfl_bench.types import ClientTable, Work


def trace(content, n, **settings):
    with open("d.csv", "w") as file:
        file.write(content)
    delay = DelayTrace(DelayTraceConfig(path="d.csv", **settings))
    delay.start(ClientTable(np.ones(n)), Streams(0))
    return delay


def taken(delay, client, cycles=(), starts=()):
    pieces = [Work(client, 0, cycle, 0, 1, cycle=cycle) for cycle in cycles]
    return [delay.duration(work) for work in pieces + [Work(client, 0, 0, 0, 1, start=start) for start in starts]]


TWO = "client,duration\na,1\nb,10\na,2\nb,20\na,3\n"


def test_a_clients_kth_piece_of_work_takes_its_kth_duration_and_then_the_first_again():
    delay = trace(TWO, 2)
    assert taken(delay, 0, cycles=range(7)) == [1, 2, 3, 1, 2, 3, 1]
    assert taken(delay, 1, cycles=range(4)) == [10, 20, 10, 20]


def test_the_last_duration_stays_when_asked_to():
    assert taken(trace(TWO, 2, at_end="last"), 0, cycles=range(5)) == [1, 2, 3, 3, 3]


SHIFTS = "client,duration,start\na,7,8\nb,1,0\na,5,2\n"  # rows need no order


def test_the_duration_is_the_one_in_force_at_the_dispatch():
    delay = trace(SHIFTS, 2)
    assert taken(delay, 0, starts=[0, 2, 7.9, 8, 1000]) == [5, 5, 5, 7, 7]
    assert taken(delay, 1, starts=[0, 50]) == [1, 1]


def test_with_a_period_the_durations_come_again_and_the_last_reaches_into_the_next_turn():
    delay = trace(SHIFTS, 2, period=10)
    assert taken(delay, 0, starts=[0, 2, 8, 11.9, 12, 18, 1e6 + 3]) == [7, 5, 7, 7, 5, 7, 5]


def test_the_record_of_a_live_run_gives_the_durations_of_the_uploads_that_arrived():
    rows = ["client,cycle,duration,arrived,left,time,why", "1,0,2,1,0,2,", '0,0,60,0,0,60,"late, killed"']
    record = "\n".join([*rows, "0,1,4,1,0,64,", "1,1,3,1,0,65,"])
    delay = trace(record, 2)
    assert taken(delay, 0, cycles=range(2)) == [4, 4] and taken(delay, 1, cycles=range(3)) == [2, 3, 2]


@pytest.mark.parametrize(("per", "expected"), [("work", 2), ("step", 2 * 6), ("sample", 2 * 40)])
def test_a_duration_may_be_for_the_work_a_step_or_a_sample(per, expected):
    delay = trace("client,duration\na,2\n", 1, per=per)
    assert delay.duration(Work(0, 0, 0, 0, local_steps=6, samples=40)) == expected


@pytest.mark.parametrize("clock", ["time", "ticks"])
def test_a_run_under_a_trace_is_the_run_its_durations_ask_for(clock):
    rows = [[1, 2, 3], [10.5, 20], [2.5]]
    content = "client,duration\n" + "".join(f"{c},{d}\n" for c, row in enumerate(rows) for d in row)
    simulated = []
    for delay in (trace(content, 3, at_end="last"), Scripted(rows)):
        _, recorder, _ = simulate(Asgd(StepConfig(eta=0.1)), n=3, delay=delay, clock=clock, server_iterations=30)
        simulated.append([(a.time, a.client, a.staleness) for a in recorder.arrivals])
    assert simulated[0] == simulated[1]
