"""FedProx: FedAvg with clients held back."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from toy import final_model, finish_run

from asyncfl_bench.clients.local import LocalConfig, LocalTraining

WORDS = ["scale=smoke", "model=softmax", "progress=false", "trace=true", "client.batch_size=40", "delay=uniform"]


def weights(*words):
    """The flat final model of a run."""
    return final_model(finish_run(*WORDS, *words))


def test_with_one_local_step_nothing_is_held_back_yet_bit_for_bit():
    assert torch.equal(weights("algorithm=fedprox"), weights("algorithm=fedavg"))


def test_it_is_fedavg_with_the_clients_proximal_term_bit_for_bit():
    steps = ["client.local_steps=4"]
    by_hand = weights("algorithm=fedavg", "client.proximal=0.7", *steps)
    assert torch.equal(weights("algorithm=fedprox", "algorithm.mu=0.7", *steps), by_hand)


def difference(mu, steps, lr=0.05):
    """D of a client with F(x) = |x - t|^2 / 2 that received w."""
    w, t = torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([4.0, 2.0], dtype=torch.float64)
    local, out = LocalTraining(LocalConfig(lr=lr, proximal=mu), "difference"), torch.empty_like(w)
    local.upload(w, lambda x, step, into: torch.sub(x, t, out=into), steps, out)
    return out.numpy(), (t - w).numpy()


@pytest.mark.parametrize("steps", [2, 7])
def test_each_step_gains_mu_times_the_distance_from_the_received_model(steps):
    lr, mu = 0.05, 3.0
    found, way = difference(mu, steps, lr)
    x = np.zeros(2)
    for _ in range(steps):
        x = x - lr * (x - way + mu * x)
    np.testing.assert_allclose(found, x, rtol=1e-12)
    np.testing.assert_allclose(found, way / (1 + mu) * (1 - (1 - lr * (1 + mu)) ** steps), rtol=1e-12)


def test_clients_move_less_the_larger_mu_is_and_towards_not_at_all():
    lengths = [np.linalg.norm(difference(mu, 500, 0.9 / (1 + mu))[0]) for mu in (0, 0.1, 1, 10, 1000)]
    assert all(large > small for large, small in pairwise(lengths))
    assert lengths[0] == pytest.approx(5) and lengths[-1] == pytest.approx(5 / 1001)
