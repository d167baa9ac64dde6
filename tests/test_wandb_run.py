"""Whole runs with tracking=wandb, offline: what W&B would be sent is what metrics.jsonl says."""

import json

import pytest
from offline_wandb import exit_codes, points, records

from asyncfl_bench import run


@pytest.fixture(autouse=True)
def not_logged_in(monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
def test_several_runs_in_one_process_are_kept_offline_value_by_value(capfd):
    words = ["tracking=wandb", "scale=smoke", "progress=false", "model=softmax"]
    results = [run([*words, f"seed={seed}", "algorithm=aced"], group="a sweep") for seed in (0, 1)]
    said = capfd.readouterr().err
    assert said.count("afl-run --sync") == 2 and "not logged in" in said
    for seed, result in enumerate(results):
        assert result.ok
        found = records(result.directory)
        logged = [json.loads(line) for line in (result.directory / "metrics.jsonl").read_text().splitlines()]
        assert points(found) == logged and len(logged) == 5
        (started,) = found["run"]
        assert started["display_name"] == result.summary["name"]
        assert started["run_id"] == result.summary["identity"]
        assert started["run_group"] == "a sweep" and started["job_type"] == "aced"
        assert {"algorithm=aced", "dataset=digits", "scale=smoke"} <= set(started["tags"])
        assert started["config"]["update"]["seed"] == seed
        assert started["config"]["update"]["algorithm"]["tau_algo"] == 10
    assert results[0].summary["identity"] != results[1].summary["identity"]


@pytest.mark.slow
def test_tracking_changes_no_number():
    words = ["scale=smoke", "progress=false", "model=softmax", "evaluation.every=20"]
    plain = run([*words, "output_dir=plain"])
    tracked = run([*words, "output_dir=tracked", "tracking=wandb", "tracking.wandb.mode=offline"])
    assert plain.summary["identity"] == tracked.summary["identity"]
    assert plain.metrics.drop(columns="wall_time").equals(tracked.metrics.drop(columns="wall_time"))


@pytest.mark.slow
def test_a_failed_run_ends_its_wandb_run_and_the_next_one_starts_afresh():
    words = ["tracking=wandb", "scale=smoke", "progress=false", "model=softmax", "algorithm=fedbuff"]
    diverged = run([*words, "client.lr=1e38"])
    healthy = run(words)
    assert diverged.summary["exit_status"] == "diverged" and healthy.ok
    assert exit_codes(records(diverged.directory)) == [1]
    assert len(points(records(healthy.directory))) == 5
