from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.image import imread

from asyncfl_bench.reports.cli import main
from asyncfl_bench.reports.curves import mean_curve
from asyncfl_bench.reports.load import load_run

ACCURACIES = [0.90, 0.92, 0.97]


def write_run(
    path: Path,
    algorithm: str = "ace",
    seed: int = 0,
    final: float | None = 0.9,
    status: str | None = "ok",
    delay: tuple[str, dict] = ("exponential", {"mean": 5.0, "unit": "ticks"}),
    rule: dict | None = None,
    points: list[tuple[int, float | None]] | None = None,
    **top,
) -> Path:
    """A run directory with numbers that follow from ``final`` and ``seed``; status None: no summary.json."""
    config = {
        "seed": seed,
        "n_clients": 10,
        "device": {"_target_": "asyncfl_bench.Device", "name": "cpu"},
        "data_dir": f"/somewhere/{seed}",
        "output_dir": str(path),
        "tracking": {"_target_": "asyncfl_bench.tracking.trackers.LocalTracker", "project": str(path)},
        "algorithm": {"_target_": f"algorithms.{algorithm}.{algorithm.title()}", "eta": 0.1} | (rule or {}),
        "delay": {"_target_": f"asyncfl_bench.simulation.delays.{delay[0].title()}"} | delay[1],
        "choices": {"algorithm": algorithm, "delay": delay[0], "tracking": "local"},
    }
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config | top, sort_keys=False))
    lines = [
        {"iteration": i, "uploads": 10 * i, "client_steps": 10 * i, "virtual_time": i / 2, "wall_time": 0.1 * i}
        | {"test/accuracy": accuracy}
        for i, accuracy in (points or [(0, 0.1), (50, 0.5), (100, final)])
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if status is not None:
        summary = {
            "exit_status": status,
            "error": None if status == "ok" else f"{status} at iteration 7\nmore",
            "algorithm": algorithm,
            "seed": seed,
            "final": {"test/accuracy": final, "test/loss": 0.3},
            "best": {"test/accuracy": None if final is None else final + 0.01, "iteration": 90},
            "used": {"server_iterations": 100 + seed, "uploads": 1000, "virtual_time": 50.25, "client_steps": 1},
            "wall_seconds": 4.0 + seed,
        }
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def table(root: Path) -> pd.DataFrame:
    return pd.read_csv(root / "report" / "table.csv", dtype={"seeds": str}, keep_default_na=False, na_values=[""])


def printed_rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line]


def test_mean_and_sample_deviation_over_seeds_are_those_of_numpy(tmp_path, capsys):
    for seed, accuracy in enumerate(ACCURACIES):
        write_run(tmp_path / "ace" / str(seed), seed=seed, final=accuracy)
    assert main([str(tmp_path)]) == 0

    (row,) = table(tmp_path).to_dict("records")
    percent = 100 * np.array(ACCURACIES)
    assert row["final_accuracy_percent_mean"] == pytest.approx(percent.mean())
    assert row["final_accuracy_percent_std"] == pytest.approx(percent.std(ddof=1))
    assert row["best_accuracy_percent_mean"] == pytest.approx(percent.mean() + 1)
    assert (row["server_iterations_mean"], row["server_iterations_std"]) == (101, 1)
    assert (row["uploads_mean"], row["uploads_std"], row["virtual_time_mean"]) == (1000, 0, 50.25)
    assert (row["wall_seconds_mean"], row["wall_seconds_std"]) == (5, 1)
    assert (row["algorithm"], row["runs"], row["diverged"], row["seeds"]) == ("ace", 3, 0, "0 1 2")

    headers, cells = printed_rows(capsys.readouterr().out)
    assert dict(zip(headers, cells, strict=True)) == {
        "algorithm": "ace",
        "final accuracy [%]": f"{percent.mean():.2f} ± {percent.std(ddof=1):.2f}",
        "best accuracy [%]": f"{percent.mean() + 1:.2f} ± {percent.std(ddof=1):.2f}",
        "server iterations": "101 ± 1",
        "uploads": "1000 ± 0",
        "virtual time": "50.2 ± 0.0",
        "wall time [s]": "5.0 ± 1.0",
        "runs": "3",
    }


