"""FedStaleAsync: FedBuff, MIFA, CA2FL and FedStale are its corners."""

import numpy as np
import pytest
import torch

from asyncfl_bench.algorithms.ace import Ace
from asyncfl_bench.algorithms.common.trial import after_each
from asyncfl_bench.algorithms.fedstale_async import FedStaleAsync
from asyncfl_bench.algorithms.mifa import Mifa
from asyncfl_bench.types import ClientTable, Upload


def rounds(beta, p, weights, deltas):
    """The model after rounds {client: difference}, a buffer each."""
    rule, model, found = FedStaleAsync(alpha=1.0, beta=beta, p=p, buffer_size=1, weights="samples"), torch.zeros(1), []
    rule.start(model, ClientTable(np.array(weights)), "difference")
    for taking_part in deltas:
        rule.config.buffer_size = len(taking_part)
        for client, difference in taking_part.items():
            rule.receive(Upload(client, torch.tensor([float(difference)]), 0, 0, 1, 1))
        found.append(model.item())
    return found


@pytest.mark.parametrize(("beta", "expected"), [(0, [5, 6, 12]), (0.5, [5, 7, 12.5]), (1, [5, 8, 13])])
def test_a_buffer_a_round_is_fedstale_by_hand(beta, expected):
    assert rounds(beta, [1.0, 0.5], [1, 1], [{0: 2, 1: 4}, {0: 2}, {1: 6}]) == pytest.approx(expected)


def test_a_buffer_a_round_is_fedstale_as_its_authors_write_it():
    rng = np.random.default_rng(0)
    a, p, beta = np.array([1, 2, 3, 4]) / 10, [0.9, 0.5, 0.3, 0.6], 0.4
    active = [sorted(rng.choice(4, size=rng.integers(1, 5), replace=False)) for _ in range(20)]
    deltas = [{int(i): float(rng.normal()) for i in taking_part} for taking_part in active]
    w, h, expected = 0.0, np.zeros(4), []
    for taking_part in deltas:
        stale = sum((a[i] - a[i] / p[i] * (i in taking_part)) * h[i] for i in range(4))
        w += sum(a[i] / p[i] * difference for i, difference in taking_part.items()) + beta * stale
        h[list(taking_part)] = list(taking_part.values())
        expected.append(w)
    assert rounds(beta, p, [1, 2, 3, 4], deltas) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("beta", [0, 0.3, 1])
def test_everybody_in_every_round_is_fedavg_for_any_beta(beta):
    assert rounds(beta, [1.0], [1, 3], [{0: 2, 1: 4}, {0: 1, 1: 5}]) == pytest.approx([3.5, 7.5])


@pytest.mark.parametrize(
    ("beta", "p", "expected"),
    [
        (1, [1.0], [1, 4, 6]),
        (1, [1 / 3], [3, 10, 10]),
        (0, None, [3, 9, 9]),
        (0.5, None, [3, 9.5, 9.5]),
        (0.5, [1.0], [1, 3.5, 4.5]),
    ],
)
def test_three_arrivals_of_three_clients_by_hand(beta, p, expected):
    rule = FedStaleAsync(alpha=1.0, beta=beta, p=p, buffer_size=1)
    found = after_each(rule, (0, [3.0]), (1, [6.0]), (0, [0.0]), (2, [0.0]))
    assert [model for (model,) in found[:3]] == pytest.approx(expected, abs=1e-3)


def test_over_those_heard_the_divisor_grows_with_them():
    found = after_each(
        FedStaleAsync(beta=1.0, p=[1.0], over="heard", buffer_size=1), (0, [3.0]), (1, [6.0]), (2, [0.0])
    )
    assert [model for (model,) in found] == pytest.approx([3, 3 + 9 / 2, 3 + 9 / 2 + 9 / 3])


def test_the_mean_may_be_over_those_who_were_heard():
    rule = FedStaleAsync(buffer_size=1, over="heard")
    # M / |K| with |K| = 1, 2, 2, 3:  2;  + 2 / 4 + 4;  + 6 / 4 - 1;  + 4 / 6
    found = after_each(rule, (0, [2.0]), (1, [4.0]), (0, [0.0]), (2, [0.0]))
    np.testing.assert_allclose(found, [[2.0], [6.5], [7.0], [7.6667]])


def test_once_all_were_heard_mifa_at_every_arrival_moves_as_ace_does():
    rng = np.random.default_rng(1)
    mifa, ace, table = Mifa(eta=0.3, buffer_size=1), Ace(eta=0.3), ClientTable(np.ones(4, dtype=int))
    models = [torch.zeros(3, dtype=torch.float64) for _ in range(2)]
    mifa.start(models[0], table, "difference")
    ace.start(models[1], table, "gradient")
    for turn in range(60):
        client = turn if turn < 4 else int(rng.integers(4))
        before, vector = [model.clone() for model in models], torch.tensor(rng.normal(size=3))
        stepped = [rule.receive(Upload(client, sign * vector, 0, 0, 1, 1)) for rule, sign in ((mifa, -1.0), (ace, 1.0))]
        if turn >= 4:
            assert stepped == [True, True]
            np.testing.assert_allclose(models[0] - before[0], models[1] - before[1], atol=1e-12)
