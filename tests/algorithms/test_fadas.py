"""FADAS: AMSGrad on the mean of a buffer, and how staleness shortens its step."""

import numpy as np
import pytest
import torch

from asyncfl_bench.algorithms.fadas import Fadas
from asyncfl_bench.types import ClientTable, Upload

BUFFERS = np.random.default_rng(0).normal(size=(12, 3, 4)) * np.array([1.0, 1e-3, 10.0, 0.1])  # 12 of 3 uploads


def steps(rule, buffers=BUFFERS, staleness=0, kind="difference"):
    """(buffers, d) what each buffer adds to the model."""
    model, seen = torch.zeros(buffers.shape[2], dtype=torch.float64), [np.zeros(buffers.shape[2])]
    rule.start(model, ClientTable(np.ones(3, int)), kind)
    for number, buffer_md in enumerate(buffers):
        tau = staleness[number] if np.ndim(staleness) else staleness
        answers = [
            rule.receive(Upload(i, torch.tensor(upload_d), 0, tau if i == 1 else 0, 1, 1))
            for i, upload_d in enumerate(buffer_md)
        ]
        assert answers == [False, False, True]
        seen.append(model.numpy().copy())
    return np.diff(seen, axis=0)


def of_torch(mean_rd, **settings):
    """The same of torch's AMSGrad, which is given gradients."""
    weight, seen = torch.zeros(mean_rd.shape[1], dtype=torch.float64, requires_grad=True), [np.zeros(mean_rd.shape[1])]
    optimizer = torch.optim.Adam([weight], amsgrad=True, **settings)
    for mean_d in mean_rd:
        weight.grad = torch.tensor(-mean_d)
        optimizer.step()
        seen.append(weight.detach().numpy().copy())
    return np.diff(seen, axis=0)


def of_three(**settings):
    return Fadas(**({"eta": 0.1, "buffer_size": 3} | settings))


@pytest.mark.parametrize("settings", [{}, {"beta1": 0.5, "beta2": 0.9, "eps": 1e-2}, {"beta1": 0.0}])
def test_it_is_torchs_amsgrad_on_the_mean_of_the_buffer(settings):
    known = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8} | settings
    expected = of_torch(BUFFERS.mean(axis=1), lr=0.1, betas=(known["beta1"], known["beta2"]), eps=known["eps"])
    np.testing.assert_allclose(steps(of_three(**settings)), expected, rtol=1e-6)


def test_a_gradient_is_a_difference_with_the_sign_turned():
    np.testing.assert_array_equal(steps(of_three()), steps(of_three(), -BUFFERS, kind="gradient"))


def test_without_memory_the_first_step_is_the_sign_and_no_later_one_is_longer():
    mean_rd, own = BUFFERS.mean(axis=1), steps(of_three(beta1=0.0, beta2=0.0, eps=1e-300))
    np.testing.assert_allclose(own[0], 0.1 * np.sign(mean_rd[0]), rtol=1e-9)
    np.testing.assert_allclose(own, 0.1 * mean_rd / np.maximum.accumulate(np.abs(mean_rd)), rtol=1e-9)


def test_a_mean_that_stays_gives_steps_of_eta_once_the_moments_know_it():
    buffers = np.tile(BUFFERS[:1], (1500, 1, 1))
    published = steps(of_three(bias_correction=False), buffers)
    assert np.abs(published[0]).max() == pytest.approx(0.1 * 0.1 / 0.01**0.5, rel=1e-3)  # (1 - b1) / sqrt(1 - b2)
    np.testing.assert_allclose(published[-1], 0.1 * np.sign(buffers[0].mean(axis=0)), rtol=1e-4)
    np.testing.assert_allclose(steps(of_three(), buffers[:9]), np.tile(published[-1:], (9, 1)), rtol=1e-3)


@pytest.mark.parametrize("variant", ["code", "paper"])
def test_up_to_the_threshold_delays_change_nothing_bit_for_bit(variant):
    adaptive = of_three(delay_adaptive=variant, tau_c=4)
    np.testing.assert_array_equal(steps(adaptive, staleness=4), steps(of_three(), staleness=4))


def test_beyond_the_threshold_the_stalest_upload_shortens_the_step():
    staleness = [0, 2, 5, 40, 3, 1, 0, 8, 9, 10, 11, 12]
    plain = steps(of_three())
    shorter = {
        variant: steps(of_three(delay_adaptive=variant, tau_c=2), staleness=staleness) / plain
        for variant in ("code", "paper")
    }
    code = np.array([1 if tau <= 2 else 1 / tau for tau in staleness])
    paper = np.array([1 if tau <= 2 else min(1, 10 / tau) for tau in staleness])  # eta is 1 / 10
    np.testing.assert_allclose(shorter["code"], np.tile(code[:, None], 4), rtol=1e-7)
    np.testing.assert_allclose(shorter["paper"], np.tile(paper[:, None], 4), rtol=1e-7)


def test_the_size_of_a_step_does_not_depend_on_the_size_of_the_differences():
    np.testing.assert_allclose(steps(of_three()), steps(of_three(), 1000 * BUFFERS), rtol=1e-4)
