from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from offline_wandb import exit_codes, points, records
from tiers import slow

from asyncfl_bench import run
from asyncfl_bench.config import compose
from asyncfl_bench.tracking import trackers_wandb
from asyncfl_bench.tracking.rundir import RunDirectory
from asyncfl_bench.tracking.trackers import RunFacts, Tracker, Trackers
from asyncfl_bench.tracking.trackers_files import CsvTracker, TensorboardTracker
from asyncfl_bench.tracking.trackers_wandb import WandbTracker, WandbTrackerConfig, configured_mode

CONF = Path(__file__).parents[2] / "conf" / "tracking"


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    """A W&B session that knows nothing of the machine's settings, keys or earlier tests."""
    import wandb

    wandb.teardown()  # takes the address of an earlier one's process out of the environment
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(WandbTracker, "_last_failure", -math.inf)
    yield wandb
    wandb.teardown()


def row(iteration: int, **metrics) -> dict:
    counters = {"iteration": iteration, "uploads": 3 * iteration, "client_steps": 9 * iteration}
    return counters | {"virtual_time": iteration / 3, "wall_time": iteration / 7} | metrics


def facts(directory: Path, identity: str, config: dict | None = None, name: str = "n", group: str | None = None):
    return RunFacts(config or {"choices": {"algorithm": "ace"}}, name, identity, "ace-digits", directory, group)


@pytest.mark.slow
def test_every_point_of_metrics_jsonl_reaches_wandb_unchanged(wandb, tmp_path):
    run = RunDirectory(tmp_path / "run")
    tracker = WandbTracker(WandbTrackerConfig(mode="offline", tags=["paper"]))
    choices = {"algorithm": "ace", "paper": "none", "sweep": "x" * 99}
    config = {"seed": 3, "algorithm": {"_target_": "a.b", "eta": None, "steps": [1, 2]}, "choices": choices}
    tracker.start(facts(run.path, "1a2b3c4d", config, "ace-digits-seed3"))
    rows = [row(i, **{"test/accuracy": 1 / (i + 3), "staleness/mean": 0.1 * i}) for i in range(20)]
    rows += [row(5, **{"test/accuracy": 0.5})]  # a resumed run goes back: nothing may be dropped
    for one in rows:
        run.metrics.write(one)
        tracker.log(one)
    tracker.finish({"exit_status": "ok", "final": {"test/accuracy": 0.5}}, 0)

    found = records(run.path)
    written = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert points(found) == written == rows
    (about,) = found["run"]
    logged = {key: value for key, value in about["config"]["update"].items() if key != "_wandb"}
    assert logged == config
    assert (about["run_id"], about["display_name"], about["run_group"]) == (
        "1a2b3c4d",
        "ace-digits-seed3",
        "ace-digits",
    )
    assert (about["job_type"], about["project"]) == ("ace", "asyncfl_bench")
    assert about["tags"] == ["paper", "algorithm=ace", f"sweep={'x' * 58}"]
    assert exit_codes(found) == [0]
    assert any(record["update"].get("exit_status") == "ok" for record in found["summary"])
    axes = {record.get("name", record.get("glob_name")): record.get("step_metric") for record in found["metric"]}
    counters = dict.fromkeys(["iteration", "uploads", "client_steps", "virtual_time", "wall_time"])
    judged = [f"{samples}/{measure}" for samples in ("test", "validation") for measure in ("accuracy", "loss")]
    assert axes == counters | dict.fromkeys(["*", *judged], "iteration")


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_kept_by_wandb(wandb, tmp_path):
    tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
    tracker.start(facts(tmp_path, "aaaa0000"))
    for loss in (math.nan, math.inf, -math.inf):
        tracker.log(row(1, **{"test/loss": loss}))
    tracker.finish({}, 0)
    assert [point["test/loss"] for point in points(records(tmp_path))] == ["NaN", "Infinity", "-Infinity"]


