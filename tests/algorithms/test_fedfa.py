"""FedFa: the mean of the last local models, and when it is taken."""

import numpy as np
import torch

from asyncfl_bench.algorithms.fedfa import FedFa, FedFaConfig
from asyncfl_bench.types import ClientTable, Upload

N = 5


def after(locals_, **config):
    """(answers, the model at the end) of these local models one after another, all but the first stale."""
    rule, model = FedFa(FedFaConfig(**config)), torch.zeros(2, dtype=torch.float64)
    rule.start(model, ClientTable(np.ones(N, int)), "difference")
    base = torch.tensor([1.0, -1.0], dtype=torch.float64)
    answers = [
        rule.receive(Upload(i % N, torch.tensor(local) - base, 0, i, 1, 1, base_d=base))
        for i, local in enumerate(locals_)
    ]
    return answers, model.tolist()


def test_nothing_is_applied_before_the_queue_is_full_and_every_arrival_afterwards():
    locals_ = [[3.0, 0.0], [6.0, 3.0], [9.0, 0.0], [12.0, 6.0]]
    assert after(locals_[:2], queue=3) == ([False] * 2, [0.0, 0.0])
    assert after(locals_[:3], queue=3) == ([False, False, True], [6.0, 1.0])
    assert after(locals_, queue=3) == ([False, False, True, True], [9.0, 3.0])


def test_every_counts_arrivals_from_the_first_full_queue_on():
    assert after([[1.0, 1.0]] * 9, queue=4, every=2)[0] == [False] * 3 + [True, False] * 3
    answers, model = after([[float(i), 0.0] for i in range(8)], queue=4, every=4)
    assert answers == ([False] * 3 + [True]) * 2 and model == [(4 + 5 + 6 + 7) / 4, 0.0]


def test_equal_models_give_that_model_whatever_the_global_one_was():
    assert after([[4.0, 2.0]] * 7, queue=4)[1] == [4.0, 2.0]
