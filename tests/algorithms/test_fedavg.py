"""FedAvg: what a round does to the model."""

import numpy as np
import pytest
import torch
from toy import Scripted, ScriptedLoss, simulate

from asyncfl_bench.algorithms.fedavg import FedAvg, FedAvgConfig
from asyncfl_bench.simulation.schedules import RandomIdle, SameClient, ScheduleConfig
from asyncfl_bench.types import ClientTable, Upload

N, D = 5, 4
SAMPLES = np.array([1, 10, 3, 0, 6])
LOCAL_ND = np.random.default_rng(0).normal(size=(N, D))  # the clients' models
W_D = np.random.default_rng(1).normal(size=D)


def round_of(clients, w=W_D, local=LOCAL_ND, **config):
    """(answer, model) after one round in which these clients delivered the models ``local``."""
    rule, model = FedAvg(FedAvgConfig(**config)), torch.tensor(w)
    rule.start(model, ClientTable(SAMPLES), "difference")
    for client in clients:
        upload = Upload(client, torch.tensor(local[client] - w), 0, 0, int(SAMPLES[client]), 1)
        assert rule.receive(upload) is False
        np.testing.assert_array_equal(model.numpy(), w)
    return rule.round(), model.numpy()


def per_round():
    return SameClient(ScheduleConfig(dispatch="per_round"))


@pytest.mark.parametrize("clients", [range(N), [4, 0], [2]])
def test_the_model_becomes_the_mean_of_the_delivered_models_by_samples(clients):
    answer, model = round_of(clients)
    weights = SAMPLES[list(clients)] / SAMPLES[list(clients)].sum()
    assert answer is True
    np.testing.assert_allclose(model, weights @ LOCAL_ND[list(clients)], rtol=1e-12)


def test_uniform_weights_take_the_plain_mean_and_eta_scales_the_step():
    np.testing.assert_allclose(round_of([1, 3, 4], weights="uniform")[1], LOCAL_ND[[1, 3, 4]].mean(axis=0), rtol=1e-12)
    half = round_of([1, 3, 4], weights="uniform", eta=0.5)[1]
    np.testing.assert_allclose(half, (W_D + LOCAL_ND[[1, 3, 4]].mean(axis=0)) / 2, rtol=1e-12)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_identical_local_models_are_what_the_model_becomes_so_weights_sum_to_one(weights):
    same = np.tile(LOCAL_ND[0], (N, 1))
    np.testing.assert_allclose(round_of(range(N), local=same, weights=weights)[1], LOCAL_ND[0], rtol=1e-12)


@pytest.mark.parametrize("clients", [[], [3]])
def test_a_round_in_which_nobody_delivers_or_only_clients_without_samples_changes_nothing(clients):
    answer, model = round_of(clients)
    assert answer is False
    np.testing.assert_array_equal(model, W_D)


def test_nothing_of_a_round_is_left_in_the_next():
    rule, model = FedAvg(FedAvgConfig()), torch.zeros(1, dtype=torch.float64)
    rule.start(model, ClientTable(np.array([1, 9])), "difference")
    for value, expected in [(4.0, 4.0), (-1.0, 3.0)]:
        rule.receive(Upload(0, torch.tensor([value], dtype=torch.float64), 0, 0, 1, 1))
        assert rule.round() is True
        assert model.item() == expected
    assert rule.round() is False


def test_a_lost_client_is_left_out_of_its_round_and_the_weights_of_the_others_still_sum_to_one():
    targets, samples = np.array([[1.0], [2.0], [7.0]]), [1, 2, 1]
    _, recorder, _ = simulate(
        FedAvg(FedAvgConfig()),
        n=3,
        delay=Scripted([[1]] * 3),
        targets=targets,
        samples=samples,
        kind="difference",  # at lr = 1 every client delivers its target
        schedule=per_round(),
        availability=ScriptedLoss({(2, 0), (0, 1), (1, 1), (2, 1)}),
        server_iterations=2,
    )
    # round 1 without client 2; round 2 without anybody, which changes nothing; round 3 with all
    np.testing.assert_allclose(np.array(recorder.models)[:, 0], [(1 + 4) / 3, (1 + 4 + 7) / 4])
    assert [a.time for a in recorder.arrivals] == [1, 1, 3, 3, 3]


def test_with_fewer_places_than_clients_each_round_takes_as_many_drawn_anew():
    rule = FedAvg(FedAvgConfig())
    _, recorder, _ = simulate(
        rule,
        n=12,
        delay=Scripted([[1]] * 12),
        kind="difference",
        lr=0.1,
        concurrency=4,
        schedule=RandomIdle(ScheduleConfig(dispatch="per_round")),
        server_iterations=60,
    )
    rounds = [{a.client for a in recorder.arrivals[4 * t : 4 * t + 4]} for t in range(60)]
    assert all(len(clients) == 4 for clients in rounds) and len({frozenset(clients) for clients in rounds}) > 40
    assert set().union(*rounds) == set(range(12))
