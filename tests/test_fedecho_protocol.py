"""FedEcho's printed settings and its world: who works when, as ``paper=fedecho/…`` has it."""

import numpy as np
import pandas as pd
import pytest
from toy import simulate

from asyncfl_bench.algorithms.fedbuff import FedBuff
from asyncfl_bench.config import compose
from asyncfl_bench.multirun.axes import jobs_of, sweep_grids
from asyncfl_bench.papers import paper_pages
from asyncfl_bench.reports.cli import main as report
from asyncfl_bench.simulation.schedules import RandomIdle, ScheduleConfig

RATES = {  # tables 8 and 9: eta_l on CIFAR-10 and CIFAR-100, eta
    "fedbuff": (0.01, 0.003, 1.0),
    "ca2fl": (0.01, 0.003, 1.0),
    "fedac": (0.1, 0.1, 1e-4),
    "fadas": (0.1, 0.1, 1e-4),
    "fedecho": (0.03, 0.03, 1.0),
}
SWEEPS = {
    "table2": 72, "table3": 72, "table2_synthetic": 84, "table3_synthetic": 84,
    "table4": 15, "table6": 12, "table7": 21, "table11": 9,
    "controls": 48, "composition": 30, "server_time": 21,
}  # fmt: skip


@pytest.mark.parametrize("algorithm", RATES)
@pytest.mark.parametrize(("protocol", "iterations", "alpha"), [("cifar10", 500, 0.1), ("cifar100", 1000, 0.03)])
def test_the_protocol_is_the_printed_one(protocol, iterations, alpha, algorithm):
    settings = compose([f"paper=fedecho/{protocol}", f"algorithm={algorithm}"])
    parts, root = settings.parts, settings.root
    client, rule = parts["client"].config, parts["algorithm"].config
    assert (root.n_clients, root.concurrency, rule.buffer_size) == (50, 25, 5)
    assert (client.local_epochs, client.batch_size, client.weight_decay, client.momentum) == (2, 50, 1e-4, 0)
    assert settings.budget.server_iterations == iterations and parts["heterogeneity"].config.alpha == alpha
    assert (parts["schedule"].config.dispatch, settings.choices["schedule"]) == ("immediate", "random_idle")
    assert settings.choices["dataset"] == protocol and settings.choices["model"] == "resnet18"
    rates = RATES[algorithm]
    assert (client.lr, rule.eta) == (rates[protocol == "cifar100"], rates[2])
    distils = parts["distillation"].config
    assert distils.takes_place == (algorithm == "fedecho")
    assert settings.choices["unlabelled"] == ("images" if algorithm == "fedecho" else "none")
    if algorithm == "fedecho":
        assert parts["unlabelled"].config.name == ("cifar100" if protocol == "cifar10" else "cifar10")
        assert (distils.rate, distils.clip, distils.alpha_min, distils.alpha_max) == (3e-6, 5, 0.2, 0.8)


@pytest.mark.parametrize(
    ("algorithm", "lr", "eta"),
    [("fedbuff", 3e-5, 1), ("ca2fl", 3e-5, 1), ("fedac", 3e-6, 0.1), ("fadas", 3e-6, 0.1), ("fedecho", 3e-5, 1)],
)
def test_the_protocol_on_mrpc_is_the_printed_one(algorithm, lr, eta):
    settings = compose(["paper=fedecho/mrpc", f"algorithm={algorithm}"])
    parts, root = settings.parts, settings.root
    assert parts["model"].config.path == "bert-base-uncased"
    client, rule = parts["client"].config, parts["algorithm"].config
    assert (root.n_clients, root.concurrency, rule.buffer_size) == (10, 5, 3)
    assert (client.local_epochs, client.batch_size, client.lr, rule.eta) == (1, 8, lr, eta)
    assert client.optimizer == ("sgd" if algorithm == "fedac" else "adamw")
    assert settings.budget.server_iterations == 200 and parts["heterogeneity"].config.alpha == 0.6
    assert (settings.choices["dataset"], settings.choices["delay"]) == ("mrpc", "fedecho_large")
    if algorithm == "fedecho":
        assert (settings.choices["unlabelled"], parts["unlabelled"].config.samples) == ("other_split", 100)
        assert parts["distillation"].config.rate == 3e-7


@pytest.mark.slow
def test_the_fair_profile_keeps_the_papers_world_and_searches_the_local_step():
    settings = compose(["paper=fedecho/cifar10", "profile=fair", "scale=medium", "algorithm=fadas", "client.lr=0.03"])
    assert (settings.choices["schedule"], settings.root.concurrency) == ("random_idle", 25)
    assert settings.evaluation.validation_share == 0.1 and settings.parts["algorithm"].config.eta == 1e-3
    assert len(jobs_of(sweep_grids(["sweep=fedecho/table2", "profile=fair", "seed=0"]))) == 24 * 4
    assert compose(["paper=fedecho/cifar10", "profile=fair"]).parts["distillation"].config.rate == 3e-5


