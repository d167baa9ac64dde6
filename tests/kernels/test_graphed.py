"""Gradients as captured graphs, on a CPU with a graph that is not there."""

import numpy as np
import pytest
import torch
from fake_graph import CaptureRefused, FakeGraphs, Launches, use_fake_graphs
from resuming import assert_goes_on, built
from torch import nn

from asyncfl_bench.config import compose
from asyncfl_bench.kernels.graphed import MOST_GRAPHS, SEEN_FIRST, GraphedNetwork, capture_checked
from asyncfl_bench.models import networks
from asyncfl_bench.models.convolutional import AlexNet, AlexNetConfig, ResNet8, ResNet8Config, ResNet18, ResNet18Config
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.language import Lstm, LstmConfig
from asyncfl_bench.models.layers import stack
from asyncfl_bench.models.transformers import VitSmall, VitSmallConfig

CLASSES = 5


def vgg():
    """VGG-16's kinds of layers, with few of them."""
    words = "conv 8 3 1, relu, pool 2, conv 16 3 1, relu, conv 16 3 1, relu, pool 2, flatten, linear 20, relu, linear 5"
    return networks.build_seeded(0, lambda: networks.sequential(stack((3, 8, 8), words, norm=True), groups=4))


def images(generator, b, shape=(3, 12, 12)):
    return torch.randn(b, *shape, generator=generator)


NETWORKS = {
    "resnet8": (lambda: ResNet8(ResNet8Config()).build((3, 12, 12), CLASSES, 0), images),
    "resnet18": (lambda: ResNet18(ResNet18Config(width=8, groups=4)).build((3, 12, 12), CLASSES, 0), images),
    "vgg": (vgg, lambda generator, b: images(generator, b, (3, 8, 8))),
    "alexnet": (lambda: AlexNet(AlexNetConfig()).build((3, 12, 12), CLASSES, 0), images),
    "vit_small": (
        lambda: VitSmall(VitSmallConfig(width=16, heads=2, hidden=16, blocks=2)).build((3, 12, 12), CLASSES, 0),
        images,
    ),
    "lstm": (
        lambda: Lstm(LstmConfig(4, 8, 2)).build((7,), CLASSES, 0, 20),
        lambda generator, b: torch.randint(20, (b, 7), generator=generator, dtype=torch.uint8),
    ),
}


def graphed(flat, size=6, graphs=None):
    """(network, its graphs, what it reports)."""
    graphs, reports = graphs or FakeGraphs(), []
    return GraphedNetwork(flat.clone_for_thread(), graphs, size, reports.append), graphs, reports


def differences(flat, network, sizes, draw):
    """The largest difference from ``flat`` over the largest component, for mini-batches of these sizes at other
    weights each."""
    generator, expected_d, found_d = torch.Generator().manual_seed(1), torch.empty(flat.d), torch.empty(flat.d)
    for number, b in enumerate(sizes):
        w_d = flat.initial_d() + 0.01 * torch.randn(flat.d, generator=generator)
        x, y = draw(generator, b), torch.randint(CLASSES, (b,), generator=generator)
        bias_c = torch.randn(CLASSES, generator=generator) if number % 2 else None
        expected = flat.gradient(w_d, x, y, expected_d, bias_c)
        found = network.gradient(w_d, x, y, found_d, bias_c)
        torch.testing.assert_close(found, expected)
        yield float((found_d - expected_d).abs().max() / expected_d.abs().max())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_graph_of_one_batch_has_the_operators_bits_on_others_and_pads_short_ones(name):
    build, draw = NETWORKS[name]
    flat = FlatModel(build())
    network, graphs, reports = graphed(flat)
    assert list(differences(flat, network, [6] * 8, draw)) == [0.0] * 8
    assert [graph.replays for graph in graphs.captured] == [1 + 2] * 2  # a check, then the third and fourth use
    assert max(differences(flat, network, [4, 1, 4, 1, 4, 1], draw)) < 2e-6
    assert [graph.replays for graph in graphs.captured] == [1 + 2 + 3] * 2 and not reports  # with and without a bias


class Reads(nn.Linear):
    def forward(self, x):
        return super().forward(x * (2 if x.sum() > 0 else 1))


class Counts(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x * self.calls)


