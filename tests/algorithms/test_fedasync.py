"""FedAsync: how much of an arriving model enters the global one."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from toy import Scripted, simulate, table_of

from asyncfl_bench import run
from asyncfl_bench.algorithms.fedasync import FedAsync, FedAsyncConfig
from asyncfl_bench.types import ClientTable, Upload

D = 6
RNG = np.random.default_rng(0)
W_D, BASE_D, DIFFERENCE_D = RNG.normal(size=(3, D))


def arrival(base=BASE_D, difference=DIFFERENCE_D, staleness=0, delay=0.0, w=W_D, **config):
    """(the model after it, the weight s * alpha) of one upload on w."""
    rule, model = FedAsync(FedAsyncConfig(**config)), torch.tensor(w)
    rule.start(model, ClientTable(np.ones(3, int)), "difference")
    upload = Upload(1, torch.tensor(difference), 0, staleness, 5, 1, delay=delay, base_d=torch.tensor(base))
    assert rule.receive(upload) is True
    return model.numpy(), rule.mixing


def weight(lag, **config):
    return arrival(staleness=lag, alpha=1.0, **config)[1]


def test_the_arriving_model_is_mixed_in_with_alpha():
    model, mixing = arrival(alpha=0.3, staleness=9)
    assert mixing == 0.3
    np.testing.assert_allclose(model, 0.7 * W_D + 0.3 * (BASE_D + DIFFERENCE_D), rtol=1e-12)


def test_alpha_of_one_copies_the_arriving_model_to_the_bit():
    np.testing.assert_array_equal(arrival(alpha=1.0)[0], BASE_D + DIFFERENCE_D)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9, 1.0])
def test_an_arriving_model_equal_to_the_global_one_is_a_fixed_point(alpha):
    base = np.round(BASE_D * 64) / 64  # so that base + difference is exact
    difference = np.round(DIFFERENCE_D * 64) / 64
    np.testing.assert_array_equal(arrival(base, difference, w=base + difference, alpha=alpha)[0], base + difference)


def test_it_is_the_model_that_is_mixed_in_and_not_its_difference_unless_nothing_is_stale():
    expected = W_D + 0.4 * DIFFERENCE_D
    np.testing.assert_allclose(arrival(base=W_D, alpha=0.4)[0], expected, rtol=1e-12)
    assert np.abs(arrival(alpha=0.4)[0] - expected).max() > 0.1


@pytest.mark.parametrize("kind", ["constant", "hinge", "polynomial"])
def test_without_lag_every_weight_is_one_and_it_never_leaves_zero_to_one(kind):
    weights = [weight(lag, staleness_weight=kind) for lag in (0, 1, 3, 4, 5, 10, 10**6)]
    assert weights[0] == 1
    assert all(0 < s <= 1 for s in weights)
    assert all(later <= earlier for earlier, later in pairwise(weights))
    assert (weights[-1] < 0.01) == (kind != "constant")


def test_the_hinge_is_continuous_at_b_and_falls_as_the_formula_says_beyond_it():
    def hinge(lag):
        config = {"staleness_weight": "hinge", "hinge_a": 0.5, "hinge_b": 2.0, "lag": "time", "alpha": 1.0}
        return arrival(delay=lag, **config)[1]

    assert hinge(1.999) == hinge(2.0) == 1
    assert hinge(2.0 + 1e-9) == pytest.approx(1, abs=1e-8)
    assert hinge(6.0) == 1 / (0.5 * 4 + 1)


def test_a_hinge_far_out_is_the_constant_weight_bit_for_bit():
    world = {"n": 4, "delay": Scripted(RNG.exponential(size=(4, 20)).tolist()), "kind": "difference", "lr": 0.2}
    far = FedAsyncConfig(staleness_weight="hinge", hinge_b=1e12)
    one, other = (
        np.array(simulate(FedAsync(config), server_iterations=30, **world)[1].models)
        for config in (far, FedAsyncConfig())
    )
    np.testing.assert_array_equal(one, other)


def test_the_polynomial_is_a_power_of_lag_plus_one():
    assert weight(3, staleness_weight="polynomial", exponent=0.5) == 0.5
    assert weight(7, staleness_weight="polynomial", exponent=1.0) == pytest.approx(1 / 8)
    assert weight(7, staleness_weight="polynomial", exponent=0.0) == 1


def test_the_lag_is_counted_in_iterations_or_in_virtual_time():
    config = {"staleness_weight": "polynomial", "exponent": 1.0, "alpha": 1.0}
    assert arrival(staleness=3, delay=1.0, lag="iterations", **config)[1] == pytest.approx(1 / 4)
    assert arrival(staleness=3, delay=1.0, lag="time", **config)[1] == pytest.approx(1 / 2)


def test_a_recorded_run_mixes_by_the_time_its_uploads_took():
    words = ["algorithm=fedasync", "algorithm.lag=time", "algorithm.staleness_weight=hinge", "algorithm.hinge_a=0.5"]
    words += ["algorithm.hinge_b=1", "algorithm.alpha=0.5", "delay=lognormal", "availability=suspension"]
    result = run(["scale=smoke", "model=softmax", "trace=true", "progress=false", "evaluation.every=5", *words])
    trace = table_of(result)
    expected = [0.5 if delay <= 1 else 0.5 / (0.5 * (delay - 1) + 1) for delay in trace["delay"]]
    assert 0 < (trace["delay"] > 1).mean() < 1
    np.testing.assert_allclose(trace["mixing"], expected, rtol=1e-12)
    means = result.metrics.set_index("iteration")["rule/mixing_mean"]
    assert means.loc[10] == pytest.approx(trace["mixing"].iloc[5:10].mean())
