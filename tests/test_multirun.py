"""What a multirun says of itself: before, while it runs, and to a shell that completes its words."""

import json
import os
import queue
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from filelock import FileLock
from omegaconf import OmegaConf

from asyncfl_bench import run
from asyncfl_bench.config import compose
from asyncfl_bench.config.part_sources import using_folders
from asyncfl_bench.config.settings import RESULTS_VERSION
from asyncfl_bench.data.datasets import Digits
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.experiment import machine, memory
from asyncfl_bench.experiment.memory import MemoryNeeds
from asyncfl_bench.experiment.preflight import Found, Preflight
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.layers import Size
from asyncfl_bench.multirun import pending, preview, probe
from asyncfl_bench.multirun.axes import sweep_name
from asyncfl_bench.multirun.jobs import plan
from asyncfl_bench.multirun.launchers import workers_of
from asyncfl_bench.multirun.pending import SweepProgress, SweepResult, describe_failures, finished_paths
from asyncfl_bench.multirun.preview import (
    RunCost,
    describe_measured_time,
    estimate_cost,
    measured_seconds,
    past_runs,
    preview_jobs,
)
from asyncfl_bench.multirun.run import describe_best_trials
from asyncfl_bench.tracking.archive import pack_archive
from asyncfl_bench.tracking.progress_bar import clock_text

ROOT = Path(__file__).parents[1]
GRID = ["algorithm=ace,asgd", "seed=0,1", "scale=smoke", "model=softmax"]


def describe_plan(*args, **more):
    return str(preview_jobs(*args, **more))


def estimate_runs(settings):
    return preview.estimate_runs(settings, past_runs(settings))


def leave(job, **summary):
    """The files that a run leaves."""
    job.settings.directory.mkdir(parents=True, exist_ok=True)
    settings = job.settings
    (settings.directory / "config.yaml").write_text(OmegaConf.to_yaml(settings.tree))
    point = {"iteration": 7, "test/accuracy": 0.5, "test/loss": 1.0}
    (settings.directory / "metrics.jsonl").write_text(json.dumps(point) + "\n")
    known = {"identity": settings.identity, "results_version": 3, "name": settings.name, "stopped_by": "uploads"}
    known |= {"experiment": settings.experiment, "algorithm": settings.choices["algorithm"], "dataset": "digits"}
    used = {"server_iterations": 7, "uploads": 70, "client_steps": 70, "virtual_time": 7.0}
    judged = {"test/accuracy": 0.5, "test/loss": 1.0}
    measured = {"final": judged, "best": {**judged, "test/accuracy": 0.75}, "used": used}
    content = known | measured | {"exit_status": "ok", "error": None, "wall_seconds": 2.0} | summary
    path = job.settings.directory / "summary.json"
    path.write_text(json.dumps(content))
    os.utime(path, ns=(1, len(content) + job.settings.root.seed))


def test_each_run_has_one_line_with_its_number_what_tells_it_apart_and_the_time_left(capsys):
    jobs, now = plan(GRID), [0.0]
    leave(jobs[0], exit_status="failed", error="an earlier attempt")
    lines = SweepProgress(jobs, jobs, clock=lambda: now[0])
    lines.report_ended()
    assert capsys.readouterr().out == ""
    now[0] = 10.0
    leave(jobs[0], extra=1)
    lines.report_ended()
    lines.report_ended()
    leave(jobs[1], exit_status="diverged", error="not finite, here")
    now[0] = 20.0
    lines.report_ended()
    leave(jobs[2], exit_status="interrupted")
    jobs[3].error = "failed: no data"
    lines.report_ended([jobs[3]])
    assert capsys.readouterr().out.splitlines() == [
        "[1/4] seed=0 algorithm=ace: 50.0 % (best 75.0 %), 2.0 s; 0:00:30 left",
        "[2/4] seed=0 algorithm=asgd: diverged: not finite; 0:00:20 left",
        "[3/4] seed=1 algorithm=ace: interrupted after 7 server iterations; 0:00:07 left",
        "[4/4] seed=1 algorithm=asgd: failed: no data; 0:00:20 in all",
    ]


