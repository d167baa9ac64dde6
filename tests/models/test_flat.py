"""Legend: d parameters, B samples of a mini-batch."""

from __future__ import annotations

import copy

import pytest
import torch
from tiers import slow
from torch.nn import functional as F

from asyncfl_bench.models.base import ModelConfig
from asyncfl_bench.models.convolutional import (
    Cnn,
    CnnConfig,
    CnnOnePool,
    CnnOnePoolConfig,
    LeNet5,
    LeNet5Config,
    ResNet18,
    ResNet18Config,
)
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.language import Lstm, LstmConfig
from asyncfl_bench.models.perceptrons import Mlp, MlpConfig, Softmax

MODELS = {
    "softmax": (Softmax(ModelConfig()), (1, 8, 8)),
    "mlp": (Mlp(MlpConfig([20])), (1, 8, 8)),
    "cnn": (Cnn(CnnConfig()), (1, 8, 8)),
    "cnn_one_pool": (CnnOnePool(CnnOnePoolConfig()), (1, 8, 8)),
    "lenet5": (LeNet5(LeNet5Config()), (3, 32, 32)),
    "resnet18": (ResNet18(ResNet18Config()), (1, 8, 8)),
}


def flat(name, dtype=torch.float32):
    model, shape = MODELS[name]
    return FlatModel(model.build(shape, 10, seed=3).to(dtype)), shape


def sample(shape, *size, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*size, *shape, generator=generator, dtype=dtype)
    return x, torch.randint(0, 10, size, generator=generator)


def near(w_d, seed):
    return w_d + 0.05 * torch.randn(w_d.shape, generator=torch.Generator().manual_seed(seed), dtype=w_d.dtype)


@pytest.mark.parametrize("name", [*(name for name in MODELS if name != "resnet18"), *slow("resnet18")])
def test_the_flat_gradient_is_autograds_on_a_plain_module(name):
    model, shape = MODELS[name]
    plain, flat_model = model.build(shape, 10, seed=3), FlatModel(model.build(shape, 10, seed=3))
    x, y = sample(shape, 6)
    loss = F.cross_entropy(plain(x), y)
    loss.backward()
    expected_d = torch.cat([p.grad.flatten() for p in plain.parameters()])
    out_d = torch.full((flat_model.d,), torch.nan)
    ours = flat_model.gradient(flat_model.initial_d(), x, y, out_d)
    assert ours.item() == loss.item() and not ours.requires_grad and ours.ndim == 0
    assert torch.equal(out_d, expected_d)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_bias_of_the_logits_is_a_shift_of_the_last_layers_bias(name):
    flat_model, shape = flat(name, torch.float64)
    x, y = sample(shape, 3, dtype=torch.float64)
    w_d, bias_c = flat_model.initial_d(), 3 * sample((10,), 1, dtype=torch.float64)[0][0]
    shifted_d, one_d, expected_d = w_d.clone(), torch.empty_like(w_d), torch.empty_like(w_d)
    shifted_d[-10:] += bias_c
    expected = flat_model.gradient(shifted_d, x, y, expected_d)
    torch.testing.assert_close(flat_model.gradient(w_d, x, y, one_d, bias_c), expected)
    torch.testing.assert_close(one_d, expected_d, rtol=1e-9, atol=1e-12)


def test_the_gradient_follows_the_vector_given_also_when_it_changes_in_place():
    flat_model, shape = flat("mlp")
    x, y = sample(shape, 6)
    first_d, second_d = flat_model.initial_d(), near(flat_model.initial_d(), 1)
    of_first, of_second, again = (torch.empty_like(first_d) for _ in range(3))
    flat_model.gradient(first_d, x, y, of_first)
    flat_model.gradient(second_d, x, y, of_second)
    assert not torch.allclose(of_first, of_second)
    first_d.copy_(second_d)
    flat_model.gradient(first_d, x, y, again)
    assert torch.equal(again, of_second)
    second_d += 1  # bound before, must not matter now
    flat_model.gradient(first_d, x, y, again)
    assert torch.equal(again, of_second)


def test_a_vector_freed_and_made_again_is_not_mistaken_for_the_old_one():
    flat_model, shape = flat("softmax")
    x, _ = sample(shape, 2)
    for value in range(20):
        w_d = torch.full((flat_model.d,), float(value))
        expected = value * (x.flatten(1).sum(1) + 1)
        torch.testing.assert_close(flat_model.logits(w_d, x)[:, 0], expected, rtol=1e-4, atol=1e-3)
        del w_d


def test_nothing_writes_to_the_vector_and_the_initial_one_is_a_copy():
    flat_model, shape = flat("mlp")
    x, y = sample(shape, 6)
    w_d = flat_model.initial_d()
    before_d = w_d.clone()
    flat_model.gradient(w_d, x, y, torch.empty_like(w_d))
    flat_model.logits(w_d, x)
    assert torch.equal(w_d, before_d)
    w_d.zero_()
    assert torch.equal(flat_model.initial_d(), before_d)


def test_parameters_are_views_of_the_vector_not_copies():
    flat_model, shape = flat("cnn")
    w_d = flat_model.initial_d()
    flat_model.logits(w_d, sample(shape, 1)[0])
    storage = w_d.untyped_storage().data_ptr()
    assert all(p.untyped_storage().data_ptr() == storage for p in flat_model.module.parameters())


