"""Runs of several codes of a user's class are several series, on every page, in every archive and search."""

import shutil
import sys
from pathlib import Path

import pytest
from raise_versions import rewrite_archive
from reports.runs_by_hand import write_run

from asyncfl_bench import load_runs, run
from asyncfl_bench.analysis.matching import group_runs
from asyncfl_bench.config import compose
from asyncfl_bench.config.classes import digest_code, digest_modules
from asyncfl_bench.config.part_sources import using_folders
from asyncfl_bench.experiment import finished_result
from asyncfl_bench.multirun.jobs import plan
from asyncfl_bench.multirun.run import describe_best_trials
from asyncfl_bench.reports.assembly import own_page
from asyncfl_bench.tracking.archive import pack_archive, read_archive

MODULES = ("my_rule", "my_helpers", "my_helpers.rates", "my_helpers.more", "my_late", "my_plain")
QUICK = ["scale=smoke", "model=softmax", "progress=false", "tracking=local", "algorithm=mine"]
RULE = """\
import json
import numpy as np
from asyncfl_bench.algorithms.asgd import Asgd
try:
    from my_helpers.rates import RATE
except ImportError:
    pass
class Mine(Asgd):
    import my_plain
    label = "My rule"
    def receive(self, upload):
        import my_late
        self.model_d.add_(upload.vector_d, alpha=RATE * self.step_size)
        return True
"""


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A folder with a rule whose module imports others; ``parts(RATE)`` changes the step in one of them."""
    (tmp_path / "parts/algorithm").mkdir(parents=True)
    (tmp_path / "parts/algorithm/mine.yaml").write_text("# Mine\n_target_: my_rule.Mine\neta: 0.1 # step\n")
    (tmp_path / "my_helpers").mkdir()
    files = {"my_rule.py": RULE, "my_helpers/__init__.py": "", "my_helpers/more.py": "", "my_late.py": ""}
    for name, text in (files | {"my_plain.py": ""}).items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def change(rate):
        (tmp_path / "my_helpers/rates.py").write_text(f"from . import more\nRATE = {rate}\n")
        for name in MODULES:  # as another process would
            monkeypatch.delitem(sys.modules, name, raising=False)
        return tmp_path / "parts"

    yield change
    for name in MODULES:
        sys.modules.pop(name, None)


def run_mine(folder, *words):
    result = run([*QUICK, *words], config_dir=folder)
    assert result.ok
    return result


def test_the_code_of_a_class_is_its_module_and_the_users_modules_that_are_imported_at_its_top(parts):
    run_mine(parts(1))
    import my_late
    import my_rule

    assert my_late and {"numpy", "json"} <= sys.modules.keys()
    modules = digest_modules([my_rule.Mine, compose([]).parts["algorithm"].target])
    assert {*modules} == {"my_rule", "my_helpers", "my_helpers.rates", "my_plain", "my_helpers.more"}
    assert len({*modules.values()}) == 3 and digest_code({}) == "", "three files are empty"
    assert len({digest_code(modules), digest_code(modules | {"my_plain": "other"}), digest_code({})}) == 3


def test_runs_of_two_codes_are_two_series_and_each_page_says_so_in_one_line(parts):
    for rate, seed in ((1, 0), (1, 1), (0.5, 2), (0.5, 3)):
        run_mine(parts(rate), f"seed={seed}")
    runs = load_runs("runs")
    (first, second) = runs.sort_values("seed")["code"].unique()
    series = [f"My rule, code = {code}" for code in (first, second)]
    for compare in (("algorithm",), ("client.lr",)):
        placed = group_runs(runs, compare)
        assert sorted(placed.runs.groupby("series")["seed"].agg(sorted)) == [[0, 1], [2, 3]] and placed.left_out.empty
    page = own_page(runs, "runs")
    assert sorted(page.series) == sorted(series)
    (line,) = [part for part in page.parts if isinstance(part, str) and "The code of a class changed" in part]
    assert all(f"{name}: 2 runs" in line for name in series)
    one = own_page(runs[runs["code"] == first], "runs")
    assert one.series == ["My rule"] and not [part for part in one.parts if "code" in str(part)]


def test_a_run_of_an_earlier_version_is_a_series_only_beside_known_codes(tmp_path):
    for seed, code in enumerate((None, None, "ab12", "ab12")):
        write_run(tmp_path, seed=seed, summary={"code_digest": code} if code else {})
    runs = load_runs(tmp_path)
    assert runs["code"].tolist() == ["unknown", "unknown", "ab12", "ab12"]
    assert group_runs(runs).series_names == ["ACE, code = ab12", "ACE, code = unknown"]
    for code in ("unknown", "ab12"):
        assert group_runs(runs[runs["code"] == code]).series_names == ["ACE"]


def test_runs_without_a_class_of_the_users_have_no_code():
    run(["scale=smoke", "model=softmax", "progress=false"])
    runs = load_runs("runs")
    assert runs["code"].isna().all() and "summary.code_digest" not in runs


def test_another_code_in_another_cell_changes_no_name(tmp_path):
    for beta in (5, 10):
        write_run(tmp_path, beta=beta, summary={"code_digest": f"code{beta}"})
    assert group_runs(load_runs(tmp_path), panels=["delay"]).series_names == ["ACE"]


def test_an_archive_takes_runs_of_both_codes_and_finds_the_one_of_the_present_code(parts):
    losses = {}
    first = run_mine(parts(1))
    losses[first.summary["code_digest"]] = first.metrics["test/loss"].iloc[-1]
    shutil.move(first.directory, "first")
    second = run_mine(parts(0.5))
    losses[second.summary["code_digest"]] = second.metrics["test/loss"].iloc[-1]
    assert first.summary["identity"] == second.summary["identity"]
    assert pack_archive(["first", "runs"], "both.parquet") == 2
    assert pack_archive(["both.parquet"], "again.parquet") == 2
    assert Path("again.parquet").read_bytes() == Path("both.parquet").read_bytes()
    assert rewrite_archive("both.parquet", lambda record: record) == 2
    records = {record.code: record for record in read_archive(Path("both.parquet"))}
    assert len({record.name for record in records.values()}) == len(load_runs("both.parquet")) == 2
    assert records.keys() == losses.keys() and len({*losses.values()}) == 2
    for rate, result in ((1, first), (0.5, second)):
        with using_folders([parts(rate)]):
            settings = compose([*QUICK, "output_dir=elsewhere"])
            found = finished_result(settings, {settings.identity: Path("both.parquet")})
        assert found.summary["code_digest"] == result.summary["code_digest"] == settings.code_digest
        assert found.metrics["test/loss"].iloc[-1] == pytest.approx(losses[settings.code_digest])
    assert len(group_runs(load_runs("both.parquet")).series_names) == 2
    assert group_runs(load_runs("both.parquet", "first", "runs")).left_out.empty, "an archive has copies"


@pytest.mark.slow
def test_looks_refuse_runs_of_another_code(parts, afl_run):
    words = ["--config-dir", "parts", "-m", *QUICK[:-1], "algorithm=asgd,mine", "decide=true", "decide.tie=100"]
    parts(1)
    for seed in range(3):
        for name in ("asgd", "mine"):
            run(["scale=smoke", *QUICK[1:-1], f"algorithm={name}", f"seed={seed}"], config_dir="parts")
    assert "ties with" in afl_run(*words, "--plan").stdout + afl_run(*words).stdout
    parts(0.5)
    ended = afl_run(*words)
    assert (
        ended.returncode == 2 and "has 3 runs of this multirun by another code, the first is runs/mine-" in ended.stderr
    )


def test_a_search_ranks_trials_of_the_present_code_only(parts):
    words = [*QUICK, "evaluation.validation_share=0.1", "algorithm.eta=interval(0.01,0.1)", "trials=2"]
    told = []
    for number, rate in enumerate((1, 0.5)):
        with using_folders([parts(rate)]):
            jobs = plan([*words, "seed=0"])
            run(jobs[number].overrides)
            told.append(describe_best_trials(jobs, {}))
    assert ["1 of 2 trials have" in text for text in told] == [True, True]
    assert ["runs of another code of its classes are left out" in text for text in told] == [False, True]