def test_runs_in_other_processes_are_noticed_while_the_launcher_waits(monkeypatch):
    said: queue.Queue[str] = queue.Queue()  # another thread says it, which capsys.readouterr may lose
    monkeypatch.setattr("asyncfl_bench.multirun.pending.show", said.put)
    monkeypatch.setattr("asyncfl_bench.multirun.pending._SECONDS_BETWEEN_LOOKS", 0.001)
    jobs = plan(GRID)
    lines = SweepProgress(jobs, jobs[2:])
    with lines.watching():
        leave(jobs[3])
        assert said.get(timeout=60).startswith("[3/4] seed=1 algorithm=asgd: ")
        leave(jobs[2])
    assert said.get(timeout=60).startswith("[4/4] seed=1 algorithm=ace: ")


def test_a_plan_counts_what_is_finished_and_takes_times_from_runs_alike():
    jobs = plan([*GRID, "seed=0,1,2"])
    leave(jobs[0], wall_seconds=10)  # ace with seed 0
    text = describe_plan(jobs)
    assert text.startswith("6 runs, 1 of them finished (0 in archives), 5 pending\n")
    assert "\n  seed: 0,1,2\n  algorithm: ace,asgd\n" in text
    # two runs of 10 s, with 0.3 s before each and 4 s before the first
    assert "time: about 0:00:25, one run after another (4 s of it to start, 0% of the rest to evaluate)" in text
    assert "without 3 runs like no finished run; --measure tries them" in text
    leave(jobs[1])
    text = describe_plan(jobs)
    assert "time: about 0:00:29, one run after another" in text and "without" not in text
    assert "disk: unknown, no run alike is finished; " in text  # those left here do not say how large the model is


def test_the_disk_of_a_plan_is_the_sum_of_the_runs_that_it_knows(monkeypatch):
    sizes = iter([(2.0**20, 2.0**20), None, (2.0**19, 2.0**19)])
    monkeypatch.setattr(preview, "_run_bytes", lambda *_: next(sizes))
    preflight = SimpleNamespace(check=lambda settings: Found(), seconds=0.0)
    text = describe_plan(plan(["algorithm=ace", "seed=0,1,2", *GRID[2:]]), preflight=preflight)
    assert "disk: about 1.5 MiB for 2 of 3 runs (unknown for the others); " in text


H100 = "cuda (NVIDIA H100 80GB HBM3)"


def test_a_plan_takes_times_from_the_same_kind_of_device_and_says_what_others_took(monkeypatch):
    jobs = plan([*GRID, "seed=0,1"])
    leave(jobs[0], wall_seconds=364.0, device=H100)
    text = describe_plan(jobs)
    why = "no run alike is finished there (algorithm, data, model and local work; "
    assert f"time: unknown on a CPU for 3 runs, {why}" in text
    assert "); runs alike took elsewhere: 1 run about 0:06:04 on NVIDIA H100 80GB HBM3; --measure tries them\n" in text
    leave(jobs[2], wall_seconds=10.0, device="cpu (AMD EPYC, 2 cores)")
    assert "time: unknown" in describe_plan(jobs), "of the runs left none is ACE's"
    more = plan([*GRID, "seed=0,1,2"])
    text = describe_plan(more)
    assert "time: about 0:00:14, " in text and "without 3 runs like no finished run; --measure" in text
    monkeypatch.setattr(preview, "chosen_kind", lambda choice: "NVIDIA H100 80GB HBM3")
    assert "time: about 0:06:0" in describe_plan(more)


def test_the_disk_of_a_plan_is_the_peak_while_the_runs_are_computed(monkeypatch):
    settings = [job.settings for job in plan(["algorithm=asgd", "seed=0,1,2,3", *GRID[2:], "checkpoint.every=10"])]
    monkeypatch.setattr(memory, "checkpoint_needs", lambda *_: MemoryNeeds(2**20, disk=2**19))
    preflight = SimpleNamespace(check=lambda settings: Found(size=Size(10)), seconds=0.0)
    cost = estimate_cost(settings, workers=2, preflight=preflight)
    state = 1.5 * 2**20
    assert cost.disk_bytes_at_end == pytest.approx(4 * 2 * state, rel=0.02)  # with the checkpoint before the last
    assert cost.disk_bytes - cost.disk_bytes_at_end == 2 * (state + 2**19)  # one being written, and a cache
    assert re.match(r"disk: about 16.. MiB at the peak, 12.. MiB at the end; ", cost.disk) and cost.disk_known_for == 4


