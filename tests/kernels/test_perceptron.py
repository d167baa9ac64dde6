"""One perceptron's own formulas against automatic differentiation.

Legend: d parameters, B samples of a mini-batch, m samples of several.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asyncfl_bench.models.base import ModelConfig
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.perceptrons import Mlp, MlpConfig, Softmax

SHAPE, CLASSES = (1, 3, 4), 5
MODELS = {
    "softmax": Softmax(ModelConfig()),
    "one hidden layer": Mlp(MlpConfig([7])),
    "three hidden layers": Mlp(MlpConfig([9, 8, 6])),
}


def flat_model(name):
    return FlatModel(MODELS[name].build(SHAPE, CLASSES, seed=3))


def data(m, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(m, *SHAPE, generator=generator), torch.randint(0, CLASSES, (m,), generator=generator)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_and_losses_are_those_of_automatic_differentiation(name):
    flat = flat_model(name)
    lone, w_d = flat.perceptron.for_single_model(), flat.initial_d()
    x, y = data(21)
    sizes = [8, 3, 8, 2]  # short mini-batches between long ones: their workspaces share memory
    packed_d, out_d = lone.pack(w_d), torch.empty_like(w_d)
    expected_d, found_d = torch.empty_like(w_d), torch.empty_like(w_d)
    steps = zip(lone.samples(x, y, sizes), x.split(sizes), y.split(sizes), strict=True)
    for sample, x_b, y_b in steps:
        loss = lone.gradient(packed_d, sample, out_d)
        lone.unpack(out_d, found_d)
        expected = flat.gradient(w_d, x_b, y_b, expected_d)
        assert loss == pytest.approx(expected.item(), rel=1e-6)
        torch.testing.assert_close(found_d, expected_d, rtol=1e-5, atol=1e-7)


def test_packing_is_a_change_of_order_that_unpacking_takes_back():
    flat = flat_model("three hidden layers")
    lone, w_d = (
        flat.perceptron.for_single_model(),
        torch.arange(flat_model("three hidden layers").d, dtype=torch.float32),
    )
    packed_d, back_d = lone.pack(w_d), torch.empty_like(w_d)
    assert not torch.equal(packed_d, w_d) and torch.equal(packed_d.sort().values, w_d)
    lone.unpack(packed_d, back_d)
    assert torch.equal(back_d, w_d)


def test_the_gradient_follows_a_model_that_changes_in_place_and_another_one():
    flat = flat_model("one hidden layer")
    lone = flat.perceptron.for_single_model()
    first_d, second_d = lone.pack(flat.initial_d()), lone.pack(flat.initial_d() + 0.1)
    sample = next(lone.samples(*data(4), [4]))
    of_first, of_second, again = (torch.empty_like(first_d) for _ in range(3))
    lone.gradient(first_d, sample, of_first)
    lone.gradient(second_d, sample, of_second)
    assert not torch.allclose(of_first, of_second)
    first_d.copy_(second_d)
    lone.gradient(first_d, sample, again)
    assert torch.equal(again, of_second)


def test_large_logits_give_finite_losses_and_a_diverged_model_gives_nan_without_an_exception():
    flat = flat_model("softmax")
    lone, out_d = flat.perceptron.for_single_model(), torch.empty(flat.d)
    x, y = data(4)
    sample = next(lone.samples(x, y, [4]))
    w_d = 1e4 * torch.linspace(-1, 1, flat.d)  # the initial model is zero
    loss = lone.gradient(lone.pack(w_d), sample, out_d)
    assert loss == pytest.approx(flat.gradient(w_d, x, y, torch.empty(flat.d)).item(), rel=1e-5) and loss > 100
    with np.errstate(all="ignore"):
        assert np.isnan(lone.gradient(lone.pack(torch.full((flat.d,), torch.inf)), sample, out_d))


def test_memory_does_not_grow_with_the_number_of_batch_sizes():
    flat = flat_model("one hidden layer")
    lone, out_d = flat.perceptron.for_single_model(), torch.empty(flat.d)
    w_d = lone.pack(flat.initial_d())
    x, y = data(64)
    for size in (64, *range(1, 64)):
        lone.gradient(w_d, next(lone.samples(x[:size], y[:size], [size])), out_d)
    spaces = lone._workspaces
    whole = spaces[64].hidden[0]
    assert len(spaces) == 64
    for space in spaces.values():
        assert all(
            np.shares_memory(getattr(space.hidden[0], part), getattr(whole, part))
            for part in vars(whole)
            if isinstance(getattr(whole, part), np.ndarray)
        )
        assert np.shares_memory(space.logits_cb, spaces[64].logits_cb)
