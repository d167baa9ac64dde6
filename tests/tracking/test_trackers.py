from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from offline_wandb import exit_codes, points, records
from omegaconf import OmegaConf

from asyncfl_bench.errors import ConfigError
from asyncfl_bench.tracking import trackers
from asyncfl_bench.tracking.rundir import RunDirectory
from asyncfl_bench.tracking.trackers import LocalTracker, WandbTracker, WandbTrackerConfig

CONF = Path(__file__).parents[2] / "conf" / "tracking"


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    """A W&B session that knows nothing of the machine's settings, keys or earlier tests."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    import wandb

    wandb.teardown()
    yield wandb
    wandb.teardown()


def row(iteration: int, **metrics) -> dict:
    counters = {"iteration": iteration, "uploads": 3 * iteration, "client_steps": 9 * iteration}
    return counters | {"virtual_time": iteration / 3, "wall_time": iteration / 7} | metrics


def test_every_point_of_metrics_jsonl_reaches_wandb_unchanged(wandb, tmp_path):
    run = RunDirectory(tmp_path / "run")
    tracker = WandbTracker(WandbTrackerConfig(mode="offline", tags=["paper"]))
    config = {"seed": 3, "algorithm": {"_target_": "asyncfl_bench.algorithms.ace.Ace", "eta": None, "steps": [1, 2]}}
    tracker.start(config, "ace-digits", "figure2", "ace", "1a2b3c4d", run.path)
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
    assert (about["run_id"], about["display_name"], about["run_group"]) == ("1a2b3c4d", "ace-digits", "figure2")
    assert (about["job_type"], about["project"], about["tags"]) == ("ace", "asyncfl_bench", ["paper"])
    assert exit_codes(found) == [0]
    assert any(record["update"].get("exit_status") == "ok" for record in found["summary"])
    axes = {record.get("name", record.get("glob_name")): record.get("step_metric") for record in found["metric"]}
    counters = dict.fromkeys(["iteration", "uploads", "client_steps", "virtual_time", "wall_time"])
    assert axes == counters | {"*": "iteration"}


def test_a_loss_that_is_not_finite_is_kept_by_wandb(wandb, tmp_path):
    tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
    tracker.start({}, "n", None, "ace", "aaaa0000", tmp_path)
    for loss in (math.nan, math.inf, -math.inf):
        tracker.log(row(1, **{"test/loss": loss}))
    tracker.finish({}, 0)
    assert [point["test/loss"] for point in points(records(tmp_path))] == ["NaN", "Infinity", "-Infinity"]


def test_runs_of_one_process_stay_apart_also_after_one_that_was_never_finished(wandb, tmp_path):
    for i, group in enumerate(["first", None, "third"]):
        tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
        tracker.start({"seed": i}, f"name{i}", group, f"rule{i}", f"0000000{i}", tmp_path / str(i))
        tracker.log(row(i))
        if i != 0:  # the first run crashes: its tracker is dropped as it is
            tracker.finish({}, i)
    for i, group in enumerate(["first", None, "third"]):
        wrote = records(tmp_path / str(i))
        (about,) = wrote["run"]
        assert about["run_id"] == f"0000000{i}" and about["config"]["update"]["seed"] == i
        assert (about["display_name"], about["job_type"]) == (f"name{i}", f"rule{i}")
        assert about.get("run_group") == group
        assert [record["item"]["uploads"] for record in wrote["history"]] == [3 * i]
    assert exit_codes(wrote) == [2]


def test_without_a_key_the_run_is_kept_offline_and_one_line_says_how_to_send_it(wandb, tmp_path, capfd):
    tracker = WandbTracker(WandbTrackerConfig())
    tracker.start({}, "n", None, "ace", "bbbb0000", tmp_path)
    tracker.log(row(1))
    tracker.finish({}, 0)
    assert points(records(tmp_path)) == [row(1)]
    (place,) = tmp_path.glob("wandb/offline-run-*")
    out, err = capfd.readouterr()
    assert out == ""
    assert err == f"not logged in to W&B: this run is kept offline; to send it: wandb sync {place}\n"


@pytest.mark.parametrize("mode", [None, "online"])
def test_an_unreachable_server_makes_the_run_offline_with_one_warning(wandb, tmp_path, capfd, monkeypatch, mode):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # the discard port: nobody listens
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    config = WandbTrackerConfig(init_timeout_seconds=1, mode=mode)
    tracker = WandbTracker(config)
    tracker.start({"seed": 1}, "n", None, "ace", "cccc0000", tmp_path)
    tracker.log(row(1))
    tracker.finish({}, 0)
    assert points(records(tmp_path)) == [row(1)]
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("W&B did not start (") and "wandb sync" in lines[0]


def test_wandb_mode_decides_when_no_mode_is_set_and_a_set_mode_beats_it(wandb, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for mode, runs in ((None, 0), ("offline", 1)):
        tracker = WandbTracker(WandbTrackerConfig(mode=mode))
        tracker.start({}, "n", None, "ace", "dddd0000", tmp_path)
        tracker.log(row(1))
        tracker.finish({}, 0)
        assert len(list(tmp_path.glob("wandb/offline-run-*"))) == runs
    assert capfd.readouterr().err == ""


def test_a_point_that_wandb_refuses_does_not_stop_the_run_and_is_said_once(wandb, tmp_path, capfd):
    tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
    tracker.start({}, "n", None, "ace", "eeee0000", tmp_path)
    tracker.log(row(1))
    wandb.run.finish()  # someone closed it under our feet: every further call raises
    tracker.log(row(2))
    tracker.log(row(3))
    tracker.finish({"a": 1}, 0)
    assert points(records(tmp_path)) == [row(1)]
    assert capfd.readouterr().err.count("\n") == 1


def test_a_run_that_wandb_cannot_write_at_all_goes_on(wandb, tmp_path, capfd):
    tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
    tracker.start({}, "n", None, "ace", "not/an/id", tmp_path)
    tracker.log(row(1))
    tracker.finish({}, 0)
    err = capfd.readouterr().err
    assert err.startswith("W&B gets nothing of this run (") and err.count("\n") == 1


def test_group_and_dir_of_the_config_beat_those_of_the_run(wandb, tmp_path):
    tracker = WandbTracker(WandbTrackerConfig(mode="offline", group="mine", dir=str(tmp_path / "own")))
    (tmp_path / "own").mkdir()
    tracker.start({}, "n", "sweep", "ace", "ffff0000", tmp_path / "run")
    tracker.finish({}, 0)
    assert records(tmp_path / "own")["run"][0]["run_group"] == "mine"


def test_the_local_tracker_leaves_no_file(tmp_path):
    tracker = LocalTracker(LocalTracker.Config())
    tracker.start({}, "n", None, "ace", "00000000", tmp_path)
    tracker.log(row(1))
    tracker.finish({}, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("mode", "ofline", "mode=ofline: must be one of online, offline, disabled (did you mean 'offline'?)"),
        ("project", "", "project=: must be a project name"),
        ("init_timeout_seconds", 0, "init_timeout_seconds=0: must be a number > 0"),
    ],
)
def test_an_impossible_setting_is_refused(key, value, message):
    with pytest.raises(ConfigError) as caught:
        WandbTrackerConfig(**{key: value})
    assert str(caught.value) == message


@pytest.mark.parametrize(("name", "tracker"), [("local", LocalTracker), ("wandb", WandbTracker)])
def test_each_yaml_states_exactly_the_defaults_of_its_class(name, tracker):
    content = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    assert content.pop("_target_") == f"asyncfl_bench.tracking.trackers.{tracker.__name__}"
    schema = OmegaConf.structured(tracker.Config)
    assert content == OmegaConf.to_container(schema)
    assert OmegaConf.to_object(OmegaConf.merge(schema, content)) == tracker.Config()


@pytest.mark.process
def test_configs_are_known_without_wandb_torch_and_pandas():
    code = (
        "import sys; import asyncfl_bench.tracking.trackers, asyncfl_bench.tracking.progress, "
        "asyncfl_bench.tracking.rundir; print([m for m in ('wandb','torch','pandas','rich') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


class Silent:
    """A run of W&B whose service does not answer."""

    offline = True

    def __init__(self):
        self.summary = self

    def log(self, row):
        threading.Event().wait()

    update = log

    def finish(self, exit_code):
        threading.Event().wait()


@pytest.mark.parametrize("when", ["a point", "the end"])
def test_a_service_that_does_not_answer_holds_no_run(when, monkeypatch, capsys):
    ended = []
    monkeypatch.setattr(trackers, "_ANSWER_SECONDS", 0.02)
    monkeypatch.setattr(trackers, "_end_service", lambda: ended.append(1))
    tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
    tracker._run = Silent()
    if when == "a point":
        tracker.log(row(0))
        tracker.log(row(1))
        assert len(ended) == 1
    tracker.finish({"exit_status": "ok"}, 0)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "has not answered for 0.02 s" in said


@pytest.mark.process
def test_a_stopped_service_ends_with_the_run_that_it_was_for(wandb, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trackers, "_ANSWER_SECONDS", 1)
    tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
    tracker.start({}, "n", None, "ace", "1a2b3c4d", tmp_path)
    process = wandb.setup()._connection._proc._process
    process.send_signal(signal.SIGSTOP)
    tracker.log(row(0))
    tracker.finish({"exit_status": "ok"}, 0)
    assert process.wait(timeout=10) == -signal.SIGKILL
    assert "has not answered" in capsys.readouterr().err


def test_a_folder_for_wandb_that_cannot_be_written_is_said_and_the_run_directory_used(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    tracker = WandbTracker(WandbTrackerConfig(mode="offline", dir=str(tmp_path / "file" / "below")))
    given = {}
    monkeypatch.setattr(tracker, "_init", lambda wandb, arguments, mode: given.update(arguments))
    tracker.start({}, "n", None, "ace", "1a2b3c4d", tmp_path / "run")
    assert given["dir"] == str(tmp_path / "run")
    assert "Not a directory; W&B's files go to the run directory" in capsys.readouterr().err
