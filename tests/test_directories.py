"""What lies in a run directory is the run's own, whole, and not lost by mistake."""

import json
import shutil
import signal
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from crashing import WORDS, assert_same
from tiers import slow

from asyncfl_bench import load_runs, run
from asyncfl_bench.analysis.matching import LABEL
from asyncfl_bench.analysis.selection import planned_frame
from asyncfl_bench.config.part_sources import using_folders
from asyncfl_bench.errors import BenchError, ConfigError
from asyncfl_bench.experiment import result
from asyncfl_bench.multirun.jobs import plan
from asyncfl_bench.tracking.rundir import RunDirectory

QUICK = ["scale=smoke", "model=softmax", "progress=false", "algorithm=asgd"]
TRACED = [*QUICK, "trace=true"]


def rows(directory):
    return len(pd.read_parquet(directory / "trace.parquet"))


# -- traces and final models ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_trace_of_a_shorter_run_is_not_taken_for_that_of_the_longer_one():
    words = [*TRACED, "algorithm.eta=0.1"]
    short = run([*words, "budget.server_iterations=20"])
    long = run([f"resume={short.directory}", "budget.server_iterations=40", "trace=false"])
    assert long.ok and not (long.directory / "trace.parquet").exists()
    again = run([*words, "budget.server_iterations=40"])
    assert "already_complete" not in again.summary
    assert rows(again.directory) == again.summary["used"]["uploads"] == 40


