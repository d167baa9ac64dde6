"""Seeds by looks: which runs each look begins, when it ends, what a repeated command finds, and what is refused."""

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from asyncfl_bench import sweep
from asyncfl_bench.analysis import verdicts
from asyncfl_bench.analysis.decisions import Subject
from asyncfl_bench.analysis.verdicts import claims_of_sweep
from asyncfl_bench.config.settings import RESULTS_VERSION
from asyncfl_bench.errors import EXIT_INTERRUPTED
from asyncfl_bench.multirun import decide, pending, questions
from asyncfl_bench.multirun.pending import SweepResult
from asyncfl_bench.multirun.run import plan_multirun
from asyncfl_bench.reports.cli import main as report
from asyncfl_bench.tracking.archive import pack_archive

GRID = ["-m", "scale=smoke", "model=softmax", "algorithm=ace,asgd,fedbuff"]
WOBBLE = (0.0, 1.0, -1.0, 2.0, -2.0, 1.5, -1.5, 0.5)


def leave(settings, accuracy, **summary):
    """The files of a finished run whose accuracy [%] is the same at each of 20 server iterations."""
    settings.directory.mkdir(parents=True, exist_ok=True)
    (settings.directory / "config.yaml").write_text(OmegaConf.to_yaml(settings.tree))
    judged = {"test/accuracy": accuracy / 100, "test/loss": 1.0}
    points = [
        {"iteration": t, "uploads": 10 * t, "client_steps": t, "virtual_time": t, "wall_time": t} for t in range(21)
    ]
    (settings.directory / "metrics.jsonl").write_text("".join(json.dumps(one | judged) + "\n" for one in points))
    used = {"server_iterations": 20, "uploads": 200, "client_steps": 20, "virtual_time": 20.0}
    known = {"identity": settings.identity, "experiment": settings.experiment, "name": settings.name, "error": None}
    known |= {"algorithm": settings.choices["algorithm"], "dataset": settings.choices["dataset"], "used": used}
    known |= {"results_version": RESULTS_VERSION, "exit_status": "ok", "wall_seconds": 60.0, "stopped_by": "uploads"}
    known |= {"final": judged, "best": judged, "task": {"classes": 10, "test_samples": 360}}
    (settings.directory / "summary.json").write_text(json.dumps(known | summary))


class Runner:
    """Stands for Hydra and its launcher: leaves the planned runs. launched: the runs of each look."""

    def __init__(self):
        self.launched, self.arguments, self.fails, self.stops_after = [], [], set(), None
        self.means = {"ace": 80.0, "asgd": 40.0, "fedbuff": 76.0}
        self.summary = {}

    def accuracy(self, settings):
        wobble = WOBBLE[settings.root.seed % 8] * (settings.choices["algorithm"] == "fedbuff")
        return self.means.get(settings.choices["algorithm"], 50.0) + wobble

    def __call__(self, arguments):
        self.arguments.append(arguments)
        jobs = pending.state.planned
        self.launched.append([f"{job.settings.choices['algorithm']} {job.settings.root.seed}" for job in jobs])
        begun = jobs if self.stops_after is None else jobs[: self.stops_after]
        for job in begun:
            if f"{job.settings.choices['algorithm']} {job.settings.root.seed}" not in self.fails:
                steps = {"default_steps": True} if job.settings.default_steps else {}
                leave(job.settings, self.accuracy(job.settings), **steps, **self.summary)
        failed = [(job, "failed: no data") for job in begun if not job.settings.directory.exists()]
        pending.state.result = SweepResult(len(jobs), failed, [])
        return EXIT_INTERRUPTED if self.stops_after is not None else int(bool(failed))


@pytest.fixture
def runner(monkeypatch):
    found = Runner()
    monkeypatch.setattr("asyncfl_bench.multirun.run.run_hydra", found)
    return found


def looks(text):
    return [line for line in text.splitlines() if line.startswith("look ")]


