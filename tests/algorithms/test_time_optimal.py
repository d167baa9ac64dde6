"""Rules made for clients of different speed, in worlds small enough to work out by hand.

E2: f_1 = w^2 / 2 and f_2 = (w - 2)^2 / 2 without noise, one gradient takes 1 and 2.6, w0 = 4, a step of 0.1. The
optimum is 1; that of the objectives weighted by speed, where plain ASGD ends, 0.5556.
"""

import numpy as np
import pytest
import torch
from toy import Scripted, simulate

from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.clipped_asgd import ClippedAsgd
from asyncfl_bench.algorithms.malenia import Malenia
from asyncfl_bench.algorithms.rennala import Rennala
from asyncfl_bench.algorithms.rescaled_asgd import RescaledAsgd
from asyncfl_bench.algorithms.ringleader import Ringleader
from asyncfl_bench.algorithms.ringmaster import Ringmaster
from asyncfl_bench.config import compose
from asyncfl_bench.types import ClientTable, Upload

E2 = {"delay": Scripted([[1], [2.6]]), "targets": [[0.0], [2.0]], "start": [4.0], "n": 2}
N = 6
RANDOM = {"delay": Scripted(np.random.default_rng(0).exponential(size=(N, 80)).tolist()), "n": N}
EQUAL = {"delay": Scripted([[1.0]] * N), "n": N}


def steps(rule, until, **world):
    """(time, model) of each server iteration up to a time."""
    _, recorder, _ = simulate(rule, virtual_time=until, **world)
    times = [arrival.time for arrival in recorder.arrivals if arrival.changed]
    return list(zip(times, [float(model[0]) for model in recorder.models], strict=True))


def models(rule, iterations=60, **world):
    """(iterations, 3) global model after every server iteration."""
    return np.array(simulate(rule, server_iterations=iterations, **(RANDOM | world))[1].models)


def assert_steps(rule, expected, world=E2):
    """Beside {time: model}."""
    found = steps(rule, max(expected), **world)
    np.testing.assert_allclose(found, list(expected.items()), rtol=1e-6)


def test_the_world_is_the_one_in_which_plain_asgd_goes_to_the_wrong_place():
    assert_steps(Asgd(eta=0.1), {1: 3.6, 2: 3.24, 2.6: 3.04, 3: 2.716, 4: 2.4444, 5: 2.19996, 5.2: 2.09596})


def test_ringmaster_drops_what_is_too_old_and_counts_it_as_no_iteration():
    rule = Ringmaster(eta=0.1, threshold=2)
    assert_steps(rule, {1: 3.6, 2: 3.24, 3: 2.916, 4: 2.6244, 5: 2.36196, 6: 2.125764})
    assert rule.stats() == {"rule/dropped_uploads": 2.0}  # of the slow client, at 2.6 and 5.2


def test_any_r_updates_of_ringmaster_take_no_longer_than_the_paper_bounds():
    times = np.array([time for time, _ in steps(Ringmaster(eta=0.1, threshold=2), 40, **E2)])
    # lemma 4.1, with m = 1 and with m = 2 clients
    bound = min(2 * 1 * (1 + 2 / 1), 2 * 2 / (1 / 1 + 1 / 2.6) * (1 + 2 / 2))
    assert (times[2:] - times[:-2]).max() == pytest.approx(2.0) and bound == pytest.approx(5.78, abs=0.01)


def test_rennala_gathers_gradients_of_the_current_model_only():
    rule = Rennala(eta=0.1, buffer_size=2)
    assert_steps(rule, {2: 3.6, 4: 3.24, 6: 2.916})
    assert rule.stats() == {"rule/dropped_uploads": 2.0}


def test_rennala_of_all_clients_with_equal_durations_is_a_mini_batch_step_per_unit_of_time():
    targets = np.random.default_rng(1).normal(size=(N, 3))
    one = models(Rennala(eta=0.1, buffer_size=N), targets=targets, **EQUAL)
    expected = [(1 - 0.9**t) * targets.mean(axis=0) for t in range(1, 61)]
    np.testing.assert_allclose(one, expected, rtol=1e-9)


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_malenia_waits_for_every_client_and_gives_each_the_same_weight(batch):
    rule = Malenia(eta=0.1, batch=batch)
    assert_steps(rule, {2.6: 3.7, 5.2: 3.43})
    assert rule.stats() == {"rule/dropped_uploads": 1.0}  # of the fast client, at 3


