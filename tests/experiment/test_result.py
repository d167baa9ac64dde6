"""When a run counts as finished: by its directory, or by an archive that it was packed into."""

import json
from pathlib import Path

import pandas as pd
import pytest

from asyncfl_bench import run
from asyncfl_bench.config import compose
from asyncfl_bench.experiment import finished

WORDS = ["scale=smoke", "model=softmax", "progress=false"]


def packed(result, target=Path("runs.parquet"), **changes):
    """An archive of this one run."""
    summary = {key: value for key, value in result.summary.items() if key != "already_complete"} | changes
    points = {f"point.{name}": [column.tolist()] for name, column in result.metrics.items()}
    row = {"identity": [summary["identity"]], "summary": [json.dumps(summary)], **points, "point.rule/none": [None]}
    pd.DataFrame(row).to_parquet(target)
    return {summary["identity"]: target}


@pytest.fixture
def archived():
    """(result, archive) of a run whose directory is gone."""
    result = run([*WORDS, "hydra.run.dir=elsewhere"])
    return result, packed(result)


def test_a_run_in_an_archive_is_finished_with_its_summary_and_its_points(archived):
    result, archive = archived
    assert finished(compose(WORDS)) is None
    again = finished(compose(WORDS), archive)
    assert again.ok and again.directory == Path("runs.parquet")
    assert again.summary == result.summary | {"already_complete": True}
    pd.testing.assert_frame_equal(again.metrics, result.metrics)


def test_a_runs_own_directory_comes_before_an_archive(archived):
    here = run(WORDS)
    assert finished(compose(WORDS), archived[1]).directory == here.directory


@pytest.mark.parametrize("word", ["seed=1", "rerun=true", "trace=true", "diagnostics=mse"])
def test_an_archive_does_not_finish_what_it_does_not_hold(word, archived):
    assert finished(compose([*WORDS, "algorithm=ace", word]), archived[1]) is None


@pytest.mark.parametrize("changes", [{"results_version": -1}, {"exit_status": "diverged"}, {"identity": "00000000"}])
def test_a_summary_in_an_archive_is_looked_at_like_one_in_a_directory(changes, archived):
    result, _ = archived
    packed(result, Path("other.parquet"), **changes)
    assert finished(compose(WORDS), {result.summary["identity"]: Path("other.parquet")}) is None


def test_an_archive_that_was_written_anew_is_read_anew(archived):
    result, archive = archived
    assert finished(compose(WORDS), archive) is not None
    packed(result, exit_status="failed")
    assert finished(compose(WORDS), archive) is None