def test_the_disk_of_a_plan_is_the_same_before_and_after_the_data_are_there(tmp_path, monkeypatch):
    words = ["algorithm=ace,asgd", "dataset=cifar10", "model=lenet5", "n_clients=4", "heterogeneity=iid"]
    costs: list[RunCost] = []
    for there in (False, True):
        if there:
            y = np.arange(40) % 10
            x = np.zeros((40, 32, 32, 3), np.uint8)
            np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        settings = [job.settings for job in plan([*words, f"data_dir={tmp_path}"])]
        costs.append(estimate_cost(settings, preflight=Preflight()))
    before, after = costs
    assert before.notes[0].startswith("refused: CIFAR10 is missing") and after.notes[0].startswith("data: cifar10")
    assert before.disk_bytes == after.disk_bytes > 4 * 62006 and before.disk_known_for == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["algorithm=asgd", "client.upload=difference", "client.local_steps=50", "budget.uploads=100"], 100 * 1.0),
        (["algorithm=fedbuff", "algorithm.buffer_size=5", "client.local_steps=50"], 500 * 5 * 1.0),
        (["algorithm=ace", "delay=exp_beta1", "n_clients=50", "budget.uploads=1000"], 1000 * 0.02),
        (["algorithm=fedbuff", "client.local_steps=50", "budget.virtual_time=9"], None),
    ],
)
def test_a_trial_of_slow_work_ends_by_the_clock(words, expected, monkeypatch):
    monkeypatch.setattr(probe, "LONGEST", 0.4)
    monkeypatch.setattr(probe, "SECONDS", 0.2)
    gradient, computed = FlatModel.gradient, []
    monkeypatch.setattr(FlatModel, "gradient", lambda *of: (time.sleep(0.02), computed.append(1), gradient(*of))[2])
    found = probe.measure_seconds(compose(["model=softmax", "executor=sequential", "threads=1", *words]))
    assert len(computed) < 60, "two upload's work of 50 steps, or a tick of ACE's first round, is more"
    assert found is None if expected is None else 0.9 * expected < found < 6 * expected  # on a busy machine


def test_a_plan_leaves_out_runs_whose_files_lack_what_is_needed():
    jobs = plan(GRID)
    for job in jobs[:2]:
        leave(job, **({"evaluation_seconds": None} if job is jobs[0] else {}))  # ace and asgd with seed 0
    old = jobs[1].settings.directory / "config.yaml"
    old.write_text(old.read_text().replace("every_uploads", "each_upload"))
    assert estimate_runs([job.settings for job in jobs[2:]]) == [None, None]


def test_a_sweep_may_stop_at_its_first_failure(monkeypatch, capsys):
    jobs, launched = plan(GRID), []
    monkeypatch.setattr(pending, "state", pending.SweepState(planned=jobs))

    def launch(batch, first):
        here = pending.state.current[first : first + len(batch)]
        launched.extend(here)
        for job in here:
            leave(job, **({"exit_status": "failed", "error": "no data"} if job is jobs[1] else {}))
        answers = [{"code": int(job is jobs[1]), "line": "failed: no data", "postponed": False} for job in here]
        return [SimpleNamespace(status=SimpleNamespace(name="COMPLETED"), return_value=one) for one in answers]

    result = pending.run_pending(launch, None, workers=2, stop_at_failure=True)
    assert launched == jobs[:2] and [job for job, _ in result.failed] == [jobs[1]]
    assert "stopped at the first failure: 2 runs not started" in capsys.readouterr().err
    pending.run_pending(launch, 1)
    assert launched[2:] == jobs[1:]


@pytest.mark.parametrize(("changes", "counts"), [({}, True), ({"final": {}}, False), ({"wall_seconds": None}, False)])
def test_a_sweep_runs_again_what_ended_without_its_numbers(changes, counts):
    job = plan(GRID)[1]
    leave(job, **changes)
    assert (job.finished_result() is not None) == counts


