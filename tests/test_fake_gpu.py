"""No tensor of the CPU meets one of the GPU, shown without a GPU: see fake_gpu.py."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from fake_gpu import fake_gpu, on_cpu
from torch import nn

from asyncfl_bench import run
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.common.caches import make_cache
from asyncfl_bench.algorithms.common.sums import RunningSum
from asyncfl_bench.config import compose, options
from asyncfl_bench.config.choices import choices_with
from asyncfl_bench.data.base import Data, Scale
from asyncfl_bench.experiment import machine
from asyncfl_bench.experiment.build import build_run
from asyncfl_bench.models.base import ModelConfig
from asyncfl_bench.models.convolutional import Cnn, CnnConfig
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.language import Lstm, LstmConfig
from asyncfl_bench.models.perceptrons import Mlp, MlpConfig, Softmax
from asyncfl_bench.models.task import Task
from asyncfl_bench.randomness import Streams
from asyncfl_bench.storage import PLACES, PRECISIONS, CacheConfig, Storage

pytestmark = pytest.mark.slow  # whole runs: seconds each

RUN = [
    "scale=smoke",
    "n_clients=3",
    "model.hidden=[4]",
    "device=cuda",
    "progress=false",
    "budget.server_iterations=2",
    "evaluation.every=1",
    "evaluation.validation_share=0.1",
]


BUFFERED_RULES = choices_with("algorithm", "buffer_size")


def of_rule(name):
    return [f"algorithm={name}", *(["algorithm.buffer_size=2"] if name in BUFFERED_RULES else [])]


# what one setting of each rule leaves out: other local work, executors and networks, clients that keep something
VARIANTS = {
    "ace, incremental, on the host": ["algorithm=ace", "algorithm.rule=incremental", "algorithm.cache.place=host"],
    "ace, rounded": ["algorithm=ace", "algorithm.cache.precision=int8"],
    "aced, whose gradients expire": ["algorithm=aced", "algorithm.tau_algo=0"],
    "fedbuff, momentum": [*of_rule("fedbuff"), "algorithm.momentum=0.9", "client.local_steps=2", "client.momentum=0.9"],
    "fedbuff, a step size of each client's own": [*of_rule("fedbuff"), "client.local_steps=2", "client.lr_decay=0.9"],
    "fedprox, passes": ["algorithm=fedprox", "client.local_epochs=1", "client.batch_size=500"],
    "fedopt, yogi": ["algorithm=fedopt", "algorithm.optimizer=yogi"],
    "feddyn, adamw": ["algorithm=feddyn", "client=adamw"],
}
# the parts of these have a fast test below or in the other cases
SLOW = {
    "fedbuff, one after another": [*of_rule("fedbuff"), "executor=sequential", "client.weight_decay=0.1"],
    "asgd, a convolution": ["algorithm=asgd", "model=cnn", "model.hidden=4"],
    "asgd, errors measured": ["algorithm=asgd", "diagnostics=mse"],
}
CASES = {name: of_rule(name) for name in options("algorithm")} | VARIANTS | SLOW


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES])
def test_a_run_stays_on_its_device_and_so_does_one_that_is_resumed(case):
    with fake_gpu():
        result = run([*RUN, *CASES[case]])
        assert result.ok, (result.directory / "error.txt").read_text()
        assert result.summary["device"] == "cuda" and result.summary["used"]["server_iterations"] == 2
        longer = run([f"resume={result.directory}", "budget.server_iterations=3"])
    assert longer.ok and longer.summary["used"]["server_iterations"] == 3
    rows = [json.loads(row) for row in (longer.directory / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]


BUFFERED = of_rule("fedbuff")
WAITING = {name: of_rule(name) for name in options("algorithm")} | {
    "gas, clipped": [*of_rule("gas"), "algorithm.server_clip=1"],
    "minibatch_sfl, clipped": [*of_rule("minibatch_sfl"), "algorithm.server_clip=1"],
    "fedbuff, one after another": [*BUFFERED, "client.logit_adjustment=1", "executor=sequential"],
    "fedbuff, step sizes of clients": [*BUFFERED, "client.logit_adjustment=1", "client.lr_decay=0.9"],
    "fedbuff, convolutions": [*BUFFERED, "model=cnn", "model.hidden=4", "client.clip=1"],
    "ace, rounded": VARIANTS["ace, rounded"],
}
WAITS_IN_A_STEP = ("asyncfeded", "fedecho", "gas, clipped", "minibatch_sfl, clipped")


@pytest.mark.parametrize("case", WAITING)
def test_the_host_waits_at_most_once_in_a_server_step_and_at_no_other_arrival(case):
    with fake_gpu() as driver:
        parts = build_run(compose([*RUN[:5], "budget.server_iterations=99", *WAITING[case]]))
        counters, changes = parts.simulation.counters, 0
        while not counters.uploads:  # the first one tries the graph
            parts.simulation.step()
        for _ in range(30):
            before = counters.iteration + counters.server_steps
            driver.waits.clear()
            assert parts.simulation.step() is None
            changed = counters.iteration + counters.server_steps > before
            assert driver.waits.total() <= (changed and case in WAITS_IN_A_STEP), driver.waits
            changes += changed
    assert changes > 2


@pytest.mark.parametrize(
    "read",
    [
        lambda x: float(x.sum()),
        lambda x: bool((x > 0).all()),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.new_tensor([1.0, 2.0]),
        lambda x: x[[0, 1]],
        lambda x: x.copy_(torch.zeros(3)),
    ],
)
def test_the_fake_driver_sees_every_wait(read):
    with fake_gpu() as driver:
        x = torch.ones(3, device="cuda")
        x.add_(1).copy_(torch.zeros(3), non_blocking=True)
        assert not driver.waits
        read(x)
    assert driver.waits.total() == 1


def task_on_gpu(model):
    """Twelve photographs of two clients, with samples held back."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (12, 3, 8, 8), dtype=np.uint8), rng.integers(0, 4, 12)
    data = Data(x, y, x[:5], y[:5], 4, Scale((0.1, 0.2, 0.3), (0.5, 1.0, 2.0)), x_validation=x[:2], y_validation=y[:2])
    return Task(data, [np.arange(6), np.arange(6, 12)], FlatModel(model.build(data.shape, 4, 0)), "cuda")


