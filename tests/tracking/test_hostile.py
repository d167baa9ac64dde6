"""Directories and archives of other people: they run no code, write nowhere else and end in one line."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hostile import EVIL, SECTIONS
from reports.runs_by_hand import write_run

from asyncfl_bench import run
from asyncfl_bench.config import compose, identity_in, options
from asyncfl_bench.config.choices import choice_file
from asyncfl_bench.config.classes import part_class
from asyncfl_bench.config.places import class_names, using_folders
from asyncfl_bench.config.saved import _WRITTEN, check_saved, saved_config
from asyncfl_bench.config.settings import LISTED, PARTS
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.experiment.replay import replay_settings
from asyncfl_bench.files import spreadsheet_cell
from asyncfl_bench.reports.cli import main
from asyncfl_bench.tracking.archive import pack_archive
from asyncfl_bench.tracking.runs import load_runs

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

    yield change
    sys.modules.pop("evil", None)


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


def test_every_class_that_the_package_names_is_allowed(finished):
    tree, _ = saved_config(finished)
    live = compose(["live=processes", "unlabelled=auto", "algorithm=fedecho"]).tree
    check_saved({**live, **{group: {"_target_": name} for group, name in _WRITTEN.items()}}, "mine", "resume")
    assert check_saved(live, "mine", "resume")[0]["delay"]["_target_"] == _WRITTEN["delay"]
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
        tree, _ = saved_config(finished)
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
