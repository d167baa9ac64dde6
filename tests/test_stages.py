"""A search in stages chooses by scores of finished runs, judges on other seeds, and resumes where it was."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from asyncfl_bench import load_bank, sweep
from asyncfl_bench.config import part_sources
from asyncfl_bench.config.choices import variant
from asyncfl_bench.config.overrides import parse_override
from asyncfl_bench.config.search_stages import multiply_step
from asyncfl_bench.data.base import MissingData
from asyncfl_bench.experiment import RunResult
from asyncfl_bench.multirun import stages
from asyncfl_bench.multirun.stages import StagedSearch, late_score, stages_or_none
from asyncfl_bench.reports import bank_page

ROOT = Path(__file__).parents[1]
WORLDS = sorted((ROOT / "conf/paper/bank").glob("*.yaml"))
DECLARED = {
    1: "c0cc95532cf2893d",
    2: "27d8e6022ed82ebc",
    3: "e17640dee44bd6b0",
}  # version of the bank -> digest of its worlds, its sweep and the ranges of all rules
WHOLE = {"search_seeds": [100, 101], "finalists": 4, "judged_seeds": [200, 201]}


def test_the_step_of_a_point_is_the_servers_or_else_the_clients():
    assert multiply_step(("algorithm.eta=0.5", "client.lr=0.02"), 3) == ("algorithm.eta=1.5", "client.lr=0.02")
    assert multiply_step(("algorithm.alpha=0.5", "client.lr=0.02"), 1 / 3) == (
        "algorithm.alpha=0.5",
        "client.lr=0.006667",
    )


def finished(tmp_path: Path, status: str, rows: list[tuple[int, float | None]]) -> RunResult:
    lines = [{"uploads": uploads, "validation/accuracy": value} for uploads, value in rows]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RunResult(tmp_path, {"exit_status": status})


def test_a_score_is_the_mean_over_the_last_fifth_and_a_diverged_run_has_none(tmp_path):
    rows = [(0, 0.1), (800, 0.9), (900, 0.4), (950, None), (1000, 0.6)]
    assert late_score(finished(tmp_path, "ok", rows), "validation/accuracy") == pytest.approx(50)
    assert math.isnan(late_score(finished(tmp_path, "ok", rows), "test/accuracy"))
    assert math.isnan(late_score(finished(tmp_path, "diverged", rows), "validation/accuracy"))


def test_a_sweep_without_stages_has_none():
    assert stages_or_none(["sweep=tune"]) is None


def test_a_searched_setting_of_a_world_gets_no_page_and_the_plan_says_so(tmp_path, monkeypatch):
    words = own_rule(tmp_path, monkeypatch, 'algorithm.eta: "interval(0.1,1)", n_clients: "int(interval(5,9))"')
    text = StagedSearch(words, stages_or_none(words)).plan()
    assert text.endswith("no page with scale=smoke, n_clients in search_space: the bank has no such runs to compare")


def test_a_rule_chooses_no_point_while_a_run_of_its_search_is_missing(tmp_path, monkeypatch):
    words = own_rule(tmp_path, monkeypatch, 'algorithm.eta: "tag(log,interval(0.01,1))"')
    search = StagedSearch(words, stages_or_none(words))
    lost: list[str] = []

    def find_results(jobs):
        return [None if job.settings.identity in lost else job.settings.parts["algorithm"].config.eta for job in jobs]

    monkeypatch.setattr(search, "_results", find_results)
    monkeypatch.setattr(stages, "late_score", lambda eta, metric: eta)
    ((cell, points),) = search.points.items()
    assert search._best_point(cell) == max(points, key=lambda point: float(point[0].partition("=")[2]))
    assert [len(search._stage_jobs(name)) for name in ("finalists", "judged")] == [2, 2]
    lost += [min(points.items(), key=lambda item: item[1].settings.parts["algorithm"].config.eta)[1].settings.identity]
    assert not any(search._stage_jobs(name) for name in ("finalists", "judged", "robustness"))
    assert "no point was chosen; a run is missing, or all diverged" in search.describe()


def own_rule(tmp_path: Path, monkeypatch, space: str) -> list[str]:
    """Return the overrides of the bank's sweep for a rule of the user with these ranges."""
    monkeypatch.chdir(tmp_path)
    text = f"_target_: asyncfl_bench.algorithms.asgd.Asgd\nc: 0.2\nsearch_space: {{{space}}}\n"
    file = tmp_path / "mine/algorithm/mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    monkeypatch.setattr(part_sources, "_by_hand", [])
    part_sources.use_folders(["mine"])
    return ["sweep=bank", "algorithm=mine", "scale=smoke", "paper=bank/digits"]


