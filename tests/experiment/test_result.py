"""When a run counts as finished: by its directory, or by an archive that it was packed into."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from raise_versions import rewrite_archive

from asyncfl_bench import load_runs, run
from asyncfl_bench.config import compose
from asyncfl_bench.experiment import execute, finished_result
from asyncfl_bench.multirun.jobs import plan
from asyncfl_bench.multirun.pending import finished_paths
from asyncfl_bench.tracking.archive import archives_by_identity as archives_of
from asyncfl_bench.tracking.archive import pack_archive

WORDS = ["scale=smoke", "model=softmax", "progress=false"]


def packed(result, target=Path("runs.parquet"), **changes):
    """An archive of this one run."""
    pack_archive([result.directory], target)
    rewrite_archive(target, lambda record: replace(record, summary=record.summary | changes))
    return {result.summary["identity"]: target}


@pytest.fixture
def archived():
    """(result, archive) of a run whose directory is gone."""
    result = run([*WORDS, "hydra.run.dir=elsewhere"])
    archive = packed(result)
    shutil.move("elsewhere", "gone")
    return replace(result, directory=Path("gone")), archive


def test_a_run_in_an_archive_is_finished_with_its_summary_and_its_points(archived):
    result, archive = archived
    assert finished_result(compose(WORDS)) is None
    again = finished_result(compose(WORDS), archive)
    assert again.ok and again.directory == Path("runs.parquet")
    archived_facts = {key: value for key, value in result.summary.items() if key != "command"}  # may name places
    assert again.summary == archived_facts | {"already_complete": True}
    pd.testing.assert_frame_equal(again.metrics, result.metrics, check_like=True)  # columns are sorted


def test_a_runs_own_directory_comes_before_an_archive(archived):
    here = run(WORDS)
    assert finished_result(compose(WORDS), archived[1]).directory == here.directory


@pytest.mark.parametrize("word", ["seed=1", "rerun=true", "trace=true", "diagnostics=mse"])
def test_an_archive_does_not_finish_what_it_does_not_hold(word, archived):
    assert finished_result(compose([*WORDS, "algorithm=ace", word]), archived[1]) is None


@pytest.mark.parametrize("changes", [{"results_version": -1}, {"exit_status": "diverged"}, {"identity": "00000000"}])
def test_a_summary_in_an_archive_is_looked_at_like_one_in_a_directory(changes, archived):
    result, _ = archived
    packed(result, Path("other.parquet"), **changes)
    assert finished_result(compose(WORDS), {result.summary["identity"]: Path("other.parquet")}) is None


def test_a_row_that_a_report_leaves_out_does_not_finish_a_run(archived):
    result, places = archived
    (archive,) = places.values()
    assert archives_of(".") == places
    final = {**result.summary["final"], "test/accuracy": 1.0}
    packed(result, archive, final=final)
    assert load_runs(archive)["status"].tolist() == ["inconsistent"]
    assert finished_result(compose(WORDS), places) is None and archives_of(".") == {}
    pack_archive([result.directory], "sound.parquet")  # is found behind the other
    assert finished_result(compose(WORDS), archives_of(".")).directory == Path("sound.parquet")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["its own", "another sweep's"])
def test_a_directory_that_a_report_leaves_out_does_not_finish_a_run(place):
    (job,) = plan(WORDS, ["hydra.sweep.dir=runs/mine" if place == "its own" else "hydra.sweep.dir=runs/another"])
    result = execute(job.settings)
    jobs = plan(WORDS, ["hydra.sweep.dir=runs/mine"])
    assert jobs[0].finished_result(finished_paths(jobs)) is not None
    metrics = result.directory / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps({**line, "test/accuracy": 0.5}) + "\n" for line in lines))
    assert load_runs(result.directory)["status"].tolist() == ["inconsistent"]
    assert jobs[0].finished_result(finished_paths(jobs)) is None
    again = execute(jobs[0].settings)  # not from a checkpoint that has its points
    assert again.summary["final"] == result.summary["final"]
    assert jobs[0].finished_result(finished_paths(jobs)) is not None and load_runs(again.directory)[
        "status"
    ].tolist() == ["ok"]


def test_an_archive_that_was_written_anew_is_read_anew(archived):
    result, archive = archived
    assert finished_result(compose(WORDS), archive) is not None
    packed(result, exit_status="failed")
    assert finished_result(compose(WORDS), archive) is None