def test_malenia_with_a_greater_batch_waits_for_a_greater_harmonic_mean():
    # of (2, 1) gradients twice the harmonic mean is 8 / 3, of (3, 1) 3, of (4, 1) 3.2
    assert_steps(Malenia(eta=0.1, batch=2.6), {2.6: 3.7})
    assert_steps(Malenia(eta=0.1, batch=2.7), {3: 3.7})
    assert_steps(Malenia(eta=0.1, batch=3), {4: 3.7})


def test_malenia_steps_along_the_mean_objective_whatever_the_speeds():
    targets = np.random.default_rng(1).normal(size=(N, 3))
    one = models(Malenia(eta=0.1), iterations=12, targets=targets)
    np.testing.assert_allclose(one, [(1 - 0.9**t) * targets.mean(axis=0) for t in range(1, 13)], rtol=1e-9)
    assert not np.allclose(one, models(Rennala(eta=0.1, buffer_size=N), iterations=12, targets=targets), atol=0.05)


def test_ringleader_steps_once_a_client_and_round_along_the_mean_of_means():
    assert_steps(Ringleader(eta=0.1), {2.6: 3.7, 3: 3.4, 5.2: 3.145, 6: 2.89, 7.8: 2.68825, 8: 2.4865})


@pytest.mark.parametrize(
    ("continue_on", "second_round"),
    [("own", [3.24, 3.08, 2.92]), ("current", [3.245, 3.0903333333, 2.9356666667])],
)
def test_whose_upload_does_not_step_goes_on_with_the_model_it_has_or_with_the_current_one(continue_on, second_round):
    world = {"delay": Scripted([[1], [2.6], [4.7]]), "targets": [[0.0], [1.0], [5.0]], "start": [4.0], "n": 3}
    expected = {4.7: 3.8, 5: 3.6, 5.2: 3.4} | dict(zip([9.4, 10, 10.4], second_round, strict=True))
    assert_steps(Ringleader(eta=0.1, continue_on=continue_on), expected, world)


def test_a_client_that_goes_on_with_its_own_model_is_sent_nothing_and_its_mean_is_of_one_model():
    simulation, recorder, _ = simulate(Ringleader(eta=0.05, continue_on="own"), server_iterations=10 * N, **RANDOM)
    assert simulation.counters.downlink_bytes == 3 * 8 * (N + 10 * N)  # one for each client at first, one for each step
    since: dict[int, set[int]] = {client: set() for client in range(N)}
    for arrival in recorder.arrivals:  # from one step of a client to its next all its work is from one model
        since[arrival.client].add(arrival.base_iteration)
        if arrival.changed:
            assert len(since[arrival.client]) == 1
            since[arrival.client] = set()
    assert len(recorder.arrivals) > 20 * N and max(arrival.staleness for arrival in recorder.arrivals) <= 2 * N - 2


def test_ringleader_with_own_models_and_two_clients_is_what_it_is_with_the_current_one():
    found = [steps(Ringleader(eta=0.1, continue_on=choice), 30, **E2) for choice in ("own", "current")]
    assert found[0] == found[1]


def test_every_round_of_ringleader_has_a_step_of_each_client_and_no_gradient_is_older_than_the_paper_says():
    _, recorder, _ = simulate(Ringleader(eta=0.05), server_iterations=20 * N, **RANDOM)
    stepped = [arrival.client for arrival in recorder.arrivals if arrival.changed]
    assert all(sorted(stepped[i : i + N]) == list(range(N)) for i in range(0, 20 * N, N))
    assert stepped[:N] != stepped[N : 2 * N] and len(recorder.arrivals) > 30 * N
    oldest, seen, iteration = 0, {}, 0  # of what the steps use: each client's first gradient in the round's mean
    later: dict[int, int] = {}
    for arrival in recorder.arrivals:
        waits = arrival.client in {stepped[i] for i in range(iteration - iteration % N, iteration)}
        (later if waits else seen).setdefault(arrival.client, arrival.base_iteration)
        if arrival.changed:
            oldest = max(oldest, *(iteration - base for base in seen.values()))
            iteration += 1
            if iteration % N == 0:
                seen, later = later, {}
    assert oldest <= 2 * N - 2