@pytest.mark.slow
def test_only_methods_of_open_pairs_get_the_seeds_of_the_next_look(runner, afl_run):
    answer = afl_run(*GRID, "decide=true", "decide.compare=ace")
    assert answer.returncode == 0, answer.stderr
    first, second = runner.launched
    assert sorted(first) == sorted(f"{name} {seed}" for name in ("ace", "asgd", "fedbuff") for seed in range(3))
    assert sorted(second) == ["ace 3", "ace 4", "fedbuff 3", "fedbuff 4"]  # t = 5.66 at 3 and at 5 seeds: 7.91, 5.25
    assert looks(answer.stdout) == [
        "look 1, 3 seeds: 1 of 2 pairs decided (ACE above vanilla ASGD); 4 runs next",
        "look 2, 5 seeds: 2 of 2 pairs decided (ACE above FedBuff); no runs next",
    ]
    said = "the step sizes of ace, asgd, fedbuff are defaults, neither chosen nor searched"
    last = answer.stdout.splitlines()[-1]
    assert last.startswith(said) and last.endswith(": afl-run sweep=tune algorithm=ace,asgd,fedbuff")


@pytest.mark.slow
def test_seeds_of_one_method_from_cpus_of_two_makers_are_said(runner, afl_run, monkeypatch):
    runner.summary = {"executor": "batched", "device": "cpu (Intel(R) Xeon(R) Processor, 2 cores)"}
    first = afl_run(*GRID, "decide=ace", "output_dir=first")
    assert first.returncode == 0 and "makers" not in first.stderr and "CPUs of" not in first.stderr
    leave_next, call = [{**runner.summary, "device": "cpu (AMD EPYC, 2 cores)"}], Runner.__call__

    def on_another_machine(self, arguments):
        code = call(self, arguments)
        self.summary = leave_next[0]
        return code

    monkeypatch.setattr(Runner, "__call__", on_another_machine)
    answer = afl_run(*GRID, "decide=ace")
    assert answer.returncode == 0 and "seeds of ace, fedbuff are from CPUs of AMD and Intel" in answer.stderr


@pytest.mark.slow
def test_a_repeated_command_finds_its_looks_and_ends_with_the_same_table(runner, afl_run, monkeypatch, tmp_path):
    whole = afl_run(*GRID, "decide=ace", "output_dir=whole")
    expected, runner.launched = runner.launched, []
    runner.stops_after = 5
    stopped = afl_run(*GRID, "decide=ace")
    assert stopped.returncode == EXIT_INTERRUPTED and "the same command resumes at this look" in stopped.stderr
    runner.stops_after = None
    again = afl_run(*GRID, "decide=ace")
    assert again.stdout == whole.stdout
    assert runner.launched[0] == expected[0] and runner.launched[1:] == [expected[0][5:], expected[1]]
    nothing_left = afl_run(*GRID, "decide=ace")
    assert len(runner.launched) == 3 and looks(nothing_left.stdout)[-1] == looks(whole.stdout)[-1]
    pack_archive(["runs"], "results/packed.parquet")
    shutil.rmtree("runs")
    archived = afl_run(*GRID, "decide=ace")
    assert len(runner.launched) == 3 and archived.stdout.splitlines()[2:] == whole.stdout.splitlines()[2:]


@pytest.mark.slow
def test_ties_are_decided_by_the_margin_and_pairs_at_chance_get_no_seeds(runner, afl_run):
    runner.means |= {"ace": 11.0, "asgd": 12.0, "fedbuff": 12.0}
    answer = afl_run(*GRID, "decide=true", "decide.tie=30")
    assert len(runner.launched) == 1 and "0 of 3 pairs decided; no runs next" in answer.stdout
    assert answer.stdout.count("open: at chance") == 3
    planned = afl_run(*GRID, "decide=true", "decide.tie=30", "--plan").stdout
    assert "no runs: more seeds decide none of these pairs" in planned and "about 0" not in planned
    runner.summary = {"exit_status": "diverged"}
    answer = afl_run(*GRID, "decide=true", "output_dir=diverged")
    assert len(runner.launched) == 2 and answer.stdout.count("open: at chance") == 3
    runner.summary = {}
    runner.means |= {"ace": 77.0, "asgd": 76.5, "fedbuff": 76.0}
    answer = afl_run(*GRID, "decide=true", "decide.tie=30", "output_dir=others")
    assert len(runner.launched) == 3  # ACE's lead of 0.5 excludes zero, which comes before a tie
    assert "3 of 3 pairs decided (ACE ties with FedBuff; ACE above vanilla ASGD; FedBuff ties with vanilla ASGD)" in (
        answer.stdout
    )


