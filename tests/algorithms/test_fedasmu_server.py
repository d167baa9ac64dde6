"""FedASMU's server: the weight of an arriving model."""

import numpy as np
import pytest
import torch

from asyncfl_bench.algorithms.fedasmu_server import FedAsmuServer
from asyncfl_bench.types import ClientTable, Upload

N = 5


def weights(stalenesses, **settings):
    """Of these arrivals in turn; None of one that is ignored."""
    rule, model, found = FedAsmuServer(**settings), torch.zeros(1), []
    rule.start(model, ClientTable(np.ones(N, int)), "difference")
    for staleness in stalenesses:
        used = rule.receive(Upload(0, torch.ones(1), 0, staleness, 1, 1, base_d=torch.ones(1)))
        found.append(rule.mixing if used else None)
    return found


def test_the_weight_falls_with_the_step_and_with_staleness_by_hand():
    assert weights([0, 0, 0, 0]) == pytest.approx([1 / 2, 0.4142, 0.3660, 1 / 3], abs=1e-4)
    assert weights([0, 0, 0, 3])[-1] == pytest.approx(0.2)
    assert weights([0, 0, 0, 3], exponent=1.0, lam=4.0, mu=0.5, iota=0.5)[-1] == pytest.approx(1 / 3)  # x = 1


def test_what_is_too_stale_is_ignored_and_is_no_step():
    found = weights([0, 2, 3, 2], bound=3)
    assert found[2] is None and found[:2] + found[3:] == weights([0, 2, 2])