@pytest.mark.parametrize("model", [Mlp(MlpConfig([5])), Cnn(CnnConfig(5))], ids=["a perceptron", "convolutions"])
def test_samples_crops_stacked_models_and_evaluation_are_on_the_gpu(model):
    p, size = 2, 3
    with fake_gpu():
        task = task_on_gpu(model)
        w_d = task.flat.initial_d()
        augment = tuple(draws.reshape(p, size) for draws in task.draw_augmentation(np.random.default_rng(0), p * size))
        x, y = task.batch(np.arange(p * size).reshape(p, size), augment=augment)
        assert x.shape == (p, size, 3, 8, 8) and {x.device.type, y.device.type, w_d.device.type} == {"cuda"}
        out_pd = torch.empty((p, task.flat.d), device="cuda")
        weight_pb = task.from_numpy(np.full((p, size), 1 / size, np.float32))
        assert task.flat.stack.gradient(w_d.repeat(p, 1), x, y, weight_pb, out_pd).device.type == "cuda"
        assert task.flat.gradient(w_d, x[0], y[0], out_pd[0]).device.type == "cuda"
        assert set(task.evaluate(w_d)) == {"test/accuracy", "test/loss", "validation/accuracy", "validation/loss"}


def test_evaluation_takes_512_samples_at_once_and_empty_memory_is_not_filled(monkeypatch):
    x, y, sizes = np.zeros((600, 4), np.float32), np.arange(600) % 3, []
    data = Data(x, y, x, y, 3)
    with fake_gpu():
        machine.make_deterministic("cuda")
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
        task = Task(data, [np.arange(600)], FlatModel(Softmax(ModelConfig()).build((4,), 3, 0)), "cuda")
        logits = task.flat.logits
        monkeypatch.setattr(task.flat, "logits", lambda w_d, x: (sizes.append(len(x)), logits(w_d, x))[1])
        task.evaluate(task.flat.initial_d())
    assert sizes == [512, 88] and torch.utils.deterministic.fill_uninitialized_memory


def test_statistics_of_batch_normalisation_and_recurrent_layers_are_on_the_gpu():
    with fake_gpu():
        normalised = FlatModel(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))).to("cuda")
        recurrent = FlatModel(Lstm(LstmConfig(2, 3, 1)).build((5,), 3, 0, 7)).to("cuda")
        y = torch.zeros(2, dtype=torch.int64, device="cuda")
        for flat, x in (normalised, torch.ones((2, 4), device="cuda")), (recurrent, torch.ones_like(y)[:, None].byte()):
            w_d = flat.initial_d()
            flat.reset_statistics()
            assert flat.gradient(w_d, x, y, torch.empty_like(w_d)).device.type == "cuda"
            flat.load_statistics(flat.statistics().lerp(flat.statistics(), 0.5))
            assert flat.logits(w_d, x).device.type == flat.statistics().device.type == "cuda"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_cache_gives_vectors_on_the_gpu_from_any_place(precision, place):
    with fake_gpu():
        vector_d = torch.ones(7, device="cuda")
        storage, total = Storage((5, 2), Streams(0).cache), RunningSum(vector_d)
        cache, other = (make_cache(2, vector_d, CacheConfig(precision, place), storage) for _ in range(2))
        cache.replace(1, vector_d, total)
        assert cache.rows.rows_nd.device.type == ("cuda" if place == "device" else "cpu")
        other.load_state_dict(on_cpu(cache.state_dict()))
        assert other.stored_vector(1).device.type == total.sum_d.device.type == "cuda"


ELSEWHERE = torch.zeros(3)
PLANTED = {
    "a sum": lambda on_gpu: on_gpu.add_(torch.zeros(3)),
    "a tensor from before": lambda on_gpu: on_gpu.add_(ELSEWHERE),
    "a result": lambda on_gpu: torch.sub(on_gpu, on_gpu, out=torch.empty(3)),
    "a pick": lambda on_gpu: on_gpu.index_select(0, torch.from_numpy(np.arange(2))),
    "an array": lambda on_gpu: on_gpu.numpy(),
    "a generator": lambda on_gpu: on_gpu.uniform_(generator=torch.Generator()),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_what_a_gpu_would_refuse_is_refused(fault):
    with fake_gpu():
        on_gpu = torch.ones(3, device="cuda")
        with pytest.raises((RuntimeError, TypeError)):
            PLANTED[fault](on_gpu)
        on_gpu.add_(torch.tensor(1.0)).copy_(ELSEWHERE)  # which a GPU does take: one number, and copies


def test_a_rule_that_forgot_where_its_model_is_fails(monkeypatch):
    monkeypatch.setattr(Asgd, "receive", lambda self, upload: self.model_d.add_(torch.zeros(self.model_d.shape)))
    with fake_gpu():
        result = run([*RUN, "algorithm=asgd"])
    assert result.summary["exit_status"] == "failed" and "DeviceMismatch" in result.summary["error"]
