"""AsyncFedED's pages from run directories by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import yaml
from reports.making import rows_of, write_run

from asyncfl_bench import config as composing
from asyncfl_bench import run
from asyncfl_bench.errors import BenchError
from asyncfl_bench.reports.cli import main
from asyncfl_bench.reports.load import load_run
from asyncfl_bench.reports.pages import command, printed
from asyncfl_bench.reports.pages.changed import changed_settings
from asyncfl_bench.reports.pages.folder import PageFolder
from asyncfl_bench.reports.pages.frame import Combination
from asyncfl_bench.reports.pages.make import ITEMS, make_page
from asyncfl_bench.reports.pages.published import published
from asyncfl_bench.reports.pages.selection import Series, select
from asyncfl_bench.sweep.grid import jobs_of

SMALL, PAPER = Combination("paper", "small"), Combination("paper", "paper")
WEIGHT = "algorithm.staleness_weight"
SEEDS = {"seed": ["0", "1"]}


def points(*accuracies: float, every: int = 100, uploads: int = 10) -> list[tuple]:
    """Evaluations at 0, 100, 200, … units of virtual time, with so many uploads between them."""
    return [(i, uploads * i, every * i, accuracy) for i, accuracy in enumerate(accuracies)]


def write(folder: Path, algorithm: str, seed: int, accuracies, paper="synthetic", p=0.1, rule=None, **more) -> None:
    choices = {"paper": f"asyncfeded/{paper}"} | more.pop("choices", {})
    place = folder / f"{paper}-{p}-{more.get('client')}"
    settings = {"rule": rule or {}, "choices": choices, "availability": {"probability": p}} | more
    write_run(place, algorithm, seed, points(*accuracies), **settings)


def page(root: Path, name: str, grids: list[dict] | None = None, combination: Combination = SMALL) -> str:
    item = ITEMS[f"asyncfeded/{name}"]
    return make_page(item, combination, root / "runs", root / "out", lambda _: grids).read_text()


def grid(algorithms: list[str], p=("0.1",), papers=("synthetic",), **more) -> dict:
    named = [f"asyncfeded/{paper}" for paper in papers]
    return {"paper": named, "availability.probability": list(p), "algorithm": algorithms, **SEEDS, **more}


def figure2(root: Path, combination: str = "published-small", **more) -> None:
    folder = root / "runs/asyncfeded/figure2" / combination
    for seed, best in ((0, 0.8), (1, 0.9)):
        write(folder, "fedavg", seed, (0.1, 0.5, best, 0.6, 0.99), **more)  # the last one lies beyond 300
        write(folder, "asyncfeded", seed, (0.1, 0.96, 0.9, 1.0, 1.0), **more)


def test_best_and_times_count_within_300_and_the_target_is_that_of_the_weakest_method(tmp_path):
    figure2(tmp_path)
    text = page(tmp_path, "figure2", [grid(["fedavg", "asyncfeded"])])
    rows = rows_of(text, "cell | algorithm | best [%]")
    # 90 % of the own best: 0.72 and 0.81, at 200; target: 90 % of the mean of 80 and 90
    assert rows[1][1:] == ["FedAvg", "85.00 ± 7.07", "200.0 ± 0.0", "76.5", "200.0 ± 0.0", "30 ± 0", "2"]
    assert rows[2][1:] == ["AsyncFedED", "100.00 ± 0.00", "100.0 ± 0.0", "76.5", "100.0 ± 0.0", "30 ± 0", "2"]
    assert "within 300 units of virtual time." in text and "Only 2 seeds" in text
    words = text.partition("## Test accuracy")[0]
    assert "**By best test accuracy** AsyncFedED leads in 1 of 1 cells (beyond noise over the next in 1)" in words
    assert "Kendall tau with the published order: 1.00" in words  # there too AsyncFedED is above FedAvg
    table = pd.read_csv(tmp_path / "out/asyncfeded/figure2/published-small/measured.csv")
    assert table["best_percent"].tolist() == [85, 100] and table["time_to_target"].tolist() == [200, 100]


def test_a_seed_that_never_comes_to_the_target_is_counted_and_its_method_ranks_last(tmp_path):
    folder = tmp_path / "runs/asyncfeded/figure2/published-small"
    for seed, best in ((0, 0.4), (1, 0.9)):
        write(folder, "fedprox", seed, (0.1, best, 0.3, 0.3))
        write(folder, "asyncfeded", seed, (0.1, 0.2, 0.95, 0.95))
    text = page(tmp_path, "figure2", [grid(["fedprox", "asyncfeded"])])
    rows = {row[1]: row for row in rows_of(text, "cell | algorithm | best [%]")}
    assert rows["FedProx"][4:6] == ["58.5", "100.0 (1 of 2)"]  # 90 % of 65
    assert "**By time to a common target** AsyncFedED leads in 1 of 1 cells" in text
    assert "1 of 4 runs never come to it" in text


def test_the_fair_profile_chooses_the_local_step_by_validation_and_keeps_the_published_numbers_apart(tmp_path):
    folder = tmp_path / "runs/asyncfeded/figure2/fair-full"
    real = {"dataset": "synthetic_1_1", "model": "mlp", "scale": "paper", "profile": "fair"}
    for lr, validation, best in ((0.01, 0.9, 0.7), (0.03, 0.8, 0.95)):
        for algorithm in ("fedavg", "asyncfeded"):
            steps = {"client": {"lr": lr}, "validation": validation, "choices": real}
            write(folder, algorithm, 0, (0.1, 0.5, best), **steps)
    grids = [grid(["fedavg", "asyncfeded"], **{"client.lr": ["0.01", "0.03"], "seed": ["0"]})]
    text = page(tmp_path, "figure2", grids, Combination("fair", "paper"))
    assert [row[1:3] for row in rows_of(text, "cell | algorithm | best [%]")[1:]] == [
        ["FedAvg", "70.00"],
        ["AsyncFedED", "70.00"],
    ]
    chosen = (tmp_path / "out/asyncfeded/figure2/fair-full/chosen_lr.csv").read_text()
    assert "AsyncFedED,0.01: 90.00 (edge of the grid)" in chosen
    assert "one machine for synchronous and asynchronous methods" in text
    assert "measured on other data, models or settings** than all of these runs" in text
    assert not (tmp_path / "out/asyncfeded/figure2/fair-full/published_difference.csv").exists()


def test_a_fair_page_names_who_was_tuned_less_takes_further_steps_and_mixes_no_budgets(tmp_path):
    folder = tmp_path / "runs/asyncfeded/figure2/fair-small"
    choices = {"scale": "small", "profile": "fair"}
    for algorithm, lr, best in (("fedavg", 0.01, 0.7), ("fedavg", 0.3, 0.9), ("asyncfeded", 0.01, 0.8)):
        write(folder, algorithm, 0, (0.1, best), client={"lr": lr}, validation=best, choices=choices)
    grids = [grid(["fedavg", "asyncfeded"], **{"client.lr": ["0.01", "0.03"], "seed": ["0"]})]
    text = page(tmp_path, "figure2", grids, Combination("fair", "small"))
    assert "Not tuned like the others, as runs are missing: AsyncFedED at protocol Synthetic, P = 0.1 (1 of 2" in text
    assert "1 have seeds or steps the sweep does not list" in text  # 0.3, which FedAvg does best with
    assert rows_of(text, "cell | algorithm | best [%]")[1][1:3] == ["FedAvg", "90.00"]
    longer = {"client": {"lr": 0.03}, "validation": 0.95, "choices": choices, "budget": {"virtual_time": 600.0}}
    write(folder, "fedavg", 0, (0.1, 0.95), **longer)
    with pytest.raises(BenchError, match=r"FedAvg, protocol Synthetic, P = 0\.1 differ in budget\.virtual_time"):
        page(tmp_path, "figure2", grids, Combination("fair", "small"))


def test_a_method_whose_every_step_diverged_is_named_with_all_its_runs(tmp_path):
    folder = tmp_path / "runs/asyncfeded/figure2/fair-small"
    choices = {"scale": "small", "profile": "fair"}
    for lr in (0.01, 0.03):
        write(folder, "fedavg", 0, (0.1, lr), client={"lr": lr}, validation=lr, choices=choices)
        write(folder, "fedprox", 0, (0.1,), client={"lr": lr}, status="diverged", choices=choices)
    grids = [grid(["fedavg", "fedprox"], **{"client.lr": ["0.01", "0.03"], "seed": ["0"]})]
    assert "FedProx at protocol Synthetic, P = 0.1: all 2.**" in page(
        tmp_path, "figure2", grids, Combination("fair", "small")
    )


def test_a_method_alone_leads_nobody(tmp_path):
    write(tmp_path / "runs/asyncfeded/figure2/published-small", "asyncfeded", 0, (0.1, 0.3, 0.9, 0.95))
    text = page(tmp_path, "figure2", [grid(["asyncfeded"])])
    assert "**By best test accuracy** there is nothing to lead: no cell has two methods." in text
    assert "leads in" not in text


def test_runs_that_end_early_shorten_the_limit_for_their_whole_protocol_and_that_is_said(tmp_path):
    folder = tmp_path / "runs/asyncfeded/figure2/published-small"
    write(folder, "fedavg", 0, (0.1, 0.5))
    write(folder, "asyncfeded", 0, (0.1, 0.3, 0.9, 0.95))
    text = page(tmp_path, "figure2")
    assert "within 100 units of virtual time, less than the paper's 300" in text
    assert [row[2] for row in rows_of(text, "cell | algorithm | best [%]")[1:]] == ["50.00", "30.00"]


def test_a_stand_in_keeps_the_published_numbers_apart_and_the_real_thing_gets_differences(tmp_path):
    figure2(tmp_path)
    grids = [grid(["fedavg", "asyncfeded"])]
    small, out = page(tmp_path, "figure2", grids), tmp_path / "out/asyncfeded/figure2"
    assert "measured on other data, models or settings** than all of these runs" in small
    assert (out / "published-small/published_curves_p0_1.png").exists()
    assert not (out / "published-small/published_difference.csv").exists()
    assert rows_of(small, "published")[1] == ["FedAvg", "96.8 / 53 / 754"]

    figure2(tmp_path, "published-full", choices={"dataset": "synthetic_1_1", "model": "mlp", "scale": "paper"})
    real = page(tmp_path, "figure2", grids, PAPER)
    rows = rows_of(real, "cell | algorithm | best [%] | published")
    # FedAvg: 85 - 96.751, within 2 * 7.07; 200 - (52.670 - 6.3), our seeds do not differ
    assert rows[1][2:9] == ["85.00 ± 7.07", "96.75 ± 0.02", "-11.75", "200.0 ± 0.0", "52.7 ± 0.1", "46.4", "+153.63*"]
    assert "**Scale: the paper's**" in real and "other data, models" not in real and "Dotted" in real
    assert not (out / "published-full/published_curves_p0_1.png").exists()


def test_kendalls_tau_is_taken_with_the_published_order_of_that_data_set_and_p(tmp_path):
    folder = tmp_path / "runs/asyncfeded/figure3/published-small"
    orders = {"fedavg": 0.4, "fedprox": 0.5, "asyncfeded": 0.6}
    for paper in ("synthetic", "femnist"):
        for algorithm, best in orders.items():
            write(folder, algorithm, 0, (0.1, best, best, best), paper=paper, p=0.0)
        write(folder, "fedasync", 0, (0.1, 0.8, 0.8, 0.8), paper=paper, p=0.0, rule={"staleness_weight": "hinge"})
        write(folder, "fedasync", 0, (0.1, 0.7, 0.7, 0.7), paper=paper, p=0.0, rule={"staleness_weight": "constant"})
    grids = [grid(list(orders), ("0.0",), ("synthetic", "femnist"))]
    grids += [grid(["fedasync"], ("0.0",), ("synthetic", "femnist"), **{WEIGHT: ["constant", "hinge"]})]
    rows = rows_of(page(tmp_path, "figure3", grids), "cell | by | order measured, best first")
    assert rows[4][0] == "protocol Synthetic, P = 0.0" and rows[1][0] == "protocol FEMNIST, P = 0.0"
    assert rows[4][2] == "FedAsync+Hinge > FedAsync+Constant > AsyncFedED > FedProx > FedAvg"
    assert rows[4][3] == "AsyncFedED > FedAsync+Constant > FedAvg > FedProx > FedAsync+Hinge"
    assert rows[4][4] == "-0.20"  # of ten pairs four agree: AsyncFedED and Constant above FedAvg and FedProx
    # FEMNIST: AsyncFedED 78.8 > FedAvg 78.7 > Constant 76.0 > FedProx 75.9 > Hinge 75.7
    assert rows[1][4] == "-0.40"


def test_figure_3_says_what_suspension_costs_and_draws_every_p(tmp_path):
    folder = tmp_path / "runs/asyncfeded/figure3/published-small"
    for seed in (0, 1):
        for p, best in ((0.0, 0.9), (0.9, 0.5 + seed / 10)):
            write(folder, "fedavg", seed, (0.1, best, best, best), p=p)
            write(folder, "asyncfeded", seed, (0.1, 0.9, 0.9, 0.9), p=p)
    text = page(tmp_path, "figure3", [grid(["fedavg", "asyncfeded"], ("0.0", "0.9"))])
    rows = rows_of(text, "protocol | algorithm | P")
    # published: 97.183 at P = 0, 93.107 at P = 0.9
    lost = {row["availability.probability"]: float(row["best_accuracy_percent"]) for row in published_of("fedavg")}
    loss = f"{lost['0.0'] - lost['0.9']:+.2f}"
    assert rows[1] == ["Synthetic", "FedAvg", "0.0 to 0.9", "+35.00", "10.00", "beyond noise", loss]
    assert rows[2][3:6] == ["+0.00", "0.00", "noise"]
    orders = rows_of(text, "cell | by")
    assert orders[1][2:] == ["AsyncFedED = FedAvg", "AsyncFedED > FedAvg", "-"]  # a tie has no order to agree
    assert orders[4][2] == "AsyncFedED > FedAvg"  # P = 0.9: 90 beside 50 and 60
    files = {path.name for path in (tmp_path / "out/asyncfeded/figure3/published-small").iterdir()}
    assert {"against_p.png", "curves_p0_0.png", "curves_p0_9.png", "measured_synthetic.csv"} <= files


def published_of(algorithm: str) -> list[dict[str, str]]:
    rows = published("asyncfeded_figure3")
    return [row for row in rows if (row["paper"], row["algorithm"]) == ("asyncfeded/synthetic", algorithm)]


def test_figure_2_borrows_the_runs_of_figure_3_and_counts_none_twice(tmp_path, capsys, monkeypatch):
    figure3 = tmp_path / "runs/asyncfeded/figure3/published-small"
    for p in (0.1, 0.5):
        write(figure3, "asyncfeded", 0, (0.1, 0.9, 0.9, 0.9), p=p)
    grids = [grid(["asyncfeded"])]
    text = page(tmp_path, "figure2", grids)
    assert "2 runs expected, 1 run directories found, 1 used, 1 missing." in text
    own = tmp_path / "runs/asyncfeded/figure2/published-small"
    write(own, "asyncfeded", 0, (0.1, 0.9, 0.9, 0.9))
    write(own, "asyncfeded", 1, (0.1, 0.7, 0.7, 0.7))
    text = page(tmp_path, "figure2", grids)
    assert "2 runs expected, 2 run directories found, 2 used, 0 missing." in text
    assert rows_of(text, "cell | algorithm | best [%]")[1][2] == "80.00 ± 14.14"
    text = page(tmp_path, "figure3", [grid(["asyncfeded"], ("0.1", "0.5"))])
    assert "4 runs expected, 3 run directories found, 3 used, 1 missing." in text


def test_a_page_without_own_runs_and_nothing_to_borrow_is_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("runs/asyncfeded/figure3/published-small"), "asyncfeded", 0, (0.1, 0.9), p=0.5)
    assert main(["asyncfeded"]) == 0
    assert capsys.readouterr().out == "written: results/asyncfeded/figure3/published-small/README.md\n"
    assert main(["asyncfeded/figure2"]) == 2
    assert "runs/asyncfeded/figure2: no runs found; to make them" in capsys.readouterr().err


def test_figure_4_sets_one_adaptive_k_beside_every_constant_one_and_follows_k(tmp_path):
    folder = tmp_path / "runs/asyncfeded/figure4/published-small"
    for paper, kappa in (("synthetic", 1.0), ("femnist", 0.05)):
        for seed in (0, 1):
            k = {
                "rule/mean_k": [10, 12, 14, 20],
                "rule/gamma_mean": [None, 2, 1, 4],
                "rule/eta_g_mean": [None, 1, 1, 1],
            }
            adaptive = (0.1, 0.8 + seed / 10, 0.9, 0.9)
            settings = {"paper": paper, "rule": {"kappa": kappa}, "client": {"local_epochs": 10}}
            write(folder, "asyncfeded", seed, adaptive, columns=k, **settings)
            for epochs in (5, 10):
                settings |= {"rule": {"kappa": 0.0}, "client": {"local_epochs": epochs}}
                write(folder, "asyncfeded", seed, (0.1, 0.3, 0.5, epochs / 20 + 0.2), columns=k, **settings)
    shared = grid(["asyncfeded"], papers=("synthetic", "femnist"))
    constant = {"client.local_epochs": ["5", "10"], "algorithm.kappa": ["0.0"]}
    text = page(tmp_path, "figure4", [shared | {"client.local_epochs": ["10"]}, shared | constant])
    assert "12 runs expected, 12 run directories found, 12 used, 0 missing." in text
    rows = rows_of(text, "cell | algorithm | best [%]")
    labels = ["AsyncFedED, K = 5", "AsyncFedED, K = 10", "AsyncFedED, K = adaptive"]
    assert [row[:3] for row in rows[1:4]] == [
        ["protocol FEMNIST", label, best]
        for label, best in zip(labels, ["50.00 ± 0.00", "70.00 ± 0.00", "90.00 ± 0.00"], strict=True)
    ]
    course = rows_of(text, "cell | mean K at 0.25 of the limit")
    assert course[1][1:] == ["10", "-", "-", "12", "2", "1", "20", "4", "1"]  # at 75, 150 and 300
    against = rows_of(text, "cell | constant K")
    assert against[2][1:4] == ["10", "+20.00 ± 0.00", "beyond noise"]
    assert "AsyncFedED, K = adaptive leads in 2 of 2 cells" in text


def test_figure_4_mixes_no_two_kinds_of_adaptive_k(tmp_path):
    folder = tmp_path / "runs/asyncfeded/figure4/published-small"
    for kappa in (0.5, 1.0):
        write(folder, "asyncfeded", 0, (0.1, 0.9), rule={"kappa": kappa}, client={"local_epochs": 10})
    with pytest.raises(BenchError, match=r"adaptive K with algorithm\.kappa=0\.5 and 1\.0, protocol Synthetic"):
        constant = {"client.local_epochs": ["5"], "algorithm.kappa": ["0.0"]}
        adaptive = grid(["asyncfeded"], **{"client.local_epochs": ["10"]})
        page(tmp_path, "figure4", [adaptive, grid(["asyncfeded"], **constant)])


def test_runs_with_settings_of_their_own_are_not_called_the_papers(tmp_path):
    words = ["sweep=asyncfeded/figure2", "paper=asyncfeded/synthetic", "algorithm=fedavg", "seed=0"]
    runs = tmp_path / "runs/asyncfeded/figure2/published-full"
    own = ["model.hidden=[4]", "budget.virtual_time=4", "dataset.max_samples=60", "client.batch_size=5"]
    run([*words[1:], *own, f"hydra.run.dir={runs}/fedavg-seed0"])
    assert main(["asyncfeded/figure2", "--runs", f"{tmp_path}/runs", "--out", f"{tmp_path}/out"]) == 0
    text = (tmp_path / "out/asyncfeded/figure2/published-full/README.md").read_text()
    assert "**Settings of these runs' own, not the paper's experiment** (synthetic_1_1 with mlp)" in text
    for said in ("`model.hidden` is [4] instead of [128, 64]", "`budget.virtual_time` is 4.0 instead of 300.0"):
        assert said in text
    assert "Scale: the paper's" not in text
    assert not (tmp_path / "out/asyncfeded/figure2/published-full/published_difference.csv").exists()


@pytest.mark.parametrize("words", [["sweep=asyncfeded/figure3", "paper=asyncfeded/synthetic"], ["sweep=ace/figure2"]])
def test_runs_as_their_sweep_composes_them_have_no_settings_of_their_own(tmp_path, words):
    jobs = jobs_of(composing.sweep_grids([*words, "seed=0"]))[::7]
    for number, job in enumerate(composing.settings_of_jobs(jobs, composing._hydra_config)):
        folder = tmp_path / f"{number}-seed0"
        folder.mkdir()
        (folder / "config.yaml").write_text(yaml.safe_dump(job.settings.tree))
        (folder / "summary.json").write_text('{"exit_status": "ok"}')
    grids = command.sweep_grids(words[:1])
    loaded = [load_run(folder) for folder in sorted(tmp_path.iterdir())]
    selection = select(loaded, ITEMS[words[0].partition("=")[2]].cell_keys, grids, tmp_path)
    assert len(selection.all_runs) == len(jobs) > 2
    assert changed_settings(selection, grids, words[:1], command._settings) == {}
    loaded[0].settings["client.momentum"] = 0.7
    (said,) = changed_settings(selection, grids, words[:1], command._settings).items()
    assert said[0] == "client.momentum" and said[1].startswith("0.7 instead of 0")


def test_a_page_for_a_profile_that_is_none_is_refused_with_what_there_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["asyncfeded/figure2", "--profile", "good"]) == 2
    assert "--profile good: must be one of fair, paper" in capsys.readouterr().err


def table1(root: Path, accuracies: dict[float, float]) -> str:
    folder = root / "runs/asyncfeded/table1/published-small"
    for mu, best in accuracies.items():
        write(folder, "fedprox", 0, (0.1, best, best), rule={"mu": mu})
    return page(root, "table1", [grid(["fedprox"], **{"algorithm.mu": [str(mu) for mu in accuracies], "seed": ["0"]})])


def test_the_grid_is_ranked_with_the_published_choice_marked(tmp_path):
    text = table1(tmp_path, {0.001: 0.8, 0.01: 0.9, 0.1: 0.7, 0.5: 0.8, 1.0: 0.2})
    rows = rows_of(text, "rank | μ")
    assert [row[:3] + row[-1:] for row in rows[1:]] == [
        ["1", "0.01", "90.00", "best here"],
        ["2", "0.001", "80.00", ""],
        ["2", "0.5", "80.00", ""],
        ["4", "0.1", "70.00", "the paper's"],
        ["5", "1.0", "20.00", ""],
    ]
    assert "best of 5 settings is μ = 0.01 with 90.00 %." in text
    assert "μ = 0.1, has rank 4, 20.00 points below (unknown: fewer than two seeds)." in text
    assert "P = 0.1 and one seed are our choice" in text


def test_a_published_choice_that_nothing_beats_says_so_and_one_that_was_not_run_too(tmp_path):
    assert "μ = 0.1, has rank 1 (with 1 more): none is better." in table1(tmp_path / "a", {0.1: 0.9, 1.0: 0.9})
    assert "The published choice is not among the runs." in table1(tmp_path / "b", {0.5: 0.9, 1.0: 0.8})


def test_a_long_grid_is_shown_in_part_and_kept_as_a_whole(tmp_path):
    folder = tmp_path / "runs/asyncfeded/table4/published-small"
    keys = {
        "lam_over_eps": (0.1, 1.0),
        "lam": (1.0, 5.0),
        "gamma_bar": (1.0, 3.0),
        "kappa": (0.01, 0.05, 0.1, 0.5, 1.0),
    }
    settings = [
        dict(zip(keys, (a, b, c, d), strict=True))
        for a in keys["lam_over_eps"]
        for b in keys["lam"]
        for c in keys["gamma_bar"]
        for d in keys["kappa"]
    ]
    for place, rule in enumerate(settings):
        write(folder, "asyncfeded", 0, (0.1, 0.9 - place / 100), rule=rule)  # the last, all ones, is the paper's
    axes = {f"algorithm.{key}": [str(value) for value in values] for key, values in keys.items()}
    text = page(tmp_path, "table4", [grid(["asyncfeded"], **axes, seed=["0"])])
    rows = rows_of(text, "rank | λ/ε | λ")
    assert [row[0] for row in rows[1:]] == [*map(str, range(1, 11)), "38", "39", "40"]
    assert rows[13][1:5] == ["1.0", "5.0", "3.0", "1.0"] and rows[13][-1] == "the paper's"
    whole = pd.read_csv(tmp_path / "out/asyncfeded/table4/published-small/grid_synthetic.csv")
    assert len(whole) == 40 and whole["published_choice"].sum() == 1
    margins = rows_of(text, "hyper-parameter | value")
    assert margins[1] == ["λ/ε", "0.1", "90.00", "80.50", "71.00", "20", ""]
    assert margins[2] == ["λ/ε", "1.0", "70.00", "60.50", "51.00", "20", "the paper's"]


def test_two_hyper_parameters_are_a_heat_map(tmp_path):
    folder = tmp_path / "runs/asyncfeded/table3/published-small"
    for a in (0.5, 5.0):
        for b in (0.5, 5.0):
            rule = {"staleness_weight": "hinge", "hinge_a": a, "hinge_b": b}
            write(folder, "fedasync", 0, (0.1, 0.5 + a / 100), rule=rule)
    axes = {"algorithm.hinge_a": ["0.5", "5.0"], "algorithm.hinge_b": ["0.5", "5.0"], WEIGHT: ["hinge"]}
    text = page(tmp_path, "table3", [grid(["fedasync"], **axes, seed=["0"])])
    assert (tmp_path / "out/asyncfeded/table3/published-small/heat_maps.png").exists()
    assert "a = 5.0, b = 5.0, has rank 1 (with 1 more)" in text


def test_a_table_whose_headers_repeat_keeps_every_column(tmp_path):
    PageFolder(tmp_path).table("twice", ["method", "verdict", "verdict"], [["FedAvg", "noise", "beyond noise"]])
    assert (tmp_path / "twice.csv").read_text() == "method,verdict,verdict\nFedAvg,noise,beyond noise\n"


def test_published_curves_begin_when_the_clients_do_as_virtual_time_does():
    seconds, percent = printed.curves()["asyncfeded/synthetic", 0.1][Series("asyncfeded")]
    assert seconds[:2] == pytest.approx([3.7, 13.7], abs=0.1)  # 10 and 20 s of theirs, their clients starting after 6.3
    assert percent[:2] == pytest.approx([33.14, 92.39])


@pytest.mark.parametrize(
    ("name", "count"), [("figure2", 450), ("figure3", 60), ("startup", 3), *((f"table{i}", 3) for i in (1, 2, 3, 4))]
)
def test_every_published_number_names_its_source_and_its_protocol(name, count):
    rows = published(f"asyncfeded_{name}")
    assert len(rows) == count and all("arXiv:2205.13797" in row["source"] for row in rows)
    assert {row["paper"] for row in rows} == {f"asyncfeded/{data}" for data in ("synthetic", "femnist", "shakespeare")}
