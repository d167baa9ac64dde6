"""A run that is told to stop does so between mini-batches, says what it waits for, and loses nothing."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from crashing import WORDS, assert_same
from fake_graph import FakeGraphs, use_fake_graphs

from asyncfl_bench import run
from asyncfl_bench.algorithms.common.split import SplitRule
from asyncfl_bench.clients.local import LocalTraining
from asyncfl_bench.experiment import stopping
from asyncfl_bench.experiment.checkpoint import write_checkpoint
from asyncfl_bench.experiment.stopping import Stop, recording_signals

pytestmark = pytest.mark.slow  # whole runs: seconds each

LOCAL = ["algorithm=fedbuff", "client.local_steps=4", "algorithm.buffer_size=3", "model=softmax"]
SMALL = [*WORDS, "budget.server_iterations=12", "threads=2"]
CASES = {
    "piece by piece": [*LOCAL, "executor=sequential"],
    "in threads": [*LOCAL, "executor=threads"],
    "stacked": [*LOCAL, "executor=batched"],
    "formulas for one model": ["algorithm=fedbuff", "client.local_steps=9", "executor=batched"],
    "within a tick": [*LOCAL, "clock=ticks", "delay=exp_beta5", "schedule=random_idle", "executor=batched"],
    "a round with lost work": [
        "algorithm=feddyn",
        "executor=threads",
        "client.local_steps=3",
        "availability=suspension",
        "delay=uniform",
    ],
    "captured stacks": [*LOCAL, "client.momentum=0.5", "executor=batched"],
}


def cut_off(words, when, monkeypatch):
    """A run asked to stop before each local step for which ``when(steps begun)``: its result, and how many it began."""
    steps, raise_if_stopped = 0, LocalTraining.raise_if_stopped

    def stopped(self):
        nonlocal steps
        steps += 1
        if when(steps):
            self.stop.append(signal.SIGINT)
        raise_if_stopped(self)

    with monkeypatch.context() as patched:
        patched.setattr(LocalTraining, "raise_if_stopped", stopped)
        return run(words), steps


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("moment", [pytest.param(2, marks=pytest.mark.slow), 7])
def test_work_stops_between_two_mini_batches_and_goes_on_to_the_same_bits(case, moment, monkeypatch):
    words = [*SMALL, *CASES[case]]
    if case == "captured stacks":
        use_fake_graphs(monkeypatch, FakeGraphs())
    whole = run([*words, "output_dir=whole"])
    cut, steps = cut_off([*words, "output_dir=cut"], lambda steps: steps >= moment, monkeypatch)
    assert cut.summary["exit_status"] == "interrupted" and cut.signal == signal.SIGINT
    assert moment <= steps < moment + 10  # more than one where other threads had begun
    assert_same(run([*words, "output_dir=cut"]).directory, whole.directory)


@pytest.mark.parametrize("answer", ["before", "after"])
@pytest.mark.parametrize("moment", [1, 4, 25])
def test_a_server_step_stops_between_classes_and_is_done_again_to_the_same_bits(answer, moment, monkeypatch):
    words = ["algorithm=gas", f"algorithm.answer={answer}", "dataset=digits", "model=mlp", "model.hidden=[16]"]
    words += ["n_clients=4", "heterogeneity=iid", "client.batch_size=30", "algorithm.activation_buffer=3", "seed=1"]
    words += ["budget.server_iterations=6", "trace=true", "progress=false"]
    whole = run([*words, "output_dir=whole"])
    calls, raise_if_stopped = 0, SplitRule.raise_if_stopped

    def stopped(self):
        nonlocal calls
        calls += 1
        if calls == moment:
            self.stop.append(signal.SIGINT)
        raise_if_stopped(self)

    with monkeypatch.context() as patched:
        patched.setattr(SplitRule, "raise_if_stopped", stopped)
        cut = run([*words, "output_dir=cut"])
    assert cut.summary["exit_status"] == "interrupted" and calls == moment
    state = torch.load(cut.directory / "checkpoint.pt", weights_only=True)["state"]["rule"]
    assert state["merged"] and len(state["buffer"]) == 3
    assert_same(run([*words, "output_dir=cut"]).directory, whole.directory)


@pytest.mark.parametrize(("case", "moment"), [("in threads", 20), ("stacked", 10), ("a round with lost work", 15)])
def test_what_was_begun_in_the_background_and_given_up_is_begun_again_with_the_same_others(case, moment, monkeypatch):
    words = [*SMALL, *CASES[case], "budget.server_iterations=20"]
    whole = run([*words, "output_dir=whole"])

    def in_the_background(steps):
        return steps >= moment and threading.current_thread() is not threading.main_thread()

    cut, _ = cut_off([*words, "output_dir=cut"], in_the_background, monkeypatch)
    begun = torch.load(cut.directory / "checkpoint.pt", weights_only=True)["state"]["executor"]["begun"]
    assert begun["sequences"] and begun["losses"] is None, "the stop came elsewhere: this test shows nothing"
    assert_same(run([*words, "output_dir=cut"]).directory, whole.directory)


@pytest.mark.parametrize("words", [["clock=time"], ["clock=ticks"], ["clock=ticks", "algorithm.step_on=tick"]])
@pytest.mark.parametrize("moment", [pytest.param(3, marks=pytest.mark.slow), 17])
def test_a_first_round_and_a_tick_may_be_cut_anywhere(words, moment, monkeypatch):
    words = [*SMALL, "algorithm=ace", "model=softmax", "executor=sequential", "delay=exp_beta5", *words]
    whole = run([*words, "output_dir=whole"])
    uploads = 0

    def stopped_after(self, *arguments):
        nonlocal uploads
        uploads += 1
        upload(self, *arguments)
        if uploads == moment:
            self.stop.append(signal.SIGINT)

    upload = LocalTraining.upload
    with monkeypatch.context() as patched:
        patched.setattr(LocalTraining, "upload", stopped_after)
        cut = run([*words, "output_dir=cut"])
    assert cut.summary["used"]["uploads"] == uploads == moment
    assert_same(run([*words, "output_dir=cut"]).directory, whole.directory)


def test_a_run_stopped_in_its_last_moments_is_finished_and_the_sweep_stops(monkeypatch, afl_run, tmp_path):
    from asyncfl_bench.tracking.rundir import RunDirectory

    def write(self, summary):
        os.kill(os.getpid(), signal.SIGINT)
        written(self, summary)

    written = RunDirectory.write_summary
    monkeypatch.setattr(RunDirectory, "write_summary", write)
    answer = afl_run("-m", "seed=0,1", "scale=smoke", "model=softmax", "algorithm=asgd")
    assert answer.returncode == 75 and "stopping: waiting for the run's last evaluation" in answer.stderr
    (summary,) = (tmp_path / "runs").glob("*/summary.json")
    assert json.loads(summary.read_text())["exit_status"] == "ok"


def test_the_first_signal_is_answered_at_once_with_what_is_waited_for_and_the_second_is_raised(capfd, monkeypatch):
    monkeypatch.setattr(stopping, "ONE_REQUEST_SECONDS", 0.05)
    stop = Stop()
    with pytest.raises(KeyboardInterrupt), recording_signals(stop), stop.waits_for("a checkpoint of 5 MiB"):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # a terminal and a parent may both pass on the same request
        while not stop:
            time.sleep(0.001)
        time.sleep(0.1)
        assert stop.received == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    said = capfd.readouterr().err
    assert said == "stopping: waiting for a checkpoint of 5 MiB; a second signal does not wait\n"


def test_a_lost_terminal_stops_a_run_unless_nohup_was_asked_for():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = Stop()
        with recording_signals(stop):
            os.kill(os.getpid(), signal.SIGHUP)
        assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.process
def test_the_second_signal_ends_the_process_within_two_seconds_whatever_runs(tmp_path):
    busy = (
        "import hashlib, os, signal, time\n"
        "from asyncfl_bench.experiment.stopping import Stop, recording_signals\n"
        "stop = Stop()\n"
        "with recording_signals(stop, ends_process=True):\n"
        "    print('ready', flush=True)\n"
        "    hashlib.pbkdf2_hmac('sha256', b'x', b'y', 10**9)\n"  # one call of some minutes, outside Python
    )
    process = subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline().startswith("stopping: waiting for")
    time.sleep(stopping.ONE_REQUEST_SECONDS + 0.1)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    process.communicate(timeout=30)
    assert process.returncode == 75 and time.monotonic() - started < 2


WIDE = """
import sys, torch
from asyncfl_bench.cli import main
factorise = torch.linalg.cholesky_ex
def said(*arguments, **named):
    print("factorises", flush=True)
    return factorise(*arguments, **named)
