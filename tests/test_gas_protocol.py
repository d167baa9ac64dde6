"""GAS's printed settings, its sweeps and its pages, as ``paper=gas/…`` has them."""

import pandas as pd
import pytest

from asyncfl_bench.config import compose
from asyncfl_bench.multirun.axes import jobs_of, sweep_grids
from asyncfl_bench.papers import paper_pages
from asyncfl_bench.reports.cli import main as report

SWEEPS = {
    "table1": 96, "table2": 72, "table3": 32, "table4": 24, "table5": 48, "figure2": 6, "figure3": 18,
    "figure4": 18, "controls": 45, "equal": 54, "logit_adjustment": 24,
}  # fmt: skip


@pytest.mark.parametrize("algorithm", ["gas", "fedbuff", "ca2fl", "fedavg", "minibatch_sfl", "s2fl"])
@pytest.mark.parametrize(("protocol", "iterations"), [("cifar10", 2000), ("cinic10", 2000), ("fashion_mnist", 1000)])
def test_the_protocol_is_the_printed_one(protocol, iterations, algorithm):
    settings = compose([f"paper=gas/{protocol}", f"algorithm={algorithm}"])
    parts, root = settings.parts, settings.root
    client, rule = parts["client"].config, parts["algorithm"].config
    assert (root.n_clients, root.concurrency, root.clock) == (20, 10, "time")
    assert (client.local_steps, client.batch_size, client.lr) == (20, 32, 0.01)
    assert (client.momentum, client.weight_decay, client.clip) == (0.9, 5e-4, 10)
    assert settings.budget.server_iterations == iterations
    choice = settings.choices.get
    assert (choice("dataset"), choice("model"), choice("delay")) == (protocol, "alexnet", "cell_link")
    shards = parts["heterogeneity"].config
    assert (shards.shards_per_client, shards.per_class) == (2, True)
    rounds = algorithm in ("fedavg", "minibatch_sfl", "s2fl")
    assert (parts["schedule"].config.rest, choice("schedule")) == ("none" if rounds else "turn", "random_idle")
    if algorithm == "gas":
        assert (rule.activation_buffer, rule.model_buffer, rule.covariance) == (10, 10, "full")
        assert (rule.server_lr, rule.server_momentum, rule.server_weight_decay, rule.server_clip) == (
            0.01,
            0.9,
            5e-4,
            10,
        )
        assert parts["model"].config.cut == 6


@pytest.mark.slow
def test_the_fair_profile_keeps_the_papers_world_and_searches_the_step_of_both_parts():
    settings = compose(["paper=gas/cifar10", "profile=fair", "scale=medium", "algorithm=gas", "client.lr=0.03"])
    assert (settings.choices["schedule"], settings.root.concurrency) == ("random_idle", 10)
    assert settings.evaluation.validation_share == 0.1
    assert settings.parts["algorithm"].config.server_lr == 0.03
    assert len(jobs_of(sweep_grids(["sweep=gas/figure3", "profile=fair", "seed=0"]))) == 2 * 3 * 4


@pytest.mark.slow
def test_the_released_profile_is_what_the_authors_code_runs():
    """Of Q1 to Q8, A3, A4 and the baselines what settings can say; the rest is named in conf/paper/gas/cifar10.yaml."""

    def of(name, *words):
        settings = compose(["paper=gas/fashion_mnist", "profile=released", f"algorithm={name}", *words])
        assert (settings.parts["client"].config.clip, settings.root.concurrency) == (10, 10)
        return settings.parts["algorithm"].config, settings.parts["schedule"].config.rest

    rule, rest = of("gas")
    assert (rule.weights, rule.weight_exponent, rule.answer, rule.fill) == ("uniform", 2, "before", "batch")
    assert (rule.ridge, rule.ridge_at, rule.covariance, rule.every) == (1e-5, "merge", "full", 1)
    assert (rule.server_clip, rule.server_momentum, rule.adjust, rule.generate, rest) == (10, 0.9, True, True, "turn")
    rule, rest = of("fedfa")
    assert (rule.queue, rule.every, rest) == (10, 10, "turn")
    rule, rest = of("mifa")
    assert (rule.buffer_size, rule.weights, rule.eta, rest) == (10, "samples", 1, "turn")
    assert (of("s2fl")[0].groups, of("minibatch_sfl")[0].weights) == (2, "samples")
    table1 = sweep_grids(["sweep=gas/table1", "profile=released"])
    assert {tuple(grid["algorithm"]) for grid in table1} == {("fedavg", "fedfa", "mifa", "gas")}
    for grid in sweep_grids(["sweep=gas/table4", "profile=released", "scale=medium"]):
        assert (grid["algorithm.fill"], grid["algorithm.ridge_at"]) == (["exact"], ["sampling"])
    printed = compose(["paper=gas/cifar10", "algorithm=gas"]).parts["algorithm"].config
    assert (printed.weights, printed.weight_exponent, printed.ridge_at) == ("samples", 1, "sampling")


@pytest.mark.parametrize("item", SWEEPS)
def test_the_sweeps_have_the_runs_of_their_item(item):
    assert len(jobs_of(sweep_grids([f"sweep=gas/{item}"]))) == SWEEPS[item]
    assert f"gas/{item}" in paper_pages()


@pytest.mark.parametrize(
    ("item", "cells"), [("table1", 8), ("table2", 8), ("table3", 8), ("table5", 4), ("figure4", 2)]
)
def test_every_cell_of_a_sweep_has_its_printed_number(item, cells):
    """Of GAS: the four splits of CINIC-10 in table 1, both of it in tables 2 and 3."""
    jobs = [dict(word.split("=", 1) for word in job) for job in jobs_of(sweep_grids([f"sweep=gas/{item}"]))]
    jobs = [job for job in jobs if job["algorithm"] == "gas" and job["seed"] == "0"]
    usual = {"class_shards": "heterogeneity.shards_per_client", "capped_dirichlet": "heterogeneity.alpha"}
    value = {"class_shards": 2.0, "capped_dirichlet": 0.1}
    published = paper_pages()[f"gas/{item}"].published
    found = []
    for job in jobs:
        split = job["heterogeneity"]
        cell = pd.Series({usual[split]: value[split]} | job)
        (number,) = published.values_of_cell("gas", cell).loc[["GAS"], "late"]
        found.append((job.get("paper"), number))
    assert len(found) == len(set(found)) == cells
    if item == "table1":
        assert {number for paper, number in found if paper == "gas/cinic10"} == {68.32, 70.29, 65.94, 69.36}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("table1", ["algorithm=fedbuff,gas", "heterogeneity=class_shards"]),
        ("table2", ["client.local_steps=2"]),
        ("table3", ["n_clients=10", "heterogeneity=class_shards"]),
        ("table4", []),
        ("table5", ["algorithm=fedbuff,gas", "heterogeneity=class_shards"]),
        ("figure2", []),
        ("figure3", []),
        ("figure4", []),
        ("controls", ["algorithm=gas,fedfa"]),
        ("logit_adjustment", []),
        ("equal", ["algorithm=gas,s2fl,fedbuff"]),
    ],
)
def test_a_sweep_becomes_a_page(item, words, afl_run, tmp_path):
    done = afl_run(f"sweep=gas/{item}", "scale=smoke", "threads=1", "progress=false", *words)
    assert done.returncode == 0, done.stderr
    assert report([f"gas/{item}", "--scale", "smoke", "--out", str(tmp_path / "pages")]) == 0
    assert (tmp_path / "pages" / "gas" / item / "published-smoke" / "README.md").exists()
