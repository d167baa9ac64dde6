"""Observers of the group `observers`: what they measure is logged, in sweeps too, and survives an interruption."""

import json
import sys
from pathlib import Path

import pytest

from asyncfl_bench import Observer, load_points, load_runs, run, sweep
from asyncfl_bench.reports.cli import main as report

SOURCE = """from asyncfl_bench import Observer

class Lost(Observer):
    state_names = ("seen",)

    def __init__(self, scale: float = 1.0):
        self.scale, self.seen = scale, 0

    def arrived(self, upload, changed, time):
        self.seen += 1

    def measure(self, point):
        return {"mine/seen": self.scale * self.seen, "mine/gap": 1 - point["test/accuracy"]}

class Plain:
    pass
"""
QUICK = {"scale": "smoke", "progress": False, "model": "softmax"}


def write_parts(tmp_path, monkeypatch) -> Path:
    (tmp_path / "observers_of_mine.py").write_text(SOURCE)
    folder = tmp_path / "parts" / "observers"
    folder.mkdir(parents=True)
    (folder / "lost.yaml").write_text("# Mine\nlost:\n  _target_: observers_of_mine.Lost\n  scale: 2 # factor\n")
    (folder / "plain.yaml").write_text("# No observer\nplain:\n  _target_: observers_of_mine.Plain\n")
    (folder / "flat.yaml").write_text("# No section\n_target_: observers_of_mine.Lost\n")
    monkeypatch.delitem(sys.modules, "observers_of_mine", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return folder.parent


@pytest.fixture
def parts(tmp_path, monkeypatch) -> Path:
    return write_parts(tmp_path, monkeypatch)


@pytest.mark.slow
def test_what_an_observer_measures_is_in_the_metrics_the_trackers_and_the_reports(parts):
    words = QUICK | {"algorithm": "fedbuff", "observers": "lost", "tracking": "csv", "config_dir": parts}
    (result,) = sweep(**words)
    metrics = result.metrics
    assert list(metrics["mine/seen"]) == [2.0 * uploads for uploads in metrics["uploads"]]
    assert list(metrics["mine/gap"]) == list(1 - metrics["test/accuracy"])
    assert "mine/seen" in (result.directory / "metrics.csv").read_text().partition("\n")[0]
    assert load_points(load_runs("runs"))["mine/seen"].iloc[-1] == 2 * result.summary["used"]["uploads"]
    assert report(["runs", "--metric", "mine/gap", "--config-dir", str(parts)]) == 0
    assert f"{metrics['mine/gap'].iloc[-1]:.4f}" in Path("runs/report/README.md").read_text()
    (again,) = sweep(**words)
    assert again.summary["already_complete"]


@pytest.mark.slow
def test_it_changes_no_identity_and_a_finished_run_without_it_is_run_again(parts):
    without = run(**QUICK)
    measured = run(observers=["lost"], config_dir=parts, **QUICK)
    assert measured.summary["identity"] == without.summary["identity"]
    assert "already_complete" not in measured.summary and "mine/gap" in measured.metrics
    assert list(measured.metrics["test/loss"]) == list(without.metrics["test/loss"])
    assert run(**QUICK).summary["already_complete"]


def test_a_resumed_observer_has_the_state_it_had(parts):
    words = {"observers": "lost", "config_dir": parts} | QUICK
    first = run({"budget.uploads": 60}, **words)
    text = (first.directory / "config.yaml").read_text()
    assert "observers_of_mine.Lost" in text
    longer = run({"resume": str(first.directory), "budget.uploads": 120}, config_dir=parts)
    assert list(longer.metrics["mine/seen"]) == [2.0 * uploads for uploads in longer.metrics["uploads"]]


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"test/accuracy": 1.0}, "Wrong.measure: test/accuracy=1.0: the name is taken; write wrong/test/accuracy"),
        ({"mine/accuracy": 44.0}, "must be a share, 0 to 1, as its name ends in accuracy"),
        ({"mine/x": "high"}, "Wrong.measure: mine/x='high': must be a number"),
    ],
)
def test_what_cannot_be_logged_ends_the_run_with_one_line(measured, said):
    class Wrong(Observer):
        def measure(self, point):
            return measured

    result = run(observers=[Wrong()], **QUICK)
    assert said in json.loads((result.directory / "summary.json").read_text())["error"]
    assert not result.ok
