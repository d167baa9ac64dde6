"""Directories and archives of other people: they run no code, write nowhere else and end in one line."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hostile import EVIL, SECTIONS
from reports.runs_by_hand import write_run

from asyncfl_bench import run
from asyncfl_bench.analysis.claims import FORMAT, read_verdicts, to_json
from asyncfl_bench.analysis.decisions import Decision, read_decision
from asyncfl_bench.config import compose, options
from asyncfl_bench.config.choices import choice_file
from asyncfl_bench.config.classes import part_class
from asyncfl_bench.config.part_sources import class_names, using_folders
from asyncfl_bench.config.saved import _WRITTEN, check_saved, identity_in, saved_config
from asyncfl_bench.config.settings import LISTED, PARTS
from asyncfl_bench.errors import BenchError, ConfigError, InputError
from asyncfl_bench.experiment.checkpoint import read_checkpoint, write_checkpoint
from asyncfl_bench.experiment.execute import _holding_lock
from asyncfl_bench.experiment.replay import replay_settings
from asyncfl_bench.files import read_parquet, read_tensors, spreadsheet_cell, write_text
from asyncfl_bench.live.messages import ClientReply
from asyncfl_bench.live.record import RecordFile
from asyncfl_bench.live.uploads import UploadFile
from asyncfl_bench.reports.cli import main
from asyncfl_bench.simulation.fleet import FleetFile
from asyncfl_bench.simulation.recorded import read_record
from asyncfl_bench.tracking import records
from asyncfl_bench.tracking.archive import pack_archive, read_archive
from asyncfl_bench.tracking.records import identity_of, read_directory
from asyncfl_bench.tracking.rundir import AT_END, AT_START, COUNTERS, DIGESTED, RunDirectory
from asyncfl_bench.tracking.runs import load_runs
from asyncfl_bench.tracking.trackers import RunFacts
from asyncfl_bench.tracking.trackers_files import CsvTracker, TensorboardTracker
from asyncfl_bench.tracking.trackers_wandb import WandbTracker, WandbTrackerConfig
from asyncfl_bench.types import Work

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b1A\u202eba"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b1A\u202eba"
QUICK = ["scale=smoke", "model=softmax", "progress=false", "algorithm=asgd"]

# -- code -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run([*QUICK, f"hydra.run.dir={tmp_path_factory.mktemp('finished') / 'mine'}"]).directory


@pytest.fixture
def foreign(finished, tmp_path):
    """``foreign(sections)``: a run directory whose config.yaml has these sections; evil.py is in the current folder."""
    Path("evil.py").write_text(EVIL)
    shutil.copytree(finished, "mine")
    tree = yaml.safe_load(Path("mine/config.yaml").read_text())

    def change(sections):
        Path("mine/config.yaml").write_text(yaml.safe_dump({**tree, **sections}))
        return Path("mine")

    sys.modules.pop("evil", None)
    return change


def refusal_of(directory):
    """The error of resuming and of replaying it, which is the same."""
    said = []
    for call in (lambda: compose([f"resume={directory}"]), lambda: replay_settings(directory)):
        with pytest.raises(ConfigError) as caught:
            call()
        said.append(caught.value)
    assert said[0].key == said[1].key and not Path("imported").exists() and "evil" not in sys.modules
    return said[0]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_config_that_names_code_is_refused_and_nothing_is_imported(name, foreign):
    key, sections = SECTIONS[name]
    directory = foreign(sections)
    error = refusal_of(directory)
    assert error.key == key and "neither a part of asyncfl_bench nor of a folder that --config-dir names" in str(error)
    assert identity_in(directory) is None


def test_a_refused_directory_is_answered_in_one_line(foreign, afl_run):
    directory = foreign(SECTIONS["a function that imports"][1])
    for words in (["--resume", directory], ["--replay", directory], [*QUICK, "seed=1", f"hydra.run.dir={directory}"]):
        answer = afl_run(*map(str, words))
        assert answer.returncode == 2 and answer.stderr.count("\n") == 1, answer.stderr
        assert not Path("imported").exists()


@pytest.mark.parametrize("choice", ["../../elsewhere", "/elsewhere", "a\x1b[2J", ["ace"], None])
def test_a_choice_that_would_name_another_folder_is_refused(choice, foreign):
    choices = yaml.safe_load(Path("mine/config.yaml").read_text())["choices"]
    assert refusal_of(foreign({"choices": {**choices, "algorithm": choice}})).key == "choices.algorithm"


@pytest.mark.parametrize(
    ("key", "sections"),
    {
        "seed": {"seed": "${oc.env:HOME}"},
        "model.hidden.1": {"model": {"_target_": "asyncfl_bench.models.perceptrons.Mlp", "hidden": [5, "${seed}"]}},
        "output_dir": {"output_dir": "${oc.env:HOME}/theirs"},
    }.items(),
)
def test_a_value_that_refers_to_another_is_refused(key, sections, foreign):
    error = refusal_of(foreign(sections))
    assert error.key == key and "refers to no other" in str(error)


def test_every_class_that_the_package_names_is_allowed(finished):
    tree = saved_config(finished)
    live = compose(["live=processes", "unlabelled=auto", "algorithm=fedecho"]).tree
    check_saved({**live, **{group: {"_target_": name} for group, name in _WRITTEN.items()}}, "mine", "resume")
    assert check_saved(live, "mine", "resume")["delay"]["_target_"] == _WRITTEN["delay"]
    found = 0
    for group in (*PARTS, *LISTED):
        for name in (one for choice in options(group) for one in class_names(choice_file(group, choice))):
            target = part_class(f"{group}._target_", name)
            section = {"_target_": f"{target.__module__}.{target.__qualname__}"}
            check_saved({**tree, group: {"x": section} if group in LISTED else section}, "mine", "resume")
            found += 1
    assert found > 100


MODULE = """
import os
from shutil import rmtree
from torch import nn
from asyncfl_bench.algorithms.asgd import Asgd


