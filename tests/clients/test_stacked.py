"""All work that is ready in stacks of 16 models with one captured step, on a CPU with a graph that is not there."""

import numpy as np
import pytest
import torch
from fake_graph import CaptureRefused, FakeGraphs, Launches, use_fake_graphs
from resuming import assert_goes_on, built
from tiers import slow

from asyncfl_bench.clients import choosing, stacked
from asyncfl_bench.clients.stacked import ROWS, StackComputer
from asyncfl_bench.clients.versions import Blocks
from asyncfl_bench.data import datasets
from asyncfl_bench.experiment import build, memory
from asyncfl_bench.types import Work

RUN = ["scale=smoke", "progress=false", "n_clients=24", "client.batch_size=8", "concurrency=20", "threads=1"]
RUN += ["schedule=random_idle", "heterogeneity=dirichlet", "budget.server_iterations=5"]
RUN += ["model.hidden=[18]"]  # all rows begin at a multiple of 64 bytes: where they do not, a CPU sums in another order
FEDBUFF = ["algorithm=fedbuff", "algorithm.buffer_size=3"]
PASSES = [*FEDBUFF, "client.local_epochs=1", "client.momentum=0.5"]
LENET = [*FEDBUFF, "model=lenet5", "client.local_steps=2", "client.batch_size=4", "client.augment=true"]
# steps of several rules and optimizers, and clients with different step sizes
CASES = {
    "single steps": FEDBUFF,
    "gradients": ["algorithm=ace", "client.weight_decay=0.1", "budget.server_iterations=3"],
    "passes": PASSES,
    "passes, AdamW": [*FEDBUFF, "client=adamw", "client.local_epochs=1", "client.batch_size=8"],
    "whole data": ["algorithm=asgd", "client.logit_adjustment=0.5", "client.batch_size=all"],
    "several step sizes": [*FEDBUFF, "client.lr_decay=0.8", "client.local_steps=3", "client.clip=0.5"],
    "several numbers of steps": ["algorithm=asyncfeded"],
    "a proximal term": ["algorithm=feddyn", "client.local_epochs=1"],
    "control variates": ["algorithm=fedac", "client.local_epochs=1"],
    "outputs": ["algorithm=fedecho"],
    "convolutions": LENET,
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Words for images of few colours: in most pools several windows tie."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("images")
    x, y = 100 * rng.integers(0, 2, (1020, 12, 12, 3), np.uint8), rng.integers(0, 10, 1020)
    np.savez(folder / "cifar10.npz", x_train=x[:1000], y_train=y[:1000], x_test=x[1000:], y_test=y[1000:])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(datasets._ImageFacts, "image", (12, 12, 3))  # the only images that may be cut, but small
        yield ["dataset=cifar10", f"data_dir={folder}"]


def words_of(case, images):
    """The words of a run; later ones of a key count."""
    given = [*RUN, *CASES[case], *(images if "model=lenet5" in CASES[case] else ())]
    words = {word.partition("=")[0]: word for word in given}
    if "model" in words:
        del words["model.hidden"]
    return list(words.values())


def run_parts(words, monkeypatch, graphs):
    """The parts of a run in stacks if there are graphs, else one after another; not started."""
    use_fake_graphs(monkeypatch, graphs)
    return built([*words, f"executor={'sequential' if graphs is None else 'batched'}"])


@pytest.mark.parametrize("case", CASES)
def test_a_run_in_stacks_is_that_of_one_after_another_up_to_rounding(case, images, monkeypatch):
    words, graphs, models = words_of(case, images), FakeGraphs(), []
    for one in (graphs, None):
        parts, recorder = run_parts(words, monkeypatch, one)
        parts.simulation.run()
        models.append(np.array(recorder.models))
    (graph,) = graphs.captured
    assert graph.replays > 1
    np.testing.assert_allclose(*models, rtol=0, atol=1e-5 * np.abs(models[1]).max())


@pytest.mark.parametrize("case", ["single steps", "passes", *slow("a proximal term", "convolutions")])
def test_a_run_in_stacks_resumes_from_every_event_with_the_same_bits(case, images, monkeypatch):
    use_fake_graphs(monkeypatch, FakeGraphs())
    counters = assert_goes_on([*words_of(case, images), "executor=batched"])
    assert counters.uploads >= 5


@pytest.mark.parametrize("case", ["gradients", "passes", "passes, AdamW", "several step sizes", "convolutions"])
def test_an_upload_has_the_bits_that_it_has_alone(case, images, monkeypatch):
    parts, _ = run_parts(words_of(case, images), monkeypatch, FakeGraphs())
    computer, model_d = parts.executor.computer, parts.model_d
    parts.task.partition[3] = np.array([], np.int64)
    many = 1 if computer.local.upload_kind == "gradient" else 4
    pieces = [Work(client, client, client % 2, 0, 1 + client % many) for client in range(ROWS + 4)]

    def compute(chosen):
        uploads = [torch.full_like(model_d, torch.nan) for _ in chosen]
        start = lambda work: (model_d * (1 + 0.1 * work.client), None, None)  # noqa: E731
        ordered = list(chosen)
        answers = computer.begin(ordered, start, uploads, Blocks())()
        return {work.client: (out_d, one.loss) for work, out_d, one in zip(ordered, uploads, answers, strict=True)}

    together = compute(pieces)
    assert not together[3][0].any()
    for work in pieces[::3]:
        for found, expected in zip(compute([work])[work.client], together[work.client], strict=True):
            assert torch.equal(found, expected)
    assert len({float(loss) for _, loss in together.values()}) > ROWS // 2


def test_an_upload_of_one_tiny_step_is_no_difference_of_rounded_models(monkeypatch):
    uploads = []
    for graphs in (FakeGraphs(), None):
        parts, _ = run_parts([*RUN, *FEDBUFF, "client.lr=1e-9"], monkeypatch, graphs)
        start = parts.model_d, None, None
        uploads.append(torch.empty_like(parts.model_d))
        parts.executor.computer.begin([Work(0, 0, 0, 0, 1)], lambda _, start=start: start, uploads[-1:], Blocks())
    np.testing.assert_allclose(*uploads, rtol=0, atol=1e-5 * float(uploads[1].abs().max()))


@pytest.fixture
def counted(monkeypatch):
    """Lists that grow: the pieces of work of every wave, and the copies to the device."""
    waves, copies = [], []
    begin, send = StackComputer.begin, stacked.send
    monkeypatch.setattr(StackComputer, "begin", lambda *given: (waves.append(len(given[1])), begin(*given))[1])
    monkeypatch.setattr(stacked, "send", lambda *given: (copies.append(given), send(*given))[1])
    return waves, copies


def test_a_wave_is_one_copy_to_the_device_and_one_replay_for_each_step_of_a_stack(images, monkeypatch, counted):
    graphs, (waves, copies) = FakeGraphs(), counted
    parts, _ = run_parts(words_of("several step sizes", images), monkeypatch, graphs)
    parts.simulation.run()
    assert parts.executor.blocks.most_rows <= 20 + 1  # uploads of the work in flight and the one that was used last
    assert len(copies) == len(waves) > 1 and max(waves) > ROWS  # else there is no second stack
    assert graphs.replays == 1 + 3 * sum(-(-p // ROWS) for p in waves)  # the first one is a check


WORKLOADS = {
    # W1 and W3a of scripts/benchmark.py with small images: clients, concurrency and buffer are what counts
    "W1": (["model=lenet5", "algorithm=fedbuff", "schedule=random_idle", "concurrency=20"], 100, 5),
    "W3": (["model=mlp", "model.hidden=[4]", "algorithm=asgd"], 1000, 36),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_an_update_takes_few_operators_and_a_wave_is_all_that_is_ready(name, images, monkeypatch, counted):
    (words, n, pieces), graphs, (waves, _) = WORKLOADS[name], FakeGraphs(), counted
    words = [
        *words,
        *images,
        "client.batch_size=1",
        "heterogeneity=iid",
        f"n_clients={n}",
        "delay=exponential",
        "progress=false",
    ]
    parts, _ = run_parts([*words, "budget.uploads=9999", "algorithm.eta=0.001"], monkeypatch, graphs)
    simulation, counters = parts.simulation, parts.simulation.counters
    simulation.observers.clear()
    while counters.uploads < 1.5 * n:
        simulation.step()
    waves.clear()
    with Launches(graphs) as launches:
        uploads = counters.uploads
        while counters.uploads < uploads + n:
            simulation.step()
    assert np.mean(waves) >= pieces and launches.count <= 4 * n  # 12 where no step is captured


def test_a_dry_run_counts_the_uploads_of_a_run_in_stacks(monkeypatch):
    monkeypatch.setattr(memory, "DRY_RUN_FROM", 0)
    counts, count = [], build.peak_vectors
    monkeypatch.setattr(build, "peak_vectors", lambda *given: (counts.append(count(*given)), counts[-1])[1])
    parts, _ = run_parts([*RUN, *FEDBUFF], monkeypatch, FakeGraphs())
    parts.simulation.run()
    assert counts == [(parts.executor.versions.peak_versions, parts.executor.blocks.most_rows)]


class Refusing:
    def capture(self, compute):
        raise CaptureRefused("not now")


def test_a_step_that_cannot_be_captured_is_computed_by_its_operators_and_says_why(images, monkeypatch, capsys):
    models = []
    choosing.say_once.cache_clear()
    for graphs in (FakeGraphs(), Refusing()):
        parts, recorder = run_parts(words_of("passes", images), monkeypatch, graphs)
        parts.simulation.run()
        models.append(np.array(recorder.models))
    np.testing.assert_array_equal(*models)
    assert capsys.readouterr().err.count("executor=batched: the operators of this network are launched one by one") == 1


@pytest.mark.parametrize(("largest", "rows"), [(1, ROWS), (256, ROWS), (257, 15), (10_000, 1)])
def test_the_rows_of_a_stack_follow_from_the_size_of_a_mini_batch_alone(largest, rows):
    assert stacked.rows_of_stack(largest) == rows
