"""Launchers: the presets compose, and joblib and submitit start, lose and go on with real jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import yaml
from omegaconf import OmegaConf

from asyncfl_bench.config import manual
from asyncfl_bench.config.overrides import PRESETS
from asyncfl_bench.config.part_sources import config_directory
from asyncfl_bench.errors import ConfigError, format_value
from asyncfl_bench.files import is_locked
from asyncfl_bench.multirun.axes import sweep_grids
from asyncfl_bench.multirun.jobs import plan
from asyncfl_bench.multirun.launchers import check_numbers, watch_squeue
from asyncfl_bench.tracking.rundir import LOCK_NAME

SWEEP = ["-m", "algorithm=asgd", "scale=smoke", "model=softmax", "progress=false", "output_dir=runs"]
LONG = [*SWEEP, "budget.server_iterations=1000000", "evaluation.every=500", "seed=0"]


@pytest.fixture
def start():
    """Starts the command; what is left of it and of its jobs ends with the test."""
    started = []

    def call(*words):
        command = [sys.executable, "-m", "asyncfl_bench", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, **pipes, start_new_session=True))
        return started[-1]

    yield call
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def summaries(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("runs/*/summary.json"))]


def test_every_preset_says_what_it_is_and_what_each_setting_means():
    folder = config_directory() / "hydra" / "launcher"
    assert {path.stem for path in folder.glob("*.yaml")} == set(PRESETS)
    for path in folder.glob("*.yaml"):
        package, description, *lines = path.read_text().splitlines()
        extra = PRESETS[path.stem][1]
        assert package == "# @package _global_" and (not extra or f"asyncfl_bench[{extra}]" in description)
        for line in lines:
            assert line.endswith(":") or " # " in line or "_target_" in line, f"{path.name}: {line}"


def test_jobs_that_share_a_machine_have_one_thread_each_unless_told_otherwise():
    grid = sweep_grids(["algorithm=ace,asgd", "hydra/launcher=cores"])[0]
    assert grid["threads"] == ["1"] and grid["algorithm"] == ["ace", "asgd"]
    assert sweep_grids(["hydra/launcher=cores", "threads=2"])[0]["threads"] == ["2"]
    assert "threads" not in sweep_grids(["algorithm=ace,asgd"])[0]


@pytest.mark.slow
def test_what_a_launcher_leaves_is_beside_the_runs(tmp_path, afl_run):
    done = afl_run(*SWEEP[:-1], "budget.server_iterations=1", "output_dir=elsewhere")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "elsewhere" / "multirun.yaml").exists() and not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["cores", "slurm_local"])
def test_a_preset_is_checked_with_the_jobs_it_is_to_launch(launcher):
    assert len(plan(["algorithm=ace,asgd", f"hydra/launcher={launcher}"])) == 2


def test_help_shows_the_settings_of_a_launcher():
    shown = manual.describe_choices(["hydra/launcher=slurm"])
    assert (
        shown.startswith("hydra/launcher=slurm: One Slurm job per run")
        and "partition: null # null: the cluster" in shown
    )
    assert "hydra/launcher=cores" in manual.describe_choices(["hydra/launcher"])


def test_the_slurm_preset_asks_for_a_gpu_memory_time_and_requeueing():
    preset = yaml.safe_load((config_directory() / "hydra/launcher/slurm.yaml").read_text())["hydra"]["launcher"]
    assert preset["gpus_per_node"] == 1 and preset["mem_gb"] and preset["timeout_min"]
    assert preset["max_num_timeout"] > 0 and preset["signal_delay_s"] < 60 * preset["timeout_min"]


def plan_with_slurm(monkeypatch, minutes, delay):
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    times = [f"hydra.launcher.timeout_min={minutes}", f"hydra.launcher.signal_delay_s={delay}"]
    return plan(["algorithm=ace,asgd", "hydra/launcher=slurm", *times])


def test_a_time_limit_that_leaves_time_to_work_is_accepted(monkeypatch):
    assert len(plan_with_slurm(monkeypatch, 4, 120)) == 2


@pytest.mark.parametrize(
    ("launcher", "number", "refused"),
    [
        ("cores", "sweeper.max_batch_size", [-1, 0]),
        ("cores", "launcher.n_jobs", [0, "half"]),
        ("ray_local", "launcher.ray.remote.num_cpus", [0, -1, None]),
        ("ray_cluster", "launcher.ray.remote.num_cpus", [-1, "all"]),
    ],
)
def test_a_number_of_parallel_runs_that_cannot_work_is_refused(launcher, number, refused):
    preset = yaml.safe_load((config_directory() / f"hydra/launcher/{launcher}.yaml").read_text())
    hydra = OmegaConf.create(preset).hydra
    check_numbers(hydra)
    for value in [0, None] if launcher == "ray_cluster" else []:  # tasks that need GPUs only, Ray's default
        OmegaConf.update(hydra, number, value)
        check_numbers(hydra)
    for value in refused:
        OmegaConf.update(hydra, number, value)
        with pytest.raises(ConfigError, match=f"hydra.{number}={format_value(value)}: must be "):
            check_numbers(hydra)


def test_jobs_are_followed_by_squeue_without_accounting(tmp_path, monkeypatch, capfd):
    for name, script in {"sacct": "echo disabled >&2; exit 1", "squeue": f"cat {tmp_path}/queue"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    queue, watcher = tmp_path / "queue", watch_squeue(delay_s=60)
    for number in range(3):
        watcher.register_job(f"7_{number}")
    for listed, states in {
        "7_0|RUNNING|a\n7_1|PENDING|\n7_2|OUT_OF_MEMORY|a\n": ("RUNNING", "PENDING", "OUT_OF_MEMORY"),
        "7_1|REQUEUED|\n8|RUNNING|a\n": ("ENDED", "REQUEUED", "ENDED"),
        "": ("ENDED", "ENDED", "ENDED"),
    }.items():
        queue.write_text(listed)
        watcher.update()
        for number, state in enumerate(states):
            assert watcher.get_state(f"7_{number}", mode="cache") == state
            assert watcher.is_done(f"7_{number}", mode="cache") == (state in ("ENDED", "OUT_OF_MEMORY"))
    assert capfd.readouterr() == ("", "")


@pytest.mark.process
@pytest.mark.parametrize("launcher", ["cores", "slurm_local"])
def test_a_diverging_run_is_named_and_the_other_one_finishes(launcher, tmp_path, start):
    words = [*SWEEP, "algorithm=fedbuff", "client.lr=1e38,0.05", f"hydra/launcher={launcher}"]
    sweep = start(*words)
    out, err = sweep.communicate(timeout=200)
    assert sweep.returncode == 1, err
    assert {one["exit_status"] for one in summaries(tmp_path)} == {"ok", "diverged"}
    assert "1 of 2 runs diverged, which counts as finished" in err and "client.lr=1e+38" in err
    assert "[1/2] " in out and "[2/2] " in out
    assert all(one["threads"] == 1 for one in summaries(tmp_path))


@pytest.mark.process
def test_a_run_told_of_its_end_is_saved_and_the_requeued_job_goes_on_from_there(tmp_path, start):
    sweep = start(*LONG, "hydra/launcher=slurm_local")
    metrics = metrics_of_the_run(tmp_path, lines=3)
    job = next((tmp_path / "runs/.submitit").glob("[0-9]*")).name
    process = subprocess.run(["pgrep", "-P", job], capture_output=True, text=True, check=True).stdout
    os.kill(int(process), signal.SIGUSR2)  # what Slurm sends before a job's time is up
    wait_for(lambda: log(tmp_path).count("Starting with") == 2)
    saved = metrics.read_text().splitlines()
    assert (metrics.parent / "checkpoint.pt").exists()

    metrics_of_the_run(tmp_path, lines=len(saved) + 2)
    rows = metrics.read_text().splitlines()
    assert rows[: len(saved)] == saved, "the second process began anew"
    iterations = [json.loads(row)["iteration"] for row in rows]
    assert iterations == sorted(set(iterations))

    sweep.terminate()
    assert sweep.communicate(timeout=100) and sweep.returncode == 75
    assert [one["exit_status"] for one in summaries(tmp_path)] == ["interrupted"]
    assert not is_locked(metrics.parent / LOCK_NAME), "the job outlived the command"


@pytest.mark.process
def test_a_stopped_sweep_over_the_cores_saves_every_run_and_begins_no_other(tmp_path, start):
    sweep = start(*LONG, "seed=0,1,2,3,4,5,6,7,8,9", "hydra/launcher=cores", "hydra.launcher.n_jobs=2")
    metrics_of_the_run(tmp_path, lines=2)
    sweep.terminate()
    _, err = sweep.communicate(timeout=100)
    assert sweep.returncode == 75 and "run the same command again to resume" in err
    assert {one["exit_status"] for one in summaries(tmp_path)} == {"interrupted"}
    assert 1 <= len(summaries(tmp_path)) <= 3
    for run in tmp_path.glob("runs/asgd-*/summary.json"):
        assert (run.parent / "checkpoint.pt").exists()


SLOW_WORKER = """
import os, sys, time
if any("popen_loky" in word for word in sys.orig_argv):
    try:
        os.mkdir("first")
    except FileExistsError:
        open("second", "w").close()
        time.sleep(100)
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_stopped_while_it_loads_does_not_take_the_run_of_another_one(number, tmp_path, start, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(SLOW_WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    sweep = start(*LONG, "seed=0,1,2,3", "hydra/launcher=cores", "hydra.launcher.n_jobs=2")
    metrics_of_the_run(tmp_path, lines=2)
    wait_for((tmp_path / "second").exists)
    os.killpg(sweep.pid, number)  # a terminal's Ctrl-C is for all processes of the command
    _, err = sweep.communicate(timeout=100)
    assert sweep.returncode == 75 and "Traceback" not in err
    assert [one["exit_status"] for one in summaries(tmp_path)] == ["interrupted"]
    assert len([*tmp_path.glob("runs/*/checkpoint.pt")]) == 1


@pytest.mark.process
def test_local_jobs_hear_of_a_ctrl_c_once_from_the_command(tmp_path, start):
    sweep = start(*LONG, "hydra/launcher=slurm_local")
    metrics_of_the_run(tmp_path, lines=2)
    os.killpg(sweep.pid, signal.SIGINT)
    _, err = sweep.communicate(timeout=100)
    assert sweep.returncode == 75 and "Traceback" not in err
    assert [one["exit_status"] for one in summaries(tmp_path)] == ["interrupted"]
    assert "stopping: waiting" in log(tmp_path) and "INT" not in log(tmp_path)


@pytest.mark.process
def test_a_stopped_sweep_under_ray_saves_what_is_under_way(tmp_path, start):
    pytest.importorskip("hydra_plugins.hydra_ray_launcher")
    sweep = start(*LONG, "seed=0,1,2", "hydra/launcher=ray_local", "+hydra.launcher.ray.init.num_cpus=2")
    metrics_of_the_run(tmp_path, lines=2)
    sweep.terminate()
    _, err = sweep.communicate(timeout=100)
    assert sweep.returncode == 75 and "run the same command again to resume" in err
    assert 1 <= len(summaries(tmp_path)) <= 2
    assert {one["exit_status"] for one in summaries(tmp_path)} == {"interrupted"}
    for run in tmp_path.glob("runs/asgd-*/summary.json"):
        assert (run.parent / "checkpoint.pt").exists()


def wait_for(happened):
    until = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.1)


def metrics_of_the_run(folder, lines):
    """The metrics file of a run, as soon as one has so many lines."""

    def long_enough():
        return [path for path in folder.glob("runs/*/metrics.jsonl") if len(path.read_text().splitlines()) >= lines]

    wait_for(long_enough)
    return long_enough()[0]


def log(folder):
    return "".join(path.read_text() for path in folder.glob("runs/.submitit/*/*_log.*"))