def test_a_plan_takes_uploads_in_a_virtual_time_from_runs_with_the_same_availability():
    timed = ["algorithm=asgd", "model=softmax", "scale=smoke", "clock=time", "budget.server_iterations=null"]
    timed += ["budget.virtual_time=70", "availability=suspension"]
    for probability, seconds in ((0.1, 10.0), (0.9, 1.0)):
        leave(plan([*timed, f"availability.probability={probability}"])[0], wall_seconds=seconds)
    jobs = plan([*timed, "seed=1", "availability.probability=0.1,0.5,0.9"])
    often, unknown, seldom = estimate_runs([job.settings for job in jobs])
    assert often.seconds == pytest.approx(10.0) and seldom.seconds == pytest.approx(1.0) and unknown is None


def test_a_plan_says_in_which_runs_a_word_of_the_command_line_changes_nothing():
    words = ["sweep=asyncfeded/figure3", "paper=asyncfeded/synthetic", "availability.probability=0.1", "seed=0"]
    text = describe_plan(plan([*words, "algorithm.staleness_weight=hinge"]))
    ignored = "algorithm.staleness_weight: ignored in 3 of 4 runs; their grid in the sweep file does not list it"
    assert ignored in text and "ignored" not in describe_plan(plan([*words, "client.lr=0.1"]))


@pytest.mark.slow
def test_a_plan_goes_by_runs_that_are_not_its_own(afl_run):
    words = ["scale=smoke", "algorithm=asgd"]
    leave(plan([*words, "model=softmax", "seed=1"])[0], wall_seconds=10.0)
    other_seed = afl_run(*words, "model=softmax", "seed=2", "--plan").stdout
    assert other_seed.startswith("1 run, 0 of them finished") and ", as finished runs alike took" in other_seed
    assert "time: about 0:00:14 (4 s" in describe_plan(plan([*words, "model=softmax", "seed=2"]))
    (fewer,) = plan([*words, "model=softmax", "budget.uploads=35"])
    fewer.settings.root.output_dir = "elsewhere"
    assert "time: unknown" in describe_plan([fewer])
    assert "time: about 0:00:09 (" in describe_plan([fewer], ["runs"])  # the finished one had 70
    assert "time: unknown" in describe_plan(plan([*words, "model=mlp"]), ["runs"])
    timed = ["model=softmax", "clock=time", "budget.server_iterations=null", "budget.virtual_time=70"]
    longer, slower = (plan([*words, *timed, delay]) for delay in ("delay=exp_beta5", "delay=exp_beta30"))
    assert "time: about 0:01:44 (" in describe_plan(longer, ["runs"])  # the finished one had 7
    assert "time: unknown" in describe_plan(slower, ["runs"])  # as many seconds bring others uploads
    pack_archive(["runs"], "results/packed.parquet")
    packed = describe_plan([fewer])
    assert "time: about 0:00:09" in packed and "another machine" in packed


def test_a_plan_takes_time_from_runs_of_the_same_local_work_and_counts_evaluations_and_disk():
    common = ["algorithm=fedbuff", "n_clients=10", "concurrency=10"]

    def estimated(*words):
        (job,) = plan([*common, *words])
        return estimate_runs([job.settings])[0], describe_plan([job], preflight=Preflight())

    used = {"server_iterations": 500, "uploads": 5000, "client_steps": 5000, "virtual_time": 134.0}
    for words, seconds in (([], 2.2), (["client.local_epochs=1"], 30.2)):
        (done,) = plan([*common, *words])
        leave(done, wall_seconds=seconds, evaluation_seconds=0.2, parameters=15010, used=used)
    same, _ = estimated("seed=1")
    assert same.seconds == pytest.approx(2.2) and same.evaluation == pytest.approx(0.2) and same.d == 15010
    longer, text = estimated("budget.server_iterations=1000", "evaluation.every=1")
    assert longer.evaluation == pytest.approx(0.2 * 1001 / 51) and "% of the rest to evaluate" in text
    assert longer.seconds == pytest.approx(2 * 2.0 + longer.evaluation)
    assert re.search(r"disk: about [\d.]+ (KiB|MiB); ", text)
    assert estimated("client.local_epochs=1", "seed=1")[0].seconds == pytest.approx(30.2)
    other = ("client.local_steps=20",), ("client.batch_size=143",), ("model.hidden=[9]",)
    for words in (*other, ("client.local_epochs=1", "n_clients=20")):  # of half as many samples
        found, text = estimated(*words)
        assert found is None and "(algorithm, data, model and local work; " in text and "--measure tries them" in text


