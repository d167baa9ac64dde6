"""What runs reached, and when: on curves of a few points whose numbers can be read off."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from reports.runs_by_hand import write_run

from asyncfl_bench.analysis.comparison import values_at_equal_budget
from asyncfl_bench.analysis.evaluations import (
    best_values,
    common_limit,
    final_values,
    mean_curve,
    time_to_reach,
    unsteadiness,
)
from asyncfl_bench.analysis.matching import MatchedRuns, choose_tuned, group_runs
from asyncfl_bench.analysis.measures import RunMeasures
from asyncfl_bench.tracking.runs import load_points, load_runs

TIME = [0.0, 2.0, 4.0, 6.0, 8.0]
ACCURACY = [0.10, 0.70, 0.72, 0.80, 0.95]


def points_of(**accuracies) -> pd.DataFrame:
    """Points of runs with these accuracies at TIME; iterations are 10 a point, uploads 100."""
    frames = []
    for run, values in accuracies.items():
        count = len(values)
        frame = {"run": run, "iteration": np.arange(count) * 10, "uploads": np.arange(count) * 100}
        frames.append(pd.DataFrame(frame | {"virtual_time": TIME[:count], "test/accuracy": values}))
    return pd.concat(frames, ignore_index=True)


def placed_of(rows: list[tuple], **columns) -> MatchedRuns:
    """rows: (run, series, cell, seed)."""
    runs = (
        pd.DataFrame(rows, columns=["run", "series", "cell", "seed"])
        .set_index("run")
        .assign(tuned=None, tuned_by=None, **columns)
    )
    return MatchedRuns(runs, pd.DataFrame(), pd.DataFrame(), len(rows))


def at_equal_budget(placed: MatchedRuns, points: pd.DataFrame, axis: str, metric="test/accuracy") -> pd.DataFrame:
    return values_at_equal_budget(RunMeasures(placed, points, metric), "accuracy", axis).set_index("run")


def test_at_equal_budget_every_run_counts_up_to_the_earliest_end_of_its_cell():
    points = points_of(a=[0.1, 0.5, 0.9], b=[0.2, 0.4], c=[0.3, 0.6, 0.8])
    placed = placed_of([("a", "ACE", "x", 0), ("b", "FedBuff", "x", 0), ("c", "ACE", "y", 0)])
    table = at_equal_budget(placed, points, "uploads")
    assert table["budget"].to_dict() == {"a": 100, "b": 100, "c": 200}
    assert table["value"].to_dict() == pytest.approx({"a": 50, "b": 40, "c": 80})
    assert table["evaluations"].tolist() == [1, 1, 2]


def test_between_evaluations_a_run_is_a_straight_line():
    points = points_of(a=[0.1, 0.5, 0.9], b=[0.2, 0.4])
    points.loc[points["run"] == "b", "virtual_time"] = [0.0, 3.0]
    table = at_equal_budget(placed_of([("a", "ACE", "x", 0), ("b", "ACE", "x", 1)]), points, "virtual_time")
    assert table["value"].tolist() == pytest.approx([70, 40])  # 3 lies halfway between 2 and 4


def test_of_several_iterations_in_one_tick_the_last_is_the_state_of_that_time():
    points = points_of(a=[0.1, 0.5, 0.6, 0.9])
    points["virtual_time"] = [0.0, 4.0, 4.0, 8.0]
    points = points.iloc[[3, 0, 1, 2]]  # the order of the rows does not matter, that of iterations in a tick does
    table = at_equal_budget(placed_of([("a", "ACE", "x", 0)]), points, "virtual_time")
    assert table["value"].tolist() == [90]
    assert mean_curve(points, "virtual_time")["mean"].tolist() == [10, 60, 90]


def test_a_run_without_the_metric_has_no_row_and_losses_are_no_percentages():
    points = points_of(a=[0.1, 0.5], b=[0.2, 0.4]).assign(**{"test/loss": [2.0, 1.0, None, None]})
    placed = placed_of([("a", "ACE", "x", 0), ("b", "ACE", "x", 1)])
    table = at_equal_budget(placed, points, "iteration", "test/loss")
    assert table["value"].to_dict() == {"a": 1.0}
    assert at_equal_budget(placed, points, "iteration", "no/such").empty


def test_the_mean_curve_of_three_seeds_with_one_standard_deviation():
    points = points_of(a=[0.1, 0.4], b=[0.2, 0.5], c=[0.3, 0.6])
    mean = mean_curve(points, "uploads")
    assert mean["x"].tolist() == [0, 100] and mean["mean"].tolist() == pytest.approx([20, 50])
    assert mean["low"].tolist() == pytest.approx([10, 40]) and mean["high"].tolist() == pytest.approx([30, 60])
    assert mean["seeds"].tolist() == [3, 3]


def test_the_mean_curve_ends_where_the_first_seed_ends_and_begins_where_all_have_begun():
    points = points_of(a=[0.0, 0.2, 0.4, 0.6], b=[0.4, 0.8, 1.0])
    points.loc[points["run"] == "b", "uploads"] = [50, 150, 250]
    mean = mean_curve(points, "uploads")
    assert mean["x"].tolist() == [50, 100, 150, 200, 250]
    assert mean["mean"].tolist() == pytest.approx([(10 + 40) / 2, 40, (30 + 80) / 2, 65, 75])
    assert mean_curve(points, "uploads", limit=160)["x"].max() == 150
    assert mean_curve(points, "uploads", logarithmic=True)["x"].min() == 100  # a's first after 0


def test_no_band_leaves_0_to_100_percent_and_one_seed_has_none():
    high = mean_curve(points_of(a=[0.0, 1.0], b=[0.1, 0.9]), "uploads")
    assert high["high"].max() == 100 and high["low"].min() == 0
    one = mean_curve(points_of(a=[0.1, 0.9]), "uploads")
    assert one["low"].tolist() == one["high"].tolist() == one["mean"].tolist() == [10, 90]
    assert mean_curve(points_of(a=[0.1]).iloc[:0], "uploads").empty


def test_many_different_places_become_an_even_grid_that_ends_at_the_end():
    rng = np.random.default_rng(0)
    frames = []
    for run in "abc":
        times = np.sort(rng.uniform(0, 10, 300))
        frames.append(pd.DataFrame({"run": run, "virtual_time": times, "test/accuracy": times / 10}))
    points = pd.concat(frames)
    mean = mean_curve(points, "virtual_time")
    assert len(mean) == 200 and mean["x"].iloc[-1] == points.groupby("run")["virtual_time"].max().min()
    np.testing.assert_allclose(mean["mean"], 10 * mean["x"])  # a straight line stays one


def test_the_best_is_the_highest_evaluation():
    points = points_of(a=ACCURACY, b=ACCURACY[::-1])
    assert best_values(points[points["virtual_time"] <= 6]).to_dict() == {"a": 80, "b": 95}
    assert best_values(points[:0]).empty
    assert final_values(points).to_dict() == {"a": 95, "b": 10}


def test_ninety_percent_is_of_the_best_and_reached_at_the_first_such_evaluation():
    points = points_of(a=ACCURACY)
    early = points[points["virtual_time"] <= 6]
    assert time_to_reach(early, 0.9 * best_values(early))["a"] == 4  # 0.9 * 80 = 72, exactly there
    # 0.9 * 95 = 85.5: later evaluations move the target
    assert time_to_reach(points, 0.9 * best_values(points))["a"] == 8
    assert time_to_reach(points, 70)["a"] == 2 and time_to_reach(points, 75, axis="uploads")["a"] == 300


def test_a_target_that_is_not_reached_has_no_time():
    points = points_of(a=ACCURACY, b=[0.1, 0.2])
    assert time_to_reach(points, 75).isna().to_dict() == {"a": False, "b": True}


def test_unsteadiness_is_the_mean_change_between_evaluations_after_ninety_percent():
    points = points_of(a=[0.0, 0.90, 1.00, 0.92, 0.95], b=ACCURACY)  # 90 % of 100 at time 2; changes 10, 8, 3
    assert unsteadiness(points)["a"] == pytest.approx(7.0)
    assert unsteadiness(points[points["virtual_time"] <= 6])["a"] == pytest.approx(9.0)
    assert math.isnan(unsteadiness(points)["b"])  # one evaluation only


def test_runs_of_one_protocol_are_compared_up_to_the_earliest_end_of_those_that_end_by_their_time():
    points = points_of(a=ACCURACY, b=[0.1, 0.2, 0.3], c=[0.1, 0.2], d=[0.1, 0.2])
    rows = [("a", "ACE", "x", 0), ("b", "FedAvg", "x", 0), ("c", "FedAvg", "y", 0), ("d", "ACE", "y", 0)]
    stops = ["virtual_time", "virtual_time", "no_clients", "server_iterations"]
    placed = placed_of(rows, paper=["p", "p", "q", "q"], **{"summary.stopped_by": stops})
    assert common_limit(placed.runs, points, 300).to_dict() == {"p": 4, "q": 300}
    assert common_limit(placed.runs, points, 3).to_dict() == {"p": 3, "q": 3}


def test_the_tuned_value_is_the_best_on_validation_samples_among_those_with_most_seeds():
    rows, values, validation, points = [], [], {}, []
    for tuned, accuracy in ((0.1, (0.5, 0.7)), (0.2, (0.8, 0.6)), (1.0, (0.99,)), (0.3, (0.7, 0.7))):
        for seed, value in enumerate(accuracy):
            run = f"{tuned}-{seed}"
            rows.append((run, "ACE", "x", seed))
            values.append(tuned)
            validation[run] = value
            points.append(points_of(**{run: [0.1, 1 - value]}).assign(**{"validation/accuracy": [None, value]}))
    rows.append(("other", "FedBuff", "x", 0))
    placed = placed_of(rows)
    placed.runs["tuned"] = [*values, 0.5]
    chosen, choices = choose_tuned(placed, pd.concat(points, ignore_index=True))
    assert choices.iloc[0].to_dict() == {
        "series": "ACE",
        "cell": "x",
        "tuned_by": None,
        "tuned": 0.2,  # as good as 0.3, and smaller; 1.0 diverged for a seed
        "validation": pytest.approx(70),
        "tried": 4,
        "at_edge": False,
    }
    assert list(chosen.runs.index) == ["0.2-0", "0.2-1", "other"]


def test_a_value_beyond_which_all_runs_diverged_is_not_at_an_edge():
    placed = placed_of([("a", "ACE", "x", 0), ("b", "ACE", "x", 0)])
    placed.runs["tuned"] = [0.1, 0.2]
    points = points_of(a=[0.1, 0.2], b=[0.1, 0.2]).assign(**{"validation/accuracy": [None, 0.5, None, 0.6]})
    assert choose_tuned(placed, points)[1][["tuned", "tried", "at_edge"]].to_numpy().tolist() == [[0.2, 2, True]]
    lost = pd.DataFrame({"series": "ACE", "cell": "x", "seed": 0, "tuned": [0.5]}, index=["c"])
    _, choices = choose_tuned(replace(placed, diverged=lost), points)
    assert choices[["tuned", "tried", "at_edge"]].to_numpy().tolist() == [[0.2, 3, False]]


def test_a_diverged_run_of_another_value_than_the_only_one_left_does_not_count():
    placed = placed_of([("a", "ACE", "x", 0)])
    placed.runs["tuned"] = [0.1]
    lost = pd.DataFrame({"series": "ACE", "cell": "x", "seed": [0, 1], "tuned": [0.5, 0.1]}, index=["b", "c"])
    points = points_of(a=[0.1, 0.2]).assign(**{"validation/accuracy": [None, 0.5]})
    chosen, choices = choose_tuned(replace(placed, diverged=lost), points)
    assert choices["tuned"].tolist() == [0.1] and list(chosen.diverged.index) == ["c"]
    lost["series"] = "FedBuff"  # of which no run is left: one value counts, so that a seed has one run
    assert list(choose_tuned(replace(placed, diverged=lost), points)[0].diverged.index) == ["c"]


def test_later_seeds_do_not_change_the_tuned_value():
    """0.2 is the best of the lowest three seeds; with seeds 3 and 4 the mean of 0.1 would be higher."""
    validation = {(0.1, seed): 0.5 if seed < 3 else 0.9 for seed in range(5)}
    validation |= {(0.2, seed): 0.6 for seed in range(5)} | {(0.4, 4): 0.99}
    runs = {f"{tuned}-{seed}": ("ACE", "x", seed) for tuned, seed in validation}
    placed = placed_of([(run, *row) for run, row in runs.items()])
    placed.runs["tuned"] = [tuned for tuned, _ in validation]
    points = [
        points_of(**{run: [0.1, value]}).assign(**{"validation/accuracy": [None, value]})
        for run, value in zip(runs, validation.values(), strict=True)
    ]
    chosen, choices = choose_tuned(placed, pd.concat(points, ignore_index=True))
    assert choices[["tuned", "tried", "at_edge"]].to_numpy().tolist() == [[0.2, 2, True]]
    assert list(chosen.runs.index) == [f"0.2-{seed}" for seed in range(5)]


def test_settings_tuned_together_are_chosen_as_one_point():
    """A point is at an edge if one of its settings is; a setting with one value has no edge."""
    validation = {"0.1, 0.01": 0.5, "0.3, 0.01": 0.6, "0.3, 0.1": 0.9, "1, 0.1": 0.7, "1, 1": 0.4}
    for kept, edge in ((list(validation), False), (["0.1, 0.01", "0.3, 0.01", "0.3, 0.1"], True)):
        placed = placed_of([(run, "ACE", "x", 0) for run in kept])
        placed.runs["tuned"], placed.runs["tuned_by"] = kept, "algorithm.eta, client.lr"
        points = [
            points_of(**{run: [0.1, 0.2]}).assign(**{"validation/accuracy": [None, validation[run]]}) for run in kept
        ]
        chosen, choices = choose_tuned(placed, pd.concat(points, ignore_index=True))
        assert choices[["tuned", "at_edge"]].to_numpy().tolist() == [["0.3, 0.1", edge]]
        assert list(chosen.runs.index) == ["0.3, 0.1"]
    placed = placed_of([(run, "ACE", "x", 0) for run in ("1, 0.1", "1, 0.2", "1, 0.3")])
    placed.runs["tuned"] = list(placed.runs.index)
    points = points_of(**{run: [0.1, 0.2] for run in placed.runs.index})
    points["validation/accuracy"] = points["run"].map({"1, 0.1": 0.5, "1, 0.2": 0.6, "1, 0.3": 0.5})
    assert choose_tuned(placed, points)[1]["at_edge"].tolist() == [False]


def test_without_validation_samples_no_value_is_chosen_and_no_run_of_it_counts():
    placed = placed_of([("a", "ACE", "x", 0), ("b", "ACE", "x", 0)])
    placed.runs["tuned"] = [0.1, 0.2]
    chosen, choices = choose_tuned(placed, points_of(a=[0.1, 0.9], b=[0.1, 0.5]))
    assert chosen.runs.empty and choices["tuned"].isna().all() and choices["tried"].tolist() == [2]


def test_from_run_directories_to_a_number_at_equal_budget(tmp_path):
    for seed, accuracy in ((0, 0.5), (1, 0.75)):
        write_run(tmp_path, "ace", seed, points=[(0, 0, 0.0, 0.1), (10, 100, 10.0, accuracy)])
        write_run(tmp_path, "asgd", seed, points=[(0, 0, 0.0, 0.1), (10, 10, 40.0, 0.3), (20, 20, 80.0, 0.4)])
    placed = group_runs(load_runs(tmp_path))
    points = load_points(placed.runs)
    means = at_equal_budget(placed, points, "virtual_time").groupby("series")["value"].mean()
    assert means.to_dict() == pytest.approx({"ACE": 62.5, "vanilla ASGD": 15})
    means = at_equal_budget(placed, points, "uploads").groupby("series")["value"].mean()
    assert means.to_dict() == pytest.approx({"ACE": 10 + 0.2 * 52.5, "vanilla ASGD": 40})
