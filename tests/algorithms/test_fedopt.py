"""FedOpt: an adaptive optimizer on the mean of each round."""

import numpy as np
import pytest
import torch
from toy import Scripted, simulate

from asyncfl_bench.algorithms.fedopt import FedOpt, FedOptConfig
from asyncfl_bench.simulation.schedules import SameClient, ScheduleConfig
from asyncfl_bench.types import ClientTable, Upload

ROUNDS = np.random.default_rng(0).normal(size=(12, 3, 4))  # 12 rounds of 3 clients
SAMPLES = np.array([2, 5, 1])


def models(rule, rounds=ROUNDS):
    """(rounds, d) the model after each round."""
    model, seen = torch.zeros(rounds.shape[2], dtype=torch.float64), []
    rule.start(model, ClientTable(SAMPLES), "difference")
    for uploads_nd in rounds:
        for client, upload_d in enumerate(uploads_nd):
            rule.receive(Upload(client, torch.tensor(upload_d), 0, 0, int(SAMPLES[client]), 1))
        assert rule.round() is True
        seen.append(model.numpy().copy())
    return np.array(seen)


def by_hand(optimizer, mean_rd, eta, b1, b2, tau):
    """The paper's Algorithm 2, round by round."""
    w, m, v = np.zeros(4), np.zeros(4), np.full(4, tau**2)
    for mean in mean_rd:
        m = b1 * m + (1 - b1) * mean
        if optimizer == "adagrad":
            v = v + mean**2
        elif optimizer == "yogi":
            v = v - (1 - b2) * mean**2 * np.sign(v - mean**2)
        else:
            v = b2 * v + (1 - b2) * mean**2
        w = w + eta * m / (np.sqrt(v) + tau)
        yield w


@pytest.mark.parametrize("optimizer", ["adam", "yogi", "adagrad"])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_the_three_optimizers_are_the_papers(optimizer, weights):
    rule = FedOpt(FedOptConfig(eta=0.3, optimizer=optimizer, beta1=0.8, beta2=0.95, tau=0.05, weights=weights))
    share = SAMPLES / SAMPLES.sum() if weights == "samples" else np.full(3, 1 / 3)
    mean_rd = np.einsum("n,rnd->rd", share, ROUNDS)
    np.testing.assert_allclose(models(rule), list(by_hand(optimizer, mean_rd, 0.3, 0.8, 0.95, 0.05)), rtol=1e-9)


def test_adagrad_without_momentum_is_that_of_torch():
    rule = FedOpt(FedOptConfig(eta=0.1, optimizer="adagrad", beta1=0.0, tau=1e-3))
    weight = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.Adagrad([weight], lr=0.1, initial_accumulator_value=1e-6, eps=1e-3)
    for mean, ours in zip(ROUNDS.mean(axis=1), models(rule), strict=True):
        weight.grad = torch.tensor(-mean)
        reference.step()
        np.testing.assert_allclose(ours, weight.detach().numpy(), rtol=1e-9)


def test_yogi_lets_its_second_moment_fall_by_no_more_than_what_it_takes_in():
    large, small = np.full((1, 3, 4), 10.0), np.full((5, 3, 4), 0.1)
    seconds = {}
    for optimizer in ("adam", "yogi"):
        rule = FedOpt(FedOptConfig(optimizer=optimizer, beta2=0.9))
        models(rule, np.concatenate([large, small]))
        seconds[optimizer] = rule.second_d[0].item()
    first = 1e-6 + 0.1 * 100
    assert seconds["yogi"] == pytest.approx(first - 5 * 0.1 * 0.01, rel=1e-6)
    assert seconds["adam"] == pytest.approx(0.9**5 * first, rel=1e-2)


def test_a_vanishing_server_step_leaves_the_model_where_it_is():
    assert np.abs(models(FedOpt(FedOptConfig(eta=1e-300)))).max() < 1e-290


def test_the_size_of_a_step_does_not_depend_on_the_size_of_the_differences():
    config = FedOptConfig(eta=0.1, tau=1e-12, beta1=0.5)
    np.testing.assert_allclose(models(FedOpt(config)), models(FedOpt(config), 1000 * ROUNDS), rtol=1e-6)


def test_a_round_without_uploads_moves_neither_the_model_nor_the_moments():
    rule = FedOpt(FedOptConfig())
    models(rule)
    before = rule.model_d.clone(), rule.first_d.clone(), rule.second_d.clone()
    assert rule.round() is False
    for kept, now in zip(before, (rule.model_d, rule.first_d, rule.second_d), strict=True):
        assert torch.equal(kept, now)


def test_in_a_world_of_quadratic_clients_it_finds_the_mean_of_their_optima():
    targets = np.random.default_rng(1).normal(size=(6, 3))
    _, recorder, _ = simulate(
        FedOpt(FedOptConfig(eta=0.05, beta1=0.5, tau=0.01)),
        n=6,
        delay=Scripted([[1]] * 6),
        targets=targets,
        kind="difference",
        lr=0.5,
        schedule=SameClient(ScheduleConfig(dispatch="per_round")),
        server_iterations=800,
    )
    np.testing.assert_allclose(recorder.models[-1], targets.mean(axis=0), atol=1e-3)
