"""What clients' models say about the server's own samples comes with their uploads, whoever computes them."""

import numpy as np
import pytest
import torch
from tiers import slow
from toy import assert_same_bits, finish_run

from asyncfl_bench import run
from asyncfl_bench.config import compose
from asyncfl_bench.experiment.build import build_run
from asyncfl_bench.simulation.observer import Observer
from asyncfl_bench.types import Work

WORDS = ["scale=smoke", "progress=false", "unlabelled.samples=300", "distillation.rate=0.001", "trace=true"]


class Watch(Observer):
    """(client, model it started from, upload, outputs) of every arrival."""

    def __init__(self):
        self.starts, self.seen = {}, []

    def dispatched(self, work, model_d):
        self.starts[work.client] = model_d.clone()

    def arrived(self, upload, changed, time):
        lent = upload.vector_d.clone(), upload.outputs_uc.clone()
        self.seen.append((upload.client, self.starts[upload.client], *lent))


@pytest.mark.slow
@pytest.mark.parametrize("work", ["fedbuff client.local_steps=3", "fedbuff client.local_steps=9", "ace client.lr=0.2"])
@pytest.mark.parametrize("executor", ["batched", "threads", *slow("sequential", "native")])
def test_outputs_are_the_logits_of_the_local_model(executor, work):
    watch = Watch()
    words = [*WORDS, *f"algorithm={work}".split(), "distillation=fedecho", f"executor={executor}", "threads=2"]
    words += ["schedule=random_idle", "concurrency=4"]  # each client's last start is the one that it reports on
    result = finish_run(*words, observers=[watch])
    task = build_run(compose(words)).task
    lr = -0.2 if "ace" in work else 1.0
    assert len(watch.seen) == result.summary["used"]["uploads"] > 20
    for _, start_d, upload_d, outputs_uc in watch.seen[:40] if "ace" not in work else watch.seen[10:40]:
        expected = task.flat.logits(start_d + lr * upload_d, task.server._x_u)
        torch.testing.assert_close(outputs_uc, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", *slow("cnn")])
def test_threads_give_the_bits_of_one_after_another(model):
    runs = []
    for executor in ("sequential", "threads"):
        watch = Watch()
        words = [*WORDS, "algorithm=fedecho", f"model={model}", f"executor={executor}", "threads=2"]
        runs.append((watch.seen, finish_run(*words, f"output_dir={executor}", observers=[watch])))
    (first, sequential), (second, threads) = runs
    for one, other in zip(first, second, strict=True):
        assert one[0] == other[0] and all(map(torch.equal, one[1:], other[1:]))
    assert_same_bits(sequential, threads)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["batched", *slow("threads", "sequential")])
def test_reports_that_were_computed_ahead_are_a_part_of_the_checkpoint(executor):
    words = [*WORDS, "algorithm=fedecho", f"executor={executor}", "threads=2", "n_clients=30", "delay=exponential"]
    words += ["budget.server_iterations=1000"]
    short = run([*words, "budget.uploads=55", "output_dir=short"])
    long = run([*words, "budget.uploads=200", "output_dir=long"])
    state = torch.load(short.directory / "checkpoint.pt", weights_only=True)["state"]["executor"]
    ahead = [one["outputs_uc"] for one in state["results"].values()] + list((state["begun"] or {}).get("outputs", []))
    assert (len(ahead) > 0) == (executor != "sequential") and all(one.shape == (300, 10) for one in ahead)
    extended = run([f"resume={short.directory}", "budget.uploads=200"])
    assert_same_bits(extended, long)


def test_nothing_is_reported_where_no_rule_asks():
    watch = Watch()
    watch.arrived = lambda upload, changed, time: watch.seen.append(upload.outputs_uc)
    words = ["scale=smoke", "progress=false", "algorithm=fedbuff", "unlabelled=held_back"]
    assert run(words, observers=[watch]).ok
    assert len(watch.seen) > 0 and all(outputs is None for outputs in watch.seen)


def test_a_rule_of_ones_own_may_ask_for_reports(monkeypatch):
    monkeypatch.setenv("ASYNCFL_BENCH_ALLOW", "toy")
    words = ["algorithm=asgd", "algorithm._target_=toy.Listener", "algorithm.eta=0.1", "scale=smoke", "progress=false"]
    result = finish_run(*words)
    assert result.summary["task"]["server_samples"] == 287
    certain = result.metrics["rule/certainty"].dropna()
    assert 0.1 < certain.iloc[-1] < 1 and certain.nunique() > 1


@pytest.mark.slow
def test_the_server_computes_by_the_compiled_kernel_where_the_clients_do():
    words = ["algorithm=fedecho", "model=cnn", "scale=smoke", "unlabelled.samples=12"]
    by_torch, compiled = (build_run(compose([*words, f"executor={name}"])) for name in ("sequential", "native"))
    rows_b, target_bc = torch.tensor([3, 1, 11]), torch.rand(3, 10, generator=torch.Generator().manual_seed(0))
    expected_d, found_d = (torch.empty_like(by_torch.model_d) for _ in range(2))
    loss = by_torch.task.server.gradient(by_torch.model_d, rows_b, target_bc, expected_d)
    compiled.task.flat.gradient = None  # torch is not asked
    assert compiled.task.server.gradient(by_torch.model_d, rows_b, target_bc, found_d) == pytest.approx(float(loss))
    torch.testing.assert_close(found_d, expected_d, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_batch_norm_reports_by_the_clients_statistics_and_distillation_keeps_the_servers():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 1, 16, 16)).astype(np.float32), rng.integers(0, 3, 60)
    np.savez("noise.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    words = ["algorithm=fedecho", "dataset=arrays", "dataset.path=noise.npz", "heterogeneity=iid", "model=resnet18"]
    words += ["model.norm=batch", "model.statistics_rate=0.5", "n_clients=4", "unlabelled.samples=12"]
    built = build_run(compose(words))
    task, before_b = built.task, built.task.flat.statistics()
    work = Work(0, 0, 0, 0, 1)
    built.executor.dispatch(work, built.model_d)
    delivery = built.executor.deliver(work)
    servers_b = task.flat.statistics()  # halfway to the client's
    rows_b, target_bc, out_d = torch.arange(5), torch.full((5, 3), 1 / 3), torch.empty_like(built.model_d)
    task.server.gradient(built.model_d, rows_b, target_bc, out_d)
    assert torch.equal(task.flat.statistics(), servers_b) and not torch.equal(servers_b, before_b)
    task.flat.load_statistics(before_b + 2 * (servers_b - before_b))
    expected = task.flat.logits(built.model_d + delivery.vector_d, task.server._x_u)
    torch.testing.assert_close(delivery.outputs_uc, expected, rtol=1e-3, atol=1e-4)
