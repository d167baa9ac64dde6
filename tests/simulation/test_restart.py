"""Work that is stopped because its model has become too old, and begun anew on the current one (restart_at)."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from resuming import assert_goes_on
from tiers import slow
from toy import Leaves, Scripted, ScriptedLoss, simulate

from asyncfl_bench import run
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.malenia import Malenia
from asyncfl_bench.algorithms.rennala import Rennala
from asyncfl_bench.algorithms.ringmaster import Ringmaster
from asyncfl_bench.config import compose
from asyncfl_bench.simulation.availability import Dropout, DropoutConfig
from asyncfl_bench.simulation.observer import Observer

E2 = {"delay": Scripted([[1], [2.6]]), "targets": [[0.0], [2.0]], "start": [4.0], "n": 2}
N = 6
RANDOM = {"delay": Scripted(np.random.default_rng(0).exponential(size=(N, 400)).tolist()), "n": N}


class Told(Observer):
    """Dispatches and cancellations in order, as (what, client, version)."""

    def __init__(self):
        self.all, self.cancellations = [], []

    def dispatched(self, work, model_d):
        self.all.append(("begins", work.client, work.iteration))

    def cancelled(self, work):
        self.all.append(("stops", work.client, work.iteration))
        self.cancellations.append(work)


def ringmaster(restart_at, eta=0.1):
    return Ringmaster(eta=eta, threshold=10**9, restart_at=restart_at)


def steps(rule, until, **world):
    """[(time, client, model)] of each server iteration, and the simulation."""
    simulation, recorder, _ = simulate(rule, virtual_time=until, **(E2 | world))
    moved = [arrival for arrival in recorder.arrivals if arrival.changed]
    models = [float(model[0]) for model in recorder.models]
    return [(a.time, a.client, m) for a, m in zip(moved, models, strict=True)], simulation


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # client 1 has a model two steps old at 2, 4 and 6, and never reports
        (ringmaster(2), [(1, 3.6), (2, 3.24), (3, 2.916), (4, 2.6244), (5, 2.36196), (6, 2.125764)]),
        (Rennala(eta=0.1, buffer_size=2, restart_at=1), [(2, 3.6), (4, 3.24), (6, 2.916)]),
        (Malenia(eta=0.1, restart_at=1), [(2.6, 3.7), (5.2, 3.43)]),
    ],
)
def test_the_stop_forms_of_three_rules_in_a_world_worked_out_by_hand(rule, expected):
    found, simulation = steps(rule, expected[-1][0])
    np.testing.assert_allclose([(time, model) for time, _, model in found], expected, rtol=1e-6)
    assert simulation.counters.cancelled == 3 - isinstance(rule, Malenia) and simulation.counters.discarded == 0
    assert rule.stats() == {"rule/dropped_uploads": 0.0}


def test_whoever_is_stopped_begins_anew_behind_the_client_that_reported_with_a_new_duration():
    told = Told()
    world = E2 | {"delay": Scripted([[1], [2.6, 0.3, 9]])}
    _, recorder, _ = simulate(ringmaster(2), virtual_time=2.4, observers=[told], **world)
    begun = [("begins", 0, 0), ("begins", 1, 0), ("begins", 0, 1)]
    assert told.all[:3] == begun
    assert told.all[3:6] == [("stops", 1, 0), ("begins", 0, 2), ("begins", 1, 2)]  # at 2, after the second step
    assert [(a.client, a.time, a.staleness) for a in recorder.arrivals] == [(0, 1, 0), (0, 2, 0), (1, 2.3, 0)]
    assert told.all[6:] == [("begins", 1, 3)] and [work.start for work in told.cancellations] == [0.0]


@pytest.mark.parametrize("clock", ["time", "ticks"])
@pytest.mark.parametrize("restart_at", [1, 2, 4])
def test_no_upload_is_as_stale_as_that_and_cancelled_work_is_never_computed(restart_at, clock):
    told = Told()
    simulation, recorder, _ = simulate(
        ringmaster(restart_at), server_iterations=200, clock=clock, observers=[told], **RANDOM
    )
    stale = [arrival.staleness for arrival in recorder.arrivals]
    assert max(stale) == restart_at - 1 and all(arrival.changed for arrival in recorder.arrivals)
    executor = simulation.executor
    assert executor.discarded == told.cancellations and len(told.cancellations) == simulation.counters.cancelled > 20
    delivered = {work.sequence for work in executor.delivered}
    assert delivered.isdisjoint(work.sequence for work in told.cancellations)
    assert simulation.dispatches == len(delivered) + len(told.cancellations) + len(simulation.in_flight)
    assert simulation.counters.downlink_bytes == 3 * 8 * simulation.dispatches  # every model that is handed out
    if clock == "time":  # a tick's budget may end it before all have begun anew
        in_flight = sorted(work.client for work in simulation.in_flight.values())
        assert in_flight == list(range(N)) and not simulation.state_dict()["slots"]["free"]
    assert len(executor.versions) == len({work.iteration for work in simulation.in_flight.values()}) <= restart_at
    assert recorder.discards == told.cancellations  # an observer that does not tell them apart


def test_with_a_bound_beyond_the_run_nothing_is_stopped_and_all_bits_are_those_of_asgd():
    found = []
    for rule in (ringmaster(60), Asgd(eta=0.1)):
        simulation, recorder, _ = simulate(rule, server_iterations=60, **RANDOM)
        found.append(np.array(recorder.models))
        assert simulation.counters.cancelled == 0
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("restart_at", [1, 3])
def test_what_is_used_is_what_the_form_that_drops_uses_where_all_take_as_long_each_time(restart_at):
    """Slow clients then never report: stopped, or dropped."""
    world = {"n": 3, "delay": Scripted([[1], [1.7], [40]]), "server_iterations": 60}
    stops = simulate(ringmaster(restart_at), **world)[1]
    assert {arrival.client for arrival in stops.arrivals} == ({0} if restart_at == 1 else {0, 1})
    drops = simulate(Ringmaster(eta=0.1, threshold=restart_at), **world)[1]
    assert len(drops.arrivals) > len(stops.arrivals) or restart_at == 3


def test_with_memoryless_durations_arrivals_come_as_often_as_without_stopping():
    """Each of n clients is then at any time as far from reporting as any other, however long it has been at it."""
    rng, ends = np.random.default_rng(5), []
    delay = Scripted(rng.exponential(size=(N, 4000)).tolist())
    for rule in (ringmaster(1), ringmaster(3), Asgd(eta=0.1)):
        _, recorder, _ = simulate(rule, n=N, delay=delay, server_iterations=2000)
        gaps = [later.time - earlier.time for earlier, later in pairwise(recorder.arrivals)]
        ends.append((np.mean(gaps), np.std(gaps), np.bincount([a.client for a in recorder.arrivals]) / 2000))
    for mean, spread, shares in ends:
        # of an exponential law with mean 1 / n; four standard errors of the mean
        assert mean == pytest.approx(1 / N, rel=4 / 2000**0.5) and spread == pytest.approx(1 / N, rel=0.1)
        assert np.abs(shares - 1 / N).max() < 4 * (1 / N * (1 - 1 / N) / 2000) ** 0.5


def test_a_tick_stops_what_would_have_arrived_later_in_it():
    told = Told()
    simulation, recorder, _ = simulate(
        ringmaster(1), n=3, delay=Scripted([[1], [1], [1]]), clock="ticks", virtual_time=3, observers=[told]
    )
    # all three are due at each tick: the first steps, the others are stopped and begin anew when the tick is over
    assert [(a.client, a.time, a.staleness) for a in recorder.arrivals] == [(0, 1, 0), (0, 2, 0), (0, 3, 0)]
    assert simulation.counters.cancelled == 6 and simulation.counters.iteration == 3
    assert told.all[3:8] == [("stops", 1, 0), ("stops", 2, 0), ("begins", 0, 1), ("begins", 1, 1), ("begins", 2, 1)]


def test_lost_work_is_left_alone_and_its_client_comes_back_when_it_would_have():
    lost = ScriptedLoss({(1, 0)})
    simulation, recorder, _ = simulate(ringmaster(1), availability=lost, virtual_time=4, **E2)
    assert simulation.counters.discarded == 1 and [work.due for work in recorder.discards if work.lost] == [2.6]
    begun = [work for work in simulation.executor.discarded if work.client == 1]
    assert [work.start for work in begun] == [2.6, 3.0]


def test_who_has_left_for_good_is_not_begun_anew():
    gone = Dropout(DropoutConfig(share=0.5, at_iteration=20))
    simulation, recorder, _ = simulate(ringmaster(2), availability=gone, server_iterations=120, **RANDOM)
    left = {client for client in range(N) if gone.departed_n[client]}
    assert len(left) == 3 and {a.client for a in recorder.arrivals[60:]} == set(range(N)) - left
    assert all(work.client not in left for work in simulation.in_flight.values())
    assert simulation.state_dict()["slots"]["free"] == 3 and simulation.counters.iteration == 120


def test_the_slot_of_who_has_left_when_it_is_stopped_is_free():
    simulation, recorder, _ = simulate(ringmaster(2), availability=Leaves(1, 1.5), virtual_time=6, **E2)
    assert simulation.counters.cancelled == 1 and {arrival.client for arrival in recorder.arrivals} == {0}
    assert simulation.state_dict()["slots"]["free"] == 1


WORDS = ["n_clients=6", "model.hidden=[8]", "delay=exponential", "algorithm=ringmaster", "algorithm.restart_at=2"]
WORDS += ["client.batch_size=8", "device=cpu", "threads=2"]


@pytest.mark.parametrize("executor", ["sequential", *slow("threads", "batched")])
@pytest.mark.parametrize("delay", ["exponential", "exp_beta5"])
def test_a_run_goes_on_bit_for_bit_from_the_middle_of_a_tick_too(delay, executor):
    words = [*WORDS, f"delay={delay}", f"executor={executor}", "budget.server_iterations=12"]
    assert assert_goes_on(words).cancelled > 5


def test_a_trace_has_a_row_for_each_piece_that_was_stopped_and_the_summary_their_number():
    result = run([*WORDS, "trace=true", "budget.server_iterations=40", "evaluation.every=40", "progress=false"])
    table = pd.read_parquet(result.directory / "cancelled.parquet")
    trace = pd.read_parquet(result.directory / "trace.parquet")
    assert len(table) == result.summary["used"]["cancelled"] >= result.metrics["cancelled"].iloc[-1] > 5
    assert set(table["iteration"] - table["dispatched_iteration"]) == {2} and trace["staleness"].max() == 1
    assert (table["left"] >= 0).all() and (table["worked"] > 0).all()
    moments = dict(zip(trace["upload"], trace["time"], strict=True))
    assert [moments[upload] for upload in table["uploads"]] == table["time"].tolist()  # of the arrival that stepped


def test_ringmasters_threshold_follows_its_bound():
    assert compose(["algorithm=ringmaster", "algorithm.restart_at=3"]).parts["algorithm"].config.threshold == 3
