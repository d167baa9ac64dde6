"""FastText, and local work with the rows of its embedding that samples read."""

import numpy as np
import pytest
import torch

from asyncfl_bench.clients.executors import SequentialComputer
from asyncfl_bench.clients.local import LocalConfig, LocalTraining
from asyncfl_bench.clients.samples import Batches
from asyncfl_bench.clients.versions import Blocks
from asyncfl_bench.data.base import Data
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.language import FastText, FastTextConfig
from asyncfl_bench.models.task import Task
from asyncfl_bench.randomness import Streams
from asyncfl_bench.types import Work

SYMBOLS, LENGTH, CLASSES = 40, 9, 3


def fasttext(embedding=5, buckets=23, padding=0, symbols=SYMBOLS):
    model = FastText(FastTextConfig(embedding=embedding, buckets=buckets))
    return model.build((LENGTH,), CLASSES, 0, symbols, padding)


def sample_texts(samples, seed=0, words=12):
    """Of 1 to LENGTH words each, of which only some of all are used."""
    rng = np.random.default_rng(seed)
    x = rng.integers(1, words, (samples, LENGTH)).astype(np.int32)
    x[np.arange(LENGTH) >= rng.integers(1, LENGTH + 1, samples)[:, None]] = 0
    return x


def test_logits_are_those_of_the_mean_over_words_and_bigrams():
    network = fasttext()
    x = torch.tensor([[4, 7, 4, 0, 0, 0, 0, 0, 0], [9, 0, 0, 0, 0, 0, 0, 0, 0]], dtype=torch.int32)
    row, there = network.rows(x)
    table = network.embedding.weight
    first, second = row[0, LENGTH].item(), row[0, LENGTH + 1].item()  # the bigrams 4 7 and 7 4
    assert min(first, second) >= SYMBOLS and max(first, second) < SYMBOLS + 23
    assert there.sum(dim=1).tolist() == [5, 1] and row[1, 0] == 9
    mean = torch.stack([(table[4] + table[7] + table[4] + table[first] + table[second]) / 5, table[9]])
    torch.testing.assert_close(network(x), network.output(mean))
    assert not torch.allclose(network(x[:1]), network(torch.tensor([[4, 4, 7, 0, 0, 0, 0, 0, 0]]).int()))  # by order


def test_a_text_of_padding_alone_has_the_mean_0():
    network = fasttext()
    torch.testing.assert_close(network(torch.zeros(1, LENGTH).int())[0], network.output.bias)


def test_bigrams_spread_over_their_buckets_and_are_the_same_on_every_machine():
    network = fasttext(embedding=1, buckets=1000, symbols=5000, padding=None)
    x = torch.randint(0, 5000, (3000, 2), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    row, _ = network.rows(x)
    counts = torch.bincount(row[:, 2] - 5000, minlength=1000).double()
    assert 0.8 < counts.var() / counts.mean() < 1.2  # as thrown at random
    known, _ = network.rows(torch.tensor([[1, 2], [2, 1], [4999, 4998]], dtype=torch.int32))
    assert known[:, 2].tolist() == [
        5000 + ((a * 2654435761 + b * 2246822519) >> 8) % 1000 for a, b in known[:, :2].tolist()
    ]


def test_sizes_and_initial_weights():
    network = fasttext(embedding=64, buckets=1000)
    assert FlatModel(network).d == (SYMBOLS + 1000) * 64 + 65 * CLASSES
    weight = network.embedding.weight
    assert weight.min() >= -0.5 and weight.max() <= 0.5 and abs(weight.std().item() - 12**-0.5) < 0.01
    assert not network.output.bias.any()
    without = fasttext(buckets=0)
    assert FlatModel(without).d == SYMBOLS * 5 + 6 * CLASSES and without(torch.ones(1, LENGTH).int()).shape == (
        1,
        CLASSES,
    )


def task_of_texts(samples=40):
    x = sample_texts(samples)
    y = np.arange(samples) % CLASSES
    data = Data(x, y, x, y, CLASSES, symbols=SYMBOLS, padding=0)
    return Task(data, [np.arange(13), np.arange(13, samples), np.arange(0)], FlatModel(fasttext()), "cpu")


RULES = {
    "gradient": ("gradient", 1, {}),
    "decayed gradient": ("gradient", 1, {"weight_decay": 0.1}),
    "one step": ("difference", 1, {"lr": 0.3}),
    "five steps": ("difference", 5, {"lr": 0.3}),
    "adjusted": ("difference", 5, {"lr": 0.3, "logit_adjustment": 0.7}),
    "momentum": ("difference", 5, {"momentum": 0.9}),
    "decay": ("difference", 5, {"momentum": 0.9, "weight_decay": 0.1}),
    "clip": ("difference", 5, {"clip": 0.05, "weight_decay": 0.1}),
    "pull": ("difference", 5, {"proximal": 0.5, "lr": 0.3, "lr_decay": 0.5}),
    "adamw": ("difference", 5, {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1}),
    "adamw and pull": ("difference", 5, {"optimizer": "adamw", "lr": 0.05, "weight_decay": 0.01, "proximal": 0.1}),
}


def uploads(task, kind, steps, config, terms, sparse):
    embedding = task.flat.embedding
    task.flat.embedding = embedding if sparse else None
    streams, seen = Streams(0), []
    local = LocalTraining(LocalConfig(batch_size=4, **config), kind)
    computer = SequentialComputer(task, local, Batches(task.partition, 4, streams), streams)
    start_d = task.flat.initial_d()
    for client in range(3):
        work = Work(client, sequence=0, count=2, iteration=0, local_steps=steps)
        out_pd = torch.full((1, task.flat.d), 7.0)
        (answer,) = computer.begin([work], lambda _: (start_d, *terms), out_pd, Blocks())()
        seen.append((out_pd[0], answer.loss))
    task.flat.embedding = embedding
    return seen


@pytest.mark.parametrize("terms", ["plain", "center", "shift", "both"])
@pytest.mark.parametrize("rule", RULES)
def test_work_with_the_rows_read_is_the_dense_work_to_rounding(rule, terms):
    task = task_of_texts()
    generator = torch.Generator().manual_seed(1)
    vectors = [torch.randn(task.flat.d, generator=generator) * 0.1 for _ in range(2)]
    chosen = [v if terms in (name, "both") else None for name, v in zip(("center", "shift"), vectors, strict=True)]
    dense, sparse = (uploads(task, *RULES[rule], chosen, sparse) for sparse in (False, True))
    for (dense_d, dense_loss), (sparse_d, sparse_loss) in zip(dense, sparse, strict=True):
        torch.testing.assert_close(sparse_d, dense_d, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(sparse_loss, dense_loss, rtol=1e-5, atol=1e-6)
    moved = [(vector_d != 0).float().mean() for vector_d, _ in sparse]
    assert moved[0] > 0.1 and moved[2] == 0  # the last client has no samples
    if terms == "plain" and "weight_decay" not in RULES[rule][2]:
        assert moved[0] < 0.9  # rows that nobody read stay