@pytest.mark.slow
def test_hours_count_the_new_runs_of_the_command_and_of_those_before_it(runner, afl_run):
    (job,) = plan_multirun(["scale=smoke", "model=softmax", "algorithm=ace", "seed=0"])[0]
    leave(job.settings, 80.0, wall_seconds=3600.0)  # was there before
    runner.summary = {"wall_seconds": 900.0}
    words = [*GRID, "decide=ace"]
    stopped = afl_run(*words, "decide.hours=2.5")
    assert (stopped.returncode, len(runner.launched)) == (0, 1)
    assert (
        "decide.hours=2.5: 2 are spent, the next runs take about 1, so look 2 waits with 4 runs; more hours resume"
    ) in stopped.stderr
    assert "open: needs about" in stopped.stdout
    afl_run(*words, "decide.hours=2.5")
    assert len(runner.launched) == 1
    afl_run(*words, "decide.hours=8")
    assert len(runner.launched) == 2


@pytest.mark.slow
def test_a_pair_waits_at_its_look_for_a_run_that_failed_and_the_next_command_runs_it(runner, afl_run):
    whole = afl_run(*GRID, "decide=true", "output_dir=whole")
    expected, runner.launched = runner.launched, []
    runner.fails = {"fedbuff 1"}
    answer = afl_run(*GRID, "decide=true")
    assert answer.returncode == 1 and runner.launched == expected[:1]  # the look with two seeds of FedBuff adds none
    assert "2 of 3 pairs wait for failed runs; the same command tries them" in answer.stderr
    assert looks(answer.stdout) == ["look 1, 3 seeds: 1 of 3 pairs decided (ACE above vanilla ASGD); no runs next"]
    runner.fails = set()
    again = afl_run(*GRID, "decide=true")
    assert runner.launched[1:] == [["fedbuff 1"], *expected[1:]] and again.stdout == whole.stdout


@pytest.mark.slow
def test_the_plan_projects_the_seeds_that_open_pairs_need(runner, afl_run):
    assert (
        "look 1, 3 seeds: about 9 runs\nlook 2, 5 seeds: about 6 runs" in afl_run(*GRID, "decide=ace", "--plan").stdout
    )
    assert not Path("runs").exists()
    runner.stops_after = 9
    afl_run(*GRID, "decide=ace")
    text = afl_run(*GRID, "decide=ace", "--plan").stdout
    assert text.startswith(
        "2 pairs, 1 of them decided\n  ACE - FedBuff: needs about 5 seeds\nlook 2, 5 seeds: about 4 runs"
    )
    assert "until look 5 about 4 runs\ntime: about 0:04:" in text
    assert len(runner.launched) == 1
    two = ["-m", "scale=smoke", "model=softmax", "algorithm=ace,asgd", "decide=true", "--plan"]
    assert afl_run(*two).stdout.startswith("1 pair, 1 of them decided")


@pytest.mark.slow
def test_the_settings_that_are_swept_make_cells_and_keep_what_is_decided_apart(runner, afl_run, monkeypatch):
    def accuracy(settings):
        slow = settings.choices["delay"] == "exp_beta30"
        return 40.0 if settings.choices["algorithm"] == "asgd" and not slow else 60.0 + WOBBLE[settings.root.seed % 8]

    monkeypatch.setattr(runner, "accuracy", accuracy)
    words = ["-m", "scale=smoke", "model=softmax", "algorithm=ace,asgd", "delay=exp_beta5,exp_beta30", "decide=ace"]
    answer = afl_run(*words)
    assert "2 of 2 pairs decided (ACE above vanilla ASGD, β = 5; ACE ties with vanilla ASGD, β = 30)" in answer.stdout
    assert re.search(r"ACE - vanilla ASGD +β = 30 +\+0\.00 +\[\+0\.00, \+0\.00\] ACE ties", answer.stdout)


