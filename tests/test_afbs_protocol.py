"""AFBS's printed settings and its world: who works when, as ``paper=afbs/…`` has it."""

import numpy as np
import pytest
from toy import simulate

from asyncfl_bench.algorithms.afbs import Afbs, AfbsConfig
from asyncfl_bench.config import compose
from asyncfl_bench.multirun.axes import jobs_of, sweep_grids
from asyncfl_bench.reports.cli import main as report

PROTOCOLS = ("cifar10", "mnist", "cifar100")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_protocol_is_the_printed_one(protocol):
    settings = compose([f"paper=afbs/{protocol}", "algorithm=fedbuff"])
    root, client, delay = settings.root, settings.parts["client"].config, settings.parts["delay"].config
    assert (root.n_clients, root.concurrency, settings.budget.virtual_time) == (600, 120, 20 * 86_400)
    assert settings.budget.server_iterations is None and settings.evaluation.every_time == 1800
    assert (client.lr, client.lr_decay, client.lr_decay_by) == (0.01, 0.999, "iteration")
    assert (client.local_epochs, client.batch_size, client.momentum) == (5, 64, 0)
    assert (delay.low, delay.high, delay.whole, delay.unit) == (0, 6000, True, "seconds")
    assert settings.choices["dataset"] == protocol and settings.choices["model"] == "lenet5"
    assert settings.parts["algorithm"].config.staleness_weight == "polynomial"


def test_the_protocol_on_sst2_is_the_printed_one():
    settings = compose(["paper=afbs/sst2", "algorithm=fedasync"])
    root, client, data = settings.root, settings.parts["client"].config, settings.parts["dataset"].config
    assert (root.n_clients, root.concurrency, settings.budget.virtual_time) == (60, 12, 10 * 86_400)
    assert (client.lr, client.lr_decay, client.local_epochs, client.batch_size) == (0.01, 0.999, 5, 64)
    assert (data.name, data.judged_on) == ("sst2", "dev") and settings.choices["model"] == "fasttext"
    assert settings.parts["model"].config.embedding == 64 and settings.parts["algorithm"].config.rho == 0.005
    medium = compose(["paper=afbs/sst2", "scale=medium"])
    assert medium.choices["dataset"] == "sst2" and medium.choices["heterogeneity"] == "clusters"


@pytest.mark.slow
def test_every_scale_keeps_groups_of_clients_and_medium_the_papers_data():
    for scale in ("full", "medium", "small", "smoke"):
        chosen = compose(["paper=afbs/mnist", f"scale={scale}"]).choices
        real = scale in ("full", "medium")
        assert chosen["heterogeneity"] == "clusters" and chosen["dataset"] == ("mnist" if real else "digits")


@pytest.mark.parametrize(
    ("item", "runs"),
    [
        ("table2", 63),
        ("table2_sst2", 14),
        ("table2_sst2_minilm", 14),
        ("momentum", 24),
        ("table3", 12),
        ("figure3", 18),
        ("figure4", 12),
        ("figure5", 12),
        ("figure8", 10),
        ("table5", 18),
        ("ablation", 20),
    ],
)
def test_the_sweeps_have_the_runs_of_their_item(item, runs):
    assert len(jobs_of(sweep_grids([f"sweep=afbs/{item}", "scale=medium"]))) == runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "words", "shown"),
    [
        ("table2", ["algorithm=afbs,fedavg", "heterogeneity.groups=3", "evaluation.clients=true"], "clients_heard.png"),
        ("table2_sst2", ["algorithm=afbs,feddyn", "heterogeneity.groups=2"], "curves_paperafbs_sst2.png"),
        ("table3", ["evaluation.clients=true"], "kept_labels.png"),
        ("figure3", [], "curves_iteration.png"),
        ("figure4", [], "kept_labels.png"),
        ("figure5", [], "similarity.png"),
        ("figure8", ["algorithm.buffer_size=5,10", "heterogeneity.groups=5"], "curves_virtual_time.png"),
        ("table5", [], "published.csv"),
        ("ablation", ["algorithm=fedbuff"], "steps_virtual_time.png"),
    ],
)
def test_a_sweep_becomes_a_page(item, words, shown, afl_run, tmp_path):
    done = afl_run(f"sweep=afbs/{item}", "scale=smoke", "threads=1", "progress=false", *words)
    assert done.returncode == 0, done.stderr
    assert report([f"afbs/{item}", "--scale", "smoke", "--all-figures", "--out", str(tmp_path / "pages")]) == 0
    folder = tmp_path / "pages" / "afbs" / item / "published-smoke"
    assert (folder / "README.md").exists() and any(shown in path.name for path in folder.iterdir())


@pytest.mark.slow
def test_the_world_makes_the_uploads_and_the_staleness_that_its_latencies_give():
    """600 clients, 120 at once, each with its own latency from 0 to 5999 s: 0.0425 uploads a second."""
    settings = compose(["paper=afbs/cifar10"])
    parts = settings.parts
    samples = np.random.default_rng(0).integers(2, 200, 600)
    simulation, recorder, ended_by = simulate(
        Afbs(AfbsConfig(clusters=1)),
        n=600,
        delay=parts["delay"].build(),
        schedule=parts["schedule"].build(),
        concurrency=settings.root.concurrency,
        kind="difference",
        lr=0.01,
        samples=samples,
        virtual_time=2 * 86_400.0,
    )
    counters = simulation.counters
    assert ended_by == "virtual_time" and counters.iteration == counters.uploads // 10
    assert counters.uploads / counters.virtual_time == pytest.approx(0.0425, rel=0.03)
    late = [a for a in recorder.arrivals if a.time > 43_200]
    assert np.mean([a.staleness for a in late]) == pytest.approx(11.9, rel=0.05)
    assert 24 <= max(a.staleness for a in late) <= 30
    for start in range(0, 2000, 10):
        assert len({a.client for a in recorder.arrivals[start : start + 10]}) == 10
