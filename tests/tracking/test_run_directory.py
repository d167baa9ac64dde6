from __future__ import annotations

import json
import math
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch

from asyncfl_bench.errors import BenchError
from asyncfl_bench.tracking.rundir import COUNTERS, TRACE_TYPES, RunDirectory, Trace, read_metrics


def read_as_documented(path: Path) -> pd.DataFrame:
    """The frame of the command that docs/reference/run_directory.md prints."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "run_directory.md").read_text("utf-8")
    (command,) = re.findall(r"`(pandas\.read_json\(.*?\))`", page)
    return eval(command, {"pandas": pd, "path": path})


def point(iteration: int, **metrics) -> dict:
    counters = {"iteration": iteration, "uploads": 2 * iteration, "client_steps": 6 * iteration}
    return metrics | counters | {"virtual_time": iteration / 3, "wall_time": iteration / 7}


def test_every_line_starts_with_the_five_counters_and_keeps_all_digits(tmp_path):
    run = RunDirectory(tmp_path / "a" / "b")
    run.metrics.write(point(1, **{"test/accuracy": 1 / 3}))
    line = json.loads((tmp_path / "a" / "b" / "metrics.jsonl").read_text())  # before close: it was flushed
    assert list(line) == [*COUNTERS, "test/accuracy"]
    assert line["test/accuracy"] == 1 / 3 and line["virtual_time"] == 1 / 3 and line["uploads"] == 2


def test_numbers_of_numpy_and_torch_are_written_as_plain_numbers(tmp_path):
    run = RunDirectory(tmp_path)
    run.metrics.write(point(1, a=np.float32(0.5), b=torch.tensor(3), c=np.int64(4), d=True, e=np.array([1, 2])))
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert (row["a"], row["b"], row["c"], row["d"], row["e"]) == (0.5, 3, 4, True, [1, 2])


def test_nan_and_infinity_become_null_and_pandas_reads_them_as_nan(tmp_path):
    run = RunDirectory(tmp_path)
    for iteration, loss in enumerate([0.5, math.nan, math.inf, np.float32("-inf"), 0.25]):
        run.metrics.write(point(iteration, **{"test/loss": loss}))
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text.count("null") == 3 and "NaN" not in text and "Infinity" not in text
    losses = read_as_documented(tmp_path / "metrics.jsonl")["test/loss"]
    assert losses.isna().tolist() == [False, True, True, True, False]
    assert losses.dropna().tolist() == [0.5, 0.25]


def test_the_documented_command_reads_every_digit(tmp_path):
    run, draws = RunDirectory(tmp_path), np.random.default_rng(0)
    values = [float(value) for value in draws.random(200) * 10.0 ** draws.integers(-6, 6, 200)]
    for iteration, loss in enumerate(values):
        run.metrics.write(point(iteration, **{"test/loss": loss}))
    assert read_as_documented(tmp_path / "metrics.jsonl")["test/loss"].tolist() == values


def test_a_point_without_a_counter_is_refused_and_nothing_is_written(tmp_path):
    run = RunDirectory(tmp_path)
    row = point(1)
    del row["client_steps"]
    with pytest.raises(KeyError, match="client_steps"):
        run.metrics.write(row)
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_a_resumed_run_keeps_what_was_logged_at_its_checkpoint_and_appends(tmp_path):
    run = RunDirectory(tmp_path)
    for iteration in range(5):
        run.metrics.write(point(iteration))
    run.metrics.truncate(2)
    run.metrics.write(point(9))
    assert [row["iteration"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 9]
    run.metrics.truncate(0)
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_a_checkpoint_ahead_of_the_metrics_is_an_error_that_changes_nothing(tmp_path):
    run = RunDirectory(tmp_path)
    run.metrics.write(point(0))
    with pytest.raises(BenchError, match="holds 1 complete lines but the checkpoint was written after 3"):
        run.metrics.truncate(3)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


def test_a_half_written_last_line_is_ignored_and_not_glued_to_the_next(tmp_path):
    run = RunDirectory(tmp_path)
    run.metrics.write(point(0))
    run.close()
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text() + '{"iteration": 1, "upl')
    assert [row["iteration"] for row in read_metrics(file)] == [0]
    RunDirectory(tmp_path).metrics.write(point(2))
    assert [row["iteration"] for row in read_metrics(file)] == [0, 2]


def test_a_summary_that_cannot_be_written_leaves_the_old_one_and_no_debris(tmp_path):
    run = RunDirectory(tmp_path)
    run.write_summary({"exit_status": "ok", "final": {"test/loss": math.inf}})
    before = (run.path / "summary.json").read_text()
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        run.write_summary({"exit_status": object()})
    assert (run.path / "summary.json").read_text() == before
    assert json.loads(before) == {"exit_status": "ok", "final": {"test/loss": None}, "files": mock.ANY}
    assert before.startswith('{\n  "exit_status"')
    with pytest.raises(AttributeError):
        run.write_model("model_final.pt", {"w": "no tensor"})
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    run.reopen()
    assert list(tmp_path.iterdir()) == []


ROWS = [
    (1, 0.5, 7, 0, 0, 0, 100, 3, False, 0.5),
    (2, 1.25, 4, 0, 0, 0, 90, 3, True, 1.25),
    (3, 1.25, 7, 0, 1, 1, 100, 3, False, 0.75),
]


def test_the_trace_has_one_typed_row_per_arrival(tmp_path):
    run = RunDirectory(tmp_path)
    trace = run.open_trace()
    for row in ROWS:
        trace.add(row)
    run.close()
    frame = pd.read_parquet(tmp_path / "trace.parquet")
    assert {name: frame[name].dtype for name in frame} == {name: np.dtype(kind) for name, kind in TRACE_TYPES.items()}
    facts = ["dispatched_iteration", "iteration", "staleness", "samples", "local_steps", "model_changed", "delay"]
    assert list(frame) == ["upload", "time", "client", *facts]
    assert list(frame.itertuples(index=False, name=None)) == ROWS


def test_facts_of_a_rule_are_further_columns_of_numbers(tmp_path):
    run = RunDirectory(tmp_path)
    trace = run.open_trace(("gamma", "k"))
    trace.add((*ROWS[0], 2.5, 7))
    run.close()
    frame = pd.read_parquet(tmp_path / "trace.parquet")
    assert list(frame)[-3:] == ["delay", "gamma", "k"]
    assert (frame["gamma"][0], frame["k"][0], frame["k"].dtype) == (2.5, 7.0, float)


def test_a_trace_without_arrivals_has_its_columns(tmp_path):
    Trace(tmp_path / "trace.parquet").close()
    frame = pd.read_parquet(tmp_path / "trace.parquet")
    assert len(frame) == 0 and frame["model_changed"].dtype == bool and frame["time"].dtype == float


def test_a_trace_restored_from_a_checkpoint_continues_as_if_never_stopped(tmp_path):
    first = Trace(tmp_path / "trace.parquet")
    first.add(ROWS[0])
    first.add(ROWS[1])
    torch.save(first.state_dict(), tmp_path / "checkpoint.pt")
    first.add(ROWS[0])  # done after the checkpoint, to be forgotten

    second = Trace(tmp_path / "trace.parquet")
    second.add(ROWS[2])  # whatever was there is replaced
    second.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    second.add(ROWS[2])
    assert list(zip(*(column.tolist() for column in second.columns().values()), strict=True)) == ROWS


def test_a_long_trace_survives_its_change_into_columns(tmp_path):
    n = 150_000
    trace = Trace(tmp_path / "trace.parquet")
    for i in range(n):
        trace.add((i, 0.5 * i, i % 10, i, i, 3, 100, 1, i % 2 == 0, 0.5))
    columns = trace.columns()
    assert np.array_equal(columns["upload"], np.arange(n)) and columns["model_changed"].sum() == n // 2


def test_the_partition_comes_back_client_by_client(tmp_path):
    parts = [np.array([3, 1]), np.array([], dtype=np.int64), np.array([0, 2, 4])]
    RunDirectory(tmp_path).write_partition(parts)
    with np.load(tmp_path / "partition.npz") as saved:
        assert saved.files == ["client_0", "client_1", "client_2"]
        assert [saved[key].tolist() for key in saved.files] == [[3, 1], [], [0, 2, 4]]


def test_a_saved_model_holds_its_own_numbers_and_not_the_buffer_it_is_a_view_of(tmp_path):
    flat_d = torch.arange(1_000_000, dtype=torch.float32)
    run = RunDirectory(tmp_path)
    run.write_model("model_final.pt", {"layer.weight": flat_d[2:6].view(2, 2), "layer.bias": flat_d[:2]})
    saved = torch.load(tmp_path / "model_final.pt", weights_only=True)
    assert saved["layer.weight"].tolist() == [[2.0, 3.0], [4.0, 5.0]] and saved["layer.bias"].tolist() == [0.0, 1.0]
    assert (tmp_path / "model_final.pt").stat().st_size < 20_000