class Mine(Asgd):
    label = "Mine"


def make(width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))


ALIAS = nn.Flatten
"""


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A folder of parts; their module is beside it."""
    monkeypatch.syspath_prepend(tmp_path)
    Path("mine_of_b.py").write_text(MODULE)
    for name, target in (("model/net", "mine_of_b.make"), ("model/flat", "torch.nn.Identity")):
        path = tmp_path / "parts" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# Mine\n_target_: {target}\n")
    yield tmp_path / "parts"
    sys.modules.pop("mine_of_b", None)


def test_a_network_function_of_a_folder_named_by_hand_resumes_with_it_alone(parts):
    words = ["scale=smoke", "model=net", "progress=false", "algorithm=asgd", "algorithm._target_=mine_of_b.Mine"]
    result = run(words, config_dir=parts)
    (result.directory / "summary.json").unlink()
    with pytest.raises(ConfigError, match=r"_target_=mine_of_b.\w+: is in .*; ASYNCFL_BENCH_ALLOW=PACKAGE names a"):
        run([f"resume={result.directory}"])
    assert run([f"resume={result.directory}"], config_dir=parts).ok


@pytest.mark.parametrize("allowed", ["", "mine_of_b", " x, mine_of_b ", "asyncfl_bench,os"])
def test_a_module_that_is_allowed_brings_its_own_parts_and_not_what_it_imported(allowed, parts, finished, monkeypatch):
    monkeypatch.setenv("ASYNCFL_BENCH_ALLOW", allowed)
    names = ["mine_of_b.make", "mine_of_b.Mine", "mine_of_b.rmtree", "mine_of_b.Asgd", "mine_of_b.ALIAS"]
    names += ["torch.nn.Identity", "torch.nn.modules.linear.Identity", "torch.hub.load", "os.mkdir"]
    names += ["asyncfl_bench.files.write_text"]

    def found(names):
        tree = saved_config(finished)
        allowed = []
        for name in names:
            try:
                check_saved({**tree, "model": {"_target_": name}}, "mine", "resume")
                allowed.append(name)
            except ConfigError:
                pass
        return allowed

    own = [] if "mine" not in allowed else names[:2]
    assert found(names) == own
    with using_folders([parts]):
        assert found(names) == [*names[:2], *names[5:7]]


# -- links ------------------------------------------------------------------------------------------------------------


def write_all(path):
    """Change a run directory in every way in which a run does. Returns how many calls are refused."""
    directory, refused, upload = RunDirectory(path), 0, ClientReply([0], 0, vector_d=np.zeros(4, np.float32), loss=0.5)
    uploads, record = UploadFile(path / "uploads.bin", 4, None), RecordFile(path)
    for call in (
        lambda: _holding_lock(path).__enter__(),
        directory.remove_leftovers,
        lambda: directory.metrics.write(dict.fromkeys(COUNTERS, 0)),
        lambda: directory.metrics.truncate(1),
        lambda: CsvTracker(None).start(RunFacts({}, "", "", "", path)),
        lambda: uploads.write(Work(0, 0, 0, 0, 1, due=1.0), upload),
        lambda: record.write(Work(0, 0, 0, 0, 1, due=1.0), upload),
        lambda: write_checkpoint(path / "checkpoint.pt", "", {}),
        lambda: write_checkpoint(path / "checkpoint.pt", "", {}),  # keeps the one before
        lambda: write_text(path / "error.txt", "error"),
        lambda: directory.write_config("seed: 0"),
        lambda: directory.write_partition([np.zeros(1, int)]),
        lambda: directory.write_model("model_final.pt", {"w": torch.zeros(1)}),
        lambda: directory.open_trace().add((1, 0.5, 0, 0, 0, 0, 1, 1, True, 0.5)),
        directory.close,
        lambda: directory.write_summary({"exit_status": "ok"}),
        directory.clear,
    ):
        try:
            call()
        except (OSError, BenchError) as error:
            assert "is a link to another file; remove it" in str(error)
            refused += 1
    return refused


