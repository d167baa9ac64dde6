"""Work that waits at busy clients: a free slot goes to a client drawn from all of them (schedule=uniform_queue)."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from resuming import assert_goes_on
from tiers import slow
from toy import Leaves, QuadraticExecutor, Scripted, ScriptedLoss, simulate

from asyncfl_bench import run
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.clipped_asgd import ClippedAsgd
from asyncfl_bench.simulation.availability import Dropout, DropoutConfig
from asyncfl_bench.simulation.observer import Observer
from asyncfl_bench.simulation.schedules import SameClient, ScheduleConfig, UniformQueue, UniformQueueConfig

SPEEDS = Scripted([[1.0], [1.0], [2.0], [8.0]])
N = 4


def queue(**config):
    return UniformQueue(UniformQueueConfig(**config))


class Given(Observer):
    """All work in the order in which it was given out."""

    def __init__(self):
        self.pieces = []

    def dispatched(self, work, model_d):
        self.pieces.append(work)


def simulated(schedule, **world):
    """(simulation, arrivals, work given out)."""
    given = Given()
    world = {"n": N, "delay": SPEEDS, "schedule": schedule, "observers": [given]} | world
    simulation, recorder, _ = simulate(world.pop("rule", None) or Asgd(eta=0.01), **world)
    return simulation, recorder.arrivals, given.pieces


def shares(arrivals, n=N):
    return np.bincount([arrival.client for arrival in arrivals], minlength=n) / len(arrivals)


@pytest.mark.parametrize(
    ("config", "expected"),
    [({}, [0.25] * 4), ({"draw": "shuffled"}, [0.25] * 4), ({"weights": [4.0, 3.0, 2.0, 1.0]}, [0.4, 0.3, 0.2, 0.1])],
)
def test_clients_contribute_as_they_are_drawn_whatever_their_speeds(config, expected):
    _, arrivals, _ = simulated(queue(**config), uploads=4000)
    assert np.abs(shares(arrivals) - expected).max() < 4 * (0.25 / 4000) ** 0.5  # four standard errors
    by_speed = shares(simulated(SameClient(ScheduleConfig()), uploads=4000)[1])
    np.testing.assert_allclose(by_speed, np.array([8, 8, 4, 1]) / 21, atol=0.01)


@pytest.mark.parametrize("concurrency", [1, 3, 4])
def test_a_client_does_one_piece_of_work_after_another_in_the_order_given(concurrency):
    rng = np.random.default_rng(2)
    delay = Scripted(rng.exponential(size=(N, 900)).tolist())
    simulation, arrivals, pieces = simulated(queue(), delay=delay, concurrency=concurrency, uploads=600)
    waited = 0
    for client in range(N):
        own = [work for work in pieces if work.client == client]
        free = 0.0
        for work in own:
            begins = max(work.start, free)
            waited += begins > work.start
            free = begins + delay.durations[client][work.cycle]
            assert work.due == free
    assert (waited > 50) == (concurrency > 1)
    times = [arrival.time for arrival in arrivals]
    assert times == sorted(times) and len(simulation.in_flight) == concurrency
    assert not simulation.state_dict()["slots"]["free"]


def test_staleness_counts_from_when_work_was_given_out_and_sums_to_t_times_c_minus_1():
    simulation, arrivals, pieces = simulated(queue(), uploads=500)
    given = {(work.client, work.count): work.iteration for work in pieces}
    counts = Counter()
    for number, arrival in enumerate(arrivals):
        assert arrival.base_iteration == given[arrival.client, counts[arrival.client]]
        assert arrival.staleness == number - arrival.base_iteration
        counts[arrival.client] += 1
    outstanding = [500 - work.iteration for work in simulation.in_flight.values()]
    assert sum(arrival.staleness for arrival in arrivals) + sum(outstanding) == 500 * (N - 1)
    # the model of the moment at which the work was given out, though it was begun later
    assert max(arrival.staleness for arrival in arrivals) > 20


def test_arrivals_come_no_faster_than_the_slowest_client_can_do_its_share():
    _, arrivals, _ = simulated(queue(), uploads=4000)
    assert arrivals[-1].time / 4000 >= 0.98 * 8 / N
    assert simulated(SameClient(ScheduleConfig()), uploads=4000)[1][-1].time / 4000 == pytest.approx(8 / 21, rel=0.01)


def test_with_a_draw_that_is_shuffled_every_n_pieces_go_to_all_n_clients_in_new_orders():
    _, _, pieces = simulated(queue(draw="shuffled"), uploads=200)
    clients = [work.client for work in pieces]
    assert clients[:N] == list(range(N))  # the first go to all
    blocks = [tuple(clients[start : start + N]) for start in range(N, 200, N)]
    assert all(sorted(block) == list(range(N)) for block in blocks) and len(set(blocks)) > 15


def test_with_a_single_client_all_schedules_are_the_same_bit_for_bit():
    found = []
    for schedule in (queue(), queue(draw="shuffled"), SameClient(ScheduleConfig())):
        _, arrivals, _ = simulated(schedule, n=1, delay=Scripted([[1.5]]), uploads=20)
        found.append([(arrival.time, arrival.staleness, *arrival.vector) for arrival in arrivals])
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_asgd_ends_in_the_optimum_of_the_mean_objective_and_not_in_that_of_the_fast():
    world = {"n": 2, "delay": Scripted([[1], [2.6]]), "targets": [[0.0], [2.0]], "start": [4.0], "uploads": 6000}
    for schedule, expected in ((queue(draw="shuffled"), 1.0), (queue(), 1.0), (SameClient(ScheduleConfig()), 0.5556)):
        _, recorder, _ = simulate(Asgd(eta=0.02), schedule=schedule, **world)
        assert np.mean([model[0] for model in recorder.models[600:]]) == pytest.approx(expected, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 1.0]])
def test_with_memoryless_times_queues_are_those_of_a_closed_jackson_network(weights):
    """P(x) is in proportion to prod_i (p_i tau_i)^x_i over all x with sum C."""
    tau, c, n = np.array([0.5, 1.0, 2.0]), 3, 3
    p = np.array(weights or [1.0] * 3) / sum(weights or [1.0] * 3)
    law = {}
    for x in np.ndindex(*[c + 1] * n):
        if sum(x) == c:
            law[x] = np.prod((p * tau) ** np.array(x))
    expected = sum(np.array(x) * weight for x, weight in law.items()) / sum(law.values())
    delay = Scripted((np.random.default_rng(3).exponential(size=(n, 8000)) * tau[:, None]).tolist())
    _, arrivals, pieces = simulated(queue(weights=weights), n=n, delay=delay, concurrency=c, uploads=8000)
    end = arrivals[-1].time
    under_way = [sum(min(w.due, end) - w.start for w in pieces if w.client == i) for i in range(n)]
    np.testing.assert_allclose(np.array(under_way) / end, expected, atol=0.08)


def test_clipped_asgd_stays_within_eta_c_tau_of_where_all_outstanding_work_would_take_it():
    """Algorithm 2 of Clipped ASGD, its exact bound: eta c for every piece of work under way."""
    rule = ClippedAsgd(eta=0.1, clip=0.7)
    simulation, recorder, _ = simulate(rule, n=N, delay=SPEEDS, schedule=queue(), uploads=300)
    executor = simulation.executor
    moved = np.zeros(3)
    for work in simulation.in_flight.values():
        vector = (executor.versions[work.iteration] - executor.targets_nd[work.client]).numpy()
        moved -= 0.1 * vector * min(1, 0.7 / np.linalg.norm(vector))
    assert 0 < np.linalg.norm(moved) <= 0.1 * 0.7 * N
    lengths = np.linalg.norm(np.diff(recorder.models, axis=0), axis=1)
    assert lengths.max() <= 0.1 * 0.7 * (1 + 1e-12) and lengths.max() > 0.069


@pytest.mark.parametrize("clock", ["time", "ticks"])
def test_work_is_computed_when_it_arrives_and_what_nobody_will_deliver_never(clock):
    gone = Dropout(DropoutConfig(share=0.5, at_iteration=60))
    executor = QuadraticExecutor(np.ones((N, 2)))
    simulation, arrivals, pieces = simulated(
        queue(), availability=gone, uploads=300, executor=executor, targets=np.ones((N, 2)), clock=clock
    )
    left = {client for client in range(N) if gone.departed_n[client]}
    assert len(left) == 2 and {arrival.client for arrival in arrivals[-150:]} == set(range(N)) - left
    assert not any(work.client in left for work in pieces if work.iteration >= 60)
    assert {work.client for work in executor.discarded} <= left and simulation.counters.discarded > 0
    assert len(executor.delivered) == 300
    assert len(executor.versions) == len({work.iteration for work in simulation.in_flight.values()})


def test_a_run_ends_when_all_have_left():
    gone = Dropout(DropoutConfig(share=1.0, at_iteration=10))
    simulation, arrivals, _ = simulated(queue(), availability=gone, uploads=300)
    assert len(arrivals) == 10 and not simulation.in_flight and simulation.state_dict()["slots"]["free"] == N


def test_who_is_lost_with_its_work_keeps_what_waits_behind_it_waiting():
    lost = ScriptedLoss({(0, 0)}, hang=2.0)
    _, _, pieces = simulated(queue(), n=2, delay=Scripted([[1], [1]]), availability=lost, uploads=12)
    first, *others = [work for work in pieces if work.client == 0]
    assert first.lost and first.due == 3
    assert all(later.due == max(earlier.due, later.start) + 1 for earlier, later in pairwise([first, *others]))


def test_work_whose_turn_comes_after_its_client_has_left_is_lost():
    world = {"n": 2, "delay": Scripted([[2], [2]]), "availability": Leaves(0, 5.0), "concurrency": 6}
    _, arrivals, pieces = simulated(queue(), uploads=30, **world)
    due = {lost: [work.due for work in pieces if work.client == 0 and work.lost == lost] for lost in (False, True)}
    assert due[False] == [2, 4, 6] and due[True] and set(due[True]) == {6}
    assert [arrival.time for arrival in arrivals if arrival.client == 0] == due[False]


WORDS = ["n_clients=6", "model.hidden=[8]", "schedule=uniform_queue", "client.batch_size=8", "device=cpu", "threads=2"]


@pytest.mark.parametrize("executor", ["sequential", *slow("threads", "batched")])
@pytest.mark.parametrize(
    "words",
    [
        ["algorithm=asgd", "delay=mixed_exponential"],
        ["algorithm=fedbuff", "algorithm.buffer_size=2", "schedule.draw=shuffled", "delay=exp_beta5", "concurrency=4"],
    ],
)
def test_a_run_goes_on_bit_for_bit(words, executor):
    assert assert_goes_on([*WORDS, *words, f"executor={executor}", "budget.uploads=16"]).uploads == 16


@pytest.mark.parametrize("algorithm", ["ace", "delayed_nesterov", "fedstale_async", "ringleader", "malenia"])
def test_rules_that_keep_something_of_every_client_run_with_it(algorithm):
    words = [f"algorithm={algorithm}", "schedule=uniform_queue", "scale=smoke", "delay=exponential", "progress=false"]
    result = run(words)
    assert result.ok, result.summary["error"]
    assert result.summary["used"]["server_iterations"] == 20


@pytest.mark.parametrize("weights", [[1.0, 1e-9, 1e-9, 1e-9], [1e-9, 1e-9, 1e-9, 1.0]])
def test_when_those_with_nearly_all_of_the_weight_have_left_the_others_are_drawn(weights):
    heavy = int(np.argmax(weights))
    gone = Dropout(DropoutConfig(share=0.25, at_iteration=20))
    gone.start = lambda n, streams: setattr(gone, "departed_n", np.arange(n) == heavy)
    _, arrivals, _ = simulated(queue(weights=weights), availability=gone, uploads=400)
    assert heavy not in {arrival.client for arrival in arrivals[30:]}
    assert shares(arrivals[30:])[np.arange(N) != heavy].min() > 0.2  # a third each