def test_one_seed_has_no_deviation_and_the_best_algorithm_comes_first(tmp_path, capsys):
    write_run(tmp_path / "a", "asgd", final=0.5)
    write_run(tmp_path / "b", "ace", final=0.75)
    write_run(tmp_path / "c", "fedbuff", final=0.625)
    main([str(tmp_path)])
    rows = printed_rows(capsys.readouterr().out)[1:]
    assert [row[:2] for row in rows] == [["ace", "75.00"], ["fedbuff", "62.50"], ["asgd", "50.00"]]
    assert table(tmp_path)["final_accuracy_percent_std"].isna().all()


def test_a_setting_that_differs_within_an_algorithm_becomes_a_column_and_is_never_averaged(tmp_path, capsys):
    for mean in (5.0, 30.0):
        for seed in (0, 1):
            delay = ("exponential", {"mean": mean, "unit": "ticks"})
            write_run(tmp_path / f"ace{mean}{seed}", seed=seed, final=0.9 - mean / 100 + seed / 50, delay=delay)
    write_run(tmp_path / "asgd", "asgd", final=0.3)
    main([str(tmp_path)])
    rows = printed_rows(capsys.readouterr().out)
    assert rows[0][:2] == ["algorithm", "delay.mean"]
    std = 100 * np.std([0.0, 0.02], ddof=1)
    assert [row[:3] for row in rows[1:]] == [
        ["ace", "5.0", f"86.00 ± {std:.2f}"],
        ["ace", "30.0", f"61.00 ± {std:.2f}"],
        ["asgd", "5.0", "30.00"],
    ]


def test_an_exchanged_group_is_one_column_named_by_its_choice(tmp_path, capsys):
    for i, delay in enumerate([("exponential", {"mean": 5.0}), ("constant", {"mean": 3.0}), ("none", {})]):
        write_run(tmp_path / f"a{i}", final=0.9 - i / 10, delay=delay)
        write_run(tmp_path / f"b{i}", final=0.85 - i / 10, delay=delay, rule={"eta": 0.2})
    main([str(tmp_path)])
    rows = printed_rows(capsys.readouterr().out)
    assert rows[0][:3] == ["algorithm", "delay", "algorithm.eta"]
    assert [row[1:4] for row in rows[1:4]] == [
        ["exponential", "0.1", "90.00"],
        ["exponential", "0.2", "85.00"],
        ["constant", "0.1", "80.00"],
    ]
    assert sorted(row[1] for row in rows[1:]) == sorted(["exponential", "constant", "none"] * 2)


def test_seed_paths_tracking_and_device_make_no_columns(tmp_path, capsys):
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=1, device={"name": "cuda"}, tracking={"project": "x"}, data_dir="/other")
    main([str(tmp_path)])
    headers, row = printed_rows(capsys.readouterr().out)
    assert headers[:2] == ["algorithm", "final accuracy [%]"] and row[-1] == "2"


def test_settings_that_differ_only_between_algorithms_are_named_and_shown_on_request(tmp_path, capsys):
    write_run(tmp_path / "a", "ace")
    write_run(tmp_path / "b", "asgd", n_clients=20)
    main([str(tmp_path)])
    out = capsys.readouterr().out
    assert printed_rows(out)[0][1] == "final accuracy [%]"
    assert "algorithms also differ from each other in: n_clients (columns with --by)" in out
    main([str(tmp_path), "--by", "n_clients", "delay"])
    out = capsys.readouterr().out
    assert sorted(row[:3] for row in printed_rows(out)) == [
        ["ace", "10", "exponential"],
        ["algorithm", "n_clients", "delay"],
        ["asgd", "20", "exponential"],
    ]
    assert "also differ" not in out


