"""Legend: d parameters, B samples of a mini-batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncfl_bench.data.base import Data, Scale
from asyncfl_bench.data.datasets import Digits, DigitsConfig
from asyncfl_bench.data.partition import (
    Dirichlet,
    DirichletConfig,
    Iid,
    Natural,
    PartitionConfig,
)
from asyncfl_bench.data.synthetic import Synthetic, SyntheticConfig
from asyncfl_bench.models.base import ModelConfig
from asyncfl_bench.models.convolutional import Cnn, CnnConfig
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.language import FastText, FastTextConfig, Lstm, LstmConfig
from asyncfl_bench.models.perceptrons import Mlp, MlpConfig, Softmax
from asyncfl_bench.models.task import Task, build_task, text_lengths
from asyncfl_bench.randomness import Streams

SCALE = Scale((0.1, 0.2, 0.3), (0.5, 1.0, 2.0))


def digits(model, heterogeneity=None, **settings):
    settings = {"n_clients": 10, "data_dir": ".", "streams": Streams(0), "device": "cpu"} | settings
    return build_task(Digits(DigitsConfig()), heterogeneity or Iid(PartitionConfig()), model, **settings)


def photographs(n=20, side=8):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (n, 3, side, side), dtype=np.uint8)
    y = rng.integers(0, 10, n)
    data = Data(x, y, x[:5], y[:5], classes=10, scale=SCALE, augmentable=True)
    flat = FlatModel(Softmax(ModelConfig()).build(data.shape, 10, 0))
    return Task(data, [np.arange(n)], flat, "cpu"), x, y


def normalised(x):
    mean, std = (np.array(part)[:, None, None] for part in SCALE)
    return (x / 255 - mean) / std


@pytest.mark.parametrize(
    "model, eta, steps, wanted",
    [
        (Softmax(ModelConfig()), 0.5, 300, 0.93),
        (Mlp(MlpConfig([50])), 0.5, 300, 0.94),
        pytest.param(Cnn(CnnConfig(32)), 0.3, 250, 0.95, marks=pytest.mark.slow),
    ],
    ids=["softmax", "mlp", "cnn"],
)
def test_digits_are_learnt_by_plain_sgd(model, eta, steps, wanted):
    task = digits(model)
    w_d, rng = task.flat.initial_d(), np.random.default_rng(0)
    g_d = torch.empty_like(w_d)
    before = task.evaluate(w_d)
    for _ in range(steps):
        task.flat.gradient(w_d, *task.batch(rng.integers(0, 1437, 64)), g_d)
        w_d.add_(g_d, alpha=-eta)
    after = task.evaluate(w_d)
    assert before["test/accuracy"] < 0.3 and after["test/accuracy"] > wanted and after["test/loss"] < 0.3


def test_a_batch_is_the_indexed_samples_normalised():
    task, x, y = photographs()
    index = np.array([3, 0, 3, 19])
    x_b, y_b = task.batch(index)
    assert x_b.dtype == torch.float32 and y_b.dtype == torch.int64
    np.testing.assert_allclose(x_b.numpy(), normalised(x[index]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(y_b.numpy(), y[index])
    again, _ = task.batch(torch.from_numpy(index))
    assert torch.equal(again, x_b)


def test_indices_of_two_dimensions_give_a_stack_of_batches():
    task, _, y = photographs()
    index_pb = np.array([[3, 0, 1], [7, 7, 2]])
    x_pb, y_pb = task.batch(index_pb)
    assert x_pb.shape == (2, 3, 3, 8, 8) and y_pb.tolist() == y[index_pb].tolist()
    assert torch.equal(x_pb[1], task.batch(index_pb[1])[0])
    offsets = tuple(part.reshape(2, 3) for part in task.draw_augmentation(np.random.default_rng(0), 6))
    cut_pb, _ = task.batch(index_pb, offsets)
    assert torch.equal(cut_pb[1], task.batch(index_pb[1], tuple(part[1] for part in offsets))[0])


def test_crop_and_flip_equal_padding_cutting_and_mirroring_by_hand():
    task, x, _ = photographs(side=8)
    index = np.arange(20)
    dy, dx, flip = task.draw_augmentation(np.random.default_rng(2), 20)
    dy[:2], dx[:2], flip[:2] = [0, 8], [8, 0], [True, False]  # the corners
    expected = []
    for i in index:
        padded = np.zeros((3, 16, 16), np.uint8)  # zero before normalisation, as photographs' black
        padded[:, 4:12, 4:12] = x[i]
        cut = padded[:, dy[i] : dy[i] + 8, dx[i] : dx[i] + 8]
        expected.append(normalised(cut[:, :, ::-1] if flip[i] else cut))
    ours, _ = task.batch(index, (dy, dx, flip))
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_offset_four_without_flip_is_the_image_itself():
    task, _, _ = photographs()
    four = np.full(20, 4)
    assert torch.equal(task.batch(np.arange(20), (four, four, np.zeros(20, bool)))[0], task.batch(np.arange(20))[0])


def test_augmentation_draws_are_uniform_over_offsets_and_sides():
    task, _, _ = photographs()
    dy, dx, flip = task.draw_augmentation(np.random.default_rng(0), 9000)
    for offset in (dy, dx):
        np.testing.assert_allclose(np.bincount(offset, minlength=9), 1000, atol=150)
    assert abs(flip.mean() - 0.5) < 0.03 and abs(np.corrcoef(dy, dx)[0, 1]) < 0.05


def test_the_zero_model_has_the_loss_of_guessing():
    task = digits(Softmax(ModelConfig()))
    metrics = task.evaluate(task.flat.initial_d())
    assert metrics["test/loss"] == pytest.approx(np.log(10), rel=1e-6)
    data = Digits(DigitsConfig()).load(None, Streams(0), 1)
    assert metrics["test/accuracy"] == pytest.approx(np.mean(data.y_test == 0))  # ties go to the first class


def test_evaluation_in_batches_is_the_mean_over_the_whole_test_set():
    task = digits(Mlp(MlpConfig()))  # 360 test samples: two batches on a CPU, of unequal size
    w_d = task.flat.initial_d()
    data = Digits(DigitsConfig()).load(None, Streams(0), 1)
    logits = task.flat.logits(w_d, torch.from_numpy(data.x_test)).double().numpy()
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(360), data.y_test]
    metrics = task.evaluate(w_d)
    assert metrics["test/loss"] == pytest.approx(loss.mean(), rel=1e-5)
    assert metrics["test/accuracy"] == np.mean(logits.argmax(1) == data.y_test)


def test_evaluation_changes_neither_draws_nor_model_nor_training():
    task = digits(Cnn(CnnConfig()))
    w_d = task.flat.initial_d()
    x, y = task.batch(np.arange(8))
    plain_d, after_d = torch.empty_like(w_d), torch.empty_like(w_d)
    task.flat.gradient(w_d, x, y, plain_d)
    state = torch.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()
    assert task.evaluate(w_d) == task.evaluate(w_d)
    assert torch.equal(torch.get_rng_state(), state) and np.array_equal(np.random.get_state()[1], numpy_state)
    assert torch.equal(w_d, task.flat.initial_d()) and task.flat.module.training
    task.flat.gradient(w_d, x, y, after_d)
    assert torch.equal(plain_d, after_d)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_diverged_model_has_a_loss_of_nan_and_no_exception(bad):
    task = digits(Mlp(MlpConfig()))
    metrics = task.evaluate(torch.full((task.flat.d,), bad))
    assert np.isnan(metrics["test/loss"]) and 0 <= metrics["test/accuracy"] < 0.2


def test_the_same_seed_gives_the_same_task_and_another_seed_another():
    first, again, other = (
        digits(Mlp(MlpConfig()), Dirichlet(DirichletConfig()), streams=Streams(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first.flat.initial_d(), again.flat.initial_d())
    assert all(np.array_equal(a, b) for a, b in zip(first.partition, again.partition, strict=True))
    assert not torch.equal(first.flat.initial_d(), other.flat.initial_d())
    assert not np.array_equal(first.clients.samples_n, other.clients.samples_n)


def test_a_synthetic_task_keeps_its_own_clients():
    dataset = Synthetic(SyntheticConfig(max_samples=60))
    streams = Streams(0)
    settings = {"n_clients": 4, "data_dir": ".", "streams": streams, "device": "cpu"}
    task = build_task(dataset, Natural(PartitionConfig()), Softmax(ModelConfig()), **settings)
    assert task.clients.samples_n.tolist() == [len(p) for p in dataset.load(None, streams, 4).natural]
    facts = task.describe()
    assert facts["d"] == 610 and facts["shape"] == [60] and facts["clients"] == 4 and facts["classes"] == 10
    assert facts["train_samples"] == task.clients.samples_n.sum()


# --- token ids


class Copying:
    """Six symbols in rows of 10; the label is the last but one token. 400 to train by four clients, 300 to test."""

    def load(self, data_dir, streams, n_clients):
        x = np.random.default_rng(0).integers(0, 6, (700, 10), dtype=np.uint8)
        y = x[:, -2].astype(np.int64)
        natural = np.split(np.arange(400), 4)
        return Data(x[:400], y[:400], x[400:], y[400:], classes=6, natural=natural, symbols=6)


def copying(model=None, **settings):
    settings = {"n_clients": 4, "data_dir": ".", "streams": Streams(0), "device": "cpu"} | settings
    model = model or Lstm(LstmConfig(hidden=16, layers=1))
    return build_task(Copying(), Natural(PartitionConfig()), model, **settings)


def test_token_ids_stay_integers_on_their_way_to_the_network():
    task, data = copying(), Copying().load(None, None, 4)
    x_b, y_b = task.batch(np.array([3, 0, 399]))
    assert x_b.dtype == torch.uint8 and y_b.dtype == torch.int64
    np.testing.assert_array_equal(x_b.numpy(), data.x_train[[3, 0, 399]])
    x_pb, _ = task.batch(np.array([[3, 0], [1, 2]]))
    assert x_pb.shape == (2, 2, 10) and torch.equal(x_pb[0, 1], x_b[1])


@pytest.mark.slow
def test_an_lstm_learns_to_copy_a_token():
    task, rng = copying(), np.random.default_rng(0)
    w_d = task.flat.initial_d()
    g_d = torch.empty_like(w_d)
    before = task.evaluate(w_d)
    for _ in range(400):
        task.flat.gradient(w_d, *task.batch(rng.integers(0, 400, 32)), g_d)
        w_d.add_(g_d, alpha=-1.0)
    assert before["test/accuracy"] < 0.4 and task.evaluate(w_d)["test/accuracy"] > 0.95


def test_held_back_token_ids_are_judged_as_the_test_set_is():
    task, data = copying(validation_share=0.25), Copying().load(None, None, 4)
    assert task.clients.samples_n.sum() == 300
    w_d = task.flat.initial_d()
    metrics = task.evaluate(w_d)  # 300 test samples: two batches on a CPU
    logits = task.flat.logits(w_d, torch.from_numpy(data.x_test)).double().numpy()
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(300), data.y_test]
    assert metrics["test/loss"] == pytest.approx(loss.mean(), rel=1e-5)
    assert metrics["test/accuracy"] == np.mean(logits.argmax(1) == data.y_test)
    assert 1.5 < metrics["validation/loss"] < 2.2


class Padded(Copying):
    def load(self, data_dir, streams, n_clients):
        return replace(super().load(data_dir, streams, n_clients), padding=0)


def test_a_model_of_words_takes_padded_texts():
    words = {"n_clients": 4, "data_dir": ".", "streams": Streams(0), "device": "cpu"}
    task = build_task(Padded(), Natural(PartitionConfig()), FastText(FastTextConfig()), **words)
    assert task.flat.embedding is not None


def test_the_length_of_a_text_is_the_place_of_its_last_token():
    texts = np.array([[5, 0, 6, 0], [5, 5, 5, 5], [0, 0, 0, 0], [7, 0, 0, 0]])
    assert text_lengths(texts, padding=0).tolist() == [3, 4, 0, 1]