@pytest.mark.slow
def test_named_tensors_load_into_a_plain_module():
    model = ResNet18(ResNet18Config(norm="batch"))
    flat_model = FlatModel(model.build((1, 16, 16), 10, seed=3))
    w_d = near(flat_model.initial_d(), 1)
    named = flat_model.named_tensors(w_d)
    plain = model.build((1, 16, 16), 10, seed=9)
    plain.load_state_dict(named)  # strict: all parameters and all buffers, of the right shapes
    x, _ = sample((1, 16, 16), 3)
    torch.testing.assert_close(plain.eval()(x), flat_model.logits(w_d, x).clone(), rtol=1e-5, atol=1e-5)
    named["fc.weight"].zero_()  # a copy: the vector keeps its own
    assert not (flat_model.named_tensors(w_d)["fc.weight"] == 0).all()


@pytest.mark.slow
def test_statistics_move_in_training_only_and_come_back():
    flat_model = FlatModel(ResNet18(ResNet18Config(norm="batch")).build((1, 16, 16), 10, seed=3))
    x, y = sample((1, 16, 16), 3)
    w_d = flat_model.initial_d()
    start_b = flat_model.statistics()
    # 8 blocks of 2 norms (64, 128, 256, 512 wide, 4 each), the stem's and three shortcuts'; mean and variance each
    assert flat_model.has_statistics and start_b.shape == (2 * (4 * 960 + 64 + 128 + 256 + 512),)
    flat_model.logits(w_d, x)
    assert torch.equal(flat_model.statistics(), start_b)
    flat_model.gradient(w_d, x, y, torch.empty_like(w_d))
    moved_b = flat_model.statistics()
    assert not torch.equal(moved_b, start_b)
    before = flat_model.logits(w_d, x).clone()
    flat_model.load_statistics(start_b)
    assert not torch.equal(flat_model.logits(w_d, x), before)
    flat_model.load_statistics(moved_b)
    assert torch.equal(flat_model.statistics(), moved_b) and torch.equal(flat_model.logits(w_d, x), before)


def test_statistics_are_torchs_plain_mean_over_batches_since_the_last_reset():
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(6, momentum=None), torch.nn.Linear(6, 4))
    flat_model, plain = FlatModel(copy.deepcopy(module)), module
    w_d, out_d = flat_model.initial_d(), torch.empty(flat_model.d)
    x, y = torch.randn(7, 5, 6, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 4
    for _ in range(2):
        flat_model.reset_statistics()
        plain[0].reset_running_stats()
        for rows in x:
            flat_model.gradient(w_d, rows, y, out_d)
            plain(rows)
            assert torch.equal(flat_model.statistics(), torch.cat([plain[0].running_mean, plain[0].running_var]))


def test_a_model_without_batch_norm_has_no_statistics():
    flat_model, _ = flat("resnet18")
    assert not flat_model.has_statistics and flat_model.statistics().shape == (0,)
    flat_model.load_statistics(flat_model.statistics())


# --- recurrent networks


def lstm(seed=3):
    return Lstm(LstmConfig(hidden=24)).build((80,), 80, seed, 80)


def tokens(b, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 80, (b, 80), generator=generator, dtype=torch.uint8)
    return x, torch.randint(0, 80, (b,), generator=generator)


def test_an_lstms_flat_gradient_is_autograds_on_a_plain_module_at_any_vector(recwarn):
    flat_model, plain, (x, y) = FlatModel(lstm()), lstm(), tokens(6)
    out_d = torch.empty(flat_model.d)
    for seed in range(3):
        w_d = near(flat_model.initial_d(), seed)
        torch.nn.utils.vector_to_parameters(w_d, plain.parameters())
        loss = F.cross_entropy(plain(x), y)
        expected_d = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(plain.parameters()))])
        assert flat_model.gradient(w_d, x, y, out_d).item() == loss.item() and torch.equal(out_d, expected_d)
        torch.testing.assert_close(flat_model.logits(w_d, x).clone(), plain(x), rtol=1e-5, atol=1e-6)
    assert not recwarn.list


def test_an_lstms_weights_stay_views_of_the_vector_after_flattening_moving_and_copying():
    flat_model, (x, y) = FlatModel(lstm()), tokens(3)
    first_d, second_d = near(flat_model.initial_d(), 1), near(flat_model.initial_d(), 2)
    wanted_d, out_d = torch.empty_like(first_d), torch.empty_like(first_d)
    FlatModel(lstm()).gradient(second_d, x, y, wanted_d)
    for model in (flat_model, flat_model.clone_for_thread(), flat_model.to("cpu")):
        model.gradient(first_d, x, y, out_d)
        model.module.lstm.flatten_parameters()
        model.gradient(second_d, x, y, out_d)
        assert torch.equal(out_d, wanted_d)
        storage = second_d.untyped_storage().data_ptr()
        assert all(p.untyped_storage().data_ptr() == storage for p in model.module.lstm.parameters())


def test_moving_a_model_binds_it_again_whatever_its_layers_did_with_their_weights():
    class Compacting(torch.nn.Linear):
        """As a recurrent layer on a GPU: being moved, it puts its weights into memory of its own."""

        def _apply(self, fn, recurse=True):
            super()._apply(fn, recurse)
            for parameter in self.parameters():
                parameter.data = parameter.data.clone()
            return self

    flat_model = FlatModel(torch.nn.Sequential(Compacting(4, 3)))
    w_d = flat_model._initial_d
    flat_model.to("cpu")
    storage = w_d.untyped_storage().data_ptr()
    assert all(p.untyped_storage().data_ptr() == storage for p in flat_model.module.parameters())