def test_runs_that_did_not_end_well_are_counted_and_named_but_not_averaged(tmp_path, capsys):
    write_run(tmp_path / "good", seed=0, final=0.9)
    for i, status in enumerate(["failed", "interrupted", None]):
        write_run(tmp_path / f"{status}", seed=i + 1, final=0.1, status=status, rule={"eta": 0.3})
    write_run(tmp_path / "blown", seed=5, final=None, status="diverged")
    write_run(tmp_path / "torn", seed=6)
    (tmp_path / "torn" / "summary.json").write_text('{"exit_st')
    write_run(tmp_path / "odd", seed=7)
    (tmp_path / "odd" / "config.yaml").write_text("a: [1")
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    headers, row = printed_rows(out)
    assert headers[1] == "final accuracy [%]"  # no column for a setting that no run in the table has
    assert row[1] == "90.00" and dict(zip(headers, row, strict=True))["diverged"] == "1" and row[-2] == "1"
    assert "not averaged: 1 diverged, 1 failed, 1 incomplete, 1 interrupted, 2 unreadable\n" in out
    assert f"- failed: {tmp_path / 'failed'} (failed at iteration 7)\n" in out
    assert f"- diverged: {tmp_path / 'blown'} (diverged at iteration 7)\n" in out
    assert f"- incomplete: {tmp_path / 'None'} (no summary.json: still running, or killed)\n" in out
    assert f"- unreadable: {tmp_path / 'torn'} (summary.json: " in out
    assert f"- unreadable: {tmp_path / 'odd'} (config.yaml: " in out
    assert "not averaged: 1 diverged" in (tmp_path / "report" / "table.md").read_text()


def test_a_setting_at_which_every_run_diverged_has_a_row_that_says_so_at_the_end(tmp_path, capsys):
    write_run(tmp_path / "good", final=0.2)
    for seed in (0, 1):
        write_run(tmp_path / f"bad{seed}", seed=seed, final=None, status="diverged", rule={"eta": 99.0})
    main([str(tmp_path)])
    rows = printed_rows(capsys.readouterr().out)
    assert rows[1][1:3] == ["0.1", "20.00"]
    assert rows[2][1:3] == ["99.0", "diverged"] and rows[2][-2:] == ["0", "2"]
    assert table(tmp_path)["diverged"].tolist() == [0, 2]


def test_the_same_seed_twice_counts_once(tmp_path, capsys):
    write_run(tmp_path / "monday", seed=4, final=0.5)
    write_run(tmp_path / "tuesday", seed=4, final=0.7)
    main([str(tmp_path)])
    out = capsys.readouterr().out
    assert printed_rows(out)[1][1] == "70.00"
    assert f"- repeated: {tmp_path / 'monday'} (same settings and seed as {tmp_path / 'tuesday'})" in out


def test_runs_are_found_at_any_depth_once_and_not_in_folders_of_hydra_and_wandb(tmp_path, capsys):
    run = write_run(tmp_path / "sweep" / "deep" / "run")
    for inner in (run / ".hydra", run / "wandb" / "files", tmp_path / "wandb" / "run-1" / "files", run / "copy"):
        inner.mkdir(parents=True)
        (inner / "config.yaml").write_text("seed: 1")
    assert main([str(tmp_path), str(tmp_path / "sweep"), str(run)]) == 0
    out = capsys.readouterr().out
    assert printed_rows(out)[1][-1] == "1" and "not averaged" not in out
    assert (tmp_path / "report" / "table.csv").exists()


def test_without_choices_the_algorithm_is_the_one_of_the_summary(tmp_path):
    run = write_run(tmp_path / "a", "fedbuff", choices={})
    assert load_run(run).algorithm == "fedbuff"
    (run / "summary.json").unlink()
    assert load_run(run).algorithm == "fedbuff"  # now from the class named in the config


