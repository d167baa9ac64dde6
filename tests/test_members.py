"""Runs that share a process leave the files that they leave alone, also if one fails, is stopped or is killed."""

import copy
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pandas as pd
import pytest
import torch
from fake_graph import FakeGraphs, use_fake_graphs
from members_process import MEMBERS, settings_of_members

from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.clients.run_group import RunGroup
from asyncfl_bench.errors import EXIT_INTERRUPTED, BenchError, RunTooLarge
from asyncfl_bench.experiment import RunResult, build, execute
from asyncfl_bench.files import read_yaml
from asyncfl_bench.multirun import members, probe
from asyncfl_bench.multirun.jobs import Job
from asyncfl_bench.multirun.members import run_members
from asyncfl_bench.multirun.preview import preview_jobs
from asyncfl_bench.multirun.probe import RunSize, choose_room, try_to_build

TIMES = ("wall_time", "wall_seconds", "updates_per_second")
FAILING, STOPPED = 3, 1
GIB = 2**30


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of the same runs, one after another."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patched:
        use_fake_graphs(patched, FakeGraphs())
        assert all(execute(one).ok for one in settings_of_members(folder))
    return folder


def content_of(directory: Path) -> dict[str, object]:
    """What is in each file of a run, without what differs by time and place; of checkpoints that there is one."""
    found: dict[str, object] = {path.name: None for path in directory.iterdir()}
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    found["metrics.jsonl"] = [{key: value for key, value in line.items() if key not in TIMES} for line in lines]
    summary = json.loads((directory / "summary.json").read_text())
    found["summary.json"] = [summary[key] for key in ("final", "best", "used", "arrivals", "identity", "exit_status")]
    found["config.yaml"] = read_yaml(directory / "config.yaml") | {"output_dir": ""}
    found["trace.parquet"] = pd.read_parquet(directory / "trace.parquet").to_dict("list")
    weights = torch.load(directory / "model_final.pt", weights_only=True)
    return found | {"model_final.pt": {name: one.tolist() for name, one in weights.items()}}


def assert_same_runs(folder: Path, alone: Path, numbers=(0, 1, 2, 3, 4, 5, 6, 7)):
    for one, other in [*zip(settings_of_members(folder), settings_of_members(alone), strict=True)]:
        if one.root.seed in numbers:
            assert content_of(one.directory) == content_of(other.directory), one.name


@pytest.mark.slow
def test_one_that_fails_and_one_that_is_stopped_leave_the_files_of_the_others(tmp_path, alone, monkeypatch):
    use_fake_graphs(monkeypatch, FakeGraphs())
    receive, compute, built, calls = Asgd.receive, RunGroup.compute, {}, Counter()
    build_run = build.build_run

    def note(settings):
        return built.setdefault(settings.root.seed, build_run(settings))

    def fail(self, *given, **named):
        calls["failing"] += 1
        if calls["failing"] == 5:
            raise ValueError("of this run alone")
        return receive(self, *given, **named)

    def stop(self, computer, rows):
        while self.most < 2:  # the first run would end before another is built
            time.sleep(0.001)
        stopped = built.get(STOPPED)
        calls["stopped"] += stopped is not None and computer is stopped.executor.computer
        if calls["stopped"] == 2 and not stopped.stop:
            stopped.stop.received.append(signal.SIGTERM)
        return compute(self, computer, rows)

    monkeypatch.setattr(build, "build_run", note)
    monkeypatch.setattr(RunGroup, "compute", stop)
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