def test_a_plan_of_stages_shows_the_ranges_and_the_folder_that_has_all_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["sweep=bank", "algorithm=ace", "scale=smoke", "paper=bank/digits"]
    search = StagedSearch(words, stages_or_none(words))
    job = search._stage_jobs("search")[0]
    job.settings.directory.mkdir(parents=True)
    text = search.plan()
    assert text.startswith(
        "1 search of at most 4 points\nsearch_space of ace: algorithm.eta=tag(log,interval(0.003,3))\n"
    )
    folder = text.partition(" are free in ")[2].splitlines()[0]
    assert folder == str(tmp_path / "runs/bank/published-smoke")
    assert "time: unknown" in text  # of runs that are none of the bank
    words = ["sweep=bank", "algorithm=fedprox", "paper=bank/digits,bank/unjudged", "threads=1"]
    world = part_sources.part_sources()[0].conf / "paper/bank/digits.yaml"
    unjudged = tmp_path / "more/paper/bank/unjudged.yaml"
    unjudged.parent.mkdir(parents=True)
    unjudged.write_text(world.read_text("utf-8").replace("batch_size: 10", "batch_size: 11"))
    monkeypatch.setattr(part_sources, "_by_hand", [])
    part_sources.use_folders(["more"])
    text = StagedSearch(words, stages_or_none(words)).plan()
    found = re.search(r"^time: about 0:(\d\d):(\d\d) for 34 runs, at the median of the bank's rules (.*)$", text, re.M)
    assert found and 30 < 60 * int(found[1]) + int(found[2]) < 600
    assert found[3] == "(unknown for 34 runs of other worlds)"


def test_a_world_whose_data_are_missing_is_left_out_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["sweep=bank", "algorithm=ace,asgd", f"data_dir={tmp_path}", "progress=false"]
    both = [*words, "paper=bank/newsgroups,bank/digits"]
    search = StagedSearch(both, stages_or_none(both))
    search._leave_out_missing_data()
    assert {text for cell in search.points for text in cell if text.startswith("paper=")} == {"paper=bank/digits"}
    assert len(search.points) == 2
    (line,) = capsys.readouterr().err.splitlines()
    file = tmp_path / "newsgroups20-minilm.npz"
    assert line.startswith(f"left out: {file} is missing: `python scripts/embed_text.py newsgroups20")
    alone = [*words, "paper=bank/newsgroups"]
    with pytest.raises(MissingData, match=r"newsgroups20-minilm\.npz is missing"):
        StagedSearch(alone, stages_or_none(alone)).run()


