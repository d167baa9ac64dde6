"""The files of the page on parts of one's own, written to a folder and run as the page says."""

import re
import sys
from pathlib import Path

import pytest

from asyncfl_bench import load_runs, sweep
from asyncfl_bench.reports.cli import main as report

PAGES = (Path(__file__).parents[1] / "docs").rglob("*.md")
(PAGE,) = [text for page in PAGES if "\n## One complete sweep file\n" in (text := page.read_text())]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, content in re.findall(r"```\w+ file=(\S+)\n(.*?)```", PAGE, re.S):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(content)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.slow
def test_the_sweep_of_the_page_runs_with_its_model_metric_tracker_and_diagnostics(folder, afl_run):
    plan = afl_run("--config-dir", "parts", "sweep=widths", "--plan")
    assert plan.returncode == 0 and "12 runs" in plan.stdout
    results = sweep(sweep="widths", scale="smoke", algorithm="ace", config_dir="parts", progress=False)
    assert [result.ok for result in results] == [True, True]
    for result, width in zip(results, (16, 32), strict=True):
        metrics = result.metrics
        assert result.summary["parameters"] == 75 * width + 10 and result.summary["used"]["uploads"] >= 40
        assert list(metrics["mine/gap"]) == list(0.9 - metrics["test/accuracy"]) and metrics["mine/norm"].min() > 0
        lines = (result.directory / "lines.txt").read_text().splitlines()
        assert lines[-1] == f"{metrics['iteration'].iloc[-1]} {metrics['mine/gap'].iloc[-1]:.3f}"
    assert report(["--config-dir", "parts", "runs", "--metric", "mine/gap"]) == 0
    assert set(load_runs("runs")["budget.target_accuracy"]) == {0.8}
