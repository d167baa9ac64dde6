from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.image import imread
from reports.making import rows_of, write_run

from asyncfl_bench.errors import BenchError
from asyncfl_bench.reports.cli import main
from asyncfl_bench.reports.pages.frame import Combination
from asyncfl_bench.reports.pages.make import ITEMS, combinations, make_page

SMALL = Combination("paper", "small")
CELL = {"heterogeneity.alpha": ["0.1"], "delay": ["exp_beta5"]}


def curve(final: float, uploads: int = 100, time: int = 10) -> list[tuple]:
    """Five evaluations of a run of ten iterations; accuracies rise evenly from 10 % to ``final``."""
    return [(2 * i, uploads * i // 5, time * i / 5, 0.1 + (final - 0.1) * i / 5) for i in range(6)]


def page(root: Path, name: str, grids: list[dict] | None, combination: Combination = SMALL) -> str:
    return make_page(ITEMS[name], combination, root / "runs", root / "out", lambda _: grids).read_text()


def figure2(root: Path, accuracies: dict[str, list[float]], **settings) -> None:
    for algorithm, finals in accuracies.items():
        for seed, final in enumerate(finals):
            write_run(root / "runs/ace/figure2/published-small", algorithm, seed, curve(final), **settings)


def test_the_table_shows_mean_and_deviation_the_order_and_kendalls_tau(tmp_path):
    figure2(tmp_path, {"ace": [0.90, 0.92], "ca2fl": [0.70, 0.72], "fedbuff": [0.80, 0.80]})
    text = page(tmp_path, "ace/figure2", [{"algorithm": ["ace", "ca2fl", "fedbuff"], **CELL, "seed": ["0", "1"]}])
    rows = {row[0]: row[1] for row in rows_of(text, "algorithm")}
    assert (
        rows["ACE"] == "91.00 ± 1.41 (best)" and rows["CA2FL"] == "71.00 ± 1.41" and rows["FedBuff"] == "80.00 ± 0.00"
    )
    assert rows["budget"] == "10"
    assert rows["Kendall tau, paper"] == "0.33"  # of three pairs two agree with fedbuff < ca2fl < ace
    pairs = rows_of(text, "cell | better")
    assert pairs[1][1:] == ["ACE", "FedBuff", "+11.00", "2.00", "2", "beyond noise"]
    assert "no run" not in text and "3 runs expected" not in text and "6 runs expected, 6 run directories" in text
    assert "The paper draws test accuracy" in text and "nothing to take a difference with" in text
    table = pd.read_csv(tmp_path / "out/ace/figure2/published-small/accuracy_iteration.csv")
    assert table["mean_percent"].round(6).tolist() == [91, 71, 80] and table["seeds"].tolist() == [2, 2, 2]


def test_differences_below_two_standard_errors_are_called_noise_and_one_seed_unknown(tmp_path):
    figure2(tmp_path, {"ace": [0.81, 0.79], "asgd": [0.80, 0.79], "fedbuff": [0.5]})
    rows = rows_of(page(tmp_path, "ace/figure2", None), "cell | better")
    assert [row[-1] for row in rows[1:]] == ["noise", "unknown: fewer than two seeds"]


def test_the_common_budget_is_that_of_the_shortest_run_on_each_axis(tmp_path):
    folder = tmp_path / "runs/ace/figure2/published-small"
    write_run(folder, "ace", 0, curve(0.9, uploads=1000, time=10))
    write_run(folder, "asgd", 0, curve(0.5, uploads=100, time=40))
    text = page(tmp_path, "ace/figure2", None)
    out = tmp_path / "out/ace/figure2/published-small"
    uploads = pd.read_csv(out / "accuracy_uploads.csv").set_index("algorithm")
    assert uploads["budget"].tolist() == [100, 100]
    # ACE has its first evaluation after 200 uploads at 26 %: half way from 10 %
    assert uploads["mean_percent"].round(6).to_dict() == {"ace": 18.0, "asgd": 50.0}
    time = pd.read_csv(out / "accuracy_virtual_time.csv").set_index("algorithm")
    assert time["budget"].tolist() == [10, 10]
    assert time["mean_percent"].round(6).to_dict() == {"ace": 90.0, "asgd": 20.0}  # a quarter of 40 %
    assert "18.00 ~" in text and "mostly interpolated" in text
    assert "**At equal server iterations** ACE leads in 1 of 1 cells" in text
    assert "**At equal uploads** vanilla ASGD leads in 1 of 1 cells" in text
    assert "**Server iterations or uploads** give another ranking" in text


def test_the_ranking_is_followed_along_the_budget_and_said_to_settle(tmp_path):
    folder = tmp_path / "runs/ace/figure2/published-small"
    for seed in (0, 1):
        low = [0.1, 0.2, 0.3, 0.6, 0.7, 0.8]
        high = [0.1, 0.4, 0.5, 0.55, 0.6, 0.65]
        for name, values in (("ace", low), ("asgd", high)):
            points = [(10 * i, 10 * i, 10 * i, value + seed / 100) for i, value in enumerate(values)]
            write_run(folder, name, seed, points)
    rows = rows_of(page(tmp_path, "ace/figure2", None), "cell | budget | server iterations")
    assert [row[1:] for row in rows[1:]] == [
        ["1/4", "12.5", "vanilla ASGD > ACE", "-1.00"],
        ["1/2", "25", "vanilla ASGD > ACE", "-1.00"],
        ["1", "50", "ACE > vanilla ASGD", "1.00"],
    ]
    assert "The ranking is final, in so many cells, from the end only (1)" in page(tmp_path, "ace/figure2", None)


def test_missing_failed_diverged_and_foreign_runs_are_counted_and_named(tmp_path):
    folder = tmp_path / "runs/ace/figure2/published-small"
    write_run(folder, "ace", 0, curve(0.9))
    write_run(folder, "asgd", 0, curve(0.5))
    write_run(folder, "asgd", 1, status="diverged")
    write_run(folder, "ace", 1, status="failed")
    write_run(folder, "ace", 2, status=None)
    write_run(folder, "fedbuff", 0, curve(0.99))
    grid = {"algorithm": ["ace", "asgd", "ca2fl"], **CELL, "seed": ["0", "1", "2"]}
    text = page(tmp_path, "ace/figure2", [grid])
    assert "9 runs expected, 6 run directories found, 2 used, 4 missing." in text
    assert "Not used: 1 diverged, 1 failed, 1 incomplete, 1 not in the sweep" in text
    assert "- diverged: `asgd-a0.1-exp_beta5-s1" in text and "- failed: `ace-a0.1-exp_beta5-s1" in text
    assert "(failed at iteration 7)" in text and "- not in the sweep: `fedbuff" in text
    assert "- missing: `algorithm=ca2fl heterogeneity.alpha=0.1 delay=exp_beta5 seed=0,1,2`" in text
    assert "- missing: `algorithm=asgd heterogeneity.alpha=0.1 delay=exp_beta5 seed=2`" in text
    assert (
        "**Diverged runs are in no mean; the mean of the others flatters: vanilla ASGD at α = 0.1, β = 5: 1.**" in text
    )
    names = [row[0] for row in rows_of(text, "algorithm")]
    assert "CA2FL" not in names and "FedBuff" not in names  # wholly missing, and not asked for


def test_a_page_never_averages_runs_that_differ_in_more_than_the_seed(tmp_path):
    figure2(tmp_path, {"ace": [0.9]})
    write_run(tmp_path / "runs/ace/figure2/published-small", "ace", 1, curve(0.8), n_clients=20)
    with pytest.raises(BenchError, match=r"runs of ACE, α = 0.1, β = 5 differ in n_clients \(10 and 20\)"):
        page(tmp_path, "ace/figure2", None)


def test_profiles_are_never_mixed(tmp_path):
    figure2(tmp_path, {"ace": [0.9]}, choices={"profile": "fair", "scale": "small"})
    with pytest.raises(BenchError, match="holds runs of profile=fair; a page is about one profile only"):
        page(tmp_path, "ace/figure2", None)


def test_the_step_is_chosen_by_validation_and_never_by_test_accuracy(tmp_path):
    folder = tmp_path / "runs/ace/figure2/fair-small"
    tried = [("0.1", 0.60, 0.95), ("0.5", 0.80, 0.70), ("2.0", 0.70, 0.90)]  # c, validation, test
    for c, validation, test in tried:
        for seed in (0, 1):
            write_run(folder, "ace", seed, curve(test + seed / 100), rule={"c": float(c)}, validation=validation)
            last = validation if c != "2.0" else 0.99
            write_run(folder, "asgd", seed, curve(test), rule={"c": float(c)}, validation=last)
    text = page(tmp_path, "ace/figure2", None, Combination("fair", "small"))
    rows = {row[0]: row[1] for row in rows_of(text, "algorithm")}
    assert rows["ACE"] == "70.50 ± 0.71" and rows["vanilla ASGD"] == "90.00 ± 0.00 (best)"
    chosen = (tmp_path / "out/ace/figure2/fair-small/chosen_c.csv").read_text()
    assert "ACE,0.5: 80.00\n" in chosen and "vanilla ASGD,2.0: 99.00 (edge of the grid)" in chosen


def test_a_step_that_lost_a_seed_does_not_win_by_the_others(tmp_path):
    folder = tmp_path / "runs/ace/figure2/fair-small"
    for seed in (0, 1):
        write_run(folder, "ace", seed, curve(0.6), rule={"c": 0.1}, validation=0.6)
    write_run(folder, "ace", 0, curve(0.9), rule={"c": 5.0}, validation=0.9)
    write_run(folder, "ace", 1, rule={"c": 5.0}, status="diverged")
    text = page(tmp_path, "ace/figure2", None, Combination("fair", "small"))
    assert {row[0]: row[1] for row in rows_of(text, "algorithm")}["ACE"].startswith("60.00 ± 0.00")


def test_without_validation_accuracies_no_step_is_chosen_and_the_page_says_so(tmp_path):
    folder = tmp_path / "runs/ace/figure2/fair-small"
    for c in (0.1, 0.5):
        write_run(folder, "ace", 0, curve(0.6), rule={"c": c})
    write_run(folder, "asgd", 0, curve(0.4))
    text = page(tmp_path, "ace/figure2", None, Combination("fair", "small"))
    assert "without `validation/accuracy` to choose by: ACE at α = 0.1, β = 5" in text
    assert "ACE" not in [row[0] for row in rows_of(text, "algorithm")]


@pytest.mark.parametrize(
    ("scale", "problem", "said"),
    [
        ("small", ("digits", "mlp"), "A small stand-in, not the paper's experiment"),
        ("smoke", ("digits", "mlp"), "A smoke test"),
        ("paper", ("cifar10", "resnet18"), "the paper's**"),
        ("paper", ("cifar10", "lenet5"), "Not the paper's experiment**: cifar10 with lenet5"),
    ],
)
def test_the_top_says_what_the_runs_are_and_the_end_where_they_come_from(tmp_path, scale, problem, said):
    combination = Combination("paper", scale, "long")
    real = dict(zip(("dataset", "model"), problem, strict=True))
    write_run(tmp_path / f"runs/ace/figure2/paper-{scale}-long", "ace", 0, curve(0.9), choices=real)
    text = page(tmp_path, "ace/figure2", None, combination)
    assert said in text.partition("## In words")[0]
    assert f"afl-run -m sweep=ace/figure2 profile=published scale={scale} length=long\n" in text
    assert f"afl-report ace/figure2 --profile paper --scale {scale} --horizon long\n" in text
    assert "revision of the runs: abc123" in text and "device: cpu (two cores)" in text


def test_the_same_runs_give_the_same_bytes_and_what_is_no_longer_made_goes(tmp_path):
    figure2(tmp_path, {"ace": [0.9, 0.8], "asgd": [0.5, 0.6]})
    out = tmp_path / "out/ace/figure2/published-small"

    def hashes() -> dict[str, str]:
        page(tmp_path, "ace/figure2", None)
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}

    first = hashes()
    (out / "old_figure.png").write_bytes(b"old")
    assert hashes() == first and {"README.md", "curves_uploads.png", "curves_iteration.svg"} <= set(first)
    assert sum(path.stat().st_size for path in out.iterdir()) < 1_000_000


def test_every_algorithm_keeps_its_colour(tmp_path):
    figure2(tmp_path, {"asgd": [0.5], "ace": [0.9], "fedbuff": [0.6]})
    page(tmp_path, "ace/figure2", None)
    pixels = imread(tmp_path / "out/ace/figure2/published-small/curves_iteration.png")[..., :3]
    near = (pixels * 255).round().reshape(-1, 3)
    for colour in ((0x00, 0x72, 0xB2), (0xCC, 0x79, 0xA7), (0, 0, 0)):  # ACE, FedBuff, vanilla ASGD
        assert (abs(near - colour).max(axis=1) < 6).sum() > 50


def test_dropout_lines_and_losses_come_from_the_shares(tmp_path):
    for name in ("ace/figure3a", "ace/figure3b"):
        for share in (0.0, 0.7):
            for tau in (1, 50):
                for seed in (0, 1):
                    final = 0.9 - share * (0.5 if tau == 1 else 0.1) + seed / 100
                    folder = tmp_path / "runs" / name / "published-small"
                    write_run(folder, "aced", seed, curve(final), share=share, rule={"tau_algo": tau})
    grid = {"algorithm": ["aced"], "algorithm.tau_algo": ["1", "50"], "availability.share": ["0.0", "0.7"]}
    text = page(tmp_path, "ace/figure3b", [grid | {"seed": ["0", "1"]}])
    rows = rows_of(text, "algorithm | share 0.0")
    assert rows[1][:4] == ["ACED, τ_algo = 1", "90.50", "55.50", "35.00"]
    assert rows[2][:4] == ["ACED, τ_algo = 50", "90.50", "83.50", "7.00"]
    assert {"heat_map.png", "dropout_iteration.png"} <= {
        p.name for p in (tmp_path / "out/ace/figure3b/published-small").iterdir()
    }


def test_heat_maps_say_what_longer_delays_cost(tmp_path):
    folder = tmp_path / "runs/ace/figure_a2/published-small"
    for alpha in (0.1, 10.0):
        for delay in ("exp_beta5", "exp_beta30"):
            for seed in (0, 1):
                final = 0.9 - (0.2 if (alpha, delay) == (0.1, "exp_beta30") else 0.0) + seed / 100
                write_run(folder, "fedbuff", seed, curve(final), alpha=alpha, delay=delay)
    text = page(tmp_path, "ace/figure_a2", None)
    assert "lost from β = 5 to β = 30" in text
    assert rows_of(text, "algorithm | α = 0.1 | α = 10.0")[1][1:] == ["+20.00 ± 0.00", "+0.00 ± 0.00 (noise)"]
    assert (tmp_path / "out/ace/figure_a2/published-small/heat_maps_uploads.png").exists()


def test_cache_precisions_are_compared_seed_by_seed_with_their_bytes(tmp_path):
    folder = tmp_path / "runs/ace/figure_a3/published-small"
    for precision, size in (("fp32", 4000), ("int8", 1000)):
        for seed in (0, 1):
            final = 0.8 + seed / 10 - (0.02 + seed / 100 if precision == "int8" else 0)
            rule = {"cache": {"precision": precision}}
            state = {"state_bytes": {"server": size, "clients": 0}}
            write_run(folder, "ace", seed, curve(final), rule=rule, summary=state)
    grid = {"algorithm": ["ace"], "algorithm.cache.precision": ["fp32", "int8"], "seed": ["0", "1"]}
    rows = rows_of(page(tmp_path, "ace/figure_a3", [grid]), "rule")
    assert rows[1][2:] == ["fp32", "85.00 ± 7.07", "-", "-", "-", "4000", "0"]
    assert rows[2][2:] == ["int8", "82.50 ± 6.36", "+2.50", "1.00", "beyond noise", "1000", "0"]


def test_uploads_per_iteration_stand_beside_the_published_ones(tmp_path):
    folder = tmp_path / "runs/ace/table_a1/published-small"
    write_run(folder, "ace", 0, [(0, 0, 0, 0.1), (101, 110, 100, 0.5)])
    write_run(folder, "fedbuff", 0, [(0, 0, 0, 0.1), (100, 1000, 100, 0.5)], rule={"buffer_size": 10})
    text = page(tmp_path, "ace/table_a1", None)
    rows = rows_of(text, "algorithm")
    assert rows[1][2:] == ["-", "110", "101", "1.089", "1.000", "1"]  # 110 uploads, 10 of them in the first round
    assert rows[2][2:] == ["10", "1000", "100", "10.000", "-", "M"]
    assert "arXiv:2511.19066, table a.1" in text and "clock of ticks" in text


def test_state_is_counted_in_vectors_beside_the_published_orders(tmp_path):
    folder = tmp_path / "runs/ace/table_a3/published-small"
    size = {"parameters": 25, "state_bytes": {"server": 1500, "clients": 0}}  # 100 bytes a vector
    write_run(folder, "ace", 0, curve(0.5), rule={"rule": "direct"}, summary=size)
    other = {"parameters": 25, "state_bytes": {"server": 500, "clients": 1000}}
    write_run(folder, "ace", 1, curve(0.5), rule={"rule": "incremental"}, summary=other)
    write_run(folder, "asgd", 0, curve(0.5))
    grid = [{"algorithm": ["ace"], "algorithm.rule": ["direct", "incremental"], "seed": ["0", "1"]}]
    rows = rows_of(page(tmp_path, "ace/table_a3", [*grid, {"algorithm": ["asgd"], "seed": ["0"]}]), "algorithm")
    assert rows[1][4:] == ["1500", "15.00", "0", "0.00", "n*d", "1", "n*d"]
    assert rows[2][4:] == ["500", "5.00", "1000", "10.00", "d", "d", "n*d"]
    assert rows[3][4:] == ["-", "-", "-", "-", "1", "1", "n"]


def test_a_stand_in_gets_no_difference_to_published_accuracies_and_the_real_thing_does(tmp_path):
    finals = {"ace": [0.70, 0.72], "asgd": [0.40, 0.42]}
    for algorithm, values in finals.items():
        for seed, final in enumerate(values):
            write_run(tmp_path / "runs/ace/table_a2/published-small", algorithm, seed, curve(final))
            real = {"dataset": "20newsgroups", "model": "bert_base"}
            write_run(tmp_path / "runs/ace/table_a2/published-full", algorithm, seed, curve(final), choices=real)
    small = page(tmp_path, "ace/table_a2", None)
    assert "cannot be compared with the published ones" in small and "difference | verdict" not in small
    assert rows_of(small, "cell | published column")[1][-1] == "1.00"
    rows = rows_of(page(tmp_path, "ace/table_a2", None, Combination("paper", "paper")), "model")
    # ACE: mean 71, standard error 1; published 68.7 ± 1.8: 2.30 < hypot(2, 1.8) = 2.69
    assert rows[1] == ["BERT-base", "0.1", "ACE", "71.00 ± 2.00", "2", "68.7 ± 1.8", "+2.30", "noise"]
    assert rows[2][-2:] == ["-13.20", "beyond noise"]


def test_the_command_writes_a_page_for_every_profile_and_scale_it_finds(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    figure2(tmp_path, {"ace": [0.9]})
    shutil.copytree("runs/ace/figure2/published-small", "runs/ace/figure2/fair-smoke")
    shutil.copytree("runs/ace/figure2/published-small", "runs/ace/figure_a1/published-small")
    assert [one.folder for one in combinations(Path("runs"), ITEMS["ace/figure2"])] == ["fair-smoke", "published-small"]
    assert main(["all"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "written: results/ace/figure2/fair-smoke/README.md",
        "written: results/ace/figure2/published-small/README.md",
        "written: results/ace/figure_a1/published-small/README.md",
    ]
    assert main(["ace/figure2", "--scale", "small", "--out", "elsewhere"]) == 0
    assert [str(p) for p in Path("elsewhere").rglob("README.md")] == ["elsewhere/ace/figure2/published-small/README.md"]


def test_mistakes_are_one_line_and_exit_code_2(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for arguments, message in [
        (
            ["ace/figur2"],
            "ace/figur2: neither a directory nor a page (did you mean 'ace/figure2'?); pages: ace/table1, ",
        ),
        (
            ["ace/figure2"],
            "runs/ace/figure2: no runs found; to make them: afl-run -m sweep=ace/figure2 profile=published",
        ),
        (["ace", "--profile", "fair"], "runs/ace/table1: no runs found; to make them: "),
        (["folder", "ace"], "folder: a directory cannot be asked for together with the page ace/table1"),
        (["folder", "--scale", "small"], "folder: --runs, --profile, --scale and --horizon go with a sweep's name"),
    ]:
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith(f"afl-report: {message}") and err.count("\n") == 1
    assert not Path("results").exists()


def test_a_page_whose_runs_all_failed_is_reported_and_the_others_are_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs/ace/figure2/published-small"), status="failed")
    write_run(Path("runs/ace/figure_a1/published-small"), points=curve(0.8))
    assert main(["ace"]) == 1
    out, err = capsys.readouterr()
    assert "figure2/published-small: no run to show: 1 found, all failed" in err and "figure_a1" in out
    assert not Path("results/ace/figure2").exists()


def test_a_folder_of_a_pages_name_is_compared_as_a_folder_and_that_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(Path("ace/figure2/published-small"), points=curve(0.8))
    assert main(["ace/figure2"]) == 0
    assert "for the page add --runs runs" in capsys.readouterr().err
    assert Path("ace/figure2/report/table.csv").exists()


def test_seeds_beyond_those_of_the_sweep_count_like_the_others(tmp_path):
    figure2(tmp_path, {"ace": [0.9, 0.8]})
    text = page(tmp_path, "ace/figure2", [{"algorithm": ["ace"], **CELL, "seed": ["0"]}])
    assert (
        "1 runs expected, 2 run directories found, 2 used, 0 missing. 1 have seeds or steps the sweep does not list."
        in text
    )
    assert rows_of(text, "algorithm")[1][1].startswith("85.00 ± 7.07")


def test_every_published_number_names_its_source():
    from asyncfl_bench.reports.pages.published import published

    for name, count in (("ace_table_a1", 6), ("ace_table_a2", 36), ("ace_table_a3", 7)):
        rows = published(name)
        assert len(rows) == count and all("arXiv:2511.19066, table" in row["source"] for row in rows)