@pytest.mark.slow
def test_runs_of_one_process_stay_apart_also_after_one_that_was_never_finished(wandb, tmp_path):
    for i, group in enumerate(["first", None, "third"]):
        tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
        config = {"seed": i, "choices": {"algorithm": f"rule{i}"}}
        tracker.start(facts(tmp_path / str(i), f"0000000{i}", config, f"name{i}", group))
        tracker.log(row(i))
        if i != 0:  # the first run crashes: its tracker is dropped as it is
            tracker.finish({}, i)
    for i, group in enumerate(["first", None, "third"]):
        wrote = records(tmp_path / str(i))
        (about,) = wrote["run"]
        assert about["run_id"] == f"0000000{i}" and about["config"]["update"]["seed"] == i
        assert (about["display_name"], about["job_type"]) == (f"name{i}", f"rule{i}")
        assert about["run_group"] == (group or "ace-digits")
        assert [record["item"]["uploads"] for record in wrote["history"]] == [3 * i]
    assert exit_codes(wrote) == [2]


@pytest.mark.slow
def test_without_a_key_the_run_is_kept_offline_and_one_line_says_how_to_send_it(wandb, tmp_path, capfd):
    tracker = WandbTracker(WandbTrackerConfig())
    tracker.start(facts(tmp_path, "bbbb0000"))
    tracker.log(row(1))
    tracker.finish({}, 0)
    assert points(records(tmp_path)) == [row(1)]
    out, err = capfd.readouterr()
    assert out == ""
    assert err == f"not logged in to W&B: this run is kept offline; to send it: afl-run --sync {tmp_path}\n"


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, *slow("online")])
def test_an_unreachable_server_makes_the_run_offline_with_one_warning(wandb, tmp_path, capfd, monkeypatch, mode):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # the discard port: nobody listens
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    config = WandbTrackerConfig(init_timeout_seconds=1, mode=mode)
    tracker = WandbTracker(config)
    tracker.start(facts(tmp_path, "cccc0000"))
    tracker.log(row(1))
    tracker.finish({}, 0)
    assert points(records(tmp_path)) == [row(1)]
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("W&B did not start (") and "--sync" in lines[0]