@pytest.mark.parametrize("item", SWEEPS)
def test_the_sweeps_have_the_runs_of_their_item(item):
    assert len(jobs_of(sweep_grids([f"sweep=fedecho/{item}"]))) == SWEEPS[item]
    assert f"fedecho/{item}" in paper_pages()


def test_rows_of_other_samples_have_their_printed_numbers_where_a_page_has_runs_of_them():
    spec = paper_pages()["fedecho/table3_synthetic"]
    run = {"algorithm": "fedecho", "distillation.rate": 3e-6, "unlabelled": "images", "unlabelled.name": "cifar10"}
    changes = ({}, {"unlabelled.name": "stl10"}, {"unlabelled": "arrays", "unlabelled.name": None})
    series = [spec.relabel(pd.Series(run | change)) for change in changes]
    cell = pd.Series({"delay": "fedecho_mild", "heterogeneity.alpha": 0.1})
    numbers = spec.published.values_of_cell("fedecho", cell, series)["final"]
    assert numbers[series].to_list() == [63.05, 59.68, 62.04]
    assert set(spec.published.values_of_cell("fedecho", cell)["final"].index) == set(numbers.index) - set(series[1:])


def test_frozen_features_are_refused_where_the_scale_is_the_papers_model(afl_run):
    """Of a pair's features there is no split without labels for FedEcho, so the sweep would fail for it alone."""
    (grid,) = sweep_grids(["sweep=fedecho/table4_minilm", "scale=medium"])
    assert len(jobs_of([grid])) == SWEEPS["table4"]
    answer = afl_run("sweep=fedecho/table4_minilm", "scale=full", "--plan")
    there = "frozen features are scale=medium; full: sweep=fedecho/table4"
    assert (answer.returncode, answer.stderr) == (2, f"afl-run: scale=full: {there}\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("table2", ["algorithm=fedbuff,fedecho", "heterogeneity.alpha=0.1"]),
        ("table3", ["algorithm=fedecho", "heterogeneity.alpha=0.1"]),
        ("table4", ["algorithm=fedac,fedecho"]),
        ("table6", ["unlabelled.samples=50,100"]),
        ("table7", ["distillation.kl_mean=batch"]),
        ("table11", []),
        ("controls", ["delay.gamma=1.0"]),
        ("composition", ["algorithm=ca2fl,fedac"]),
        ("server_time", ["algorithm=fedecho"]),
    ],
)
def test_a_sweep_becomes_a_page(item, words, afl_run, tmp_path):
    done = afl_run(f"sweep=fedecho/{item}", "scale=smoke", "threads=1", "progress=false", *words)
    assert done.returncode == 0, done.stderr
    assert report([f"fedecho/{item}", "--scale", "smoke", "--out", str(tmp_path / "pages")]) == 0
    page = tmp_path / "pages" / "fedecho" / item / "published-smoke"
    assert (page / "README.md").exists()
    seconds = pd.read_csv(page / "seconds_distillation.csv")
    assert (seconds["least"] > 0).all() and (seconds["mean"] <= seconds["most"]).all()


@pytest.mark.parametrize(
    ("delays", "staleness", "stalest", "seconds", "slow_share"),
    [("large", 4.6, (140, 155), 2580, 0.006), ("mild", 4.75, (38, 44), 2460, 0.027)],
)
def test_the_world_makes_the_staleness_of_its_classes(delays, staleness, stalest, seconds, slow_share):
    """50 clients, 25 at once, a buffer of 5: (25 - 1) / 5 server iterations, less what is in flight at the end."""
    law = compose([f"delay=fedecho_{delays}"]).parts["delay"].build()
    simulation, recorder, _ = simulate(
        FedBuff(buffer_size=5),
        n=50,
        delay=law,
        schedule=RandomIdle(ScheduleConfig()),
        concurrency=25,
        kind="difference",
        lr=0.1,
        samples=np.random.default_rng(0).integers(100, 3000, 50),
        server_iterations=500,
    )
    assert simulation.counters.uploads == 2500
    assert np.mean([a.staleness for a in recorder.arrivals]) == pytest.approx(staleness, abs=0.06)
    assert stalest[0] <= max(a.staleness for a in recorder.arrivals) <= stalest[1]
    assert simulation.counters.virtual_time == pytest.approx(seconds, rel=0.02)
    slow = np.mean([law.speed_n[a.client] == 2 for a in recorder.arrivals])
    assert slow == pytest.approx(slow_share, abs=0.002)
