"""The command as a person types it."""

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from crashing import assert_same
from tiers import slow

from asyncfl_bench.errors import ConfigError
from asyncfl_bench.files import cache_folder
from asyncfl_bench.tracking.trackers_wandb import configured_mode

AFL_RUN = ("-m", "asyncfl_bench")


def test_help_shows_every_group_with_its_choices(afl_run):
    shown = afl_run("--help")
    assert shown.returncode == 0
    for group in ("dataset", "delay", "algorithm", "schedule", "availability", "scale"):
        assert re.search(rf"^  {group} .*: \w", shown.stdout, re.M), group
    assert "delay_adaptive_asgd" in shown.stdout and "exp_beta30" in shown.stdout


@pytest.mark.parametrize(
    ("words", "unit"), [([], "ticks"), (["delay=exponential"], "seconds"), (["clock=time"], "ticks")]
)
def test_the_last_line_gives_virtual_time_with_its_unit(words, unit, afl_run):
    words = ["algorithm=asgd", "model=softmax", "scale=smoke", "budget.uploads=2", "progress=false", *words]
    assert re.search(rf"virtual time [\d.]+ {unit},", afl_run(*words).stdout)


@pytest.mark.process
def test_a_locale_of_ascii_alone_runs_helps_and_reports(tmp_path, monkeypatch, afl_process):
    monkeypatch.setenv("LC_ALL", "POSIX")
    monkeypatch.setenv("PYTHONUTF8", "0")  # else Python itself takes UTF-8 in this locale
    answer = afl_process("scale=smoke", "model=softmax", "tracking=csv", "progress=false")
    assert answer.returncode == 0, answer.stderr
    answer = afl_process("--help", "sweep=fedecho/table2")
    assert answer.returncode == 0 and "heterogeneity.alpha" in answer.stdout, answer.stderr
    words = [sys.executable, "-m", "asyncfl_bench.reports.cli", "runs", "--format", "svg", "tex"]
    assert subprocess.run(words, capture_output=True).returncode == 0


@pytest.mark.process
def test_help_loads_no_torch():
    words = [sys.executable, "-X", "importtime", *AFL_RUN, "--help"]
    loaded = subprocess.run(words, capture_output=True, text=True).stderr
    assert re.search(r"\| +asyncfl_bench$", loaded, re.M)
    assert not re.search(r"\| +(torch|pandas|sklearn|hydra)$", loaded, re.M)


