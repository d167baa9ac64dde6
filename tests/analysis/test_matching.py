"""Which run belongs where, on sweeps of a few runs written by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
from reports.runs_by_hand import grid_by_hand, write_run

from asyncfl_bench.analysis import matching
from asyncfl_bench.analysis.matching import group_runs, match_runs
from asyncfl_bench.analysis.selection import Grid, grid_of, leave_out_other_data, runs_for_page
from asyncfl_bench.config import compose
from asyncfl_bench.tracking.runs import load_runs

CELLS = ["heterogeneity.alpha", "delay"]


def jobs(algorithms=("ace", "fedbuff"), seeds=(0, 1), alphas=(0.1,), **more):
    return [
        {"algorithm": algorithm, "seed": seed, "alpha": alpha, **more}
        for algorithm in algorithms
        for alpha in alphas
        for seed in seeds
    ]


def test_runs_are_found_by_identity_and_sorted_into_series_and_cells(tmp_path):
    asked = [*jobs(alphas=(0.3, 0.1)), {"algorithm": "ace", "seed": 0, "alpha": 0.1, "beta": 30}]
    for number, job in enumerate(reversed(asked)):
        write_run(tmp_path / str(number), **job)
    grid = grid_by_hand(asked, ["algorithm", "heterogeneity.alpha", "delay"])
    placed = match_runs(grid, load_runs(tmp_path), cells=CELLS)
    assert placed.expected == 9 and placed.missing.empty and placed.left_out.empty
    assert placed.series_names == ["ACE", "FedBuff"]
    assert placed.cell_names == ["α = 0.1, β = 5", "α = 0.1, β = 30", "α = 0.3, β = 5"]
    first = placed.runs.iloc[0]
    assert first[["series", "cell", "heterogeneity.alpha", "delay", "seed"]].tolist() == (
        ["ACE", "α = 0.1, β = 5", 0.1, "exp_beta5", 0]
    )
    assert placed.runs["listed"].all() and len(placed.runs) == 9


def test_missing_jobs_further_seeds_and_strangers(tmp_path):
    asked = jobs()
    for job in asked[:2]:
        write_run(tmp_path, **job)
    write_run(tmp_path, "ace", seed=7)
    stranger = write_run(tmp_path, "ace", seed=0, alpha=0.1000000001)
    other = write_run(tmp_path, "ca2fl", seed=0)
    placed = match_runs(grid_by_hand(asked, ["algorithm"]), load_runs(tmp_path), cells=CELLS)
    assert placed.missing[["algorithm", "seed"]].values.tolist() == [["fedbuff", 0], ["fedbuff", 1]]
    assert placed.runs["seed"].tolist() == [0, 1, 7] and placed.runs["listed"].tolist() == [True, True, False]
    assert placed.left_out["reason"].to_dict() == dict.fromkeys((str(stranger), str(other)), "not in this sweep")


def test_only_runs_that_ended_well_under_this_results_version_count(tmp_path):
    asked = jobs(("ace",), seeds=range(6))
    write_run(tmp_path, seed=0)
    write_run(tmp_path, seed=1, status="diverged")
    write_run(tmp_path, seed=2, status="failed")
    write_run(tmp_path, seed=3, status=None)
    write_run(tmp_path, seed=4, status="diverged", summary={"results_version": 1})
    write_run(tmp_path, seed=5, summary={"identity": "00000000"})
    placed = match_runs(grid_by_hand(asked, ["algorithm"]), load_runs(tmp_path), cells=CELLS)
    assert placed.runs["seed"].tolist() == [0]
    reasons = placed.left_out.set_index("seed")["reason"].to_dict()
    assert reasons == {
        1: "diverged",
        2: "failed",
        3: "incomplete",
        4: "another results version",
        5: "inconsistent",
    }
    assert placed.left_out.set_index("seed").loc[1, ["series", "note"]].tolist() == ["ACE", "diverged at iteration 7"]
    assert placed.missing["seed"].tolist() == [4, 5]  # these will be run anew


def test_a_folder_without_one_usable_run_is_no_error(tmp_path):
    broken = write_run(tmp_path, seed=0)
    (broken / "config.yaml").write_text("[")
    placed = match_runs(grid_by_hand(jobs(), ["algorithm"]), load_runs(tmp_path), cells=CELLS)
    assert placed.runs.empty and placed.series_names == placed.cell_names == [] and len(placed.missing) == 4
    assert placed.left_out["reason"].to_dict() == {str(broken): "unreadable"}


def test_a_run_that_is_there_twice_counts_once(tmp_path):
    for folder in ("a", "b"):
        write_run(tmp_path / folder, seed=0)
    write_run(tmp_path / "a", seed=1, status="diverged")
    good = write_run(tmp_path / "b", seed=1)
    placed = match_runs(grid_by_hand(jobs(("ace",)), ["algorithm"]), load_runs(tmp_path), cells=CELLS)
    assert placed.runs["seed"].tolist() == [0, 1] and str(good) in placed.runs.index
    assert placed.left_out["reason"].tolist() == ["found twice"] * 2
    notes = placed.left_out["note"].tolist()
    assert f"the same run as b/{good.name}" in notes and not any(str(tmp_path) in note for note in notes)


def test_other_sweeps_lend_the_ends_that_a_sweep_does_not_repeat(tmp_path):
    grid = replace(grid_by_hand(jobs(("ace",), seeds=range(7)), ()), sweep="ace/figure2")
    ends = {0: ["ok", "ok"], 1: ["diverged", "ok"], 2: ["diverged", "diverged"], 3: ["", "diverged"], 4: ["", "failed"]}
    ends |= {5: ["old", "ok"], 6: ["", "old"]}  # old: ended well under another results version
    chosen = {"choices__profile": "published", "choices__scale": "small"}
    for seed, statuses in ends.items():
        for sweep, status in zip(("ace/figure2", "ace/figure3a"), statuses, strict=True):
            summary = {"exit_status": "ok", "results_version": 1} if status == "old" else {}
            if status:
                write_run(tmp_path / sweep, seed=seed, status=status, summary=summary, choices__sweep=sweep, **chosen)
    found = runs_for_page(load_runs(tmp_path), grid)
    got = sorted(zip(found["seed"], found["sweep"], found["status"], strict=True))
    assert got == [
        (0, "ace/figure2", "ok"),
        (1, "ace/figure2", "diverged"),
        (1, "ace/figure3a", "ok"),
        (2, "ace/figure2", "diverged"),
        (3, "ace/figure3a", "diverged"),
        (5, "ace/figure2", "ok"),
        (5, "ace/figure3a", "ok"),
    ]
    placed = match_runs(grid, found, cells=[])
    assert placed.missing["seed"].tolist() == [4, 6] and placed.runs["seed"].tolist() == [0, 1, 5]


def test_variants_of_an_algorithm_are_series_of_their_own(tmp_path):
    asked = jobs(("aced",), algorithm__tau_algo=10) + jobs(("aced",), algorithm__tau_algo=20) + jobs(("ace",))
    for job in asked:
        write_run(tmp_path, **job)
    keys = ["algorithm", "algorithm.tau_algo"]
    grid = grid_by_hand([job for job in asked if "algorithm__tau_algo" in job], keys)
    placed = match_runs(grid, load_runs(tmp_path), cells=CELLS)
    assert placed.series_names == ["ACED, τ_algo = 10", "ACED, τ_algo = 20"]
    assert placed.left_out["reason"].tolist() == ["not in this sweep"] * 2


def test_other_samples_under_the_same_settings_are_left_out_by_name(tmp_path):
    asked = jobs(seeds=(0, 1))
    for job in asked[:-1]:
        write_run(tmp_path, **job)
    odd = write_run(tmp_path, **asked[-1], summary={"data_digest": "d2"})
    placed = match_runs(grid_by_hand(asked, ["algorithm"]), load_runs(tmp_path), cells=CELLS)
    assert placed.left_out["reason"].to_dict() == {str(odd): "other data"}
    assert placed.left_out["note"].iloc[0] == "samples d2; 3 runs of this data have d1"


def test_a_server_with_samples_of_its_own_may_have_left_the_clients_others(tmp_path):
    runs = pd.DataFrame({"seed": [0, 1, 0, 1], "data_digest": ["d", "d", "e", "f"], "dataset.split_seed": 0})
    runs["unlabelled._target_"] = [math.nan, math.nan, "x.HeldBack", "x.HeldBack"]
    reasons, notes = pd.Series("", index=runs.index), pd.Series("", index=runs.index)
    leave_out_other_data(runs, reasons, notes)
    assert reasons.tolist() == [""] * 4


def test_samples_drawn_from_the_seed_may_differ_between_seeds_only(tmp_path):
    asked = jobs(("ace", "fedbuff", "ca2fl"), seeds=(0, 1))
    for job in asked[:-1]:
        write_run(tmp_path, **job, summary={"data_digest": f"of seed {job['seed']}"})
    odd = write_run(tmp_path, **asked[-1], summary={"data_digest": "another"})
    placed = match_runs(grid_by_hand(asked, ["algorithm"]), load_runs(tmp_path), cells=CELLS)
    assert len(placed.runs) == 5 and placed.left_out["reason"].to_dict() == {str(odd): "other data"}


def test_without_a_sweep_settings_that_differ_become_variants_or_cells(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, "ace", seed, algorithm__c=0.2, algorithm__eta=0.4)
        write_run(tmp_path, "ace", seed, algorithm__c=0.5, algorithm__eta=1.0)
        write_run(tmp_path, "fedbuff", seed, beta=30, client__lr=0.5)
        write_run(tmp_path, "fedbuff", seed, beta=5, client__lr=0.5)
    placed = group_runs(load_runs(tmp_path))
    assert placed.series_names == ["ACE, c = 0.2", "ACE, c = 0.5", "FedBuff"]
    assert placed.cells == ["delay"] and placed.cell_names == ["β = 5", "β = 30"]
    assert placed.apart == ["client.lr"]  # differs between algorithms, and no name shows it
    assert placed.runs.groupby(["series", "cell"])["seed"].nunique().tolist() == [2] * 4


def test_values_equal_to_six_digits_are_two_settings(tmp_path):
    write_run(tmp_path, "ace", client__lr=0.1)
    write_run(tmp_path, "ace", client__lr=0.1000000001)
    placed = group_runs(load_runs(tmp_path))
    assert placed.series_names == ["ACE, lr = 0.1", "ACE, lr = 0.1000000001"]


def test_values_equal_to_six_digits_are_ordered_by_size_and_chosen_apart(tmp_path):
    for alpha in (1e-7, 0.1000002, 0.1000001, 0.10000011, 9e-8):
        write_run(tmp_path, "ace", alpha=alpha)
    runs = load_runs(tmp_path)
    placed = group_runs(runs, panels=["heterogeneity.alpha"])
    assert placed.cell_names == [f"α = {text}" for text in ("9e-8", "1e-7", "0.1000001", "0.10000011", "0.1000002")]
    assert placed.runs["cell"].tolist() == placed.cell_names
    for value, count in (("0.1000002", 1), ("1e-7", 1), ("0.1", 3)):  # 0.1: what pages call all three
        assert len(group_runs(runs, where={"heterogeneity.alpha": value}).runs) == count


def test_anything_can_be_compared_shown_in_panels_and_chosen(tmp_path):
    for alpha in (0.1, 0.3, 1.0):
        write_run(tmp_path, "ace", alpha=alpha)
        write_run(tmp_path, "fedbuff", alpha=alpha)
    runs = load_runs(tmp_path)
    placed = group_runs(runs, compare=["heterogeneity.alpha"], panels=["algorithm"], where={"delay.beta": "5"})
    assert placed.series_names == ["α = 0.1", "α = 0.3", "α = 1.0"]
    assert placed.cell_names == ["ACE", "FedBuff"] and len(placed.runs) == 6
    few = group_runs(runs, where={"heterogeneity.alpha": "0.30", "algorithm": "ace"})
    assert len(few.runs) == 1 and few.cells == [] and few.cell_names == [""] and few.left_out.empty


def test_a_key_given_twice_counts_once(tmp_path):
    for beta in (5, 30):
        write_run(tmp_path, beta=beta)
    placed = group_runs(load_runs(tmp_path), ["algorithm", "algorithm"], ["delay", "delay"])
    assert (placed.cells, set(placed.runs["series"])) == (["delay"], {"ACE"})


def test_runs_of_another_results_version_are_not_used_in_any_folder(tmp_path):
    write_run(tmp_path, seed=0)
    write_run(tmp_path, seed=1, summary={"results_version": 1})
    placed = group_runs(load_runs(tmp_path))
    assert placed.runs["seed"].tolist() == [0] and placed.left_out["reason"].tolist() == ["another results version"]


def test_a_search_of_which_values_have_another_results_version_alone_is_left_out_whole(tmp_path):
    """One value that an earlier version chose is no search: a rule would be shown at a step that none chose."""
    asked = [{"algorithm": rule, "seed": 0, "algorithm__c": c} for rule in ("ace", "ca2fl") for c in (0.2, 0.5)]
    for job in asked:
        old = job["algorithm"] == "ca2fl" and job["algorithm__c"] == 0.2
        write_run(tmp_path, **job, summary={"results_version": 1} if old else {})
    grid = grid_by_hand(asked, ["algorithm", "algorithm.c"])
    placed = match_runs(grid, load_runs(tmp_path), cells=CELLS, tuned=("algorithm.c",))
    assert placed.series_names == ["ACE"] and len(placed.missing) == 1
    assert sorted(placed.left_out["reason"]) == ["another results version", "search by another results version"]
    write_run(tmp_path / "again", **asked[2])
    placed = match_runs(grid, load_runs(tmp_path), cells=CELLS, tuned=("algorithm.c",))
    assert placed.series_names == ["ACE", "CA2FL"] and placed.missing.empty


def test_further_values_of_the_tuned_setting_count_where_all_else_is_the_sweeps(tmp_path, monkeypatch):
    asked = [{"algorithm": "ace", "seed": seed, "algorithm__c": c} for seed in (0, 1) for c in (0.2, 0.5)]
    for job in (*asked, asked[0] | {"algorithm__c": 1.0}):
        write_run(tmp_path, **job)
    stranger = write_run(tmp_path, **asked[0] | {"algorithm__c": 1.0, "alpha": 0.7})
    grid = grid_by_hand(asked, ["algorithm", "algorithm.c"])
    composed = []

    def beyond(words):
        composed.extend(words)
        return [{"experiment": grid_by_hand([asked[0] | {"algorithm__c": 1.0}], []).jobs["experiment"][0]}]

    monkeypatch.setattr(matching, "job_identities", beyond)
    words = tuple((f"algorithm={job['algorithm']}", f"algorithm.c={job['algorithm__c']}") for job in asked)
    grid = Grid(grid.sweep, "fair", grid.scale, grid.length, grid.jobs, words=words)
    placed = match_runs(grid, load_runs(tmp_path), cells=CELLS, tuned=["algorithm.c"])
    assert composed == [("algorithm=ace", "algorithm.c=1.0")]
    assert placed.series_names == ["ACE"] and placed.runs["tuned"].tolist() == [0.2, 0.2, 0.5, 0.5, 1.0]
    assert placed.left_out["reason"].to_dict() == {str(stranger): "not in this sweep"}


def test_the_jobs_of_a_sweep_have_the_identities_that_their_runs_get():
    grid = grid_of("ace/figure2", "published", "smoke", more=["seed=0,3", "algorithm=ace,asgd", "delay=exp_beta5"])
    assert len(grid.jobs) == 8 and grid.jobs["error"].isna().all()
    assert {"algorithm", "heterogeneity.alpha"} <= set(grid.jobs.columns) and "delay" not in grid.jobs
    assert grid.jobs.groupby(["algorithm", "heterogeneity.alpha"])["experiment"].nunique().eq(1).all()
    job = grid.jobs[(grid.jobs["algorithm"] == "asgd") & (grid.jobs["seed"] == 3)].iloc[-1]
    assert compose(job["overrides"].split()).identity == job["identity"]


def test_a_job_that_cannot_be_composed_is_asked_for_and_has_its_error():
    grid = grid_of("ace/figure2", "published", "smoke", more=["seed=0", "algorithm=ace", "client.lr=0.1,-1"])
    assert grid.jobs["identity"].isna().tolist() == [False, True] * 4
    assert grid.jobs["error"].iloc[1].startswith("client.lr=-1")


def test_each_algorithm_has_the_tuned_setting_of_which_the_sweep_gives_it_several_values(tmp_path):
    ace = [{"algorithm": "ace", "algorithm__c": c, "client__lr": 1.0} for c in (0.2, 0.5)]
    gas = [{"algorithm": "gas", "client__lr": lr} for lr in (0.1, 0.3)]
    for job in (*ace, *gas):
        write_run(tmp_path, **job)
    grid = grid_by_hand([*ace, *gas], ["algorithm", "algorithm.c", "client.lr"])
    placed = match_runs(grid, load_runs(tmp_path), cells=CELLS, tuned=["algorithm.c", "client.lr"])
    found = placed.runs[["series", "tuned_by", "tuned"]].to_numpy().tolist()
    assert found == [
        *(["ACE", "algorithm.c", c] for c in (0.2, 0.5)),
        *(["GAS", "client.lr", lr] for lr in (0.1, 0.3)),
    ]
    assert len(match_runs(grid, load_runs(tmp_path), cells=CELLS, tuned=["client.lr"]).series_names) == 3  # a line each


def test_an_algorithm_with_several_values_of_two_tuned_settings_has_them_together(tmp_path):
    jobs = [{"algorithm": "ace", "algorithm__c": c, "client__lr": lr} for c in (0.2, 0.5) for lr in (0.1, 1.0)]
    for job in jobs:
        write_run(tmp_path, **job)
    grid = grid_by_hand(jobs, ["algorithm", "algorithm.c", "client.lr"])
    placed = match_runs(grid, load_runs(tmp_path), cells=CELLS, tuned=["client.lr", "algorithm.c"])
    assert placed.series_names == ["ACE"] and {*placed.runs["tuned_by"]} == {"client.lr, algorithm.c"}
    assert sorted(placed.runs["tuned"]) == ["0.1, 0.2", "0.1, 0.5", "1.0, 0.2", "1.0, 0.5"]
