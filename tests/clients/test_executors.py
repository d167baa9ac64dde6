"""What an executor delivers, on a real task."""

import numpy as np
import pytest
import torch

from asyncfl_bench import run
from asyncfl_bench.clients.executors import SequentialComputer
from asyncfl_bench.clients.local import LocalConfig, LocalTraining
from asyncfl_bench.clients.queue import ComputedUpload, Computer, WorkQueue
from asyncfl_bench.clients.samples import Batches
from asyncfl_bench.clients.versions import ClientMemories, ModelVersions
from asyncfl_bench.config import compose
from asyncfl_bench.errors import Stopped
from asyncfl_bench.models.task import build_task
from asyncfl_bench.randomness import Streams
from asyncfl_bench.simulation.observer import Observer
from asyncfl_bench.types import Work


def digits(*words, n_clients=10):
    settings = compose([f"n_clients={n_clients}", *words])
    parts = {
        name: part.build() for name, part in settings.parts.items() if name in ("dataset", "heterogeneity", "model")
    }
    task = build_task(
        parts["dataset"],
        parts["heterogeneity"],
        parts["model"],
        n_clients=n_clients,
        data_dir=settings.data_dir,
        streams=Streams(0),
        device="cpu",
        augment=False,
    )
    return task


def executor_of(task, kind="gradient", **config):
    local = LocalTraining(LocalConfig(**config), kind)
    batches = Batches(task.partition, local.config.batch_size, Streams(0))
    return WorkQueue(SequentialComputer(task, local, batches, Streams(0)))


def test_a_gradient_is_taken_at_the_model_of_its_dispatch_not_of_its_delivery():
    task = digits("model=softmax")
    executor = executor_of(task)
    model_d = task.flat.initial_d()
    executor.dispatch(Work(3, 0, 0, 0, 1), model_d)
    at_dispatch = model_d.clone()
    model_d.add_(torch.randn_like(model_d))
    delivery = executor.deliver(Work(3, 0, 0, 0, 1))
    x, y = task.batch(Batches(task.partition, 10, Streams(0)).batches_of(Work(3, 0, 0, 0, 1))[0])
    expected = torch.empty_like(model_d)
    expected_loss = task.flat.gradient(at_dispatch, x, y, expected)
    assert torch.equal(delivery.vector_d, expected)
    assert float(delivery.loss) == float(expected_loss) == pytest.approx(np.log(10), rel=1e-5)
    assert len(executor.versions) == 0


def test_a_clients_step_is_smaller_in_each_of_its_pieces_of_work_and_others_keep_theirs():
    task = digits("model=softmax")
    executor = executor_of(task, "difference", batch_size="all", lr=0.4, lr_decay=0.5)
    sent = {}
    for sequence, (client, count) in enumerate([(3, 0), (3, 1), (3, 2), (4, 0)]):
        work = Work(client, sequence, count, 0, 1)
        executor.dispatch(work, task.flat.initial_d())
        sent[client, count] = executor.deliver(work).vector_d.clone()
    assert torch.equal(sent[3, 1], sent[3, 0] / 2) and torch.equal(sent[3, 2], sent[3, 0] / 4)
    gradient = torch.empty_like(sent[4, 0])
    task.flat.gradient(task.flat.initial_d(), *task.batch(task.partition[4]), gradient)
    torch.testing.assert_close(sent[4, 0], -0.4 * gradient)


@pytest.mark.parametrize("executor", ["sequential", "threads", "batched"])
def test_the_local_step_of_a_run_follows_the_server_iterations_of_the_models_sent_out(executor):
    """Of one run: each upload is the gradient at the model its work started from, times 0.4 * 0.9^iteration."""
    sent = []

    class Watch(Observer):
        def __init__(self):
            self.starts = {}

        def dispatched(self, work, model_d):
            self.starts[work.client] = model_d.clone()

        def arrived(self, upload, changed, time):
            sent.append((upload.client, upload.base_iteration, upload.vector_d.clone(), self.starts[upload.client]))

    words = ["algorithm=fedbuff", "algorithm.buffer_size=2", "model=softmax", "scale=smoke", "client.batch_size=all"]
    words += [
        "client.lr=0.4",
        "client.lr_decay=0.9",
        "client.lr_decay_by=iteration",
        "delay=uniform",
        "schedule=random_idle",
    ]
    words += ["concurrency=4", "progress=false", f"executor={executor}"]
    watch = Watch()
    assert run(words, observers=[watch]).ok
    task = digits("model=softmax", "scale=smoke")
    assert {iteration for _, iteration, *_ in sent} >= {0, 1, 5, 15}
    for client, iteration, upload_d, start_d in sent:
        gradient_d = torch.empty_like(start_d)
        task.flat.gradient(start_d, *task.batch(task.partition[client]), gradient_d)
        torch.testing.assert_close(upload_d, -0.4 * 0.9**iteration * gradient_d, rtol=1e-4, atol=1e-7)


def test_the_order_of_computing_changes_no_result():
    task = digits()
    work = [Work(client, client, 0, 0, 3) for client in range(5)]
    results = []
    for order in (work, work[::-1]):
        executor = executor_of(task, "difference")
        for one in work:
            executor.dispatch(one, task.flat.initial_d())
        results.append({one.client: executor.deliver(one).vector_d.clone() for one in order})
    for client in range(5):
        assert torch.equal(results[0][client], results[1][client])


