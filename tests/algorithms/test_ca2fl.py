import numpy as np
import pytest
import torch
from toy import Scripted, simulate, start_rule

from asyncfl_bench.algorithms.ca2fl import Ca2fl
from asyncfl_bench.types import Upload


def started(n, **config):
    rule, model = start_rule(Ca2fl(**{"eta": 1.0, "buffer_size": 2} | config), n, [0.0])

    def arrive(client, value):
        return rule.receive(Upload(client, torch.tensor([value], dtype=torch.float64), 0, 0, 1, 1))

    return rule, model, arrive


def test_three_clients_worked_out_by_hand():
    rule, model, arrive = started(3)
    arrive(0, 3.0)
    arrive(1, 6.0)
    assert model.item() == 4.5  # h = 0, S = 9: 9 / 2
    arrive(0, 6.0)  # S = 6 - 3
    arrive(2, 1.0)  # S = 3 + 1
    assert model.item() == pytest.approx(4.5 + 3 + 2)  # h = (3 + 6 + 0) / 3, S / M = 2
    assert rule.mean_d.item() == pytest.approx((6 + 6 + 1) / 3)


def test_a_client_twice_in_one_buffer_is_calibrated_against_its_newest_value_and_counted():
    rule, model, arrive = started(2)
    arrive(0, 3.0)
    arrive(0, 5.0)  # S = 3 + (5 - 3)
    assert model.item() == 2.5
    assert rule.stats()["rule/repeated_clients"] == 1
    assert rule.mean_d.item() == 2.5  # 5 / 2 clients


def test_h_is_the_mean_of_all_caches_after_every_flush_and_does_not_drift():
    rng = np.random.default_rng(0)
    n = 10
    rule = Ca2fl(eta=0.5, buffer_size=4)
    delay = Scripted(rng.exponential(size=(n, 4000)).tolist())
    simulate(rule, n=n, delay=delay, kind="difference", lr=0.1, server_iterations=2500)
    torch.testing.assert_close(rule.mean_d, rule.cache.rows.rows_nd.mean(dim=0), rtol=1e-10, atol=1e-14)


def test_its_step_minus_that_of_ace_is_the_known_multiple_of_the_change():
    # with M = 1 and equal caches: v - u = (1 - 1/n) (D_j - h_j), and the next h is ACE's u  (arXiv:2511.19066, B.4)
    rng = np.random.default_rng(0)
    n = 5
    rule, model, arrive = started(n, buffer_size=1)
    caches = np.zeros(n)
    for client in rng.integers(0, n, 40):
        value, before = float(rng.normal()), model.item()
        change = value - caches[client]
        u = (caches.sum() + change) / n
        arrive(int(client), value)
        caches[client] = value
        assert model.item() - before - u == pytest.approx((1 - 1 / n) * change, abs=1e-12)
        assert rule.mean_d.item() == pytest.approx(u, abs=1e-12)