@pytest.mark.slow
def test_a_plan_looks_once_and_says_once_what_a_run_would_be_refused_for(monkeypatch, afl_run, tmp_path):
    loads = []
    load = Digits.load
    monkeypatch.setattr(Digits, "load", lambda self, *of: (loads.append(1), load(self, *of))[1])
    fine = afl_run("-m", *GRID, "--plan", "model.hidden=[20]", "model=mlp")
    assert fine.returncode == 0 and "refused" not in fine.stdout and len(loads) == 1
    monkeypatch.setattr(machine, "free_memory", lambda device: 2**20)
    built = []
    monkeypatch.setattr("asyncfl_bench.multirun.probe.try_to_build", built.append)
    small = afl_run("-m", *GRID, "--plan")
    assert small.returncode == 0 and len(built) == 2  # between the bounds the built run decides, once for each rule
    large = afl_run("--plan", "algorithm=ace", "seed=3")
    said = "refused: n_clients=100: vectors of 15010 floats need 6.3 MiB in cpu, where 1.0 MiB are free; "
    assert large.returncode == 2 and large.stdout.splitlines()[-1].startswith(said)
    (tmp_path / "sst2.jsonl").write_text("{")
    texts = ["-m", "algorithm=ace,asgd", "seed=0,1", "model=fasttext", "data_dir=.", "scale=full", "--plan"]
    for words, said in (
        (["dataset=sst2"], "refused: sst2.jsonl, line 1: must be a json object"),
        (["dataset=newsgroups20"], "refused: newsgroups20 is missing. Looked for newsgroups20.jsonl and "),
        (["dataset=newsgroups20", "dataset.download=true"], "data: missing, the first run downloads them (4 runs)"),
    ):
        answer = afl_run(*texts, *words)
        assert answer.stdout.count(said) == 1 and answer.stdout.splitlines()[-1].endswith(" (4 runs)")
        assert answer.returncode == (0 if said.startswith("data") else 2)