@pytest.mark.slow
def test_a_rule_of_the_bank_is_put_among_all_rules_by_its_archived_runs_without_running_them(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    frames = []
    monkeypatch.setattr(bank_page, "write_bank_page", lambda frame, folder: frames.append(frame) or [folder / "page"])
    words = ["sweep=bank", "algorithm=ace", "paper=bank/digits", f"archive_dir={ROOT / 'results'}"]
    results = sweep(words)
    assert len(results) == 34 and not list(tmp_path.glob("runs/bank/published-full/*/summary.json"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["paper=bank/digits algorithm=ace: tier 2 of 5", "written: runs/bank/published-full/page/page"]
    pd.testing.assert_frame_equal(frames[0], load_bank(), check_dtype=False, rtol=1e-5)


@pytest.mark.parametrize("world", [f"bank/{path.stem}" for path in WORLDS])
def test_all_rules_of_a_world_compute_one_mini_batch_and_leave_the_clients_their_samples(world):
    settings = variant("paper_algorithm", f"{world}/published/asyncfeded")
    assert settings == {"algorithm": {"kappa": 0}}
    settings = variant("paper_algorithm", f"{world}/published/fedecho")
    assert settings == {"instead": {"unlabelled": "noise"}, "unlabelled": {"samples": 500}}


def test_a_changed_declaration_makes_a_new_version_of_the_bank():
    text = (ROOT / "sweeps/bank.yaml").read_text("utf-8")
    version = int(text.partition("Version ")[2].partition(",")[0])
    ranges = [
        line
        for rule in sorted((ROOT / "conf/algorithm").glob("*.yaml"))
        for line in (rule.name, *rule.read_text("utf-8").splitlines())
        if line == rule.name or line.startswith("search_space:")
    ]
    declared = [text, *ranges, *(world.read_text("utf-8") for world in WORLDS)]
    digest = hashlib.sha256("\n".join(declared).encode()).hexdigest()[:16]
    assert DECLARED[version] == digest, "results of this version are of other worlds, ranges or stages"


def test_every_rule_declares_three_decades_of_at_most_four_settings():
    files = sorted((ROOT / "conf/algorithm").glob("*.yaml"))
    assert len(files) == 33
    for rule in files:
        space = yaml.safe_load(rule.read_text("utf-8"))["search_space"]
        found = {key: parse_override(f"{key}={text}").draw for key, text in space.items()}
        assert 1 <= len(found) <= 4, rule
        wide = {key: draw.end / draw.start for key, draw in found.items() if not isinstance(draw.start, int)}
        assert all("log" in draw.tags for draw in found.values()), rule
        assert {round(ratio) for ratio in wide.values()} <= {1000}, rule
        assert "client.lr" in found or wide.keys() >= {"algorithm.eta"}, rule


@pytest.mark.slow
def test_each_stage_takes_what_the_one_before_has_chosen_and_a_second_command_runs_nothing(afl_run, capsys):
    words = ["sweep=bank", "scale=smoke", "algorithm=fedbuff", "paper=bank/digits", "progress=false"]
    first = afl_run(*words)
    assert first.returncode == 0, first.stderr
    stages = [line for line in first.stderr.splitlines() if line.startswith("stage ")]
    assert stages == [
        "stage 1 of 4, search: 4 runs",
        "stage 2 of 4, finalists: 2 runs",
        "stage 3 of 4, judged: 2 runs",
        "stage 4 of 4, robustness: 2 runs",
    ]
    rows = []
    for place in Path("runs/bank/published-smoke").glob("fedbuff-*"):
        points = pd.read_json(place / "metrics.jsonl", lines=True, precise_float=True)
        config = json.loads((place / "summary.json").read_text())
        late = points[points["uploads"] > 80]["validation/accuracy"].mean()
        rows.append({"name": config["name"], "late": late, **settings_of(place)})
    runs = pd.DataFrame(rows)
    search = runs[runs["seed"] == 100].sort_values("late", ascending=False)
    finalists = runs[runs["seed"] == 101]
    point = ["eta", "lr"]
    assert {*finalists[point].itertuples(index=False)} == {*search.head(2)[point].itertuples(index=False)}
    means = runs[runs["seed"].isin([100, 101])].groupby(point)["late"].agg(["mean", "size"])
    eta, lr = means[means["size"] == 2]["mean"].idxmax()
    judged = runs[(runs["seed"] >= 200) & (runs["eta"] == eta)]
    assert sorted(judged["seed"]) == [200, 201] and set(judged["lr"]) == {lr}
    factors = runs[(runs["seed"] == 200) & (runs["eta"] != eta)]["eta"] / eta
    assert sorted(factors) == pytest.approx([0.3333, 3], rel=1e-3)
    assert f"algorithm.eta={eta:g} client.lr={lr:g}; test accuracy" in first.stdout
    assert "no page with scale=smoke: the bank has no such runs to compare" in first.stderr
    plan = StagedSearch(words, stages_or_none(words)).plan().splitlines()
    assert [plan[0], plan[2]] == ["1 search of at most 4 points", "stage 1, search: 4 runs, 4 of them finished"]
    assert plan[5] == "stage 4, robustness: 2 runs, 2 of them finished"
    assert len(sweep(words)) == 10  # from Python, where nothing is left to run
    again = capsys.readouterr()
    assert again.out == first.stdout.splitlines(keepends=True)[-1]
    assert "2 runs, 2 of them finished already" in again.err


def settings_of(place: Path) -> dict[str, float]:
    config = yaml.safe_load((place / "config.yaml").read_text())
    return {"seed": config["seed"], "eta": config["algorithm"]["eta"], "lr": config["client"]["lr"]}
