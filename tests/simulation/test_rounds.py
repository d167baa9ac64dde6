"""Dispatching at the end of a round, on written-out timelines."""

import numpy as np
import pytest
from toy import Scripted, ScriptedLoss, facts, simulate

from asyncfl_bench.algorithms.ace import Ace, AceConfig
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import StepConfig
from asyncfl_bench.algorithms.fedavg import FedAvg, FedAvgConfig
from asyncfl_bench.simulation.observer import Observer
from asyncfl_bench.simulation.schedules import SameClient, ScheduleConfig


class Diary(Observer):
    """What observers are told, one word or tuple each."""

    def __init__(self):
        self.told = []

    def dispatched(self, work, model_d):
        self.told.append(("dispatched", work.client))

    def discarded(self, work):
        self.told.append(("discarded", work.client))

    def received(self, upload, changed):
        self.told.append(("received", upload.client, changed))

    def ticked(self, changed):
        self.told.append(("ticked", changed))

    def round_ended(self, changed):
        self.told.append(("round ended", changed))

    def arrived(self, upload, changed, time):
        self.told.append(("arrived", upload.client, changed, time))

    def iterated(self, counters):
        self.told.append(("iterated", counters.iteration))


def rounds(rule=None, durations=((1,), (2.5,), (2,)), lost=(), hang=0.0, **world):
    diary, durations = Diary(), [list(row) for row in durations]
    simulation, recorder, ended_by = simulate(
        rule or FedAvg(FedAvgConfig()),
        n=len(durations),
        delay=Scripted(durations),
        schedule=SameClient(ScheduleConfig(dispatch="per_round")),
        availability=ScriptedLoss(set(lost), hang),
        observers=[diary],
        **{"kind": "difference"} | world,
    )
    return simulation, recorder, diary.told, ended_by


def test_under_the_time_clock_everybody_waits_for_the_slowest_and_starts_from_the_new_model():
    _, recorder, _, _ = rounds(server_iterations=2)
    assert facts(recorder) == [(1, 0, 0, 0), (2, 2, 0, 0), (2.5, 1, 0, 0), (3.5, 0, 1, 0), (4.5, 2, 1, 0), (5, 1, 1, 0)]


def test_under_the_tick_clock_a_round_lasts_as_many_ticks_as_its_slowest_client():
    _, recorder, _, _ = rounds(durations=[[1, 3], [2.9, 1], [2, 0.4]], clock="ticks", server_iterations=2)
    # 1, 2 and 2 ticks; then 3, 1 and 1
    assert facts(recorder) == [(1, 0, 0, 0), (2, 1, 0, 0), (2, 2, 0, 0), (3, 1, 1, 0), (3, 2, 1, 0), (5, 0, 1, 0)]


@pytest.mark.parametrize("clock", ["time", "ticks"])
def test_the_last_arrival_of_a_round_is_the_one_that_changed_the_model(clock):
    _, recorder, _, _ = rounds(clock=clock, durations=[[1], [3], [2]], server_iterations=3)
    assert [a.changed for a in recorder.arrivals] == [False, False, True] * 3
    assert [a.client for a in recorder.arrivals if a.changed] == [1, 1, 1]


def test_a_round_waits_for_a_hanging_client_and_goes_on_without_its_upload():
    _, recorder, _, _ = rounds(lost=[(2, 0)], hang=1.5, server_iterations=2)
    # client 2 is lost at 2 and hangs until 2 + 1.5 * 2 = 5; then all start again
    assert facts(recorder) == [(1, 0, 0, 0), (2.5, 1, 0, 0), (6, 0, 1, 0), (7, 2, 1, 0), (7.5, 1, 1, 0)]
    assert [a.changed for a in recorder.arrivals] == [False, False, False, False, True]


@pytest.mark.parametrize("clock", ["time", "ticks"])
def test_a_round_without_deliveries_changes_nothing_and_the_next_one_begins(clock):
    everybody = [(client, 0) for client in range(3)]
    simulation, recorder, told, _ = rounds(lost=everybody, clock=clock, server_iterations=1)
    assert [a.base_iteration for a in recorder.arrivals] == [0, 0, 0]
    assert ("round ended", False) in told and told.count(("round ended", True)) == 1
    assert simulation.counters.discarded == 3 and len(recorder.models) == 1


def test_observers_hear_of_a_round_in_the_order_in_which_it_happens():
    _, _, told, _ = rounds(durations=[[1], [2]], server_iterations=1)
    assert told == [
        ("dispatched", 0),
        ("dispatched", 1),
        ("received", 0, False),
        ("arrived", 0, False, 1),
        ("received", 1, False),
        ("round ended", True),
        ("arrived", 1, True, 2),
        ("iterated", 1),
        ("dispatched", 0),
        ("dispatched", 1),
    ]


def test_observers_hear_of_a_round_that_ends_with_lost_work():
    _, _, told, _ = rounds(durations=[[1], [2]], lost=[(1, 0)], server_iterations=1)
    assert told[2:] == [
        ("received", 0, False),
        ("arrived", 0, False, 1),
        ("discarded", 1),
        ("round ended", True),
        ("iterated", 1),
        ("dispatched", 0),
        ("dispatched", 1),
    ]


def test_under_the_tick_clock_observers_hear_of_the_tick_before_the_round():
    _, _, told, _ = rounds(durations=[[1], [1]], clock="ticks", server_iterations=1)
    assert told[2:8] == [
        ("received", 0, False),
        ("arrived", 0, False, 1),
        ("received", 1, False),
        ("ticked", False),
        ("round ended", True),
        ("arrived", 1, True, 1),
    ]


def test_other_rules_may_work_in_rounds_too():
    _, recorder, _, _ = rounds(Asgd(StepConfig(eta=0.1)), kind="gradient", server_iterations=6)
    assert [a.staleness for a in recorder.arrivals] == [0, 1, 2] * 2
    ace = Ace(AceConfig(eta=0.1, step_on="arrival"))
    _, recorder, _, _ = rounds(ace, kind="gradient", server_iterations=7)
    assert [a.base_iteration for a in recorder.arrivals] == [0, 0, 0, 1, 1, 1, 4, 4, 4]


def test_a_budget_of_uploads_ends_in_the_middle_of_a_round_which_then_counts_for_nothing():
    simulation, recorder, _, ended_by = rounds(uploads=7)
    assert ended_by == "uploads" and simulation.counters.iteration == 2 and len(recorder.arrivals) == 7
    np.testing.assert_array_equal(recorder.models[-1], simulation.model_d.numpy())


def test_a_budget_of_virtual_time_counts_a_round_that_ends_at_that_very_time():
    assert rounds(virtual_time=5)[0].counters.iteration == 2
    simulation, _, _, ended_by = rounds(virtual_time=4.9)
    assert ended_by == "virtual_time" and (simulation.counters.iteration, simulation.counters.uploads) == (1, 5)