torch.linalg.cholesky_ex = said
words = ["algorithm=gas", "dataset=digits", "model=mlp", "model.hidden=[2048]", "n_clients=2", "heterogeneity=iid"]
sys.argv = ["afl-run", *words, "client.batch_size=all", "algorithm.activation_buffer=1", "threads=1"]
main()
"""


@pytest.mark.process
def test_a_signal_in_a_server_step_with_a_wide_cut_does_not_wait_for_all_classes(tmp_path):
    """A step draws from ten classes and factorises a matrix of 2048 x 2048 for each."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", WIDE], cwd=tmp_path, **pipes)
    assert process.stdout.readline() == "factorises\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 75 and "interrupted after 0 server iterations" in out
    assert out.count("factorises") <= 2


@pytest.mark.process
@pytest.mark.parametrize(("command", "module"), [("", "omegaconf"), (".reports.cli", "pandas")])
def test_a_ctrl_c_while_modules_load_ends_in_one_line(command, module, tmp_path):
    """A module may make another error of it, as NumPy does."""
    loading = (
        "import time\nprint('loading', flush=True)\ntry:\n    time.sleep(100)\n"
        "except KeyboardInterrupt:\n    raise ImportError('a bad install')\n"
    )
    (tmp_path / f"{module}.py").write_text(loading)
    words = [sys.executable, "-m", f"asyncfl_bench{command}", *(["."] if command else [])]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, cwd=tmp_path, **pipes)
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 75 and len(err.splitlines()) == 1 and "stopped" in err


