"""A flipped bit in a run directory is harmless or named, and never another number."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import torch
from reports.runs_by_hand import write_run

from asyncfl_bench.files import read_parquet, read_tensors
from asyncfl_bench.tracking import records
from asyncfl_bench.tracking.archive import pack_archive
from asyncfl_bench.tracking.rundir import DIGESTED, RunDirectory, Trace
from asyncfl_bench.tracking.runs import load_clients, load_points, load_runs

ROW = (1, 0.5, 7, 0, 0, 0, 100, 3, True, 0.5)


def finished_run(folder: Path, **words) -> Path:
    """A run with every kind of file that a report reads, its summary written by the program."""
    clients = {"client": [0, 1], "accuracy": [0.25, 0.75]}
    path = write_run(folder, clients=clients, summary={"clients": {}}, **words)
    directory = RunDirectory(path)
    for name in ("trace.parquet", "rule.parquet"):
        trace = Trace(path / name)
        trace.add(ROW)
        trace.close()
    (path / "arrivals.csv").write_text("client,cycle\n0,1\n")
    directory.write_model("model_final.pt", {"w": torch.arange(6.0)})
    directory.write_summary(json.loads((path / "summary.json").read_text()))
    return path


def numbers_of(path: Path) -> tuple[str, str]:
    """(status, all that reports read) of the run, whatever was read before."""
    records._read_directory.cache_clear()
    runs = load_runs(path)
    frames = [runs, load_points(runs), load_clients(runs)]
    return runs["status"].item(), " ".join(frame.to_json(double_precision=15) for frame in frames)


@pytest.mark.parametrize(
    "name",
    [
        "summary.json",
        "config.yaml",
        "metrics.jsonl",
        "clients.parquet",
        "trace.parquet",
        "rule.parquet",
        "arrivals.csv",
    ],
)
def test_a_flipped_bit_changes_no_number_without_a_word(name, tmp_path):
    path = finished_run(tmp_path)
    whole, (status, truth), draws = (path / name).read_bytes(), numbers_of(path), random.Random(0)
    assert status == "ok" and "files" not in truth
    found = Counter()
    for _ in range(25):
        flipped = bytearray(whole)
        flipped[draws.randrange(len(whole))] ^= 1 << draws.randrange(8)
        (path / name).write_bytes(flipped)
        status, numbers = numbers_of(path)
        found[status] += 1
        assert status in ("unreadable", "inconsistent") or (name == "summary.json" and numbers == truth)
    assert found["inconsistent"] >= 10
    (path / name).write_bytes(whole)
    assert numbers_of(path) == ("ok", truth)


def test_the_note_names_the_file_and_an_archive_takes_no_such_run(tmp_path, capsys):
    finished_run(tmp_path, seed=1)
    path = finished_run(tmp_path, seed=2)
    (path / "metrics.jsonl").write_text((path / "metrics.jsonl").read_text().replace("0.5", "0.6"))
    assert pack_archive([tmp_path], tmp_path / "runs.parquet") == 1
    said = f"left out, {path.name}: metrics.jsonl is not the file that the run wrote\n"
    assert capsys.readouterr().err == said and "files" not in str(load_runs(tmp_path / "runs.parquet").columns)


def test_a_directory_without_digests_and_one_without_a_file_are_read_as_they_are(tmp_path):
    path = finished_run(tmp_path)
    (path / "trace.parquet").unlink()  # takes the most room
    assert numbers_of(path)[0] == "ok"
    summary = json.loads((path / "summary.json").read_text())
    del summary["files"]
    (path / "summary.json").write_text(json.dumps(summary))
    pd.DataFrame({"client": [0, 1], "accuracy": [0.5, 0.5]}).to_parquet(path / "clients.parquet")
    assert numbers_of(path)[0] == "ok"


@pytest.mark.parametrize("files", [None, [], "x", {}, {"../other": "0"}])
def test_malformed_digests_are_named(files, tmp_path):
    path = finished_run(tmp_path)
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | {"files": files}))
    assert numbers_of(path)[0] == "inconsistent"


def test_a_summary_that_is_written_again_keeps_the_digests_of_the_other_files(tmp_path):
    path = finished_run(tmp_path)
    summary = json.loads((path / "summary.json").read_text())
    assert {*summary["files"]} == {"summary.json", *(name for name in DIGESTED if (path / name).exists())}
    (path / "metrics.jsonl").write_text("{}\n")
    RunDirectory(path).write_summary(summary | {"replayed": {"same_bits": True}})
    assert numbers_of(path)[0] == "inconsistent"


def test_pages_of_tables_and_parts_of_models_have_sums(tmp_path):
    path = finished_run(tmp_path)
    for name, read in (("trace.parquet", read_parquet), ("model_final.pt", read_tensors)):
        whole, truth, refused = (path / name).read_bytes(), str(read(path / name)), 0
        for place in range(0, len(whole), 41):
            flipped = bytearray(whole)
            flipped[place] ^= 1
            (path / name).write_bytes(flipped)
            try:
                if name == "model_final.pt":
                    assert str(read(path / name)) == truth
                else:
                    read(path / name)
            except (ValueError, OSError):
                refused += 1
        assert refused > 10
    with pytest.raises(ValueError, match=r"."):
        (path / "model_final.pt").write_bytes(whole.replace(torch.arange(6.0).numpy().tobytes(), bytes(24)))
        read_tensors(path / "model_final.pt")
