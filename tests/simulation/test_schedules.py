"""Who goes next."""

from itertools import pairwise

import numpy as np
import pytest
from toy import Scripted, ScriptedLoss, simulate

from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import StepConfig
from asyncfl_bench.algorithms.fedavg import FedAvg, FedAvgConfig
from asyncfl_bench.algorithms.fedbuff import FedBuff, FedBuffConfig
from asyncfl_bench.config import compose
from asyncfl_bench.randomness import Streams
from asyncfl_bench.simulation.schedules import RandomIdle, RandomIdleConfig, SameClient, ScheduleConfig


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


def arrivals(rule, rest, *, n=12, concurrency=4, dispatch="immediate", schedule=RandomIdle, **world):
    """(client, time) of every arrival, and the models after every server iteration."""
    delay = world.pop("delay", Scripted(np.random.default_rng(3).exponential(size=(n, 40)).tolist()))
    _, recorder, ended = simulate(
        rule,
        n=n,
        delay=delay,
        schedule=schedule(ScheduleConfig(dispatch=dispatch, rest=rest)),
        concurrency=concurrency,
        kind="difference",
        lr=0.1,
        **world,
    )
    return [(a.client, a.time) for a in recorder.arrivals], np.array(recorder.models), ended


def buffered(size):
    return FedBuff(FedBuffConfig(eta=1.0, buffer_size=size))


def test_who_rests_until_the_update_is_in_no_buffer_twice():
    def most_often_in_one_buffer(rest):
        came, *_ = arrivals(buffered(6), rest, uploads=600)
        return max(len(part) - len({c for c, _ in part}) for part in (came[i : i + 6] for i in range(0, 600, 6)))

    assert most_often_in_one_buffer("until_update") == 0 < most_often_in_one_buffer("none")


def test_resting_keeps_all_slots_in_use_while_anybody_is_idle():
    came, *_ = arrivals(buffered(6), "until_update", uploads=600, delay=Scripted([[1.0]] * 12))
    assert came[-1][1] == 150  # 4 at once, one unit each


def test_resting_by_hand():
    # buffers of 2; client 2 is too slow to matter: 0 rests from 1 until 1 fills the buffer at 2, then both work again
    schedule = {"schedule": SameClient, "n": 3, "concurrency": 3, "delay": Scripted([[1.0], [2.0], [9.0]])}
    came, *_ = arrivals(buffered(2), "until_update", uploads=5, **schedule)
    assert came == [(0, 1.0), (1, 2.0), (0, 3.0), (1, 4.0), (0, 5.0)]
    came, *_ = arrivals(buffered(2), "none", uploads=5, **schedule)
    assert came == [(0, 1.0), (1, 2.0), (0, 2.0), (0, 3.0), (1, 4.0)]


def test_where_everybody_rests_all_are_idle_again_so_a_buffer_beyond_n_fills():
    came, models, ended = arrivals(buffered(7), "until_update", n=3, concurrency=2, server_iterations=4)
    assert ended == "server_iterations" and len(came) == 28 and len(models) == 4
    for start in range(0, 6, 3):  # of each three uploads one is of each client
        assert {c for c, _ in came[start : start + 3]} == {0, 1, 2}


def test_a_client_whose_upload_was_lost_waits_for_no_update():
    lost = ScriptedLoss({(0, 0)})
    world = {"n": 2, "concurrency": 2, "schedule": SameClient, "delay": Scripted([[1.0], [1.5]])}
    came, *_ = arrivals(buffered(2), "until_update", uploads=2, availability=lost, **world)
    assert came == [(1, 1.5), (0, 2.0)]


def test_rules_that_step_at_every_arrival_or_in_rounds_meet_the_same_arrivals_with_rest_as_without():
    for rule, dispatch in (
        (lambda: Asgd(StepConfig(eta=0.1)), "immediate"),
        (lambda: FedAvg(FedAvgConfig()), "per_round"),
    ):
        one, other = (arrivals(rule(), rest, dispatch=dispatch, uploads=120) for rest in ("none", "until_update"))
        assert one[0] == other[0]
        np.testing.assert_array_equal(one[1], other[1])


def in_turns(n, concurrency, reports=400):
    """(reporter, who got its slot) of clients that report at random; a schedule saved and loaded each time."""
    stream, rng = Streams(0).schedule, np.random.default_rng(0)
    schedule = RandomIdle(RandomIdleConfig(rest="turn"))
    schedule.start(n, concurrency, stream)
    working, pairs = [schedule.next() for _ in range(concurrency)], []
    for _ in range(reports):
        place = int(rng.integers(concurrency))
        schedule.report(working[place])
        state = schedule.state_dict()
        schedule = RandomIdle(RandomIdleConfig(rest="turn"))
        schedule.start(n, concurrency, stream)
        schedule.load_state_dict(state)
        pairs.append((working[place], schedule.next()))
        working[place] = pairs[-1][1]
        assert len(set(working)) == concurrency
    return np.array(pairs)


def test_with_turns_a_slot_goes_to_another_client_all_alike():
    pairs = in_turns(6, 3, 3000)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert np.bincount(pairs[:, 1]).min() > 400
    assert {tuple(pair) for pair in pairs} == {(a, b) for a in range(6) for b in range(6) if a != b}


def test_with_turns_the_reporter_goes_on_where_nobody_else_is_idle():
    pairs = in_turns(3, 3)
    assert (pairs[:, 0] == pairs[:, 1]).all()


@pytest.mark.slow
def test_turns_are_a_choice_that_renames_no_other_run():
    assert compose(["schedule=random_idle", "schedule.rest=turn"]).parts["schedule"].config.rest == "turn"
    assert (
        compose(["schedule=random_idle"]).identity == compose(["schedule=random_idle", "schedule.rest=none"]).identity
    )


def test_a_run_with_turns_never_has_a_client_twice_in_a_row_and_a_round_takes_its_clients():
    delay = Scripted([[1.0]] * 4)
    rule = Asgd(StepConfig(eta=0.01))
    turns = RandomIdle(RandomIdleConfig(rest="turn"))
    _, recorder, _ = simulate(rule, n=4, delay=delay, schedule=turns, concurrency=1, server_iterations=60)
    clients = [arrival.client for arrival in recorder.arrivals]
    assert all(first != second for first, second in pairwise(clients))
    turns = RandomIdle(RandomIdleConfig(rest="turn", dispatch="per_round"))
    _, recorder, _ = simulate(
        FedAvg(FedAvgConfig()), n=4, delay=delay, schedule=turns, concurrency=3, kind="difference", server_iterations=9
    )
    assert len(recorder.arrivals) == 27