@pytest.mark.parametrize("how", ["symlink_to", "hardlink_to"])
def test_a_link_in_a_run_directory_changes_no_other_file(how, tmp_path):
    refused = {".lock": 1, "metrics.jsonl": 2, "metrics.csv": 1, "uploads.bin": 1, "arrivals.csv": 1}
    temporary = [f".{name}.{os.getpid()}.tmp" for name in ("summary.json", "checkpoint.pt")]
    names = {*refused, *temporary, *DIGESTED, *AT_END, *AT_START, "config.yaml", "checkpoint.pt.previous"}
    for number, name in enumerate(sorted(names)):
        path, victim = tmp_path / f"run{number}", tmp_path / f"victim{number}"
        path.mkdir()
        victim.write_text('{"iteration": 0}\n')
        getattr(path / name, how)(victim)
        assert write_all(path) == refused.get(name, 0), name
        assert victim.read_text() == '{"iteration": 0}\n', name


@pytest.mark.parametrize("tracker", [TensorboardTracker(None), WandbTracker(WandbTrackerConfig(mode="offline"))])
def test_a_linked_folder_of_a_tracker_gets_no_file(tracker, tmp_path):
    for folder in ("mine", "elsewhere"):
        (tmp_path / folder).mkdir()
    for name in ("tensorboard", "wandb"):
        (tmp_path / "mine" / name).symlink_to(tmp_path / "elsewhere")
    with suppress(BenchError):
        tracker.start(RunFacts({}, "name", "identity", "group", tmp_path / "mine"))
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_a_page_is_written_through_no_link(tmp_path, capsys):
    write_run(tmp_path / "runs")
    for name in ("README.md", "measured.csv", "accuracy_over_iterations.png"):
        (tmp_path / name).write_text("keep\n")
    (page := tmp_path / "runs" / "report").symlink_to(tmp_path)
    assert main([str(tmp_path / "runs")]) == 1
    assert "report: is a link to another folder; choose a folder with --out" in capsys.readouterr().err
    page.unlink()
    page.mkdir()
    names = ("measured.csv", "budgets.csv", "curves.png", "measured.tex")
    for name in names:
        (page / name).symlink_to(tmp_path / "README.md")
    assert main([str(tmp_path / "runs"), "--format", "tex"]) == 0
    assert {path.read_text() for path in tmp_path.glob("*.*")} == {"keep\n"}


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "device", "endless"])
def test_a_pipe_a_device_and_an_endless_file_are_answered_at_once(kind, tmp_path):
    calls = {
        "config.yaml": lambda run: saved_config(run),
        "summary.json": read_directory,
        "metrics.jsonl": read_directory,
        "clients.parquet": read_directory,
        "arrivals.csv": lambda run: read_record(run / "arrivals.csv", 1),
        "checkpoint.pt": lambda run: read_checkpoint(run / "checkpoint.pt", ""),
        "model_final.pt": lambda run: read_tensors(run / "model_final.pt"),
        "fleet.csv": lambda run: FleetFile(str(run / "fleet.csv"), ()),
        "fleet.parquet": lambda run: FleetFile(str(run / "fleet.parquet"), ()),
        "runs.parquet": lambda run: read_archive(run / "runs.parquet"),
        "decide-1.json": lambda run: read_decision(run / "decide-1.json"),
        "claims.json": lambda run: read_verdicts(run / "claims.json"),
    }
    for number, (name, call) in enumerate(calls.items()):
        path = write_run(tmp_path / str(number), summary={"clients": {}}) / name
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.touch()
            os.truncate(path, 2**42)
        try:
            found = call(path.parent)
        except (BenchError, OSError, ValueError) as error:
            assert (name in str(error) or call is calls["model_final.pt"]) and "\n" not in str(error)
        else:
            assert found.status == "unreadable" and found.note.startswith(name), (name, found)


@pytest.mark.timeout(60)
def test_settings_that_name_a_device_leave_the_identity_open(tmp_path):
    tree = yaml.safe_load((write_run(tmp_path) / "config.yaml").read_text())
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 2**42)
    for path in ("/dev/zero", str(tmp_path / "sparse"), "~nosuchuser/file", "a\0b", ["a"]):
        assert identity_of({**tree, "delay": {"path": path}}) is None