REFUSED = {
    "a read": (Reads(8, CLASSES), "reads a number"),
    "a number of Python": (Counts(8, CLASSES), "a replay differs from its operators"),
    "a draw": (nn.Sequential(nn.Dropout(0.5), nn.Linear(8, CLASSES)), "draws random numbers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_network_that_cannot_be_captured_is_computed_by_its_operators_for_good_and_says_why_once(case):
    module, reason = REFUSED[case]
    flat = FlatModel(module)
    network, graphs, reports = graphed(flat)
    w_d, out_d = flat.initial_d(), torch.empty(flat.d)
    for _ in range(SEEN_FIRST + 3):
        network.gradient(w_d, torch.ones(6, 8), torch.zeros(6, dtype=torch.long), out_d)
    assert len(reports) == 1 and reports[0].endswith(reason)
    assert sum(graph.replays for graph in graphs.captured) <= 1  # of the check


def test_a_capture_that_is_checked_leaves_its_memory_as_it_was():
    memory = [torch.arange(3.0), torch.arange(6).view(3, 2)]
    before = [part.clone() for part in memory]
    graph = capture_checked(FakeGraphs(), lambda: memory[0].mul_(2).add_(memory[1].sum(dim=1)), memory)
    assert all(map(torch.equal, memory, before))
    graph.replay()
    assert memory[0].tolist() == [1, 7, 13]


def test_few_shapes_are_captured_and_others_are_computed_by_operators():
    flat = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(4, CLASSES)))
    network, graphs, _ = graphed(flat, size=0)
    sizes = [b for b in range(1, MOST_GRAPHS + 4) for _ in range(6)]
    rows = differences(flat, network, sizes, lambda generator, b: images(generator, b, (4,)))
    assert max(rows) == 0 and len(graphs.captured) == MOST_GRAPHS


RUN = ["scale=smoke", "model=resnet8", "model.width=4", "model.groups=2", "progress=false", "n_clients=40"]
RUN += ["client.batch_size=32", "budget.server_iterations=5", "concurrency=4", "schedule=random_idle"]
EPOCHS = ["algorithm=fedbuff", "algorithm.buffer_size=2", "client.local_epochs=1", "client.momentum=0.5"]
ADJUSTED = ["algorithm=asgd", "client.logit_adjustment=0.5", "client.batch_size=all", "client.weight_decay=0.01"]
ADJUSTED += ["n_clients=3", "concurrency=2", "budget.server_iterations=12"]


class Refusing:
    def capture(self, compute):
        raise CaptureRefused("not now")


def models_of(words, executor, monkeypatch, graphs):
    use_fake_graphs(monkeypatch, graphs)
    parts, recorder = built([*RUN, *words, f"executor={executor}"])
    parts.simulation.run()
    parts.executor.close()
    return np.array(recorder.models), parts


@pytest.mark.parametrize("words", [EPOCHS, ADJUSTED], ids=["passes", "whole data"])
def test_a_run_with_graphs_has_the_bits_of_its_operators(words, monkeypatch):
    graphs = FakeGraphs()
    found, parts = models_of(words, "graph", monkeypatch, graphs)
    assert parts.executor_kind == "graph" and graphs.replays > 6
    expected, _ = models_of(words, "graph", monkeypatch, Refusing())
    np.testing.assert_array_equal(found, expected)
    sequential, _ = models_of(words, "sequential", monkeypatch, None)
    np.testing.assert_allclose(found, sequential, rtol=1e-3, atol=1e-4)


def test_a_run_of_full_mini_batches_has_the_bits_of_one_after_another(monkeypatch):
    words = ["algorithm=ace", "client.batch_size=4"]
    found, _ = models_of(words, "graph", monkeypatch, FakeGraphs())
    expected, _ = models_of(words, "sequential", monkeypatch, None)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("words", [EPOCHS, ADJUSTED], ids=["passes", "whole data"])
def test_a_run_with_graphs_resumes_from_every_event(words, monkeypatch):
    use_fake_graphs(monkeypatch, FakeGraphs())
    counters = assert_goes_on([*RUN, *words, "executor=graph"])
    assert counters.uploads >= 4


def test_an_upload_with_graphs_takes_few_launches(monkeypatch):
    graphs = FakeGraphs()
    use_fake_graphs(monkeypatch, graphs)
    parts, _ = built([*RUN, "algorithm=fedbuff", "client.batch_size=4", "executor=graph", "budget.uploads=50"])
    for _ in range(5):
        parts.simulation.step()
    with Launches(graphs) as launches:
        before = parts.simulation.counters.uploads
        for _ in range(10):
            parts.simulation.step()
    assert launches.count / (parts.simulation.counters.uploads - before) <= 20


def test_an_encoder_with_adapters_may_be_captured():
    assert compose(["dataset=sst2", "model=bert", "model.lora_rank=2", "executor=graph"]).root.executor == "graph"