def test_the_trace_of_an_interrupted_run_is_not_taken_for_the_whole_one(monkeypatch):
    from asyncfl_bench.clients.local import LocalTraining

    uploads = []

    def stopped_after_nine(self, *arguments):
        upload(self, *arguments)
        uploads.append(1)
        if len(uploads) == 9:
            self.stop.append(signal.SIGINT)

    upload = LocalTraining.upload
    with monkeypatch.context() as patched:
        patched.setattr(LocalTraining, "upload", stopped_after_nine)
        cut = run([*TRACED, "executor=sequential"])
    assert cut.summary["exit_status"] == "interrupted" and rows(cut.directory) == 9
    whole = run(QUICK)
    assert whole.ok and not (whole.directory / "trace.parquet").exists()
    traced = run(TRACED)
    assert "already_complete" not in traced.summary and rows(traced.directory) == traced.summary["used"]["uploads"]


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A folder with a rule and an observer, whose modules are beside it."""
    code, parts = tmp_path / "rule_of_mine.py", tmp_path / "parts"
    code.write_text("from asyncfl_bench.algorithms.asgd import Asgd\n\n\nclass Mine(Asgd):\n    label = 'My rule'\n")
    (parts / "algorithm").mkdir(parents=True)
    (parts / "algorithm" / "mine.yaml").write_text("# Mine\n_target_: rule_of_mine.Mine\neta: 0.1 # step\n")
    (tmp_path / "observer_of_mine.py").write_text("from asyncfl_bench import Observer\n\n\nclass Mine(Observer): ...\n")
    (parts / "observers").mkdir()
    (parts / "observers" / "mine.yaml").write_text("# Mine\nmine:\n  _target_: observer_of_mine.Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    return parts


def test_a_planned_run_of_an_own_rule_belongs_to_the_series_of_the_finished_ones(parts):
    with using_folders([parts]):
        (job,) = plan([*QUICK, "algorithm=mine"])
        planned = planned_frame([job.settings])
    run([*QUICK, "algorithm=mine"], config_dir=parts)
    assert planned[LABEL].item() == load_runs("runs")[LABEL].item() == "My rule"


def test_changed_code_of_a_rule_is_said_of_a_finished_and_of_a_resumed_run(parts, monkeypatch, capfd):
    code = parts.parent / "rule_of_mine.py"

    def call(anew=False):
        result.say_once.cache_clear()
        if anew:  # as another process would
            monkeypatch.delitem(sys.modules, "rule_of_mine", raising=False)
        found = run([*QUICK[:-1], "algorithm=mine", "observers=mine"], config_dir=parts)
        return found, capfd.readouterr().err.count("_of_mine: the file of this module has changed since ")

    first, count = call(anew=True)
    assert first.ok and count == 0 and [*first.summary["code"]] == ["rule_of_mine", "observer_of_mine"]
    code.write_text(code.read_text().replace("My rule", "Another rule"))
    again, count = call()
    assert again.summary["already_complete"] and count == 0, "this process has the class of before"
    again, count = call(anew=True)
    assert again.summary["already_complete"] and count == 1

    summary = first.directory / "summary.json"
    summary.unlink()  # as of a killed run
    resumed, count = call()
    assert resumed.ok and count == 1 and resumed.summary["code"] == first.summary["code"], "it began with that code"
    for damage in (None, [1], {"rule_of_mine": 1}):
        RunDirectory(summary.parent).write_summary(json.loads(summary.read_text()) | {"code": damage})
        again, count = call()
        assert again.summary["already_complete"] and count == (damage == {"rule_of_mine": 1})


def test_a_run_that_begins_again_leaves_nothing_of_the_one_before(monkeypatch):
    from asyncfl_bench.experiment.drive import Run

    directory = run(TRACED).directory
    with monkeypatch.context() as patched:

        def killed(self):
            raise KeyboardInterrupt

        patched.setattr(Run, "drive", killed)
        with pytest.raises(KeyboardInterrupt):
            run([*TRACED, "rerun=true"])
    assert {path.name for path in directory.iterdir()} == {"config.yaml", "partition.npz", "model_initial.pt"}
    assert run(TRACED).ok


@pytest.mark.parametrize("broken", ["truncated", "fewer rows", "no final model"])
def test_a_traced_run_is_complete_with_its_whole_trace_only(broken):
    directory = run(TRACED).directory
    assert run(TRACED).summary["already_complete"]
    path = directory / "trace.parquet"
    if broken == "truncated":
        path.write_bytes(path.read_bytes()[:-20])
    elif broken == "fewer rows":
        pd.read_parquet(path).head(7).to_parquet(path)
    else:
        (directory / "model_final.pt").unlink()
    again = run(TRACED)
    assert "already_complete" not in again.summary and rows(directory) == again.summary["used"]["uploads"]


@pytest.mark.parametrize(("name", "old"), [("metrics.jsonl", '"test/loss": 2.'), ("summary.json", '"seed": 0')])
def test_a_changed_file_of_a_run_is_said_and_no_run_resumes_from_it(name, old, capfd):
    directory = run(QUICK).directory
    whole = (directory / name).read_text()
    (directory / name).write_text(whole.replace(old, old[:-1] + "4"))
    said = f"{directory}: {name} is not the file that the run wrote"
    with pytest.raises(BenchError, match=f"^{said}$"):
        run([f"resume={directory}"])
    again = run(QUICK)
    assert "already_complete" not in again.summary and f"{said}; starting from the beginning" in capfd.readouterr().err
    assert old in (directory / name).read_text() and run(QUICK).summary["already_complete"]


# -- somebody else's files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreign", ["config.yaml", "summary.json", "metrics.jsonl", "a newer key"])
def test_foreign_files_in_a_directory_named_by_hand_are_not_overwritten(foreign, tmp_path):
    words = [*QUICK, "hydra.run.dir=mine"]
    mine = Path("mine")
    if foreign == "a newer key":
        run(words)
        with (mine / "config.yaml").open("a") as file:
            file.write("newer: 1\n")
    else:
        mine.mkdir()
        (mine / foreign).write_text("my notes\n")
    before = {path.name: path.read_bytes() for path in mine.iterdir()}
    with pytest.raises(ConfigError, match=r"mine: holds a .*; choose another, or set rerun=true"):
        run([*words, "seed=1"])
    assert {path.name: path.read_bytes() for path in mine.iterdir()} == before
    assert run([*words, "seed=1", "rerun=true"]).summary["seed"] == 1


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))


@pytest.mark.parametrize("text", [BOMB, "a: &a [*a]\n", "- " * 100_000, "[" * 100_000, "{a: " * 5000, "\0", "é: \xff"])
def test_a_config_made_to_harm_is_answered_at_once(text, afl_run, tmp_path):
    from asyncfl_bench import load_runs

    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "config.yaml").write_text(text, encoding="latin-1")
    answer = afl_run("--resume", "mine")
    assert answer.returncode == 2 and "must be a run directory" in answer.stderr and answer.stderr.count("\n") == 1
    assert load_runs("mine")["status"].tolist() == ["unreadable"]


def test_a_run_directory_has_nothing_imported_that_is_not_allowed(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text(
        "open('imported', 'w')\nfrom asyncfl_bench.algorithms import asgd\nclass Asgd(asgd.Asgd): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    directory = run([*QUICK, "hydra.run.dir=mine"]).directory
    config = directory / "config.yaml"
    config.write_text(config.read_text().replace("asyncfl_bench.algorithms.asgd.Asgd", "evil.Asgd"))
    for name in ("summary.json", "checkpoint.pt"):  # of a run of another class
        (directory / name).unlink()
    with pytest.raises(ConfigError, match=r"algorithm._target_=evil.Asgd: .*ASYNCFL_BENCH_ALLOW=PACKAGE names"):
        run([f"resume={directory}"])
    with pytest.raises(ConfigError, match=r"a config.yaml that is not of this run"):
        run([*QUICK, "hydra.run.dir=mine"])
    assert not (tmp_path / "imported").exists()
    monkeypatch.setenv("ASYNCFL_BENCH_ALLOW", "other,evil")
    assert run([f"resume={directory}"]).ok
    assert (tmp_path / "imported").exists() and sys.modules.pop("evil")


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    words = [*WORDS, "model=softmax", "budget.server_iterations=30"]
    return words, run([*words, f"output_dir={tmp_path_factory.mktemp('finished')}"]).directory


@pytest.fixture
def cut(finished_run, tmp_path):
    """(words, a directory with a checkpoint of their unfinished run, the same run uninterrupted)."""
    words, whole = finished_run
    directory = Path(shutil.copytree(whole, tmp_path / "cut" / whole.name))
    (directory / "summary.json").unlink()
    return [*words, "output_dir=cut"], directory, whole


@pytest.mark.parametrize("where", [0, 7, *slow(*range(1, 7))])
def test_a_flipped_byte_in_a_checkpoint_is_found_wherever_it_is(where, cut, capfd):
    words, directory, whole = cut
    path = directory / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    state = torch.load(path, weights_only=True)["state"]
    cache = max((t for t in tensors(state)), key=lambda t: t.numel())
    start = bytes(content).find(cache.numpy().tobytes()[:64])
    assert start > 0
    content[start + 64 * where + 3] ^= 1 << where
    path.write_bytes(content)
    assert run(words).ok
    assert "checkpoint.pt: not a readable checkpoint (damaged" in capfd.readouterr().err
    assert_same(directory, whole)


def tensors(node):
    if isinstance(node, torch.Tensor):
        yield node
    elif isinstance(node, dict | list | tuple):
        for item in node.values() if isinstance(node, dict) else node:
            yield from tensors(item)


def test_a_bad_line_of_metrics_is_not_resumed_over(cut, capfd):
    words, directory, whole = cut
    path = directory / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(["nonsense\n", *lines[1:]]))
    with pytest.raises(BenchError, match=r"of which 0 are sound"):
        run([f"resume={directory}"])
    assert run(words).ok and "starting from the beginning" in capfd.readouterr().err
    assert_same(directory, whole)


@pytest.mark.parametrize("lost", ["removed", "cut short"])
def test_metrics_lost_in_the_middle_of_a_run_are_not_the_end_of_a_good_one(lost, monkeypatch):
    def write(self, row):
        wrote(self, row)
        if row["iteration"] == 10:
            self.path.unlink() if lost == "removed" else self.path.write_text("")

    from asyncfl_bench.tracking.rundir import MetricsFile

    wrote = MetricsFile.write
    monkeypatch.setattr(MetricsFile, "write", write)
    summary = run(QUICK).summary
    assert summary["exit_status"] == "failed" and "metrics.jsonl: " in summary["error"]


# -- places that cannot be used ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_place_that_cannot_be_used_is_one_message(tmp_path, afl_run):
    (tmp_path / "runs").write_text("")
    name = "x" * 300
    (tmp_path / "locked" / ".lock").mkdir(parents=True)
    for words in (QUICK, [*QUICK, f"hydra.run.dir={name}"], [*QUICK, "hydra.run.dir=locked"], ["-m", *QUICK, "seed=0"]):
        answer = afl_run(*words)
        assert answer.returncode in (1, 2), words
        assert "Traceback" not in answer.stderr + answer.stdout and answer.stderr.startswith("afl-run: "), words
        assert answer.stderr.count("\n") == 1, words


def test_a_deleted_working_directory_is_one_message(tmp_path, monkeypatch, afl_run):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    answer = afl_run(*QUICK)
    monkeypatch.chdir(tmp_path)
    assert answer.returncode == 2 and "the current directory is no longer there" in answer.stderr
    assert answer.stderr.count("\n") == 1
