"""A quasi-random search: what is drawn, who runs which part of it, and what it says in the end."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from asyncfl_bench import load_runs, run
from asyncfl_bench.config import compose
from asyncfl_bench.config.overrides import parse_override
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.multirun.axes import Search, SearchedGrid
from asyncfl_bench.multirun.jobs import plan

pytestmark = pytest.mark.slow  # whole runs: seconds each

SMALL = ["scale=smoke", "model=softmax", "progress=false", "budget.server_iterations=5"]
LOG = "tag(log,interval(0.001,1))"


def values(trials, key="x", text=LOG, **search):
    return [grid[key][0] for grid in SearchedGrid({key: [text]}, Search(trials, **search)).draw()]


@pytest.mark.parametrize(
    ("text", "low", "high", "middle"),
    [
        ("interval(2,6)", 2, 6, 4),
        (LOG, 0.001, 1, 0.0316),
    ],
)
def test_draws_cover_their_range_evenly_in_its_own_measure(text, low, high, middle):
    found = [float(value) for value in values(256, text=text)]
    assert low <= min(found) and max(found) <= high
    assert sum(value <= middle for value in found) / len(found) == pytest.approx(0.5, abs=0.05)


def test_whole_numbers_have_both_ends_and_their_logarithm_favours_small_ones():
    assert set(map(int, values(64, text="int(interval(1,4))"))) == {1, 2, 3, 4}
    wide = list(map(int, values(64, text="tag(log,int(interval(1,1000)))")))
    assert set(wide) >= {1, 2, 3} and max(wide) > 700 and sum(value < 32 for value in wide) < len(wide) / 1.8


def test_a_drawn_choice_is_one_of_its_values_and_a_list_beside_it_stays_an_axis():
    grid = {"a": ["tag(draw,choice(1,2,3))"], "b": ["interval(0,1)"], "seed": ["0", "1"]}
    grids = SearchedGrid(grid, Search(32)).draw()
    assert {grid["a"][0] for grid in grids} == {"1", "2", "3"}
    assert all(grid["seed"] == ["0", "1"] and len(grid["a"]) == 1 for grid in grids) and len(grids) == 32


def test_a_search_can_be_made_longer_and_is_the_same_every_time():
    short, long = values(10), values(50)
    assert long[:10] == short and len(set(long)) == 50
    assert values(10) == short != values(10, seed=1)


@pytest.mark.parametrize(("trials", "shards"), [(64, 16), (50, 7), (3, 5)])
def test_shards_are_disjoint_and_together_the_whole(trials, shards):
    parts = [values(trials, shard=f"{k}/{shards}") for k in range(1, shards + 1)]
    together = [value for part in parts for value in part]
    assert sorted(together) == sorted(values(trials)) and len(set(together)) == trials
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_points_that_are_one_setting_are_one_trial_of_one_shard():
    text = "int(interval(1,3))"
    assert sorted(values(64, text=text)) == ["1", "2", "3"]
    parts = [values(64, text=text, shard=f"{k}/2") for k in (1, 2)]
    assert sorted(parts[0] + parts[1]) == ["1", "2", "3"]


def test_a_sweep_file_and_the_command_line_say_what_is_searched():
    words = ["sweep=tune", "scale=smoke", "trials=4"]
    jobs = plan([*words, "algorithm=ace,fedbuff"])
    assert [len([job for job in jobs if f"algorithm={name}" in job.overrides]) for name in ("ace", "fedbuff")] == [4, 4]
    of_ace, of_fedbuff = jobs[0], jobs[-1]
    assert [parse_override(text).key for text in of_ace.drawn] == ["algorithm.eta"]
    assert {parse_override(text).key for text in of_fedbuff.drawn} == {"algorithm.eta", "client.lr"}
    narrowed = plan([*words, "algorithm=fedbuff", "client.lr=interval(0.1,0.2)", "algorithm.eta=1"])
    assert {parse_override(text).key for job in narrowed for text in job.drawn} == {"client.lr"} and len(narrowed) == 4
    assert all(0.1 <= job.settings.parts["client"].config.lr <= 0.2 for job in narrowed)
    assert len(plan([*words, "algorithm=ace", "shard=2/4", "seed=0,1"])) == 2  # one trial, two seeds


def test_the_best_of_the_trials_is_told_with_the_command_that_tests_it(tmp_path, afl_run):
    words = ["sweep=tune", *SMALL, "algorithm=ace", "trials=4", "seed=0,1"]
    answer = afl_run(*words)
    assert answer.returncode == 0, answer.stderr
    runs = load_runs(tmp_path / "runs" / "tune")
    means = runs.groupby("algorithm.eta")["summary.final.validation/accuracy"].mean()
    assert len(runs) == 8 and len(means) == 4
    told = re.findall(r"^  (0\.\d{4})  algorithm\.eta=(\S+)$", answer.stdout, re.MULTILINE)
    assert [float(value) for value, _ in told] == [round(value, 4) for value in sorted(means, reverse=True)[:3]]
    assert means[float(told[0][1])] == means.max()

    longer = afl_run(*[text.replace("trials=4", "trials=5") for text in words])
    assert "10 runs, 8 of them finished already" in longer.stderr

    command = shlex.split(next(line for line in answer.stdout.splitlines() if line.startswith("  afl-run")))
    assert command[0] == "afl-run" and f"algorithm.eta={told[0][1]}" in command
    tested = plan([one for one in command[2:] if not one.startswith("hydra.")])
    assert {job.settings.root.seed for job in tested} == {2, 3, 4, 5, 6}
    assert not any(job.drawn for job in tested)
    best = next(job.settings for job in plan(words) if job.drawn == (f"algorithm.eta={told[0][1]}",))
    assert {job.settings.experiment for job in tested} == {best.experiment}


def test_a_search_goes_on_and_a_trial_that_diverged_is_an_answer(tmp_path, afl_run):
    words = ["-m", *SMALL, "algorithm=fedbuff", "client.lr=tag(draw,choice(0.05,0.1,0.2,1e38))"]
    words += ["evaluation.validation_share=0.1", "trials=32"]
    first = afl_run(*words)
    folders = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/summary.json")}
    states = {json.loads(path.read_text())["exit_status"] for path in folders}
    assert first.returncode == 0 and len(folders) == 4 and states == {"ok", "diverged"}
    again = afl_run(*words)
    assert again.returncode == 0 and "4 runs, 4 of them finished already" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in folders} == folders
    assert again.stdout[again.stdout.index("trials have") :] == first.stdout[first.stdout.index("trials have") :]


def test_a_loss_is_searched_downwards(afl_run):
    words = ["sweep=tune", *SMALL, "algorithm=ace", "trials=3", "objective=validation/loss"]
    told = re.findall(r"^  (\d+\.\d{4})  algorithm\.eta=", afl_run(*words).stdout, re.MULTILINE)
    assert len(told) == 3 and sorted(map(float, told)) == list(map(float, told))


@pytest.mark.parametrize("objective", ["validation/accuracy", "test/loss"])
def test_another_sweeper_of_hydras_gets_the_number(afl_run, monkeypatch, objective):
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    returned = []
    plain = BasicSweeper.sweep

    def sweep(self, arguments):
        returned.extend(job.return_value for batch in plain(self, arguments) for job in batch)

    monkeypatch.setattr(BasicSweeper, "sweep", sweep)
    words = [*SMALL, "evaluation.validation_share=0.1", f"objective={objective}"]
    answer = afl_run("-m", "hydra/sweeper=basic", *words, "seed=0,1")
    assert answer.returncode == 0, answer.stderr
    assert returned == [run([*words, f"seed={seed}"]).summary["final"][objective] for seed in (0, 1)]


def test_jobs_that_failed_under_another_sweeper_make_the_command_fail(afl_run):
    words = ["-m", "hydra/sweeper=basic", *SMALL]
    answer = afl_run(*words, "objective=test/accuracy", "n_clients=5,5000")
    assert answer.returncode == 2 and "failed: n_clients=5000: must be" in answer.stdout
    refused = afl_run(*words, "seed=0,1")
    assert refused.returncode == 2 and refused.stderr.startswith("afl-run: objective=validation/accuracy: needs")


def test_what_a_search_goes_by_is_no_part_of_a_run():
    assert compose([]).identity == compose(["objective=test/loss"]).identity
    with pytest.raises(ConfigError):
        compose(["objective=mine"])