def test_wandb_mode_decides_when_no_mode_is_set_and_a_set_mode_beats_it(wandb, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for mode, runs in ((None, 0), ("offline", 1)):
        tracker = WandbTracker(WandbTrackerConfig(mode=mode))
        tracker.start(facts(tmp_path, "dddd0000"))
        tracker.log(row(1))
        tracker.finish({}, 0)
        assert len(list(tmp_path.glob("wandb/offline-run-*"))) == runs
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_point_that_wandb_refuses_does_not_stop_the_run_and_is_said_once(wandb, tmp_path, capfd):
    tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
    tracker.start(facts(tmp_path, "eeee0000"))
    tracker.log(row(1))
    wandb.run.finish()  # someone closed it under our feet: every further call raises
    tracker.log(row(2))
    tracker.log(row(3))
    tracker.finish({"a": 1}, 0)
    assert points(records(tmp_path)) == [row(1)]
    assert capfd.readouterr().err.count("\n") == 1


def test_a_run_that_wandb_cannot_write_at_all_goes_on(wandb, tmp_path, capfd):
    tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
    tracker.start(facts(tmp_path, "not/an/id"))
    tracker.log(row(1))
    tracker.finish({}, 0)
    err = capfd.readouterr().err
    assert err.startswith("W&B gets nothing of this run (") and err.count("\n") == 1


def test_a_wrong_setting_of_wandbs_environment_is_named_in_one_line(wandb, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "onlin")
    WandbTracker(WandbTrackerConfig()).start(facts(tmp_path, "a"))
    err = capfd.readouterr().err
    assert err.startswith("W&B gets nothing of this run (setting mode=onlin of a variable WANDB_... or a file of W&B: ")
    assert "'offline'" in err and err.count("\n") == 1


@pytest.mark.slow
def test_group_and_dir_of_the_config_beat_those_of_the_run(wandb, tmp_path):
    tracker = WandbTracker(WandbTrackerConfig(mode="offline", group="mine", dir=str(tmp_path / "own")))
    tracker.start(facts(tmp_path / "run", "ffff0000", group="sweep"))
    tracker.finish({}, 0)
    assert records(tmp_path / "own")["run"][0]["run_group"] == "mine"
    (owner,) = (tmp_path / "own").glob("wandb/offline-run-*/run_directory.txt")
    assert owner.read_text() == str(tmp_path / "run")


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_said_and_the_run_directory_takes_its_place(wandb, tmp_path, capfd):
    (tmp_path / "file").touch()
    (tmp_path / "run").mkdir()
    tracker = WandbTracker(WandbTrackerConfig(mode="offline", dir=str(tmp_path / "file" / "below")))
    tracker.start(facts(tmp_path / "run", "aaaa1111"))
    tracker.log(row(1))
    tracker.finish({}, 0)
    assert points(records(tmp_path / "run")) == [row(1)]
    assert f"dir={tmp_path}/file/below: Not a directory; " in capfd.readouterr().err


@pytest.mark.slow
def test_the_summary_has_the_best_values_the_objective_and_on_request_the_files(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    (tmp_path / "model_final.pt").write_bytes(b"weights")
    tracker = WandbTracker(WandbTrackerConfig(mode="offline", artifact=True))
    assert tracker.wants_model and not WandbTracker(WandbTrackerConfig()).wants_model
    tracker.start(facts(tmp_path, "aaaa2222", {"objective": "test/loss", "choices": {}}))
    for accuracy in (0.1, 0.9, 0.5):
        tracker.log(row(1, **{"test/accuracy": accuracy}))
    tracker.finish({"final": {"test/loss": 0.7}}, 0)
    found = records(tmp_path)
    (judged,) = [one for one in found["metric"] if one.get("name") == "test/accuracy"]
    assert judged["summary"] == {"max": True, "last": True}
    assert any(one["update"].get("objective") == 0.7 for one in found["summary"])
    (artifact,) = found["artifact"]
    assert {entry["path"] for entry in artifact["manifest"]["contents"]} == {"config.yaml", "model_final.pt"}


@pytest.mark.slow
def test_an_agent_of_wandbs_names_the_run(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep001")
    monkeypatch.setenv("WANDB_RUN_ID", "agents00")
    tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
    tracker.start(facts(tmp_path, "aaaa3333"))
    tracker.finish({}, 0)
    (about,) = records(tmp_path)["run"]
    assert about["run_id"] == "agents00"


@pytest.mark.parametrize("late", [False, True])
def test_an_offline_start_that_ends_after_it_was_given_up_gets_no_points(late, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(WandbTracker, "_last_failure", -math.inf)  # not that of an earlier test
    tracker, starts = WandbTracker(WandbTrackerConfig()), iter([OSError("no network"), "offline run"])
    tracker._facts = facts(tmp_path, "00000000")

    def init(**arguments):
        if isinstance(answer := next(starts), OSError):
            raise answer
        tracker.gave_up = late  # the run has waited long enough
        return answer

    names = {"setup": len, "Settings": dict, "teardown": lambda: None, "init": init}
    tracker._open_run(SimpleNamespace(**names), {"dir": str(tmp_path)})
    assert tracker._run == (None if late else "offline run")
    assert ("kept offline" in capsys.readouterr().err) == (not late)


class Silent:
    """A run of W&B's whose service does not answer."""

    def __init__(self):
        self.summary = self

    def log(self, row):
        threading.Event().wait()

    update = log


@pytest.mark.parametrize("when", ["a point", "the end"])
def test_a_service_that_does_not_answer_holds_no_run(when, tmp_path, monkeypatch, capsys):
    ended = []
    monkeypatch.setattr(trackers_wandb, "_end_service", lambda: ended.append(1))
    monkeypatch.setattr(trackers_wandb, "_MOMENT_SECONDS", 0.0)
    tracker = WandbTracker(WandbTrackerConfig(mode="offline", timeout_seconds=0.02))
    tracker._run, tracker._facts = Silent(), facts(tmp_path, "00000000")
    if when == "a point":
        tracker.log(row(0))
        tracker.log(row(1))
        assert len(ended) == 1
    tracker.finish({"exit_status": "ok"}, 0)
    said = capsys.readouterr().err
    assert len(ended) == said.count("\n") == 1 and "has not answered for 0.02 s" in said


@pytest.mark.process
def test_a_wandb_that_hangs_is_waited_for_no_longer_than_set_and_the_next_run_has_another(wandb, tmp_path, capfd):
    config = WandbTrackerConfig(mode="offline", timeout_seconds=1)
    for i, hangs in enumerate([True, False]):
        (tmp_path / str(i)).mkdir()
        tracker = WandbTracker(config)
        tracker.start(facts(tmp_path / str(i), f"aaaa444{i}"))
        tracker.log(row(1))
        if hangs:
            (service,) = services()
            os.kill(service, signal.SIGSTOP)
        before = time.monotonic()
        tracker.finish({}, 0)
        assert time.monotonic() - before < 30
        said = capfd.readouterr().err
        assert said.count("\n") == hangs and ("the run's own files are complete" in said) == hangs
    assert points(records(tmp_path / "1")) == [row(1)]
    wandb.teardown()  # as Python's end does: returns
    assert services() == []


def services() -> list[int]:
    """Processes of wandb's that this one has started and that still live."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pid, _, rest = place.read_text().partition(" (")
            name, _, facts = rest.rpartition(") ")
            if "wandb-core" in name and facts.split()[0] != "Z" and facts.split()[1] == str(os.getpid()):
                found.append(int(pid))
    return found


def test_metrics_csv_is_metrics_jsonl_also_when_a_metric_comes_later_and_after_an_interruption(tmp_path):
    run = RunDirectory(tmp_path)
    rows = [row(1, a=0.5), row(2, a=math.nan), row(3, a=1.0, late=7), row(4, late=8)]

    def tracked(some):
        tracker = CsvTracker(CsvTracker.Config())
        tracker.start(facts(tmp_path, "00000000"))
        for one in some:
            run.metrics.write(one)
            tracker.log(one)
        tracker.finish({}, 0)
        return pd.read_csv(tmp_path / "metrics.csv")

    pd.testing.assert_frame_equal(tracked(rows), pd.DataFrame(rows))
    run.metrics.truncate(1)  # what the checkpoint was written after
    pd.testing.assert_frame_equal(tracked(rows[1:]), pd.DataFrame(rows))


def test_tensorboard_has_every_number_once_also_after_an_interruption(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = RunDirectory(tmp_path)
    for first, some in ((0, [0.25, 0.5]), (1, [0.5, 0.75])):
        run.metrics.truncate(first)
        tracker = TensorboardTracker(TensorboardTracker.Config())
        tracker.start(facts(tmp_path, "00000000"))
        for iteration, value in enumerate(some, start=first):
            run.metrics.write(one := row(iteration, **{"test/accuracy": value}))
            tracker.log(one)
        tracker.finish({"final": {"test/accuracy": some[-1]}}, 0)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(one.step, one.value) for one in events.Scalars("test/accuracy")] == [(0, 0.25), (1, 0.5), (2, 0.75)]
    assert [one.value for one in events.Scalars("final/test/accuracy")] == [0.75]


def test_a_tracker_that_fails_is_named_once_and_the_others_go_on(tmp_path, capfd):
    class Broken(Tracker):
        def log(self, row):
            raise OSError("disk full\nand more")

    seen = []
    other = Tracker(None)
    other.log = seen.append
    trackers = Trackers({"mine": Broken(None), "other": other})
    trackers.start(facts(tmp_path, "00000000"))
    for i in range(3):
        trackers.log(row(i))
    trackers.finish({}, 0)
    said = capfd.readouterr().err
    assert len(seen) == 3 and said.startswith("tracking=mine: disk full; ") and said.count("\n") == 1


def test_a_run_has_as_many_trackers_as_are_listed_and_the_numbers_of_none(tmp_path):
    words = ["scale=smoke", "model=softmax", "progress=false", "budget.server_iterations=2"]
    plain = run([*words, "output_dir=plain"])
    both = run([*words, "output_dir=both", "tracking=[csv,tensorboard]"])
    assert plain.summary["identity"] == both.summary["identity"]
    assert not any((plain.directory / name).exists() for name in ("metrics.csv", "tensorboard", "wandb"))
    found = pd.read_csv(both.directory / "metrics.csv").drop(columns="wall_time")
    pd.testing.assert_frame_equal(found, both.metrics.drop(columns="wall_time"), check_dtype=False)
    assert found["test/accuracy"].equals(plain.metrics["test/accuracy"])
    assert list((both.directory / "tensorboard").iterdir())


@pytest.mark.parametrize(
    ("words", "trackers"),
    [
        ([], {"wandb": WandbTracker}),
        (["tracking=local"], {}),
        (["tracking=[]"], {}),
        (["tracking=csv"], {"csv": CsvTracker}),
        (["tracking=[wandb,csv]", "tracking.wandb.project=mine"], {"wandb": WandbTracker, "csv": CsvTracker}),
    ],
)
def test_what_is_chosen_are_sections_of_tracking(words, trackers):
    settings = compose(words)
    assert {name: part.target for name, part in settings.trackers.items()} == trackers
    assert list(settings.tree["tracking"]) == list(trackers)
    if "csv" in trackers and "wandb" in trackers:
        assert settings.trackers["wandb"].config.project == "mine"


def test_a_directory_given_to_resume_imports_no_tracker_that_is_not_trusted(tmp_path, afl_run):
    directory = run(["scale=smoke", "model=softmax", "progress=false", "budget.server_iterations=2"]).directory
    config = yaml.safe_load((directory / "config.yaml").read_text())
    (tmp_path / "stranger.py").write_text("open('imported', 'w')")
    (directory / "config.yaml").write_text(
        yaml.safe_dump(config | {"tracking": {"mine": {"_target_": "stranger.Tracker"}}})
    )
    answer = afl_run("--resume", str(directory))
    assert answer.returncode == 2 and "stranger.Tracker" in answer.stderr
    assert not (tmp_path / "imported").exists()


def test_wandb_is_set_up_by_a_key_a_mode_or_a_login(tmp_path, monkeypatch):
    home = tmp_path / "home"
    assert configured_mode() is None
    (home / ".config" / "wandb").mkdir(parents=True)
    (home / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    assert configured_mode() == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert configured_mode() is None  # the login is at another server
    monkeypatch.setenv("WANDB_API_KEY", "key")
    assert configured_mode() == "online"
    (home / ".config" / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    assert configured_mode() == "offline"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert configured_mode() == "disabled"


def test_a_process_waits_once_for_a_server_that_does_not_answer(wandb, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setattr(WandbTracker, "_last_failure", time.monotonic())
    tracker = WandbTracker(WandbTrackerConfig())
    tracker.start(facts(tmp_path, "dddd0000"))
    tracker.finish({}, 0)
    assert "no answer to an earlier run): this run is kept offline" in capfd.readouterr().err


@pytest.mark.process
def test_configs_are_known_without_wandb_torch_and_pandas():
    code = (
        "import sys; "
        "from asyncfl_bench.tracking import progress_bar, rundir, trackers, trackers_files, trackers_wandb; "
        "print([m for m in ('wandb', 'torch', 'pandas', 'rich') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
