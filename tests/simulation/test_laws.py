"""Laws that hold in every world: hypothesis drives random small ones through the engine."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy import Scripted, simulate

from asyncfl_bench.algorithms.ace import Ace, AceConfig
from asyncfl_bench.algorithms.aced import Aced, AcedConfig
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.asyncfeded import AsyncFedEd, AsyncFedEdConfig
from asyncfl_bench.algorithms.base import StepConfig
from asyncfl_bench.algorithms.ca2fl import Ca2fl
from asyncfl_bench.algorithms.delay_adaptive_asgd import DelayAdaptiveAsgd, DelayAdaptiveAsgdConfig
from asyncfl_bench.algorithms.fedasync import FedAsync, FedAsyncConfig
from asyncfl_bench.algorithms.fedavg import FedAvg, FedAvgConfig
from asyncfl_bench.algorithms.fedbuff import FedBuff, FedBuffConfig
from asyncfl_bench.algorithms.feddyn import FedDyn, FedDynConfig
from asyncfl_bench.algorithms.rennala import Rennala
from asyncfl_bench.algorithms.ringmaster import Ringmaster
from asyncfl_bench.simulation.availability import Dropout, DropoutConfig, Suspension, SuspensionConfig
from asyncfl_bench.simulation.schedules import RandomIdle, SameClient, ScheduleConfig

BUDGETS = ("server_iterations", "uploads", "virtual_time")


@st.composite
def worlds(draw):
    n = draw(st.integers(1, 8))
    clock = draw(st.sampled_from(["time", "ticks"]))
    step_on = draw(st.sampled_from(["arrival", "tick"])) if clock == "ticks" else "arrival"
    size, restart_at = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    rule = draw(
        st.sampled_from(
            [
                lambda: Ace(AceConfig(eta=0.1, step_on=step_on)),
                lambda: Aced(AcedConfig(eta=0.1, step_on=step_on, tau_algo=size)),
                lambda: Aced(AcedConfig(eta=0.1, step_on=step_on, tau_algo=size, tstart="gradient")),
                lambda: Asgd(StepConfig(eta=0.1)),
                lambda: DelayAdaptiveAsgd(DelayAdaptiveAsgdConfig(eta=0.1, tau_c=size, variant="drop")),
                lambda: FedBuff(FedBuffConfig(eta=0.1, buffer_size=size, max_staleness=size)),
                lambda: Ringmaster(eta=0.1, threshold=size, restart_at=restart_at),
                lambda: Rennala(eta=0.1, buffer_size=size, restart_at=restart_at),
                lambda: Ca2fl(eta=0.1, buffer_size=size),
                lambda: FedAvg(FedAvgConfig()),
                lambda: FedDyn(FedDynConfig()),
                lambda: FedAsync(FedAsyncConfig(lag="time", staleness_weight="polynomial")),
                lambda: AsyncFedEd(AsyncFedEdConfig(k_initial=size)),
            ]
        )
    )()
    concurrency = draw(st.integers(1, n))
    dispatch = draw(st.sampled_from(["immediate", "after_update", "per_round"]))
    if rule.needs.steps_on == "round":
        dispatch = "per_round"
    rest = draw(st.sampled_from(["none", "until_update"]))
    schedule = draw(st.sampled_from([SameClient, RandomIdle]))(ScheduleConfig(dispatch=dispatch, rest=rest))
    durations = draw(st.lists(st.lists(st.floats(0, 6), min_size=1, max_size=5), min_size=n, max_size=n))
    share = draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))
    dropout = Dropout(DropoutConfig(share=share, at_iteration=draw(st.integers(1, 20))))
    suspension = Suspension(SuspensionConfig(probability=draw(st.floats(0, 0.7))))
    return {
        "rule": rule,
        "n": n,
        "clock": clock,
        "concurrency": concurrency,
        "schedule": schedule,
        "delay": Scripted([[0.1 + d for d in row] for row in durations]),
        "availability": draw(st.sampled_from([dropout, suspension])),
        "kind": rule.upload_kinds[0],
        "seed": draw(st.integers(0, 3)),
        draw(st.sampled_from(BUDGETS)): draw(st.integers(1, 60)),
        "client_steps": 300,
    }


@given(worlds())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_laws_of_the_engine_hold_in_every_world(world):
    budget = {name: world[name] for name in BUDGETS if name in world}
    simulation, recorder, ended_by = simulate(**world)
    counters, arrivals = simulation.counters, recorder.arrivals
    executor = simulation.executor

    # every dispatched piece of work arrived, was lost, discarded, cancelled, or is in flight; nobody is twice
    lost = [work for work in recorder.discards if work.lost]
    assert simulation.dispatches == len(executor.delivered) + len(recorder.discards) + len(simulation.in_flight)
    assert [work for work in recorder.discards if not work.lost] == executor.discarded
    assert not any(work.lost for work in executor.delivered)
    in_flight = Counter(work.client for work in simulation.in_flight.values())
    assert all(count == 1 for count in in_flight.values())
    restarting = len(simulation.state_dict()["slots"]["restarting"])  # where the budget ended a tick
    assert len(in_flight) + simulation.state_dict()["slots"]["free"] + restarting == world["concurrency"]

    # counts add up
    assert counters.uploads == len(arrivals) == len(executor.delivered)
    assert counters.discarded + counters.cancelled == len(recorder.discards)
    assert counters.iteration == len(recorder.models)
    per_client = Counter(a.client for a in arrivals)
    assert sum(per_client.values()) == counters.uploads

    # staleness is never negative and never more than the iterations there were; time never goes back
    assert all(0 <= a.staleness <= counters.iteration for a in arrivals)
    if (bound := world["rule"].needs.restart_at) is not None:
        assert all(a.staleness < bound for a in arrivals)
    times = [a.time for a in arrivals]
    assert times == sorted(times)
    assert counters.virtual_time >= (times[-1] if times else 0)

    # a client's work is done in order, each piece once
    for client in per_client:
        counts = [work.count for work in executor.delivered + recorder.discards if work.client == client]
        assert sorted(counts) == list(range(len(counts)))

    # the run ended for a reason that is true
    if ended_by in budget:
        used = {"server_iterations": counters.iteration}.get(ended_by) or getattr(counters, ended_by, None)
        assert used >= budget[ended_by]
        first_round = world["n"] if world["rule"].needs.first_round else 0  # is never cut short
        exact = max(budget[ended_by], first_round * (ended_by == "uploads"))
        tick = (
            world["concurrency"] - 1 if world["rule"].needs.steps_on == "tick" and ended_by == "uploads" else 0
        )  # nor is a tick
        assert ended_by == "virtual_time" or exact <= used <= exact + tick
    elif ended_by == "no_clients":
        assert not simulation.in_flight

    # models that nobody needs are not kept, and lost work needs none
    needed = {work.iteration for work in simulation.in_flight.values() if not work.lost}
    assert len(executor.versions) == len(needed)

    # where work is dispatched at the end of a round, all that is in flight was dispatched together
    started_later = bool(counters.cancelled or (lost and world["rule"].needs.first_round))
    if world["schedule"].config.dispatch == "per_round" and not started_later:
        assert len({work.start for work in simulation.in_flight.values()}) <= 1


@pytest.mark.slow
@given(worlds())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_delays_sum_to_t_times_c_minus_1_where_every_arrival_is_an_iteration(world):
    world |= {
        "rule": Asgd(StepConfig(eta=0.1)),
        "clock": "time",
        "kind": "gradient",
        "schedule": type(world["schedule"])(ScheduleConfig()),
        "availability": Dropout(DropoutConfig(share=0.0, at_iteration=1)),
    }
    simulation, recorder, _ = simulate(**world)
    done = simulation.counters.iteration
    in_flight = sum(done - work.iteration for work in simulation.in_flight.values())
    assert sum(a.staleness for a in recorder.arrivals) + in_flight == done * (world["concurrency"] - 1)