def test_a_small_file_with_a_huge_table_is_refused_before_it_is_unpacked(tmp_path):
    names = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(["aaaa"] * 3_000_000))
    tables = {"names": {"client": names}, "rows": {"client": pa.nulls(2**25, pa.string())}}
    for name, columns in tables.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table(columns), path, compression="zstd")
        assert path.stat().st_size < 100_000
        with pytest.raises(ValueError, match=r"unpacks to \d+ values and \d+ MiB, which is too much"):
            read_parquet(path, 2**24)
        with pytest.raises(InputError, match=rf"{name}.parquet: not a readable .parquet file \(unpacks to"):
            FleetFile(str(path), ())


def test_columns_that_would_fill_the_memory_with_gaps_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_MOST_VALUES", 1000)
    path = write_run(tmp_path)
    (path / "metrics.jsonl").write_text("".join(f'{{"x{i}": {i}}}\n' for i in range(40)))
    note = read_directory(path).note
    assert note == "metrics.jsonl: line 33: 32 columns are too many for so long a file"


VALUES = [
    None,
    True,
    -1,
    1.5,
    10**400,
    1e308,
    "",
    "x",
    ESCAPES,
    "\ud800",
    "a\0b",
    [],
    [1],
    ["x"],
    {},
    {"a": [1]},
    "x" * 999,
]


def edits_of(content):
    """The content with each entry taken out, and with each of ``VALUES`` in its place."""
    for key in content:
        yield {name: value for name, value in content.items() if name != key}
        yield from ({**content, key: value} for value in VALUES)


def test_edited_decisions_and_verdicts_are_read_or_answered_in_one_line(tmp_path):
    decision = {
        "compare": "ace",
        "tie": 1.0,
        "axis": "uploads",
        "cells": [],
        "experiments": ["ab"],
        "seconds_before": 0.5,
    }
    verdict = {"claim": "ace/one", "verdict": "holds", "difference": 1.5, "p": None, "seeds": 3, "unit": "log ratio"}
    page = {"format": FORMAT, "sweep": "ace/x", "profile": "published", "scale": "small", "length": "standard"}
    of_pages = [*edits_of({**page, "verdicts": [verdict]}), *({**page, "verdicts": [one]} for one in edits_of(verdict))]
    path, refused = tmp_path / "file.json", 0
    for read, edits in ((read_decision, edits_of(decision)), (read_verdicts, of_pages)):
        for content in [*edits, *VALUES]:
            path.write_text(json.dumps(content))
            try:
                found = read(path)
            except BenchError as error:
                assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
                refused += 1
            else:
                for _, page_found in [] if isinstance(found, Decision) else found:
                    texts = [to_json(page_found), *(one.measured_text for one in page_found.verdicts)]
                    assert not {*"".join(texts)} & {"\x1b", "\ud800", "\x9b"}
    assert refused > 200


# -- text -------------------------------------------------------------------------------------------------------------


def test_names_of_foreign_runs_reach_terminals_and_pages_without_control_characters(tmp_path, capsys):
    places = [tmp_path / "runs", tmp_path / "runs.parquet"]
    for seed in (0, 1):
        names = {"label": f"=HYPERLINK(1){ESCAPES}\n# title", "name": f"run{ESCAPES}\nforged line"}
        write_run(places[0], "mine", seed=seed, summary=names)
    pack_archive(places[:1], places[1])
    write_run(places[0], "other", summary={"data_digest": [ESCAPES], "name": f"run{ESCAPES}"})  # unreadable
    assert main([str(places[0])]) == 0
    page = places[0] / "report"
    texts = [*capsys.readouterr(), *(path.read_text() for path in page.glob("*.[mc]*"))]
    assert len(texts) > 3 and all(set(ESCAPES) & set(text) <= set(SHOWN) for text in texts)
    assert f"=HYPERLINK(1){SHOWN}" in texts[0]
    assert pd.read_csv(page / "measured.csv", dtype=str)["series"][0] == rf"'=HYPERLINK(1){SHOWN}\n# title"
    runs = load_runs(places[1])
    assert all(text.isprintable() for text in [*runs.index, *runs["name"], *runs["summary.label"]])


def test_a_cell_of_text_is_no_formula_and_a_number_stays_one():
    cells = ["=1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "-", "+1.5", "-1e-05", "ace - asgd", 3, None]
    assert [cell for cell in cells if spreadsheet_cell(cell) != cell] == cells[:5]
    assert spreadsheet_cell("=1") == "'=1"