def test_ringleader_ends_in_the_optimum_of_the_mean_objective():
    ends = {rule: steps(rule(eta=0.1), 390, **E2)[-180:] for rule in (Ringleader, Asgd)}
    assert np.mean([model for _, model in ends[Ringleader]]) == pytest.approx(1.0, abs=1e-5)
    assert np.mean([model for _, model in ends[Asgd]]) == pytest.approx(0.5556, abs=0.003)


def test_ringleader_with_equal_durations_takes_two_units_of_time_a_round():
    times = [time for time, _ in steps(Ringleader(eta=0.1), 6, targets=np.zeros((N, 1)), **EQUAL)]
    # the last client's first gradient of a round is there before the round: one step more at its first time each
    assert times == [1, *[2] * 5, *[3] * 2, *[4] * 4, *[5] * 3, *[6] * 3]


def test_rescaled_asgd_steps_in_proportion_to_the_time_a_client_takes():
    expected = {
        1: 3.777778,
        2: 3.567901,
        2.6: 3.279012,
        3: 3.080796,
        4: 2.90964,
        5: 2.747994,
        5.2: 2.563247,
        6: 2.410581,
    }
    rule = RescaledAsgd(eta=0.1, times=[1.0, 2.6])
    assert_steps(rule, expected)
    assert rule.stats() == pytest.approx({"rule/step_scale": 0.5556, "rule/step_scale_max": 1.4444}, abs=1e-4)


@pytest.mark.parametrize(("times", "eta", "end"), [([1.0, 2.6], 0.1, 0.979), (None, 0.1, 0.979), (None, 0.02, 0.9953)])
def test_rescaled_asgd_ends_near_the_optimum_with_times_known_or_seen(times, eta, end):
    found = steps(RescaledAsgd(eta=eta, times=times), 780, **E2)[-180:]
    assert np.mean([model for _, model in found]) == pytest.approx(end, abs=0.001)


def test_no_step_of_clipped_asgd_is_longer_than_eta_c_and_none_within_is_cut():
    _, recorder, _ = simulate(ClippedAsgd(eta=0.1, clip=1.2), server_iterations=60, **RANDOM)
    moved = np.diff([np.zeros(3), *recorder.models], axis=0)
    lengths = [np.linalg.norm(arrival.vector) for arrival in recorder.arrivals]
    assert min(lengths) < 1.2 < max(lengths)
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 0.1 * np.minimum(lengths, 1.2), rtol=1e-9)


@pytest.mark.slow
def test_these_rules_take_gradients_unless_told_otherwise():
    for name in ("ringmaster", "rennala", "malenia", "ringleader", "rescaled_asgd", "clipped_asgd"):
        assert compose([f"algorithm={name}"]).parts["client"].config.upload == "gradient"
    assert compose(["algorithm=ringmaster", "concurrency=7"]).parts["algorithm"].config.threshold == 7


def test_malenia_waits_where_both_sides_are_equal_whatever_the_rounding():
    for n in (3, 5, 6, 7, 11):
        for each in (1, 3, 5, 17):
            rule, model = Malenia(eta=0.5, batch=float(n * each)), torch.zeros(1)
            rule.start(model, ClientTable(np.ones(n, dtype=int)), "gradient")
            uploads = [Upload(client, torch.ones(1), 0, 0, 1, 1) for _ in range(each) for client in range(n)]
            assert not any(map(rule.receive, uploads))  # n / mean(1 / b_i) = S
            assert rule.receive(uploads[0])


@pytest.mark.parametrize(("name", "iterations"), [("malenia", 20), ("ringleader", 200), ("rennala", 40)])
def test_the_formula_for_eta_knows_how_many_uploads_a_step_takes(name, iterations):
    words = ["clock=time", "n_clients=20", "budget.server_iterations=null", "budget.uploads=400"]
    rule = compose([f"algorithm={name}", "algorithm.eta=null", "algorithm.c=1", *words]).parts["algorithm"].config
    assert rule.eta == pytest.approx((20 / iterations) ** 0.5)
