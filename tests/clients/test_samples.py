"""Samples fetched many mini-batches at a time are those of one at a time."""

import numpy as np
import pytest
import torch

from asyncfl_bench.clients import samples as samples_module
from asyncfl_bench.clients.samples import Batches, Samples
from asyncfl_bench.data.base import Data
from asyncfl_bench.models.base import ModelConfig
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.perceptrons import Softmax
from asyncfl_bench.models.task import Task
from asyncfl_bench.randomness import Streams
from asyncfl_bench.types import Work

PARTITION = [np.arange(13), np.arange(13, 40), np.arange(40, 41)]


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(41, 1, 12, 12)).astype(np.float32), rng.integers(0, 3, 41)
    flat = FlatModel(Softmax(ModelConfig()).build((1, 12, 12), 3, seed=0))
    return Task(Data(x, y, x[:5], y[:5], 3), PARTITION, flat, "cpu")


def one_at_a_time(task, work, batch_size, augment):
    streams = Streams(0)
    batches = Batches(PARTITION, batch_size, streams).batches_of(work)
    generator = streams.augment(work.client, work.count)
    for batch in batches:
        cuts = task.draw_augmentation(generator, len(batch)) if augment else None
        yield task.batch(batch, augment=cuts)


@pytest.mark.parametrize("fitting", [1, 30, 10_000])
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("batch_size", [4, "all"])
def test_every_step_gets_the_same_samples_however_many_are_fetched_at_once(
    task, monkeypatch, fitting, augment, batch_size
):
    monkeypatch.setattr(samples_module, "CHUNK_BYTES", fitting * 4 * 144)
    streams = Streams(0)
    samples = Samples(task, Batches(PARTITION, batch_size, streams), streams.augment if augment else None)
    for client in range(3):
        work = Work(client, 0, 5, 0, 11)
        expected = list(one_at_a_time(task, work, batch_size, augment))
        found = list(samples.steps(work))
        assert len(found) == 11
        for (x, y), (expected_x, expected_y) in zip(found, expected, strict=True):
            assert torch.equal(x, expected_x) and torch.equal(y, expected_y)


def test_no_more_is_fetched_at_once_than_fits_unless_one_mini_batch_is_larger(task, monkeypatch):
    monkeypatch.setattr(samples_module, "CHUNK_BYTES", 10 * 4 * 144)
    work = Work(1, 0, 0, 0, 20)
    for batch_size, most in ((4, 10), (25, 25)):
        chunks = list(Samples(task, Batches(PARTITION, batch_size, Streams(0)), None).chunks(work))
        assert max(len(y) for _, y, _ in chunks) <= most
        assert sum(len(sizes) for _, _, sizes in chunks) == 20


def test_work_of_two_clients_may_take_turns(task):
    samples = Samples(task, Batches(PARTITION, 4, Streams(0)), None)
    pieces = [Work(0, 0, 0, 0, 9), Work(1, 1, 0, 0, 9)]
    alone = [list(samples.steps(work)) for work in pieces]
    together = zip(*(samples.steps(work) for work in pieces), strict=True)
    for step, pair in enumerate(together):
        for client in range(2):
            assert torch.equal(pair[client][0], alone[client][step][0])
