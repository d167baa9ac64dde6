"""Work of many steps in the batched executor: what one after another gives, to rounding."""

import numpy as np
import pytest
import torch

from asyncfl_bench.clients import batched
from asyncfl_bench.clients.batched import BatchedComputer
from asyncfl_bench.clients.executors import SequentialComputer
from asyncfl_bench.clients.local import LocalConfig, LocalTraining
from asyncfl_bench.clients.queue import WorkQueue
from asyncfl_bench.clients.samples import Batches
from asyncfl_bench.clients.versions import ClientSums, ClientVariates
from asyncfl_bench.data.base import Data
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.perceptrons import Mlp, MlpConfig
from asyncfl_bench.models.task import Task
from asyncfl_bench.randomness import Streams
from asyncfl_bench.types import Work

SIZES = [70, 33, 12, 0, 33]
PARTITION = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
LOCAL = {
    "clipped": {"clip": 0.3, "momentum": 0.5},
    "plain": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01, "lr_decay": 0.9},
    "proximal": {"proximal": 0.5},
    "adamw": {"optimizer": "adamw", "lr": 0.01},
    "full batches": {"batch_size": "all"},
    "adjusted": {"logit_adjustment": 0.7},
}


def task():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(sum(SIZES), 6)).astype(np.float32), rng.integers(0, 4, sum(SIZES))
    flat = FlatModel(Mlp(MlpConfig([10, 8])).build((6,), 4, seed=0))
    return Task(Data(x, y, x[:5], y[:5], 4), PARTITION, flat, "cpu")


def pieces(steps_by_client, first=0):
    samples = (SIZES[client] for client, _ in steps_by_client)
    return [
        Work(client, first + number, 3, 0, steps, due=float(number), samples=held)
        for number, ((client, steps), held) in enumerate(zip(steps_by_client, samples, strict=True))
    ]


def uploads(executor, wanted, order=None):
    """{sequence: (upload, loss)}"""
    model_d = executor.computer.task.flat.initial_d()
    for work in wanted:
        executor.dispatch(work, model_d)
    found = {}
    for work in order or wanted:
        delivery = executor.deliver(work)
        found[work.sequence] = delivery.vector_d.clone(), delivery.loss.clone()
    executor.close()
    return found


def make(kind, config, keeps=None, **options):
    built = task()
    local = LocalTraining(LocalConfig(**{"batch_size": 8} | config), "difference")
    batches = Batches(PARTITION, local.config.batch_size, Streams(0))
    memories, like_d = None, built.flat.initial_d()
    if keeps == "sum":
        memories = ClientSums(len(SIZES), like_d)
        for client in range(len(SIZES)):
            memories.message(client, torch.full((built.flat.d,), 0.1 * client))
    if keeps == "variate":
        memories = ClientVariates(len(SIZES), like_d, server_d=lambda: torch.full_like(like_d, 0.2), lr=local.lr)
        for client in range(len(SIZES)):
            memories.rows.put(client, torch.full((built.flat.d,), 0.1 * client))
    return WorkQueue(kind(built, local, batches, Streams(0), **options), memories=memories)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("keeps", [None, "sum", "variate"])
def test_uploads_and_losses_are_those_of_one_after_another(name, keeps):
    wanted = pieces([(0, 40), (1, 15), (2, 9), (3, 20), (4, 15)])  # a client has one piece of work at a time
    expected = uploads(make(SequentialComputer, LOCAL[name], keeps), wanted)
    found = uploads(make(BatchedComputer, LOCAL[name], keeps), wanted)
    for sequence, (vector_d, loss) in expected.items():
        tolerance = 5e-3 if name == "adamw" else 2e-5  # AdamW divides by the size of gradients near zero
        torch.testing.assert_close(found[sequence][0], vector_d, rtol=1e-3, atol=tolerance)
        torch.testing.assert_close(found[sequence][1], loss, rtol=1e-4, atol=1e-6)
    assert not found[3][0].any()  # the empty client's


def test_neither_threads_nor_the_order_of_delivery_change_a_bit():
    wanted = pieces([(0, 90), (1, 50), (2, 40), (4, 60)])
    alone = uploads(make(BatchedComputer, {"momentum": 0.5}), wanted)
    threads = uploads(make(BatchedComputer, {"momentum": 0.5}, workers=2), wanted, wanted[::-1])
    for sequence, (vector_d, loss) in alone.items():
        assert torch.equal(vector_d, threads[sequence][0]) and loss == threads[sequence][1]


@pytest.mark.parametrize(
    ("steps", "stacked"),
    [
        ([1, 1, 1], [3]),
        ([7, 7, 5], [2, 1]),
        ([100, 7, 100, 8, 7], [2]),  # the sevens; a few of many steps are done piece by piece
        ([20, 20, 20, 9], [3]),
        ([32, 32, 32, 32], []),
        ([50] * 16, [16]),  # steps so small that it pays to share them
    ],
)
def test_stacks_are_for_few_steps_or_many_small_models(monkeypatch, steps, stacked):
    executor = make(BatchedComputer, {})
    seen = []
    part = executor.computer._compute_stack
    monkeypatch.setattr(
        executor.computer, "_compute_stack", lambda pieces, *rest: seen.append(len(pieces)) or part(pieces, *rest)
    )
    uploads(executor, pieces([(0, count) for count in steps]))
    assert sorted(seen) == sorted(stacked)


def test_large_steps_are_done_piece_by_piece_also_when_many_could_share_them(monkeypatch):
    monkeypatch.setattr(batched, "SMALL_STEP", 1)
    computer = make(BatchedComputer, {}).computer
    assert computer.workspace(pieces([(0, 50)] * 16)) == 0
    assert computer.workspace(pieces([(0, 7)] * 16)) == 16


def test_a_model_that_diverges_gives_no_warning_and_no_error():
    (vector_d, _), *_ = uploads(make(BatchedComputer, {"lr": 1e30}), pieces([(0, 60)])).values()
    assert not vector_d.isfinite().all()
