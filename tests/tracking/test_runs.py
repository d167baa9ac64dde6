"""Run directories as frames, on directories of two points whose numbers can be read off."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pandas as pd
import pytest
import yaml
from reports.runs_by_hand import config_of, write_run

import asyncfl_bench
from asyncfl_bench.analysis.names import distinguishing_keys
from asyncfl_bench.config.settings import RESULTS_VERSION
from asyncfl_bench.reports.assembly import own_page
from asyncfl_bench.tracking.records import identity_of
from asyncfl_bench.tracking.runs import flatten, load_points, load_runs, setting_text


def test_a_row_a_run_with_settings_choices_and_the_summary_as_columns(tmp_path):
    path = write_run(tmp_path, "ace", seed=3, alpha=0.3, beta=30)
    row = load_runs(tmp_path).loc[str(path)]
    assert row[["algorithm", "seed", "status", "note"]].tolist() == ["ace", 3, "ok", ""]
    assert row[["delay", "delay.beta", "heterogeneity.alpha", "n_clients"]].tolist() == ["exp_beta30", 30.0, 0.3, 10]
    assert row["model.hidden"] == "[20]" and row["summary.used.uploads"] == 100 and row["data_digest"] == "d1"
    assert row["name"] == path.name and path.name.endswith(row["identity"])
    assert row["results_version"] == RESULTS_VERSION and row["summary.stopped_by"] == "virtual_time"


def test_whole_numbers_stay_whole_and_a_setting_that_a_run_lacks_is_empty(tmp_path):
    write_run(tmp_path, "ace", client__local_epochs=2)
    write_run(tmp_path, "fedbuff", algorithm__buffer_size=10)
    runs = load_runs(tmp_path).set_index("algorithm")
    assert runs["n_clients"].dtype == int and runs.loc["fedbuff", "algorithm.buffer_size"] == 10
    assert (
        pd.isna(runs.loc["ace", "algorithm.buffer_size"])
        and setting_text(runs.loc["ace", "algorithm.buffer_size"]) == "-"
    )
    assert setting_text(runs.loc["ace", "client.local_epochs"]) == "2"


def test_what_is_absent_from_a_run_makes_it_differ_in_nothing_from_a_run_without_it(tmp_path):
    write_run(tmp_path, "fedbuff", seed=0)
    new = write_run(tmp_path, "fedbuff", seed=1)
    config = yaml.safe_load((new / "config.yaml").read_text())
    config |= {"unlabelled": {"_target_": "x.Nothing"}, "warm_up": 0}
    config["choices"]["unlabelled"] = "none"
    (new / "config.yaml").write_text(yaml.safe_dump(config))
    assert distinguishing_keys(load_runs(tmp_path), []) == ["unlabelled"]
    config["absent"] = ["unlabelled", "warm_up"]
    (new / "config.yaml").write_text(yaml.safe_dump(config))
    runs = load_runs(tmp_path)
    assert distinguishing_keys(runs, []) == [] and not {"unlabelled", "warm_up"} & {*runs}


@pytest.mark.filterwarnings("error")
def test_a_counter_that_the_first_lines_of_a_run_lack_is_no_number_there(tmp_path):
    path = write_run(tmp_path) / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[-1]["uplink_bytes"] = 400  # counted since it was resumed
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    bytes_ = load_points(load_runs(tmp_path))["uplink_bytes"]
    assert math.isnan(bytes_.iloc[0]) and bytes_.iloc[-1] == 400


def test_points_come_in_the_order_of_the_runs_with_the_counters_first(tmp_path):
    first = write_run(tmp_path, seed=0, columns={"train/loss": [None, 0.25]})
    second = write_run(tmp_path, seed=1, points=[(0, 0, 0.0, 0.2), (5, 50, 7.5, None), (10, 100, 10.0, 0.75)])
    runs = load_runs(tmp_path).sort_values("seed", ascending=False)
    points = load_points(runs)
    assert points["run"].tolist() == [str(second)] * 3 + [str(first)] * 2
    assert list(points.columns[:6]) == ["run", "iteration", "uploads", "client_steps", "virtual_time", "wall_time"]
    assert points["iteration"].tolist() == [0, 5, 10, 0, 10] and points["iteration"].dtype == int
    assert points["test/accuracy"].tolist()[::2] == [0.2, 0.75, 0.5] and math.isnan(points["test/accuracy"][1])
    assert points["train/loss"].isna().tolist() == [True, True, True, True, False]


def test_runs_that_came_to_no_end_are_named_and_have_no_points(tmp_path):
    write_run(tmp_path, seed=0, status=None)
    write_run(tmp_path, seed=1, status="failed")
    write_run(tmp_path, seed=2, status="diverged")
    write_run(tmp_path, seed=3, status="interrupted")
    runs = load_runs(tmp_path).set_index("seed", append=True).reset_index("run")
    assert runs["status"].to_dict() == {0: "incomplete", 1: "failed", 2: "diverged", 3: "interrupted"}
    assert "still running, or killed" in runs.loc[0, "note"] and runs.loc[1, "note"] == "failed at iteration 7"
    assert load_points(load_runs(tmp_path))["run"].unique().tolist() == [runs.loc[2, "run"]]


@pytest.mark.parametrize(
    ("name", "content", "note"),
    [
        ("config.yaml", "a: [1", "config.yaml: "),
        ("config.yaml", "- 1\n", "config.yaml: not a mapping"),
        ("summary.json", "{", "summary.json: "),
        ("summary.json", "[]", "summary.json: no exit_status"),
        ("metrics.jsonl", '{"iteration": 0}\n7\n', "metrics.jsonl, line 2: not a JSON object"),
        ("config.yaml", b"\xff\xfe\x00", "config.yaml: "),
    ],
)
def test_a_broken_file_makes_its_run_unreadable_and_leaves_the_others_alone(tmp_path, name, content, note):
    broken = write_run(tmp_path, seed=0)
    write_run(tmp_path, seed=1)
    (broken / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    runs = load_runs(tmp_path)
    assert runs["status"].value_counts().to_dict() == {"ok": 1, "unreadable": 1}
    assert note in runs.loc[str(broken), "note"]
    assert len(load_points(runs)) == 2


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"seed": [1, 2]}, "config.yaml: seed [1, 2] is not a whole number"),
        ({"seed": True}, "config.yaml: seed True is not a whole number"),
        ({"choices__algorithm": ["ace"]}, "config.yaml: choice of algorithm ['ace'] is not a text"),
        ({"summary": {"experiment": ["a"]}}, "summary.json: experiment ['a'] is not a text"),
        ({"summary": {"used": {"uploads": "x"}}}, "summary.json: used uploads 'x' is not a number"),
        ({"summary": {"wall_seconds": [1]}}, "summary.json: wall_seconds [1] is not a number"),
        ({"columns": {"test/accuracy": [0.1, "high"]}}, "metrics.jsonl: line 2: test/accuracy 'high' is no"),
        ({"columns": {"iteration": [0, [1]]}}, "metrics.jsonl: line 2: iteration [1] is not a number"),
    ],
)
def test_what_is_of_another_kind_than_pages_read_makes_its_run_unreadable(tmp_path, changes, note):
    write_run(tmp_path)
    broken = write_run(tmp_path / "broken", **({"seed": 1} | changes))
    runs = load_runs(tmp_path)
    assert runs.loc[str(broken), "status"] == "unreadable" and runs.loc[str(broken), "note"].startswith(note)
    page = own_page(runs, "runs")
    assert len(page.runs) == 1 and [*page.placed.left_out["reason"]] == ["unreadable"]


def test_links_to_runs_are_followed_and_a_circle_ends(tmp_path):
    elsewhere = write_run(tmp_path / "scratch" / "many", seed=1)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one").symlink_to(elsewhere)
    (tmp_path / "runs" / "again").symlink_to(elsewhere.parent)
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    assert list(load_runs(tmp_path / "runs")["seed"]) == [1]


def test_half_a_line_at_the_end_is_no_point(tmp_path):
    path = write_run(tmp_path)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 20, "upl')
    assert load_points(load_runs(tmp_path))["iteration"].tolist() == [0, 10]


def test_files_that_contradict_each_other_make_a_run_inconsistent(tmp_path):
    changed = write_run(tmp_path, seed=0)
    config = yaml.safe_load((changed / "config.yaml").read_text())
    config["client"]["lr"] = 0.1000000001  # beyond the digits shown
    (changed / "config.yaml").write_text(yaml.safe_dump(config))
    cut = write_run(tmp_path, seed=1)
    (cut / "metrics.jsonl").write_text((cut / "metrics.jsonl").read_text().splitlines(keepends=True)[0])
    moved = write_run(tmp_path, seed=5, summary={"experiment": "00000000"})
    empty = write_run(tmp_path, seed=2)
    (empty / "metrics.jsonl").unlink()
    write_run(tmp_path, seed=3, points=[(0, 0, 0.0, 0.1), (10, 100, 10.0, 1.5)])
    write_run(tmp_path, seed=4, points=[(10, 100, 10.0, 0.5), (0, 0, 0.0, 0.1)])
    runs = load_runs(tmp_path)
    assert set(runs["status"]) == {"inconsistent"} and load_points(runs).empty
    notes = runs.set_index("seed")["note"]
    assert notes[3].endswith("not a share between 0 and 1") and notes[4].endswith("not in order")
    assert runs.loc[str(changed), "note"].startswith("summary.json says identity")
    assert runs.loc[str(moved), "note"].startswith("summary.json says experiment 00000000, config.yaml gives")
    assert "says test/accuracy 0.5, the last of metrics.jsonl is 0.1" in runs.loc[str(cut), "note"]
    assert "no points" in runs.loc[str(empty), "note"]


def test_the_experiment_is_the_identity_without_the_seed():
    trees = [config_of(seed=seed) for seed in (0, 1)] + [config_of(seed=0, algorithm__c=0.20000001)]
    identities, experiments = ([identity_of(t, without_seed=w) for t in trees] for w in (False, True))
    assert len(set(identities)) == 3 and experiments[0] == experiments[1] != experiments[2]
    elsewhere = config_of(seed=0) | {"output_dir": "/elsewhere", "threads": 2}
    assert identity_of(elsewhere) == identities[0]


def test_what_is_in_a_file_counts_and_not_where_it_lies(tmp_path):
    for name, text in (("a.csv", "1"), ("b.csv", "1"), ("c.csv", "2")):
        (tmp_path / name).write_text(text)
    trees = [config_of(delay__path=str(tmp_path / name)) for name in ("a.csv", "b.csv", "c.csv", "gone.csv")]
    one, two, three, gone = map(identity_of, trees)
    assert one == two != three and gone is None


def test_folders_of_other_tools_and_twice_the_same_place_are_no_runs(tmp_path):
    path = write_run(tmp_path / "runs")
    for folder in (path / "wandb", tmp_path / "runs" / ".hydra", tmp_path / "runs" / "wandb" / "run-1"):
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("a: 1\n")
    pd.DataFrame({"upload": [1]}).to_parquet(path / "trace.parquet")
    assert list(load_runs(tmp_path / "runs", tmp_path).index) == [str(path)]


def test_a_file_that_changed_is_read_again(tmp_path):
    path = write_run(tmp_path)
    assert load_runs(tmp_path)["status"].tolist() == ["ok"]
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | {"exit_status": "failed", "error": "disk full"}))
    assert load_runs(tmp_path)[["status", "note"]].values.tolist() == [["failed", "disk full"]]


def test_settings_are_written_as_in_yaml():
    assert [setting_text(v) for v in (None, math.nan, True, 2, 0.1, 1 / 3, "a", 1e-5)] == (
        ["-", "-", "true", "2", "0.1", "0.333333", "a", "1e-05"]
    )
    assert flatten({"a": {"b": {"c": 1}, "d": [1, 2]}, "e": {}}) == {"a.b.c": 1, "a.d": "[1, 2]"}


def test_frames_are_public_and_the_package_does_not_wait_for_pandas():
    assert asyncfl_bench.load_runs is load_runs and asyncfl_bench.load_points is load_points
    code = "import sys, asyncfl_bench; assert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
