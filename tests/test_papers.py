"""Printed settings and worlds of papers, the runs of their sweeps, and the pages of these."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from omegaconf import OmegaConf
from toy import simulate

from asyncfl_bench.algorithms.afbs import Afbs, AfbsConfig
from asyncfl_bench.algorithms.fedbuff import FedBuff
from asyncfl_bench.config import compose
from asyncfl_bench.multirun.axes import jobs_of, sweep_grids
from asyncfl_bench.papers import paper_pages
from asyncfl_bench.randomness import Streams
from asyncfl_bench.reports.cli import main as report
from asyncfl_bench.simulation.schedules import RandomIdle, ScheduleConfig
from asyncfl_bench.types import ClientTable, Footprint, Work

PRINTED = yaml.safe_load(Path(__file__).with_name("printed.yaml").read_text())


def case(is_slow, *values):
    return pytest.param(*values, marks=[pytest.mark.slow] if is_slow else [])


def cases_of_settings():
    """(paper, algorithm) of the table; fast where the paper's own scale and profile print something new."""
    for paper, sections in PRINTED["settings"].items():
        known = []
        for name, printed in sections.items():
            if name != "each":
                yield case(" " in paper or printed in known, paper, name)
                known.append(printed)


RUNS = [case(number % 2 or "profile=" in words, words) for number, words in enumerate(PRINTED["runs"])]

# seconds of a cycle of K = 10 without suspension, client by client, in the authors' raw runs (Qiyr0/AsyncFedED)
CYCLES = {
    "asyncfeded": [2.7413, 0.3041, 0.4997, 5.1059, 2.5062, 0.0840, 0.4711, 0.1423, 0.1888, 0.3052],
    "fedavg": [1.4938, 0.2785, 0.4485, 2.9930, 1.7160, 0.0817, 0.4238, 0.1343, 0.1820, 0.2771],
}
TRAINING_SAMPLES = [8590, 769, 1962, 21942, 10516, 256, 1867, 405, 423, 783]


@pytest.mark.parametrize("words", RUNS)
def test_a_sweep_has_the_runs_of_its_item_and_a_page(words):
    assert len(jobs_of(sweep_grids(f"sweep={words}".split()))) == PRINTED["runs"][words]
    assert words.split()[0] in paper_pages()


@pytest.mark.parametrize(("paper", "algorithm"), cases_of_settings())
def test_the_settings_are_the_printed_ones(paper, algorithm):
    tree = OmegaConf.create(compose([*f"paper={paper}".split(), f"algorithm={algorithm}"]).tree)
    sections = PRINTED["settings"][paper]
    expected = sections["each"] | sections[algorithm]
    assert {key: OmegaConf.select(tree, key) for key in expected} == expected


@pytest.mark.slow
@pytest.mark.parametrize("sweep", PRINTED["pages"])
def test_a_sweep_becomes_a_page(sweep, afl_run, tmp_path):
    shown, (item, *words) = PRINTED["pages"][sweep], sweep.split()
    done = afl_run(f"sweep={item}", "scale=smoke", "threads=1", "progress=false", *words)
    assert done.returncode == 0, done.stderr
    figures = ["--all-figures"] * shown.endswith(".png")
    assert report([item, "--scale", "smoke", *figures, "--out", str(tmp_path / "pages")]) == 0
    folder = tmp_path / "pages" / item / "published-smoke"
    assert (folder / "README.md").exists() and any(shown in path.name for path in folder.iterdir())
    if shown == "seconds_distillation.csv":
        seconds = pd.read_csv(folder / shown)
        assert (seconds["least"] > 0).all() and (seconds["mean"] <= seconds["most"]).all()


@pytest.mark.slow
def test_sweeps_of_the_released_profile_have_the_rules_and_settings_of_the_code():
    table1 = sweep_grids(["sweep=gas/table1", "profile=released"])
    assert {tuple(grid["algorithm"]) for grid in table1} == {("fedavg", "fedfa", "mifa", "gas")}
    for grid in sweep_grids(["sweep=gas/table4", "profile=released", "scale=medium"]):
        assert (grid["algorithm.fill"], grid["algorithm.ridge_at"]) == (["exact"], ["sampling"])


def test_rows_of_other_samples_have_their_printed_numbers_where_a_page_has_runs_of_them():
    spec = paper_pages()["fedecho/table3_synthetic"]
    run = {"algorithm": "fedecho", "distillation.rate": 3e-6, "unlabelled": "images", "unlabelled.name": "cifar10"}
    changes = ({}, {"unlabelled.name": "stl10"}, {"unlabelled": "arrays", "unlabelled.name": None})
    series = [spec.relabel(pd.Series(run | change)) for change in changes]
    cell = pd.Series({"delay": "fedecho_mild", "heterogeneity.alpha": 0.1})
    numbers = spec.published.values_of_cell("fedecho", cell, series)["final"]
    assert numbers[series].to_list() == [63.05, 59.68, 62.04]
    assert set(spec.published.values_of_cell("fedecho", cell)["final"].index) == set(numbers.index) - set(series[1:])


@pytest.mark.parametrize(
    ("item", "cells"), [("table1", 8), ("table2", 8), ("table3", 8), ("table5", 4), ("figure4", 2)]
)
def test_every_cell_of_a_sweep_of_gas_has_its_printed_number(item, cells):
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


@pytest.mark.parametrize("algorithm", CYCLES)
def test_a_cycle_of_every_synthetic_client_lasts_as_long_as_in_asyncfededs_published_runs(algorithm):
    delay = (
        compose(["paper=asyncfeded/synthetic", f"algorithm={algorithm}", "delay.link_spread=0"]).parts["delay"].build()
    )
    delay.start(ClientTable(np.ones(10)), Streams(0), Footprint(client_parameters=16_714))
    cycles = [
        delay.duration(Work(client, sequence=0, count=0, iteration=0, local_steps=1, k=10, samples=10 * samples))
        for client, samples in enumerate(TRAINING_SAMPLES)
    ]
    assert cycles == pytest.approx(CYCLES[algorithm], rel=0.01)


@pytest.mark.parametrize(
    ("delays", "staleness", "stalest", "seconds", "slow_share"),
    [("large", 4.6, (140, 155), 2580, 0.006), ("mild", 4.75, (38, 44), 2460, 0.027)],
)
def test_the_world_of_fedecho_makes_the_staleness_of_its_classes(delays, staleness, stalest, seconds, slow_share):
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


@pytest.mark.slow
def test_the_world_of_afbs_makes_the_uploads_and_the_staleness_that_its_latencies_give():
    """600 clients, 120 at once, each with its own latency from 0 to 5999 s: 0.0425 uploads a second."""
    settings = compose(["paper=afbs/cifar10"])
    parts = settings.parts
    simulation, recorder, ended_by = simulate(
        Afbs(AfbsConfig(clusters=1)),
        n=600,
        delay=parts["delay"].build(),
        schedule=parts["schedule"].build(),
        concurrency=settings.root.concurrency,
        kind="difference",
        lr=0.01,
        samples=np.random.default_rng(0).integers(2, 200, 600),
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