def start_members(folder, *numbers):
    command = [sys.executable, str(Path(__file__).with_name("members_process.py")), str(folder), *map(str, numbers)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    return subprocess.Popen(command, start_new_session=True, **pipes)


def wait_for_checkpoints(process, folder, since=0.0):
    """Wait until three runs were saved."""
    until = time.monotonic() + 300
    while time.monotonic() < until and process.poll() is None:
        if sum(path.stat().st_mtime > since for path in folder.rglob("checkpoint.pt")) > 2:
            return
        time.sleep(0.01)


@pytest.mark.process
@pytest.mark.slow
def test_ctrl_c_saves_the_runs_of_all_processes_and_runs_of_a_killed_one_are_resumed(tmp_path, alone, monkeypatch):
    process = start_members(tmp_path, 4, 2)
    wait_for_checkpoints(process, tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == EXIT_INTERRUPTED and "Traceback" not in err, out + err
    ended = [json.loads(path.read_text())["exit_status"] for path in tmp_path.rglob("summary.json")]
    assert len(ended) > 2 and {*ended} <= {"interrupted", "ok"}

    process, began = start_members(tmp_path, 8, 1), time.time()
    wait_for_checkpoints(process, tmp_path, began)
    process.kill()
    assert "Traceback" not in process.communicate(timeout=300)[1]
    use_fake_graphs(monkeypatch, FakeGraphs())
    assert {answer["code"] for answer in run_members(settings_of_members(tmp_path), 8)} == {0}
    assert_same_runs(tmp_path, alone)


def made_up_settings(seed):
    return SimpleNamespace(root=SimpleNamespace(seed=seed, precision="fp32"), time_unit="seconds")


def test_processes_that_are_killed_before_their_runs_are_an_error(monkeypatch):
    context = MagicMock(Pipe=multiprocessing.Pipe)
    monkeypatch.setattr(members.multiprocessing, "get_context", lambda method: context)
    with pytest.raises(BenchError, match=r"^2 of 2 processes ended before their runs$"):
        run_members([made_up_settings(seed) for seed in range(3)], 2, 2)
    assert context.Process.call_count == 2


def test_a_run_that_lacks_memory_beside_the_others_is_repeated_alone(monkeypatch, tmp_path):
    calls, gate = [], threading.Barrier(3)

    def execute(settings, **_):
        seed, is_first = settings.root.seed, settings.root.seed not in calls
        calls.append(seed)
        if is_first:
            gate.wait(10)
        if is_first and seed == 1:
            raise RunTooLarge("n_clients", 9, "needs 9 GiB")
        error = "CUDA out of memory" if is_first and seed == 2 else ""
        return RunResult(tmp_path, {"exit_status": "failed" if error else "ok", "error": error})

    monkeypatch.setattr(members, "execute", execute)
    monkeypatch.setattr(members, "closing_line", lambda result, unit: result.summary["error"])
    settings = [made_up_settings(seed) for seed in range(3)]
    assert [answer["code"] for answer in run_members(settings, 3)] == [0, 0, 0]
    assert sorted(calls[:3]) == [0, 1, 2] and calls[3:] == [1, 2]
    calls.clear()
    gate = threading.Barrier(1)
    assert [answer["code"] for answer in run_members(settings[1:2], 3)] == [2] and calls == [1]


def test_a_gpu_gets_as_many_processes_and_runs_as_its_memory_holds():
    def find(free, cores=16, **typed):
        room = choose_room([RunSize(GIB // 2, GIB // 4)] * 100, free * GIB, cores, **typed)
        return room.processes, room.runs, room.reason.partition(";")[0]

    assert find(80) == (7, 15, "at once: 7 processes (limit: pending runs) of 15 runs (limit: rows of a stack)")
    assert find(80, cores=4) == (4, 16, "at once: 4 processes (limit: cores) of 16 runs (limit: rows of a stack)")
    assert find(40) == (3, 16, "at once: 3 processes (limit: memory) of 16 runs (limit: rows of a stack)")
    assert find(6) == (1, 8, "at once: 1 process (limit: memory) of 8 runs (limit: memory)")
    assert find(1)[:2] == (1, 1)
    assert find(6, processes=2) == (2, 2, "at once: 2 processes (limit: as typed) of 2 runs (limit: memory)")
    assert find(80, runs=32) == (4, 32, "at once: 4 processes (limit: pending runs) of 32 runs (limit: as typed)")
    sizes = [RunSize(GIB, 0)] * 9 + [RunSize(40 * GIB, 0)]
    assert (choose_room(sizes, 80 * GIB, 16).runs, choose_room(sizes, 50 * GIB, 16).runs) == (10, 5)


def test_a_plan_says_how_many_runs_a_gpu_has_room_for_and_builds_a_run_of_each_kind(monkeypatch, tmp_path):
    built = []
    monkeypatch.setattr(probe, "try_to_build", lambda one: (built.append(one), try_to_build(one))[1])
    monkeypatch.setattr(probe.machine, "free_memory", lambda device: 2 * GIB)
    settings = settings_of_members(tmp_path, 2)
    settings.append(copy.deepcopy(settings[0]))
    settings[2].choices["algorithm"] = "another"
    jobs = [Job([], one) for one in settings]
    plan = str(preview_jobs(jobs, launcher={"processes": None, "runs": None}))
    assert "at once: 1 process (limit: pending runs) of 3 runs (limit: pending runs); the largest run needs " in plan
    assert [one.root.seed for one in built] == [0, 0]
    typed = probe.find_room({"processes": 2, "runs": 1}, settings)
    assert typed.reason == "at once: 2 processes of 1 run"