SLOW_END = """
import atexit, sys, time
from asyncfl_bench.cli import main
from asyncfl_bench.experiment.stopping import end_soon
sys.argv = ["afl-run", "seed=x"]
atexit.register(lambda: (print("ending", flush=True), time.sleep(100)))
"""


@pytest.mark.process
def test_after_a_second_signal_pythons_own_end_is_not_waited_for():
    hurried = (
        f"{SLOW_END}from asyncfl_bench.experiment import stopping\nstopping.SECONDS_TO_END = 100\nend_soon()\nmain()"
    )
    answer = subprocess.run([sys.executable, "-c", hurried], capture_output=True, text=True)
    assert answer.returncode == 2 and answer.stdout == ""


def test_a_checkpoint_given_up_by_a_second_signal_is_no_failure_of_the_disk(monkeypatch, tmp_path):
    def save(state, file):
        file.write(b"half of it")
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")  # as torch's writer ends

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path / "checkpoint.pt", "aaaa0000", {})
    assert not list(tmp_path.iterdir())


@pytest.mark.process
def test_a_signal_in_the_very_end_of_the_command_leaves_its_exit_code():
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", f"{SLOW_END}main()"], **pipes)
    assert process.stdout.readline() == "ending\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2 and len(err.splitlines()) == 1


def test_a_checkpoint_that_cannot_be_written_is_said_once_and_the_run_goes_on(monkeypatch, capfd):
    from asyncfl_bench.experiment import checkpoint

    def no_space(path, previous):
        raise OSError(28, "No space left on device")

    words = [*WORDS, "model=softmax", "budget.server_iterations=60"]
    whole = run([*words, "output_dir=whole"])
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "atomic_write", no_space)
        result = run([*words, "output_dir=full"])
    said = capfd.readouterr().err
    assert result.ok and said.count("No space left on device; the run continues and tries again") == 1
    assert_same(result.directory, whole.directory)


def test_a_checkpoint_larger_than_allowed_is_not_written_and_changes_no_identity(monkeypatch, capfd):
    words = [*WORDS, "model=softmax", "budget.server_iterations=60"]
    result = run([*words, "checkpoint.max_mib=0.001"])
    said = capfd.readouterr().err
    assert "a checkpoint of 0." in said and "is more than checkpoint.max_mib=0.001 allows" in said
    assert result.ok and not list(result.directory.glob("checkpoint*"))
    assert run(words).summary["already_complete"]


def test_what_a_stopped_run_could_not_save_is_said(monkeypatch, afl_run):
    monkeypatch.setattr(LocalTraining, "raise_if_stopped", lambda self: self.stop.append(signal.SIGINT))
    answer = afl_run(*SMALL, *LOCAL, "checkpoint.max_mib=0.0001")
    assert answer.returncode == 75 and "it resumes from the beginning" in answer.stdout


def test_killed_writers_leave_nothing_for_ever(tmp_path):
    words = ["scale=smoke", "model=softmax", "progress=false"]
    directory = run(words).directory
    for name in (".metrics.jsonl.99999.tmp", ".summary.json.1.tmp"):
        (directory / name).write_text("half")
    run([*words, "rerun=true"])
    assert not list(directory.glob(".*.tmp"))
    assert Path(directory).is_dir()
