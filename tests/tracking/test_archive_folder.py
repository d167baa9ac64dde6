"""An archive in a folder grows by the runs that are new, and no file of it is written twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from raise_versions import rewrite_archive
from reports.runs_by_hand import write_run

from asyncfl_bench.errors import BenchError
from asyncfl_bench.tracking.archive import archives_by_identity, pack_archive, read_archive
from asyncfl_bench.tracking.runs import load_points, load_runs


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def seeds_of(place: Path) -> list[int]:
    return sorted(load_runs(place)["seed"])


def test_packing_ten_runs_adds_the_bytes_of_these_ten(tmp_path):
    archive = tmp_path / "archive"
    for seed in range(40):
        write_run(tmp_path / "old" if seed < 30 else tmp_path / "new", seed=seed)
    assert pack_archive([tmp_path / "old"], archive) == 30
    before = contents(archive)
    assert pack_archive([tmp_path / "old", tmp_path / "new"], archive) == 40
    after = contents(archive)
    added = {name: data for name, data in after.items() if name not in before}
    assert {name: after[name] for name in before} == before and len(before) == len(added) == 1
    pack_archive([tmp_path / "new"], tmp_path / "ten.parquet")
    assert [*added.values()] == [(tmp_path / "ten.parquet").read_bytes()]
    assert seeds_of(archive) == [*range(40)] and len(archives_by_identity(tmp_path / "archive")) == 40


def test_the_same_directories_add_nothing_and_a_run_made_again_supersedes_its_row(tmp_path):
    archive = tmp_path / "archive"
    for seed in (0, 1):
        write_run(tmp_path / "runs", seed=seed, columns={"train/loss": [None, 1 / 3 + seed]})
    pack_archive([tmp_path / "runs"], archive)
    before = contents(archive)
    assert pack_archive([tmp_path / "runs"], archive) == 2 and contents(archive) == before
    again = write_run(tmp_path / "again", seed=1, summary={"wall_seconds": 9.5})
    assert pack_archive([tmp_path / "again"], archive) == 2
    after = contents(archive)
    first, lines = *before, after.pop("superseded.txt").decode()
    assert lines == f"{first} {again.name}\n" and after[first] == before[first] and len(after) == 2
    runs = load_runs(archive).set_index("seed")["summary.wall_seconds"]
    assert runs.to_dict() == {0: 1.5, 1: 9.5} and len(load_points(load_runs(archive))) == 4
    assert archives_by_identity(archive)[load_runs(again)["identity"].iloc[0]].name != first
    assert pack_archive([tmp_path / "runs" / again.name], archive) == 2  # the first one is a later run in a directory
    assert load_runs(archive)["summary.wall_seconds"].tolist() == [1.5, 1.5]


def test_a_folder_is_rewritten_batch_by_batch_without_its_superseded_runs(tmp_path):
    archive = tmp_path / "archive"
    for seed, seconds in ((0, 1.5), (1, 1.5), (1, 9.5)):
        run = write_run(tmp_path / f"{seed}{seconds}", seed=seed, summary={"wall_seconds": seconds})
        pack_archive([run], archive)
    assert len(contents(archive)) == 4
    assert rewrite_archive(archive, lambda one: replace(one, summary=one.summary | {"wall_seconds": 7.0})) == 2
    assert load_runs(archive)["summary.wall_seconds"].tolist() == [7.0, 7.0] and "superseded.txt" not in contents(
        archive
    )
    before = contents(archive)
    with pytest.raises(BenchError, match="two runs would have one identity"):
        rewrite_archive(archive, lambda record: replace(record, config=record.config | {"seed": 0}))
    assert contents(archive) == before


def test_a_list_of_superseded_runs_that_is_not_text_is_named(tmp_path, capsys):
    archive = tmp_path / "archive"
    pack_archive([write_run(tmp_path / "runs", seed=0)], archive)
    (archive / "superseded.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BenchError, match=r"archive/superseded\.txt: not text"):
        read_archive(archive)
    assert archives_by_identity(archive) == {} and "superseded.txt: not text" in capsys.readouterr().err
    assert load_runs(archive)["status"].tolist() == ["unreadable"]
