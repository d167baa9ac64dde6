"""Runs that share a process leave the files that they leave alone, also if one fails, is stopped or is killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from fake_graph import FakeGraphs, use_fake_graphs
from members_process import MEMBERS, settings_of_members

from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.clients.company import Company
from asyncfl_bench.errors import EXIT_INTERRUPTED
from asyncfl_bench.experiment import build, execute
from asyncfl_bench.multirun.members import run_members

TIMES = ("wall_time", "wall_seconds", "updates_per_second")
FAILING, STOPPED = 3, 1


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of the same runs, one after another."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patched:
        use_fake_graphs(patched, FakeGraphs())
        assert all(execute(one).ok for one in settings_of_members(folder))
    return folder


def numbers_of(directory: Path) -> list[dict]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def assert_same_runs(folder: Path, alone: Path, numbers=(0, 1, 2, 3, 4, 5, 6, 7)):
    for one, other in [*zip(settings_of_members(folder), settings_of_members(alone), strict=True)]:
        if one.root.seed in numbers:
            assert numbers_of(one.directory) == numbers_of(other.directory), one.name
            found, expected = (json.loads((of.directory / "summary.json").read_text()) for of in (one, other))
            assert {key: found[key] for key in ("final", "best", "used", "identity", "exit_status")} == {
                key: expected[key] for key in ("final", "best", "used", "identity", "exit_status")
            }


@pytest.mark.slow
def test_one_that_fails_and_one_that_is_stopped_leave_the_files_of_the_others(tmp_path, alone, monkeypatch):
    use_fake_graphs(monkeypatch, FakeGraphs())
    receive, compute, built, calls = Asgd.receive, Company.compute, {}, Counter()
    build_run = build.build_run

    def note(settings):
        return built.setdefault(settings.root.seed, build_run(settings))

    def fail(self, *given, **named):
        calls["failing"] += 1
        if calls["failing"] == 5:
            raise ValueError("of this run alone")
        return receive(self, *given, **named)

    def stop(self, computer, rows):
        stopped = built.get(STOPPED)
        calls["stopped"] += stopped is not None and computer is stopped.executor.computer
        if calls["stopped"] == 2 and not stopped.stop:
            stopped.stop.received.append(signal.SIGTERM)
        return compute(self, computer, rows)

    monkeypatch.setattr(build, "build_run", note)
    monkeypatch.setattr(Company, "compute", stop)
    monkeypatch.setattr(Asgd, "receive", fail)
    answers = run_members(settings_of_members(tmp_path), 8)
    assert answers[FAILING]["code"] == 1 and "of this run alone" in answers[FAILING]["line"]
    assert answers[STOPPED]["code"] == EXIT_INTERRUPTED
    others = {*range(len(MEMBERS))} - {FAILING, STOPPED}
    assert {answers[number]["code"] for number in others} == {0}
    assert_same_runs(tmp_path, alone, others)
    summary = json.loads((settings_of_members(tmp_path)[0].directory / "summary.json").read_text())
    assert 2 <= summary["shared"] <= 8
    monkeypatch.undo()
    use_fake_graphs(monkeypatch, FakeGraphs())
    assert {answer["code"] for answer in run_members(settings_of_members(tmp_path), 8)} == {0}
    assert_same_runs(tmp_path, alone)


@pytest.mark.process
@pytest.mark.slow
def test_a_process_that_is_killed_resumes_all_its_runs(tmp_path, alone):
    command = [sys.executable, str(Path(__file__).with_name("members_process.py")), str(tmp_path), "8"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    until = time.monotonic() + 120
    while len([*tmp_path.rglob("checkpoint.pt")]) < 3 and time.monotonic() < until and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    again = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert again.returncode == 0 and [line[:2] for line in again.stdout.splitlines()] == ["0 "] * len(MEMBERS), again
    assert_same_runs(tmp_path, alone)
    shutil.rmtree(tmp_path)
