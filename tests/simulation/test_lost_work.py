"""Work whose upload never reaches the server: what it costs, what it leaves alone, and that no run waits for it."""

from itertools import pairwise

import numpy as np
import pytest
from toy import QuadraticExecutor, Scripted, ScriptedLoss, asgd, simulate

from asyncfl_bench.algorithms.fedasync import FedAsync, FedAsyncConfig
from asyncfl_bench.algorithms.fedavg import FedAvg, FedAvgConfig
from asyncfl_bench.algorithms.fedbuff import FedBuff, FedBuffConfig
from asyncfl_bench.config import compose, options
from asyncfl_bench.experiment.build import build_run
from asyncfl_bench.simulation.availability import Suspension, SuspensionConfig
from asyncfl_bench.simulation.observer import Observer
from asyncfl_bench.simulation.schedules import RandomIdle, SameClient, ScheduleConfig


def test_a_lost_client_hangs_as_long_as_said_and_starts_again_from_the_current_model():
    _, recorder, _ = simulate(
        asgd(),
        n=2,
        delay=Scripted([[1], [2]]),
        availability=ScriptedLoss({(1, 0)}, hang=0.75),
        server_iterations=6,
    )
    found = [(a.time, a.client, a.base_iteration) for a in recorder.arrivals]
    # client 1 is away for 2 + 0.75 * 2 = 3.5; three iterations are done by then
    assert found == [(1, 0, 0), (2, 0, 1), (3, 0, 2), (4, 0, 3), (5, 0, 4), (5.5, 1, 3)]


@pytest.mark.parametrize("clock", ["time", "ticks"])
def test_lost_work_reaches_neither_the_executor_nor_the_rule_nor_the_budget(clock):
    class Strict(QuadraticExecutor):
        def dispatch(self, work, model_d):
            assert not work.lost
            super().dispatch(work, model_d)

    executor = Strict(np.ones((3, 2)))
    simulation, recorder, _ = simulate(
        asgd(),
        n=3,
        delay=Scripted([[1], [2], [3]]),
        availability=ScriptedLoss({(client, cycle) for client in range(3) for cycle in range(0, 99, 2)}),
        clock=clock,
        executor=executor,
        targets=np.ones((3, 2)),
        uploads=30,
    )
    assert simulation.counters.uploads == simulation.counters.client_steps == len(executor.delivered) == 30
    assert all(work.cycle % 2 == 1 for work in executor.delivered) and not executor.discarded
    assert simulation.counters.discarded == len(recorder.discards) >= 30
    assert len(executor.versions) == len({w.iteration for w in simulation.in_flight.values() if not w.lost})


def test_the_place_of_a_lost_client_goes_to_another_under_random_idle_and_it_may_be_drawn_again():
    lost = ScriptedLoss({(client, 0) for client in range(10)})
    simulation, recorder, _ = simulate(
        asgd(),
        n=10,
        delay=Scripted([[1]] * 10),
        availability=lost,
        schedule=RandomIdle(ScheduleConfig()),
        concurrency=3,
        uploads=200,
    )
    assert len(simulation.in_flight) == 3
    assert {a.client for a in recorder.arrivals} == {work.client for work in recorder.discards} == set(range(10))


def test_handing_out_at_the_flush_does_not_wait_for_ever_for_a_buffer_that_lost_uploads_cannot_fill():
    rule = FedBuff(FedBuffConfig(buffer_size=4))
    simulation, _, ended_by = simulate(
        rule,
        n=4,
        delay=Scripted([[1], [1.5], [2], [3]]),
        kind="difference",
        lr=0.1,
        availability=Suspension(SuspensionConfig(probability=0.4)),
        schedule=SameClient(ScheduleConfig(dispatch="after_update")),
        server_iterations=50,
    )
    assert ended_by == "server_iterations" and simulation.counters.uploads == 200
    assert simulation.counters.discarded > 50


@pytest.mark.parametrize("clock", ["time", "ticks"])
@pytest.mark.parametrize(
    ("rule", "kind", "dispatch"),
    [(asgd(), "gradient", "immediate"), (FedAvg(FedAvgConfig()), "difference", "per_round")],
)
def test_a_run_in_which_everything_is_lost_ends_as_stalled(clock, rule, kind, dispatch):
    simulation, recorder, ended_by = simulate(
        rule,
        n=5,
        delay=Scripted([[1]] * 5),
        kind=kind,
        clock=clock,
        availability=Suspension(SuspensionConfig(probability=1 - 1e-12)),
        schedule=SameClient(ScheduleConfig(dispatch=dispatch)),
        server_iterations=3,
    )
    assert ended_by == "stalled" and not recorder.arrivals
    assert 10_000 <= simulation.counters.discarded < 10_010


def test_delays_of_applied_lost_and_in_flight_work_sum_to_t_times_c_minus_1():
    class Ages(Observer):
        iteration = lost = 0

        def iterated(self, counters):
            self.iteration = counters.iteration

        def discarded(self, work):
            self.lost += self.iteration - work.iteration

    ages, rng = Ages(), np.random.default_rng(5)
    simulation, recorder, _ = simulate(
        FedAsync(FedAsyncConfig()),
        n=8,
        delay=Scripted(rng.exponential(size=(8, 200)).tolist()),
        kind="difference",
        lr=0.1,
        availability=Suspension(SuspensionConfig(probability=0.3)),
        concurrency=6,
        schedule=RandomIdle(ScheduleConfig()),
        observers=[ages],
        server_iterations=150,
    )
    in_flight = sum(150 - work.iteration for work in simulation.in_flight.values())
    assert ages.lost > 100
    assert sum(a.staleness for a in recorder.arrivals) + ages.lost + in_flight == 150 * (6 - 1)


def dispatches(algorithm, probability, cycles=6):
    """{(client, cycle): (lost, time it takes)} of the first dispatches of a run."""

    class Seen(Observer):
        def __init__(self):
            self.work = {}

        def dispatched(self, work, model_d):
            if 0 <= work.cycle < cycles:  # ACE's first round takes no time and is no cycle
                self.work[work.client, work.cycle] = (work.lost, round(work.due - work.start, 9))

    lossy = ["availability=suspension", f"availability.probability={probability}", "seed=3"]
    built = build_run(compose([f"algorithm={algorithm}", *lossy, "scale=smoke", "model=softmax", "delay=lognormal"]))
    seen = Seen()
    built.simulation.observers.append(seen)
    while not all((client, cycles - 1) in seen.work for client in range(10)):
        built.simulation.step()
    built.executor.close()
    return seen.work


@pytest.mark.slow
def test_every_algorithm_meets_the_same_losses_and_the_same_hangs_under_one_seed():
    expected = dispatches("fedavg", 0.3)
    assert sum(lost for lost, _ in expected.values()) > 10
    whole = [name for name in options("algorithm") if not compose([f"algorithm={name}"]).needs.cuts]
    assert len(whole) >= 17  # those that split the model refuse lost work
    for algorithm in whole:
        assert dispatches(algorithm, 0.3) == expected, algorithm


def test_what_is_lost_under_some_probability_is_lost_under_every_larger_one_for_as_long():
    runs = [dispatches("asgd", probability) for probability in (0.1, 0.4, 0.8)]
    lost = [{key: taken for key, (is_lost, taken) in run.items() if is_lost} for run in runs]
    assert [len(run) for run in lost] == sorted(len(run) for run in lost) and len(lost[0]) > 3
    for fewer, more in pairwise(lost):
        assert fewer.items() <= more.items()