@pytest.mark.slow
def test_a_report_on_the_folder_judges_by_looks_and_shows_them(runner, afl_run, capsys):
    afl_run(*GRID, "decide=ace")
    assert report(["runs"]) == 0
    page = Path("runs/report/README.md").read_text()
    assert "decide=true chose the seeds" in page
    assert re.search(
        r"\| ACE - FedBuff +\| +\+4\.00 \| +\[\+0\.29, \+7\.71\] \| +ACE above FedBuff \| +2 \| +5 \|", page
    )
    assert report(["runs", "--where", "algorithm=ace"]) == 0  # a page of one method has no pair
    next(Path("runs").glob("decide-*.json")).write_text("{}")
    assert report(["runs"]) == 1
    assert "remove it, and repeat afl-run … decide=true" in capsys.readouterr().err
    planned = afl_run(*GRID, "decide=ace", "--plan")
    assert planned.returncode and "remove it, and repeat" in planned.stderr


@pytest.mark.slow
def test_the_margin_in_points_is_not_a_margin_of_losses(runner, afl_run):
    afl_run(*GRID, "decide=ace")
    assert report(["runs", "--metric", "test/loss"]) == 0
    page = Path("runs/report/README.md").read_text()
    assert "Ranked by test loss" in page and "Tie: within" not in page and "band: ± 1" not in page


@pytest.mark.slow
def test_a_sweep_in_python_returns_the_runs_of_all_looks(runner):
    found = sweep(algorithm=["ace", "asgd", "fedbuff"], scale="smoke", model="softmax", decide="ace")
    assert len(found) == 13 and all(result.ok for result in found)


@pytest.mark.slow
def test_no_word_of_decide_reaches_the_runs_and_the_launcher_is_kept(runner, afl_run):
    afl_run(*GRID[:3], "algorithm=ace,asgd", "decide=true", "hydra.sweeper.max_batch_size=4")
    assert runner.arguments[0][:2] == ["-m", "scale=smoke"] and "hydra.sweeper.max_batch_size=4" in runner.arguments[0]
    assert not [text for text in runner.arguments[0] if "decide" in text or "seed" in text]
    planned = plan_multirun([*GRID[1:3], "algorithm=ace", "seed=0"])[0]
    assert planned[0].settings.directory.exists()  # the identity of a run without decide


@pytest.mark.parametrize("status", ["ok", "diverged"])
def test_runs_of_another_results_version_are_named_and_not_mixed(runner, afl_run, status):
    (job,) = plan_multirun(["scale=smoke", "model=softmax", "algorithm=ace", "seed=7"])[0]
    leave(job.settings, 80.0, results_version=2, exit_status=status)
    answer = afl_run(*GRID, "decide=ace")
    assert answer.returncode == 2 and not runner.launched
    assert "output_dir=runs: has 1 run of this multirun by results version 2, and this is 3" in answer.stderr


@pytest.mark.slow
def test_runs_on_other_data_are_named_and_not_mixed(runner, afl_run):
    runner.summary = {"data_digest": "d1"}
    afl_run(*GRID, "decide=ace")
    summary = next(Path("runs").glob("ace-*-seed1-*")) / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"data_digest": "d2"}))
    answer = afl_run(*GRID, "decide=ace")
    assert answer.returncode == 2 and "cannot be compared, the first (other data): runs/ace-" in answer.stderr


