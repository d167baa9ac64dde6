"""The example of parts outside the package, run as docs/howto/extend.md says."""

import shutil
import sys
from pathlib import Path

import pytest

from asyncfl_bench import load_runs, sweep
from asyncfl_bench.reports.cli import main as report

EXAMPLE = Path(__file__).parents[1] / "examples" / "parts"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.slow
def test_the_sweep_of_the_example_runs_with_its_model_metric_tracker_and_diagnostics(folder, afl_run):
    plan = afl_run("--config-dir", "conf", "sweep=widths", "--plan")
    assert plan.returncode == 0 and "12 runs" in plan.stdout
    results = sweep(sweep="widths", scale="smoke", algorithm="ace", config_dir="conf", progress=False)
    assert [result.ok for result in results] == [True, True]
    for result, width in zip(results, (16, 32), strict=True):
        metrics = result.metrics
        assert result.summary["parameters"] == 75 * width + 10 and result.summary["used"]["uploads"] >= 40
        assert list(metrics["mine/gap"]) == list(0.9 - metrics["test/accuracy"]) and metrics["mine/norm"].min() > 0
        lines = (result.directory / "lines.txt").read_text().splitlines()
        assert lines[-1] == f"{metrics['iteration'].iloc[-1]} {metrics['mine/gap'].iloc[-1]:.3f}"
    assert report(["--config-dir", "conf", "runs", "--metric", "mine/gap"]) == 0
    assert set(load_runs("runs")["budget.target_accuracy"]) == {0.8}