def test_an_empty_client_uploads_zero():
    task = digits()
    task.partition[4] = np.array([], dtype=np.int64)
    executor = executor_of(task, "difference")
    executor.dispatch(Work(4, 0, 0, 0, 2), task.flat.initial_d())
    delivery = executor.deliver(Work(4, 0, 0, 0, 2))
    assert delivery.vector_d.abs().max() == 0 and delivery.loss == 0


def test_versions_are_shared_by_their_holders_and_recycled():
    versions, model_d = ModelVersions(), torch.zeros(3)
    versions.hold(0, model_d)
    versions.hold(0, model_d + 1)  # the same version: not copied again
    assert len(versions) == 1 and versions[0].sum() == 0
    place = versions[0].data_ptr()
    versions.release(0)
    assert len(versions) == 1
    versions.release(0)
    assert len(versions) == 0
    versions.hold(7, model_d + 5)
    assert versions[7].data_ptr() == place and versions[7].sum() == 15


def test_memories_send_the_change_against_the_previous_upload():
    memories = ClientMemories(2, torch.zeros(2))
    sent = []
    for value in (3.0, 5.0, 4.0):
        sent.append(memories.message(1, torch.full((2,), value))[0].item())
    assert sent == [3.0, 2.0, -1.0]
    assert memories.rows[0].sum() == 0


def test_k_local_steps_are_counted_and_learn():
    result = run(
        [
            "algorithm=fedbuff",
            "client.local_steps=5",
            "budget.server_iterations=60",
            "n_clients=20",
            "progress=false",
            "seed=1",
        ]
    )
    assert result.summary["used"]["client_steps"] == 5 * result.summary["used"]["uploads"] == 5 * 600
    assert result.summary["final"]["test/accuracy"] > 0.8


@pytest.mark.slow
def test_batch_norm_statistics_move_towards_those_of_delivered_clients(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 1, 16, 16)).astype(np.float32), rng.integers(0, 3, 60)
    np.savez(tmp_path / "noise.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    words = ("dataset=arrays", f"dataset.path={tmp_path}/noise.npz", "heterogeneity=iid")
    task = digits("model=resnet18", "model.norm=batch", *words, n_clients=4)
    executor = executor_of(task)
    executor.computer.statistics_rate = 0.25
    before = task.flat.statistics().clone()
    work = Work(0, 0, 0, 0, 1)
    executor.dispatch(work, task.flat.initial_d())
    executor.deliver(work)
    after = task.flat.statistics()
    task.flat.reset_statistics()
    x, y = task.batch(Batches(task.partition, 10, Streams(0)).batches_of(work)[0])
    task.flat.gradient(task.flat.initial_d(), x, y, torch.empty(task.flat.d))
    of_the_batch = task.flat.statistics()
    torch.testing.assert_close(after, 0.75 * before + 0.25 * of_the_batch)
    assert not torch.equal(after, before)


@pytest.mark.slow
def test_work_that_is_given_up_leaves_the_servers_statistics_as_they_were(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 1, 16, 16)).astype(np.float32), rng.integers(0, 3, 60)
    np.savez(tmp_path / "noise.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    words = ("dataset=arrays", f"dataset.path={tmp_path}/noise.npz", "heterogeneity=iid")
    task = digits("model=resnet18", "model.norm=batch", *words, n_clients=4)
    executor = executor_of(task, "difference", local_steps=3)
    before = task.flat.statistics().clone()
    work = Work(0, 0, 0, 0, 3)
    executor.dispatch(work, task.flat.initial_d())
    gradient, stop = task.flat.gradient, []
    executor.computer.local.stop = stop
    task.flat.gradient = lambda *arguments: (stop.append(1), gradient(*arguments))[1]
    with pytest.raises(Stopped):
        executor.deliver(work)
    assert torch.equal(task.flat.statistics(), before)


class Stoppable(Computer):
    """Computes the model that a piece of work starts from, two pieces in one go and the next two in the background."""

    most_pieces, prefetch_below = 2, 1

    def __init__(self):
        self.stopped, self.computed = False, []

    def begin(self, pieces, start, out_pd, blocks):
        starts = [start(work)[0].clone() for work in pieces]

        def finish():
            if self.stopped:
                raise Stopped
            for row_d, start_d in zip(out_pd, starts, strict=True):
                row_d.copy_(start_d)
            self.computed.append([work.sequence for work in pieces])
            return [ComputedUpload(torch.zeros(())) for _ in pieces]

        return finish


@pytest.mark.parametrize("stopped", [False, True])
def test_work_that_is_discarded_while_it_is_computed_is_never_kept_even_if_the_run_is_stopped_just_then(stopped):
    computer, models = Stoppable(), [torch.full((3,), float(version)) for version in range(4)]
    queue = WorkQueue(computer)
    pieces = [Work(client, client, 0, client, 1, due=client) for client in range(4)]
    for work, model_d in zip(pieces, models, strict=True):
        queue.dispatch(work, model_d)
    assert queue.deliver(pieces[0]).vector_d.tolist() == [0.0] * 3  # with work 1
    assert queue.deliver(pieces[1]).vector_d.tolist() == [1.0] * 3  # pieces 2 and 3 are begun
    computer.stopped = stopped
    queue.discard(pieces[2])
    state = queue.state_dict()
    again = WorkQueue(Stoppable())
    again.load_state_dict(state, models[0], [pieces[3]])
    assert again.deliver(pieces[3]).vector_d.tolist() == [3.0] * 3
    assert again.computer.computed == ([[2, 3]] if stopped else [])  # together with the same others
    assert not len(again.versions) and not again.state_dict()["results"]
