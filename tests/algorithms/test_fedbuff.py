import numpy as np
import pytest
import torch
from toy import start_rule

from asyncfl_bench.algorithms.fedbuff import FedBuff, FedBuffConfig
from asyncfl_bench.types import Upload


def started(**config):
    rule, model = start_rule(FedBuff(FedBuffConfig(**{"eta": 1.0, "buffer_size": 2} | config)), 4, [0.0])

    def arrive(value, staleness=0, client=0):
        return rule.receive(Upload(client, torch.tensor([value], dtype=torch.float64), 0, staleness, 1, 1))

    return rule, model, arrive


def test_the_model_stays_still_until_the_buffer_is_full():
    _, model, arrive = started(buffer_size=3, eta=0.5)
    assert [arrive(v) for v in (1.0, 2.0)] == [False, False]
    assert model.item() == 0
    assert arrive(6.0) is True
    assert model.item() == 0.5 * (1 + 2 + 6) / 3


def test_polynomial_weights_are_not_renormalised():
    _, model, arrive = started(staleness_weight="polynomial", staleness_exponent=0.5)
    arrive(1.0, staleness=3)
    arrive(1.0, staleness=0)
    assert model.item() == pytest.approx((1 / 2 + 1) / 2)


def test_freshest_weighs_the_whole_buffer_by_its_least_stale_upload():
    _, model, arrive = started(staleness_weight="freshest", staleness_exponent=0.5, momentum=0.5, max_staleness=20)
    arrive(1.0, staleness=15)
    arrive(9.0, staleness=21)  # dropped
    arrive(5.0, staleness=3)
    assert model.item() == 3 / 2
    arrive(1.0, staleness=8)  # the buffer before has no part in this one
    arrive(5.0, staleness=8)
    assert model.item() == pytest.approx(3 / 2 + (0.5 * 3 / 2 + 3 / 3))


def test_uploads_beyond_the_largest_staleness_are_dropped_and_not_counted():
    rule, model, arrive = started(max_staleness=2)
    assert arrive(100.0, staleness=3) is False
    arrive(1.0, staleness=2)
    arrive(3.0)
    assert model.item() == 2.0
    assert rule.stats()["rule/dropped_uploads"] == 1


def test_the_order_of_arrivals_inside_a_buffer_does_not_matter():
    rng = np.random.default_rng(0)
    values = rng.normal(size=10)
    ends = []
    for order in (values, values[::-1]):
        _, model, arrive = started(buffer_size=10)
        for value in order:
            arrive(float(value))
        ends.append(model.item())
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)