def test_all_four_files_are_written_where_asked(tmp_path, capsys):
    write_run(tmp_path / "runs" / "a", "my_rule", final=0.9)
    out = tmp_path / "figures" / "one"
    assert main([str(tmp_path / "runs"), "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["curve.png", "table.csv", "table.md", "table.tex"]
    assert not (tmp_path / "runs" / "report").exists()
    printed = capsys.readouterr().out
    assert (out / "table.md").read_text().strip() in printed and f"written to {out}: table.csv" in printed
    tex = (out / "table.tex").read_text()
    assert r"my\_rule & 90.00 & 91.00 & 100 & 1000 & 50.2 & 4.0 & 1 \\" in tex
    assert r"final accuracy [\%]" in tex and tex.startswith(r"\begin{tabular}{lrrrrrrr}")


@pytest.mark.parametrize("x", ["iteration", "uploads", "virtual_time"])
def test_the_figure_has_content_for_every_axis(tmp_path, x):
    for i, algorithm in enumerate(["ace", "asgd"]):
        for seed in (0, 1):
            write_run(tmp_path / f"{algorithm}{seed}", algorithm, seed=seed, final=0.5 + 0.1 * i + 0.05 * seed)
    assert main([str(tmp_path), "--x", x]) == 0
    pixels = imread(tmp_path / "report" / "curve.png")
    colours = {tuple(pixel) for pixel in (pixels[..., :3] * 255).round().astype(int).reshape(-1, 3)}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours  # both lines


def test_without_any_accuracy_there_is_a_table_but_no_figure(tmp_path, capsys):
    write_run(tmp_path / "a", final=None, points=[(0, None), (10, None)])
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert printed_rows(out)[1][1] == "-" and "no figure: no run has test/accuracy" in out
    assert not (tmp_path / "report" / "curve.png").exists()


def test_a_curve_keeps_its_last_value_between_its_points_and_after_its_end():
    first = (np.array([0.0, 10.0, 20.0]), np.array([0.0, 0.4, 0.8]))
    second = (np.array([0.0, 15.0]), np.array([0.2, 0.6]))
    grid, mean, std = mean_curve([first, second])
    assert grid.tolist() == [0, 10, 15, 20]
    pairs = np.array([[0.0, 0.2], [0.4, 0.2], [0.4, 0.6], [0.8, 0.6]])
    np.testing.assert_allclose(mean, pairs.mean(1))
    np.testing.assert_allclose(std, pairs.std(1, ddof=1))


def test_a_curve_starts_where_every_seed_has_a_value_and_one_seed_has_no_band():
    grid, mean, _ = mean_curve([(np.array([0.0, 9.0]), np.array([0.1, 0.2])), (np.array([5.0]), np.array([0.3]))])
    assert grid.tolist() == [5, 9]
    np.testing.assert_allclose(mean, [0.2, 0.25])
    assert mean_curve([(np.array([1.0, 2.0]), np.array([0.1, 0.2]))])[2].tolist() == [0, 0]


def test_points_without_accuracy_and_a_half_written_line_are_left_out_of_the_curve(tmp_path):
    run = write_run(tmp_path / "a", points=[(0, 0.1), (10, None), (20, 0.5)])
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"iteration": 30, "uplo')
    x, accuracy = load_run(run).curve("uploads")
    assert x.tolist() == [0, 200] and accuracy.tolist() == [0.1, 0.5]


def test_mistakes_are_one_message_and_exit_code_2(tmp_path, capsys):
    write_run(tmp_path / "runs" / "a")
    (tmp_path / "empty").mkdir()
    for arguments, message in [
        ([tmp_path / "none"], f"afl-report: {tmp_path / 'none'}: no such directory\n"),
        ([tmp_path / "empty"], f"{tmp_path / 'empty'}: no runs found (a run directory holds a config.yaml)\n"),
        (
            [tmp_path / "runs", "--by", "delay.meen"],
            "--by=delay.meen: must be a config key of these runs (did you mean 'delay.mean'?)\n",
        ),
    ]:
        assert main([str(argument) for argument in arguments]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.endswith(message) and err.count("\n") == 1
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path), "--x", "wall"])
    assert stop.value.code == 2
    assert not list(tmp_path.glob("**/report"))


def test_no_run_that_ended_well_is_exit_code_1_and_writes_nothing(tmp_path, capsys):
    write_run(tmp_path / "a", status=None)
    assert main([str(tmp_path)]) == 1
    assert f"- incomplete: {tmp_path / 'a'}" in capsys.readouterr().out
    assert not (tmp_path / "report").exists()


def test_a_place_that_cannot_be_written_is_one_message(tmp_path, capsys):
    write_run(tmp_path / "a")
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path), "--out", str(tmp_path / "file")]) == 1
    assert "choose another place with --out" in capsys.readouterr().err


def test_help_needs_neither_numpy_nor_pandas_nor_matplotlib():
    code = (
        "import sys\nfrom asyncfl_bench.reports.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('numpy', 'pandas', 'matplotlib', 'torch', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--by KEY" in done.stdout and done.stdout.endswith("[]\n")
