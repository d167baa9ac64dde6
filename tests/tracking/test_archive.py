"""Archives hold what directories held, and nothing gets lost on the way."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raise_versions import rewrite_archive
from reports.runs_by_hand import grid_by_hand, write_run

from asyncfl_bench.analysis.matching import group_runs, match_runs
from asyncfl_bench.config import compose
from asyncfl_bench.errors import BenchError, InputError
from asyncfl_bench.multirun.estimates import finished_in
from asyncfl_bench.tracking import archive as archive_module
from asyncfl_bench.tracking.archive import (
    archive_folders,
    archives_by_identity,
    describe_archive_folders,
    pack_archive,
    read_archive,
    results_folder,
)
from asyncfl_bench.tracking.records import identity_of
from asyncfl_bench.tracking.runs import load_points, load_runs


def some_runs(folder, seeds=(0, 1, 2)):
    """One run a seed, with metrics that only some points and some runs have."""
    return [
        write_run(
            folder,
            "ace" if seed % 2 else "fedbuff",
            seed,
            columns={"train/loss": [None, 1 / 3 + seed], **({"rule/k": [1, 2]} if seed else {})},
        )
        for seed in seeds
    ]


def comparable(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    return frame.reset_index(drop=True).sort_values(by, ignore_index=True).sort_index(axis=1)


def test_frames_of_an_archive_are_those_of_the_directories(tmp_path):
    some_runs(tmp_path / "runs")
    archive = tmp_path / "kept" / "runs.parquet"
    assert pack_archive([tmp_path / "runs"], archive) == 3
    before, after = load_runs(tmp_path / "runs"), load_runs(archive)
    assert list(after.index) == [f"{archive}::{name}" for name in sorted(before["name"])]
    assert set(before.columns) - set(after.columns) <= {"output_dir", "tracking._target_"}  # where, not what
    pd.testing.assert_frame_equal(comparable(after, ["name"]), comparable(before[after.columns], ["name"]))
    points = [load_points(runs.sort_values("name")).drop(columns="run") for runs in (before, after)]
    pd.testing.assert_frame_equal(*points)
    assert points[1]["rule/k"].tolist()[-2:] == [1, 2] and points[1]["train/loss"].max() == np.float32(1 / 3 + 2)


def test_points_of_chosen_runs_of_archives_and_directories_together(tmp_path):
    first, second, third = some_runs(tmp_path / "runs")
    pack_archive([first, second], tmp_path / "a.parquet")
    runs = load_runs(tmp_path / "a.parquet", third)
    chosen = runs[runs["seed"] != 0].sort_values("seed", ascending=False)
    points = load_points(chosen)
    assert points["run"].unique().tolist() == [str(third), f"{tmp_path / 'a.parquet'}::{second.name}"]
    assert points["test/accuracy"].tolist() == [0.1, 0.5, 0.1, 0.5]


def test_only_finished_runs_are_packed_and_the_same_runs_give_the_same_bytes(tmp_path):
    some_runs(tmp_path / "runs")
    write_run(tmp_path / "runs", seed=3, status="diverged")
    for seed, status in ((4, "failed"), (5, "interrupted"), (6, None)):
        write_run(tmp_path / "runs", seed=seed, status=status)
    write_run(tmp_path / "runs", seed=7, summary={"identity": "00000000"})
    broken = write_run(tmp_path / "runs", seed=8)
    (broken / "metrics.jsonl").write_text("{}\n[]\n")
    assert pack_archive([tmp_path / "runs"], tmp_path / "one.parquet") == 4
    assert pack_archive([tmp_path / "runs"], tmp_path / "two.parquet") == 4
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
    assert load_runs(tmp_path / "one.parquet")["status"].value_counts().to_dict() == {"ok": 3, "diverged": 1}
    with pytest.raises(BenchError, match="no finished run to pack"):
        pack_archive([broken], tmp_path / "three.parquet")
    assert not (tmp_path / "three.parquet").exists()


def test_what_is_in_the_archive_stays_and_the_newer_run_wins(tmp_path):
    archive = tmp_path / "runs.parquet"
    first, second, _ = some_runs(tmp_path / "runs")
    pack_archive([tmp_path / "runs"], archive)
    shutil.rmtree(first)
    for path, changes in ((second, {"wall_seconds": 9.5}),):
        summary = json.loads((path / "summary.json").read_text())
        (path / "summary.json").write_text(json.dumps(summary | changes))
    write_run(tmp_path / "runs", seed=5)
    assert pack_archive([tmp_path / "runs"], archive) == 4
    runs = load_runs(archive).set_index("seed")
    assert runs["summary.wall_seconds"].to_dict() == {0: 1.5, 1: 9.5, 2: 1.5, 5: 1.5}


def test_a_run_that_another_archive_has_too_stays_as_it_is(tmp_path):
    for name, seconds in (("target", 1.5), ("a", 9.5), ("z", 9.5)):
        write_run(tmp_path / "runs" / name, seed=1, summary={"wall_seconds": seconds})
        pack_archive([tmp_path / "runs" / name], tmp_path / name / "runs.parquet")
    before = (tmp_path / "target/runs.parquet").read_bytes()
    assert pack_archive([tmp_path / "a", tmp_path / "z"], tmp_path / "target/runs.parquet") == 1
    assert (tmp_path / "target/runs.parquet").read_bytes() == before


def test_an_archive_of_a_page_holds_the_experiments_of_its_sweep_only(tmp_path):
    some_runs(tmp_path / "runs")
    experiments = load_runs(tmp_path / "runs").set_index("seed")["experiment"]
    assert pack_archive([tmp_path / "runs"], tmp_path / "runs.parquet", only={experiments[1]}) == 1
    assert load_runs(tmp_path / "runs.parquet")["seed"].tolist() == [1]


def test_a_run_that_ended_well_is_not_replaced_by_one_that_did_not_or_is_of_an_older_version(tmp_path):
    archive = tmp_path / "runs.parquet"
    write_run(tmp_path / "good", seed=0)
    write_run(tmp_path / "good", seed=1)
    pack_archive([tmp_path / "good"], archive)
    write_run(tmp_path / "worse", seed=0, status="diverged")
    write_run(tmp_path / "worse", seed=1, summary={"results_version": 1})
    pack_archive([tmp_path / "worse"], archive)
    runs = load_runs(archive)
    assert runs["status"].tolist() == ["ok", "ok"] and (runs["results_version"] > 1).all()


def test_archives_of_several_machines_become_one(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"machine{seed}", seed=seed)
        pack_archive([tmp_path / f"machine{seed}"], tmp_path / "in" / f"{seed}.parquet")
    assert pack_archive([tmp_path / "in"], tmp_path / "all.parquet") == 2
    assert load_runs(tmp_path / "all.parquet")["seed"].tolist() == [0, 1]


def test_a_sweep_finds_archived_runs_that_came_to_an_end_under_this_results_version(tmp_path):
    good = write_run(tmp_path / "runs", seed=0)
    lost = write_run(tmp_path / "runs", seed=1, status="diverged")
    write_run(tmp_path / "runs", seed=2, summary={"results_version": 1})
    archive = tmp_path / "page" / "runs.parquet"
    assert pack_archive([tmp_path / "runs"], archive) == 3
    identities = [load_runs(one)["identity"].iloc[0] for one in (good, lost)]
    assert (
        archives_by_identity(tmp_path) == dict.fromkeys(identities, archive)
        and archives_by_identity(tmp_path / "nowhere") == {}
    )
    write_run(tmp_path / "more", seed=3)
    pack_archive([tmp_path / "more"], archive)
    assert len(archives_by_identity(tmp_path)) == 3  # the file changed


def test_a_run_counts_under_the_results_version_of_its_own_rule(tmp_path):
    """FedAC's numbers changed alone: its earlier runs are run again and not shown, and other rules' runs count."""
    rules = ("ace.Ace", "fedac.FedAc", "port.Port")
    for rule, version in itertools.product(rules, (3, 4)):
        target = f"asyncfl_bench.algorithms.{rule}"
        known = {"results_version": version}
        write_run(tmp_path, rule.split(".")[0], seed=version, algorithm___target_=target, summary=known)
    archive = tmp_path / "packed" / "runs.parquet"
    assert pack_archive([tmp_path], archive) == 6
    runs = load_runs(archive)
    current = {("ace", 3), ("fedac", 4), ("port", 4)}
    found = runs[runs["identity"].isin(archives_by_identity(archive.parent))]
    assert set(zip(found["algorithm"], found["results_version"], strict=True)) == current
    shown = group_runs(runs).runs
    assert set(zip(shown["algorithm"], shown["results_version"], strict=True)) == current
    assert [compose([f"algorithm={rule}"]).results_version for rule in ("ace", "fedac", "port")] == [3, 4, 4]


def test_a_page_counts_a_run_once_that_is_in_a_directory_and_in_an_archive(tmp_path):
    for seed in (0, 1, 2):
        write_run(tmp_path / "runs", seed=seed)
    pack_archive([tmp_path / "runs"], tmp_path / "runs" / "runs.parquet")
    shutil.rmtree(next(path for path in (tmp_path / "runs").iterdir() if "seed0" in path.name))
    grid = grid_by_hand([{"seed": seed} for seed in range(4)], [])
    placed = match_runs(grid, load_runs(tmp_path), cells=[])
    assert placed.runs["seed"].tolist() == [0, 1, 2] and placed.missing["seed"].tolist() == [3]
    assert ["::" in run for run in placed.runs.index] == [True, False, False]
    assert placed.left_out.empty  # an archive of runs that are there as well is nothing to name


def test_an_archived_run_with_another_result_than_its_directory_is_named(tmp_path):
    write_run(tmp_path / "old", seed=0)
    pack_archive([tmp_path / "old"], tmp_path / "runs.parquet")
    now = write_run(tmp_path / "new", seed=0, points=[(0, 0, 0.0, 0.1), (10, 100, 10.0, 0.75)])
    placed = match_runs(grid_by_hand([{"seed": 0}], []), load_runs(tmp_path / "runs.parquet", now), cells=[])
    assert list(placed.runs.index) == [str(now)] and placed.left_out["reason"].tolist() == ["found twice"]


@pytest.mark.parametrize("section", ["best", "used", "arrivals"])
def test_a_twin_is_told_by_any_of_its_numbers(section, tmp_path):
    write_run(tmp_path / "old", seed=0, summary={section: {"test/accuracy": 0.5, "other": 0.12345678, "new": None}})
    pack_archive([tmp_path / "old"], tmp_path / "runs.parquet")
    now = write_run(tmp_path / "new", seed=0, summary={section: {"test/accuracy": 0.5, "other": 0.12345679, "new": 1}})
    left = match_runs(grid_by_hand([{"seed": 0}], []), load_runs(tmp_path / "runs.parquet", now), cells=[]).left_out
    assert left["reason"].tolist() == ["found twice"]
    assert left["note"].item() == f"the same run as new/{now.name}, with another {section}.other"


def test_a_changed_archive_is_found_out(tmp_path):
    write_run(tmp_path / "runs", seed=0)
    pack_archive([tmp_path / "runs"], tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    config = json.loads(table["config"][0].as_py())
    config["client"]["lr"] = 0.2
    column = table.schema.get_field_index("config")
    pq.write_table(table.set_column(column, "config", [[json.dumps(config)]]), tmp_path / "a.parquet")
    runs = load_runs(tmp_path / "a.parquet")
    assert runs["status"].tolist() == ["unreadable"] and "the digest of config differs" in runs["note"].iloc[0]
    assert load_points(runs).empty


TEXT = pa.string()


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("identity", None),
        ("summary", None),
        ("summary", pa.array([1])),
        ("config", pa.array(["{}"]).dictionary_encode()),
        ("results_version", pa.array(["four"])),
        ("point.uploads", pa.array([7.0])),
        ("point.uploads", pa.array([["a", "b"]])),
        ("config", pa.array([None], TEXT)),
        ("config", pa.array(["[]"])),
        ("config", pa.array(['{"seed": '])),
        ("summary", pa.array(["7"])),
        ("summary", pa.array(["[" * 100_000])),
        ("summary", pa.array(['{"a": ' * 99 + "1" + "}" * 99])),
        ("summary", pa.array(['{"used": {"uploads": "many"}}'])),
        ("status", pa.array([None], TEXT)),
        ("point.uploads", pa.array([[0.0]])),
        ("point.uploads", pa.array([[0.0, 1.0, 2.0]])),
    ],
)
def test_a_malformed_archive_is_named_in_one_line_and_holds_up_nothing(column, values, tmp_path):
    archive = tmp_path / "a.parquet"
    write_run(tmp_path / "runs", seed=0, clients={"client": [0, 1]}, summary={"clients": {}})
    pack_archive([tmp_path / "runs"], archive)
    table = pq.read_table(archive)
    place = table.column_names.index(column)
    table = table.remove_column(place) if values is None else table.set_column(place, column, values)
    pq.write_table(table, archive)
    runs = load_runs(archive)
    assert runs["status"].tolist() == ["unreadable"] and len(runs["note"].iloc[0].splitlines()) == 1
    assert load_points(runs).empty and archives_by_identity(tmp_path) == {}
    assert all(isinstance(one.choices, dict) for one in finished_in([tmp_path]))  # a plan's estimates
    with pytest.raises(BenchError, match=r"^\S*a\.parquet: [^\n]*$"):
        pack_archive([archive], tmp_path / "b.parquet")


def test_what_is_not_a_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.parquet")
    (tmp_path / "link.parquet").symlink_to(tmp_path / "nowhere")
    assert archives_by_identity(tmp_path) == {} and finished_in([tmp_path]) == []
    assert load_runs(tmp_path)["note"].tolist() == ["No such file or directory", "is not a regular file"]
    with pytest.raises(InputError, match=r"link\.parquet: No such file"):
        pack_archive([tmp_path], tmp_path / "b.parquet")


def test_half_an_archive_is_named_and_holds_up_nothing(tmp_path):
    write_run(tmp_path / "runs", seed=0)
    pack_archive([tmp_path / "runs"], tmp_path / "runs" / "a.parquet")
    whole = (tmp_path / "runs" / "a.parquet").read_bytes()
    (tmp_path / "runs" / "b.parquet").write_bytes(whole[: len(whole) // 2])
    runs = load_runs(tmp_path / "runs")
    assert sorted(runs["status"]) == ["ok", "ok", "unreadable"]
    assert len(archives_by_identity(tmp_path / "runs")) == 1
    with pytest.raises(BenchError, match=r"b\.parquet"):
        pack_archive([tmp_path / "runs"], tmp_path / "c.parquet")
    placed = match_runs(grid_by_hand([{"seed": 0}], []), runs, cells=[])
    assert len(placed.runs) == 1 and placed.left_out["reason"].tolist() == ["unreadable"]


def test_a_parquet_file_of_another_kind_is_named_in_one_line_and_holds_up_nothing(tmp_path, capsys):
    write_run(tmp_path / "runs", seed=0)
    pack_archive([tmp_path / "runs"], tmp_path / "results/a.parquet")
    other = tmp_path / "results/other.parquet"
    pd.DataFrame({"upload": [1]}).to_parquet(other)
    for _ in range(2):
        assert len(archives_by_identity(tmp_path / "results")) == 1
    line = f"left out, {other}: not an archive of runs; move it elsewhere\n"
    assert capsys.readouterr().err == line  # said once
    assert load_runs(tmp_path / "results")["status"].tolist() == ["ok", "unreadable"]
    assert pack_archive([tmp_path / "results"], tmp_path / "all.parquet") == 1 and capsys.readouterr().err == line
    with pytest.raises(BenchError, match="not an archive of runs"):
        pack_archive([tmp_path / "runs"], other)


@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_bit_is_harmless_or_an_error_that_names_the_file(tmp_path, seed):
    """Half of the positions are in the footer, of which no page of the file has a checksum."""
    some_runs(tmp_path / "runs")
    pack_archive([tmp_path / "runs"], tmp_path / "a.parquet")
    whole, truth = (tmp_path / "a.parquet").read_bytes(), read_archive(tmp_path / "a.parquet")
    footer, draws = int.from_bytes(whole[-8:-4], "little"), random.Random(seed)
    damaged, found = tmp_path / "damaged.parquet", Counter()
    for number in range(40):
        flipped = bytearray(whole)
        start = len(whole) - footer - 8 if number % 2 else 0
        flipped[draws.randrange(start, len(whole))] ^= 1 << draws.randrange(8)
        damaged.write_bytes(flipped)
        archive_module._read_checked_records.cache_clear()
        try:
            records = read_archive(damaged)
        except BenchError as error:
            found["an error"] += 1
            assert str(error).startswith(f"{damaged}: ") and "\n" not in str(error)
        else:
            found["harmless"] += 1
            assert list(map(repr, records)) == list(map(repr, truth))
    assert found["an error"] > 10 and found["harmless"]  # what no reader asks for may change


def test_a_page_adds_its_runs_and_loses_none_of_other_pages(tmp_path, monkeypatch):
    archive = tmp_path / "paper" / "runs.parquet"
    first, second, third = some_runs(tmp_path / "runs")
    experiment = load_runs(first)["experiment"].iloc[0]
    assert pack_archive([first], archive) == 1
    assert pack_archive([second, third], archive, only={load_runs(second)["experiment"].iloc[0]}) == 2
    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setattr(archive_module, "write_archive", None)  # nothing is new: the file is not written again
    assert pack_archive([archive], archive, only={experiment}) == 2
    assert load_runs(archive)["seed"].tolist() == [1, 0]


def test_an_archive_with_a_run_that_contradicts_itself_is_not_written_again(tmp_path):
    """The run would be lost: an archive may be the only copy."""
    archive = tmp_path / "runs.parquet"
    some_runs(tmp_path / "runs")
    pack_archive([tmp_path / "runs"], archive)
    rewrite_archive(archive, lambda one: replace(one, summary=one.summary | {"identity": "00000000"}))
    before = archive.read_bytes()
    write_run(tmp_path / "more", seed=7)
    with pytest.raises(BenchError, match=r"runs\.parquet: ace-.* says identity 00000000.*unchanged"):
        pack_archive([tmp_path / "more"], archive)
    assert archive.read_bytes() == before


def test_an_archive_is_rewritten_run_by_run_under_the_identities_of_the_changed_configs(tmp_path):
    archive = tmp_path / "runs.parquet"
    some_runs(tmp_path / "runs")
    pack_archive([tmp_path / "runs"], archive)
    points = load_points(load_runs(archive).sort_values("seed"))

    def rename(record):
        config = record.config | {"client": record.config["client"] | {"lr": 0.3}}
        identity, experiment = identity_of(config), identity_of(config, without_seed=True)
        name = record.name.replace(record.identity, identity)
        return replace(record, name=name, config=config, summary=record.summary | {"identity": identity,
                       "experiment": experiment, "name": name})  # fmt: skip

    assert rewrite_archive(archive, rename) == 3
    runs = load_runs(archive).sort_values("seed")
    assert runs["status"].tolist() == ["ok"] * 3 and runs["client.lr"].tolist() == [0.3] * 3
    assert [name.endswith(identity) for name, identity in zip(runs["name"], runs["identity"], strict=True)] == [
        True
    ] * 3
    pd.testing.assert_frame_equal(load_points(runs).drop(columns="run"), points.drop(columns="run"))
    before = archive.read_bytes()
    with pytest.raises(BenchError, match="two runs would have one identity"):
        rewrite_archive(archive, lambda record: replace(record, config=record.config | {"seed": 0}))
    assert archive.read_bytes() == before


def test_curves_that_no_page_shows_are_rounded_and_all_other_numbers_are_exact(tmp_path):
    third = [1 / 3, 2 / 3]
    columns = dict.fromkeys(("train/loss", "test/loss", "mse/noise", "rule/k", "validation/accuracy"), third)
    run = write_run(tmp_path / "runs", columns=columns, clients={"client": [0, 1], "accuracy": third},
                    summary={"clients": {}, "final": {"test/loss": 2 / 3}})  # fmt: skip
    pack_archive([run], tmp_path / "a.parquet")
    (record,) = read_archive(tmp_path / "a.parquet")
    assert record.status == "ok" and record.clients["accuracy"].tolist() == third
    assert {name for name in columns if record.points[name].tolist() == third} == {
        "mse/noise", "rule/k", "validation/accuracy"
    }  # fmt: skip
    assert record.points["train/loss"].tolist() == [float(np.float32(value)) for value in third]


def test_archives_are_found_from_any_directory_of_a_checkout_and_by_an_editable_install(tmp_path, monkeypatch):
    below, elsewhere, installed = (tmp_path / name for name in ("checkout/docs", "elsewhere", "installed"))
    for folder in (below, elsewhere, installed / "results", tmp_path / "checkout" / "results"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert archive_folders() == [] and results_folder() == Path("results")  # a folder above counts only in a checkout
    assert describe_archive_folders() == "no archives in results, an installed wheel carries none"
    (tmp_path / "checkout" / ".git").touch()
    assert archive_folders() == [results_folder()] == [Path("../results")] and archive_folders("other") == []
    monkeypatch.setattr("asyncfl_bench.tracking.archive.checkout_directory", lambda: installed)
    (below / "results").mkdir()
    three = [Path("results"), Path("../results"), Path("../../installed/results")]
    assert archive_folders() == three and results_folder() == Path("results")
    assert describe_archive_folders() == "archives below results and ../results and ../../installed/results"
    monkeypatch.chdir(elsewhere)
    assert archive_folders() == [Path("../installed/results")] and results_folder() == Path("results")
    assert archive_folders(tmp_path / "checkout/results") == [tmp_path / "checkout/results"]


def test_an_archive_does_not_say_where_its_runs_were_made(tmp_path):
    path = some_runs(tmp_path / "runs", seeds=(0,))[0]
    config = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(f"output_dir: {tmp_path}/runs\ndata_dir: {tmp_path}/data\n{config}")
    pack_archive([tmp_path / "runs"], tmp_path / "runs.parquet")
    (row,) = pq.read_table(tmp_path / "runs.parquet").to_pylist()
    assert str(tmp_path) not in json.dumps(row) and row["identity"] == load_runs(tmp_path / "runs")["identity"].iloc[0]


def test_damaged_pages_behind_a_sound_footer_are_named_and_hold_up_nothing(tmp_path):
    archive = tmp_path / "a.parquet"
    write_run(tmp_path / "runs", seed=0)
    pack_archive([tmp_path / "runs"], archive)
    content = archive.read_bytes()
    archive.write_bytes(content[:4] + bytes(len(content) // 2 - 4) + content[len(content) // 2 :])
    assert archives_by_identity(tmp_path) == {}
    assert load_runs(archive)["status"].tolist() == ["unreadable"]
    with pytest.raises(BenchError, match=r"^[^\n]*a\.parquet[^\n]*$"):
        pack_archive([archive], tmp_path / "b.parquet")