def test_a_process_without_a_home_folder_names_what_to_set(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(ConfigError, match=r"XDG_CACHE_HOME=~/\.cache: names the home folder"):
        cache_folder()
    assert configured_mode() is None


@pytest.mark.process
@pytest.mark.parametrize("words", [["algorithm=aec"], ["-m", "algorithm=ace,aec", "seed=0"]])
def test_the_process_ends_with_that_message_and_that_code(words, tmp_path, afl_process):
    answer = afl_process(*words)
    assert (answer.returncode, answer.stdout) == (2, "") and not (tmp_path / "runs").exists()
    assert re.fullmatch(r"afl-run: algorithm=aec: did you mean 'ace'. It must be one of ace, .*\n", answer.stderr)


def test_a_run_ends_with_its_result_and_where_it_lies(tmp_path, afl_run):
    answer = afl_run("scale=smoke", "algorithm=fedbuff")
    assert answer.returncode == 0, answer.stderr
    directory = tmp_path / answer.stdout.rsplit("in ", 1)[1].strip()
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["exit_status"] == "ok" and summary["used"]["server_iterations"] == 20
    assert f"of {summary['parameters']} parameters" in answer.stderr
    assert f"{100 * summary['final']['test/accuracy']:.1f} %" in answer.stdout
    assert answer.stdout.count("\n") == 1
    assert "1437 samples of 10 classes, 10 clients" in answer.stderr  # what it is going to do, before it does it


def test_repeating_a_command_finds_the_finished_run_and_rerun_runs_it_again(afl_run):
    first = afl_run("scale=smoke")
    again = afl_run("scale=smoke")
    forced = afl_run("scale=smoke", "rerun=true")
    assert "done, test accuracy" in first.stdout
    assert "already complete" in again.stdout and again.returncode == 0
    assert "done, test accuracy" in forced.stdout


@pytest.mark.slow
def test_a_grid_runs_every_combination_and_a_failing_run_stops_no_other(tmp_path, afl_run):
    answer = afl_run("-m", "algorithm=asgd,fedbuff", "client.lr=0.1,1e38", "seed=0,1", "scale=smoke", "model=softmax")
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/summary.json")]
    assert len(summaries) == 6  # asgd sends gradients: client.lr is left out of its runs
    status = {(s["algorithm"], s["exit_status"]) for s in summaries}
    # fedbuff at 1e38 leaves the finite numbers
    assert status == {("asgd", "ok"), ("fedbuff", "ok"), ("fedbuff", "diverged")}
    assert answer.returncode == 1
    again = afl_run("-m", "algorithm=asgd,fedbuff", "client.lr=0.1,1e38", "seed=0,1", "scale=smoke", "model=softmax")
    assert again.returncode == 1 and "6 runs, 6 of them finished already" in again.stderr
    for said in (answer.stderr, again.stderr):
        assert "2 of 6 runs diverged" in said and said.count("# diverged: ") == 2 and "did not finish" not in said
    assert "client.lr: left out of 2 of 6 runs (asgd), on which it has no effect" in answer.stderr
    assert "afl-run seed=0 algorithm=fedbuff client.lr=1e+38 scale=smoke model=softmax" in answer.stderr


@pytest.mark.slow
def test_a_repeated_grid_only_runs_what_is_missing(tmp_path, afl_run):
    words = ("-m", "seed=0,1,2", "scale=smoke", "model=softmax")
    assert afl_run(*words).returncode == 0
    paths = sorted((tmp_path / "runs").glob("*/summary.json"))
    before = [path.stat().st_mtime_ns for path in paths]
    paths[1].unlink()
    again = afl_run(*words)
    assert "3 runs, 2 of them finished already" in again.stderr and again.stdout.startswith("[3/3] seed=1: ")
    after = [path.stat().st_mtime_ns for path in paths]
    assert [b == a for b, a in zip(before, after, strict=True)] == [True, False, True]


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_saves_itself_says_how_to_go_on_and_does(number, tmp_path, afl_process):
    words = ["model=softmax", "clock=time", "budget.server_iterations=2000", "evaluation.every=50", "trace=true"]
    whole = afl_process(*words, "output_dir=whole")
    assert whole.returncode == 0, whole.stderr

    process = subprocess.Popen(
        [sys.executable, *AFL_RUN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    metrics = None
    for _ in range(600):
        found = list((tmp_path / "runs").glob("*/metrics.jsonl")) if (tmp_path / "runs").exists() else []
        if found and found[0].read_text().count("\n") >= 3:
            metrics = found[0]
            break
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert metrics is not None and process.returncode == 75, err
    assert "interrupted after" in out and f"afl-run --resume {metrics.parent.relative_to(tmp_path)}" in out

    resumed = afl_process("--resume", str(metrics.parent))
    assert resumed.returncode == 0, resumed.stderr
    other = next((tmp_path / "whole").iterdir())
    assert_same(metrics.parent, other)


@pytest.mark.process
@pytest.mark.parametrize("words", [["algorithm=ace"], ["algorithm=fedbuff", "client.local_steps=2"]])
def test_the_same_command_in_another_process_gives_the_same_bits(words, tmp_path, afl_process):
    for place in ("one", "other"):
        answer = afl_process("scale=smoke", "trace=true", *words, f"output_dir={place}")
        assert answer.returncode == 0, answer.stderr
    assert_same(*(next((tmp_path / place).iterdir()) for place in ("one", "other")))


class Lost(io.TextIOBase):
    """A stream whose reader is gone, or whose disk is full."""

    def __init__(self, number):
        self.number = number

    def write(self, text):
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.EPIPE, *slow(errno.ENOSPC, errno.EIO)])
def test_a_lost_standard_error_ends_no_run(number, tmp_path, monkeypatch, afl_run):
    monkeypatch.setattr(sys, "stderr", Lost(number))
    monkeypatch.setattr("asyncfl_bench.tracking.progress_bar._QUIET_SECONDS", 0)
    for words in (["seed=0"], ["-m", "seed=0,1", "rerun=true"]):
        assert afl_run(*words, "scale=smoke", "model=softmax", "algorithm=asgd").returncode == 0
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/summary.json")]
    assert [summary["exit_status"] for summary in summaries] == ["ok", "ok"]


@pytest.mark.process
@pytest.mark.parametrize("words", [[], ["-m", "seed=0,1"]])
def test_a_full_standard_output_is_one_message_and_the_runs_are_made(words, tmp_path):
    command = [sys.executable, *AFL_RUN, *words, "scale=smoke", "model=softmax", "progress=false"]
    with open("/dev/full", "w") as full:
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert answer.returncode == 1
    assert answer.stderr.splitlines()[-1] == "afl-run: standard output: No space left on device"
    assert "Traceback" not in answer.stderr and len(list(tmp_path.glob("runs/*/summary.json"))) == max(1, len(words))