@pytest.mark.slow
def test_a_plan_finds_the_checkouts_archives_from_any_directory_and_those_of_a_named_folder(monkeypatch, afl_run):
    words = ["sweep=ace/figure2", "scale=medium", "seed=0", "algorithm=ace", "--plan"]
    monkeypatch.setattr("asyncfl_bench.tracking.archive.checkout_directory", lambda: ROOT)
    first, where = afl_run(*words).stdout.splitlines()[:2]
    assert first == "4 runs, 4 of them finished (4 in archives), 0 pending"
    assert where == f"archives below {os.path.relpath(ROOT / 'results')}; --archive DIR names another folder"
    Path("none").mkdir()
    first, where = afl_run(*words, "--archive", "none").stdout.splitlines()[:2]
    assert "0 of them finished (0 in archives)" in first and where.startswith("archives below none; ")
    monkeypatch.setattr("asyncfl_bench.tracking.archive.checkout_directory", lambda: None)
    assert (
        afl_run(*words).stdout.splitlines()[1].startswith("no archives in results, an installed wheel carries none; ")
    )
    answer = afl_run(*words, "--archive=nowhere")
    assert (answer.returncode, answer.stderr) == (
        2, "afl-run: --archive=nowhere: no such folder; name one with archives of runs (*.parquet)\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "archive", "shown"),
    [
        (["scale=smoke", "model=softmax"], "results/mine.parquet", "results/mine.parquet"),
        pytest.param(
            ["sweep=ace/figure2", "scale=smoke", "algorithm=asgd", "delay=exp_beta5", "heterogeneity.alpha=0.1"],
            "results/ace/archive",
            "ace/figure2 --profile published --scale smoke",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_runs_that_only_an_archive_has_are_said_to_be_there_with_what_shows_them(words, archive, shown, afl_run):
    (job,) = plan(words, sweep_name(words))
    leave(job)
    pack_archive(["runs"], archive)
    shutil.rmtree("runs")
    again = afl_run("-m", *words)
    assert again.returncode == 0 and "in runs" not in again.stderr
    assert f" in {archive}; afl-report {shown} shows" in again.stderr and "rerun=true" in again.stderr


@pytest.mark.slow
def test_a_run_of_another_sweep_below_output_dir_is_not_run_again(afl_run):
    words = ["scale=smoke", "model=softmax", "algorithm=asgd", "seed=0,1"]
    for job in plan(words, "paper/other"):
        leave(job, results_version=job.settings.root.seed + 2)  # seed 0 of an earlier version

    def pending(*more):
        jobs = plan([*words, *more])
        return [job.settings.root.seed for job in jobs if job.finished_result(finished_paths(jobs)) is None]

    assert pending() == pending("hydra.sweep.dir=${output_dir}/paper/mine") == [0]  # whose own folder is beside it
    begun = [job for folder in ("a", "z") for job in plan([*words, "seed=1"], folder)]
    for job in [*plan([*words, "seed=1"]), *begun]:  # nor does what was only begun hide it, wherever that lies
        leave(job, exit_status="interrupted")
    assert pending() == [0]
    assert pending("output_dir=elsewhere") == pending("rerun=true") == pending("trace=true") == [0, 1]
    answer = afl_run("-m", *words)
    assert answer.returncode == 0 and "seed=0" in answer.stdout and "seed=1" not in answer.stdout
    assert "2 runs, 1 of them finished already, 1 of these in runs/paper/other" in answer.stderr


def test_a_printed_command_names_the_folders_and_hydras_settings_of_the_multirun(tmp_path):
    (tmp_path / "conf/delay").mkdir(parents=True)
    (tmp_path / "conf/delay/mine.yaml").touch()
    there = ["--config-dir", str(tmp_path / "conf")]
    words = ["algorithm=asgd", "scale=smoke", "model=softmax", "seed=0,1", "objective=test/accuracy"]
    _, job = plan([*words, f"hydra.sweep.dir={tmp_path}/mine"])
    leave(job)
    with using_folders(there[1:]):
        failed = describe_failures(SweepResult(2, [(job, "killed")], []))
        found = describe_best_trials([replace(job, drawn=("algorithm.c=0.1",))], {})
    alone, tested = (shlex.split(text.splitlines()[-1], comments=True) for text in (failed, found))
    assert alone[:4] == tested[:4] == ["afl-run", *there, "-m"]
    (again,) = plan(alone[4:])
    assert again.settings.directory == job.settings.directory
    assert [word for word in tested if "hydra" in word] == [f"hydra.sweep.dir={tmp_path}/mine-best"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_run_that_diverged_is_not_run_again_wherever_it_lies(packed):
    words = ["scale=smoke", "model=softmax", "algorithm=asgd"]
    (elsewhere,) = plan(words, "paper/other")
    leave(elsewhere, exit_status="diverged", error="not finite", results_version=RESULTS_VERSION)
    if packed:
        pack_archive(["runs"], "results/packed.parquet")
        shutil.rmtree("runs")
    jobs = plan(words)
    result = jobs[0].finished_result(finished_paths(jobs))
    assert result.summary["exit_status"] == "diverged" and result.directory.is_file() == packed


@pytest.mark.parametrize(
    ("launcher", "workers"),
    [
        ({"_target_": "Basic"}, 1),
        ({"n_jobs": 3}, 3),
        ({"array_parallelism": 16}, 16),
        ({"ray": {"init": {"address": "auto"}, "remote": {"num_cpus": 1}}}, 1),
    ],
)
def test_times_are_divided_by_the_runs_that_a_launcher_has_under_way(launcher, workers):
    hydra = OmegaConf.create({"launcher": launcher, "sweeper": {"max_batch_size": None}})
    assert workers_of(hydra) == workers
    hydra.sweeper.max_batch_size = 2
    assert workers_of(hydra) == min(workers, 2)
    jobs = plan([*GRID, "seed=0,1,2,3"])
    leave(jobs[0], wall_seconds=10)
    leave(jobs[1], wall_seconds=10)
    assert f"about {clock_text(4 + 61.8 / min(workers, 6))}" in describe_plan(jobs, workers=workers)


def test_a_measured_plan_tries_each_experiment_once():
    tried = []

    def measure(settings):
        tried.append(settings.experiment)
        return settings.budget.uploads * settings.tree["client"]["local_steps"] / 100

    words = ["algorithm=fedbuff", "scale=smoke", "model=softmax", "client.local_steps=1,10"]
    jobs = plan([*words, "seed=0,1", "budget.uploads=100,10000"])
    settings = [job.settings for job in jobs]
    text = describe_measured_time(settings, measured_seconds(settings, measure), 1)
    assert len(tried) == len(set(tried)) == 4
    assert text.startswith(f"time: about {clock_text(4 + 2 * (1 + 10 + 100 + 1000))}, ") and "4 short trials" in text


def test_the_time_left_knows_of_the_runs_under_way_beside(capsys):
    jobs, now = plan(GRID), [0.0]
    lines = SweepProgress(jobs, jobs, workers=2, clock=lambda: now[0])
    now[0] = 10.0
    leave(jobs[0])
    lines.report_ended()
    assert capsys.readouterr().out.endswith("; 0:00:17 left\n")  # one and a half in 10 s, two and a half left


@pytest.mark.slow
def test_a_plan_is_shown_and_nothing_is_run(tmp_path, afl_run):
    answer = afl_run("-m", *GRID, "--plan")
    assert answer.returncode == 0, answer.stderr
    assert "4 runs, 0 of them finished (0 in archives), 4 pending" in answer.stdout
    assert "time: unknown" in answer.stdout and not (tmp_path / "runs").exists()
    measured = afl_run("-m", *GRID, "--plan", "--measure")
    assert re.search(r"time: about 0:0\d:\d\d, one run after another, by \d short trials? here\n", measured.stdout)
    assert not Path("runs").exists()
    refused = afl_run("--measure", "scale=smoke")
    assert (refused.returncode, refused.stderr) == (2, "afl-run: --measure goes with --plan\n")
    one = afl_run("--plan", "scale=smoke")
    assert one.stdout.startswith("1 run, 0 of them finished")
    assert afl_run("--plan", "-m", "algorithm=ace,aec").returncode == 2


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("afl-run sweep=ace/fig", "sweep=ace/figure2", "sweep=ace/table1"),
        ("afl-run --plan sweep=", "sweep=quickstart/six_algorithms", ""),
        ("afl-run paper=async", "paper=asyncfeded/synthetic", "paper=ace"),
        ("afl-run swe", "sweep=", ""),
        ("afl-run delay=exp_beta", "delay=exp_beta30", "delay=none"),
        ("afl-run --config-dir parts algorithm=m", "algorithm=mine", "algorithm=ace"),
        ("afl-run algorithm=aced algorithm.tau", "algorithm.tau_algo=", ""),
        ("afl-run -m decide=true decide.c", "decide.compare=", "decide.tie="),
        ("afl-run -m decide=true delay=exp_beta", "delay=exp_beta30", "decide="),
    ],
)
def test_the_shell_completes_choices(line, offered, not_offered, tmp_path, monkeypatch, afl_run):
    (tmp_path / "parts/algorithm").mkdir(parents=True)
    (tmp_path / "parts/algorithm/mine.yaml").write_text("# mine\n_target_: mine.Mine\n")
    monkeypatch.setenv("COMP_LINE", line)
    words = afl_run("-sc", "query=bash").stdout.split()
    assert offered in words and not_offered not in words


PAIR = ["-m", "algorithm=asgd", "seed=0,1", "scale=smoke", "model=softmax", "progress=false"]


@pytest.mark.slow
def test_a_job_that_is_refused_after_the_plan_says_why(monkeypatch, afl_run):
    """A setting or a file may have changed while earlier jobs ran."""

    def refuse(*args):
        raise ConfigError("n_clients", 7, "the number of folders, 8")

    monkeypatch.setattr("asyncfl_bench.multirun.run.place_run", refuse)
    done = afl_run("-m", *GRID, "progress=false")
    assert (
        done.returncode == 1 and "seed=0 algorithm=ace: failed: n_clients=7: the number of folders, 8; " in done.stdout
    )


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["ok", "diverged", "killed"])
def test_a_run_of_another_process_is_postponed_and_run_here_unless_it_finished_there(ends, monkeypatch, afl_run):
    first, _ = plan(PAIR[1:])
    folder = first.settings.directory
    folder.mkdir(parents=True)
    lock = FileLock(folder / ".lock")
    lock.acquire()

    def leave_run(seconds):
        if ends != "killed":
            leave(first, exit_status=ends, error="not finite" if ends == "diverged" else None)
        lock.release()

    monkeypatch.setattr("asyncfl_bench.multirun.pending.time", SimpleNamespace(sleep=leave_run))
    answer = afl_run(*PAIR)
    assert answer.returncode == (1 if ends == "diverged" else 0), answer.stderr
    assert "waiting for other processes, which work on 1 run of this sweep\n" in answer.stderr
    later, last = answer.stdout.splitlines()
    assert later.startswith("[1/2] seed=1: ") and last.startswith("[2/2] seed=0: ")
    assert ("50.0 %" in last, "diverged" in last) == (ends == "ok", ends == "diverged")
    assert json.loads((folder / "summary.json").read_text())["exit_status"] == (
        "diverged" if ends == "diverged" else "ok"
    )


def test_a_run_that_another_process_ended_while_this_one_loaded_its_data_is_not_run_again(monkeypatch):
    from asyncfl_bench.experiment import build

    words = ["algorithm=asgd", "scale=smoke", "model=softmax", "progress=false"]
    load, results = build.build_run, []

    def build_late(settings):
        monkeypatch.setattr(build, "build_run", load)
        results.append(run(words))
        return load(settings)

    monkeypatch.setattr(build, "build_run", build_late)
    again = run(words)
    assert again.summary.pop("already_complete") and again.summary == results[0].summary


@pytest.mark.process
@pytest.mark.slow
def test_three_equal_sweeps_started_together_all_succeed_and_run_each_run_once():
    words = [*PAIR[:2], "seed=0,1,2,3", *PAIR[3:], "budget.server_iterations=2000", "evaluation.every=500"]
    command = [sys.executable, "-m", "asyncfl_bench", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, **pipes) for _ in range(3)]
    ends = [(process.communicate(timeout=300), process.returncode) for process in started]
    assert [code for _, code in ends] == [0, 0, 0], ends
    for (out, _), _ in ends:
        assert [line[:5] for line in out.splitlines()] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    folders = [path.parent for path in Path("runs").glob("*/summary.json")]
    assert len(folders) == 4
    points = [
        [json.loads(line)["iteration"] for line in (f / "metrics.jsonl").read_text().splitlines()] for f in folders
    ]
    assert points == [[0, 500, 1000, 1500, 2000]] * 4


@pytest.mark.slow
@pytest.mark.parametrize("words", [["algorithm=ace"], ["algorithm=fedbuff", "trace=true"], ["algorithm=asgd"]])
def test_a_plan_says_how_much_disk_a_run_will_take(words, afl_run):
    """Within a factor of two of a finished run alike, whose time says that one checkpoint is kept."""
    words = [*words, "n_clients=30", "dataset=digits", "model=mlp", "budget.uploads=300", "progress=false"]
    assert afl_run(*words, "seed=1").returncode == 0
    planned = afl_run("-m", *words, "seed=0", "--plan").stdout
    number, unit = re.search(r"disk: about ([\d.]+) (KiB|MiB); ", planned).groups()
    size = sum(path.stat().st_size for path in Path("runs").rglob("*") if path.is_file())
    assert 0.5 < float(number) * {"KiB": 2**10, "MiB": 2**20}[unit] / size < 2, (planned, size)