@pytest.mark.slow  # plans five methods in four cells, seed by seed
def test_claims_of_a_sweep_get_seeds_until_each_is_decided_or_hopeless(runner, afl_run):
    runner.means |= {"ca2fl": 60.0, "delay_adaptive_asgd": 79.0}
    wobbling = runner.accuracy
    runner.accuracy = lambda settings: (
        wobbling(settings)
        + WOBBLE[settings.root.seed % 8] * (settings.choices["algorithm"] == "delay_adaptive_asgd") / 2
    )
    words = ["sweep=ace/figure2", "scale=smoke", "delay=exp_beta5"]
    answer = afl_run(*words, "decide=true", "decide.claims=ace/figure2-ace-first")
    assert answer.returncode == 0, answer.stderr
    assert len(runner.launched[0]) == 5 * 2 * 3  # all methods of two cells, three seeds
    open_at_2, open_at_3 = ({name.split()[0] for name in look} for look in runner.launched[1:])
    assert open_at_2 == {"ace", "fedbuff", "delay_adaptive_asgd"}  # 20 and 40 points are decided at look 1
    assert open_at_3 == {"ace", "delay_adaptive_asgd"}
    assert looks(answer.stdout) == [
        "look 1, 3 seeds: 0 of 1 claims decided; 12 runs next",
        "look 2, 5 seeds: 0 of 1 claims decided; 12 runs next",
        "look 3, 8 seeds: 1 of 1 claims decided (ace/figure2-ace-first holds); no runs next",
    ]
    assert "8 of 8 as claimed; ACE - delay-adaptive ASGD, α = 0.1, β = 5: +0.97 points" in answer.stdout
    assert "the page: afl-report ace/figure2 --profile published --scale smoke" in answer.stdout
    assert report(["runs/ace/figure2/published-smoke"]) == 0
    assert "## Decisions" in Path("runs/ace/figure2/published-smoke/report/README.md").read_text()


@pytest.mark.slow
def test_a_changed_claim_starts_at_new_seeds(runner, afl_run, monkeypatch):
    for module in (verdicts, questions):
        monkeypatch.setattr(module, "seen_seeds", lambda sweep, scale: 3)
    changed = [replace(one, changed=True) for one in claims_of_sweep("ace/figure2") if one.id == "figure2-ace-first"]
    for module in (verdicts, questions, decide):
        monkeypatch.setattr(module, "claims_of_sweep", lambda sweep: changed)
    runner.means |= {"ca2fl": 60.0, "delay_adaptive_asgd": 50.0, "fedbuff": 30.0}
    words = ["sweep=ace/figure2", "scale=smoke", "delay=exp_beta5", "heterogeneity.alpha=0.1"]
    answer = afl_run(*words, "decide=true", "decide.claims=figure2-ace-first")
    seeds = [{int(name.split()[1]) for name in look} for look in runner.launched]
    assert seeds == [{3, 4, 5}]
    assert looks(answer.stdout) == [
        "look 1, 3 seeds: 1 of 1 claims decided (ace/figure2-ace-first holds); no runs next"
    ]


def test_a_subject_wants_the_seeds_of_a_look_from_its_first_seed_on():
    new = Subject("claim", "", "no runs", frozenset({"one", "other"}), first_seed=3, is_begun=False)
    assert new.wanted_runs(3) == {(name, seed) for name in ("one", "other") for seed in (3, 4, 5)}
    decided = Subject("claim", "claim holds", "", frozenset({"one"}))
    assert not decided.wanted_runs(3) and not decided.wanted_runs(20)


@pytest.mark.slow
@pytest.mark.process  # kill -9 of the command
def test_killed_after_a_look_and_repeated_it_decides_the_same(afl_run):
    words = [
        "-m",
        "scale=smoke",
        "model=softmax",
        "algorithm=asgd,fedbuff",
        "progress=false",
        "decide.tie=60",  # look 1 has +5 +- 87 points, look 2 has +3 +- 33
        "decide=true",
    ]
    whole = afl_run(*words, "output_dir=whole")
    assert whole.returncode == 0 and "look 2, 5 seeds: 1 of 1 pairs decided" in whole.stdout
    command = [sys.executable, "-m", "asyncfl_bench", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("look 1"):
                break
        process.send_signal(signal.SIGKILL)
    finished = len(list(Path("runs").glob("*/summary.json")))
    again = afl_run(*words)
    assert again.returncode == 0 and 6 <= finished < len(list(Path("runs").glob("*/summary.json")))

    def said(text):
        return [line for line in text.splitlines() if not line.startswith("[")]

    assert said(again.stdout) == said(whole.stdout)
    names = [{path.parent.name for path in Path(folder).glob("*/summary.json")} for folder in ("runs", "whole")]
    assert names[0] == names[1]
