"""The error of server steps taken apart, from real small runs."""

import numpy as np
import pandas as pd
import pytest

from asyncfl_bench import run
from asyncfl_bench.analysis.matching import group_runs
from asyncfl_bench.analysis.step_errors import drift_by_staleness, drift_ratios, error_table
from asyncfl_bench.errors import BenchError
from asyncfl_bench.reports.blocks import error_parts
from asyncfl_bench.reports.pages.page import Page
from asyncfl_bench.reports.pages.spec import PageSpec
from asyncfl_bench.reports.pages.write import Picture
from asyncfl_bench.tracking.archive import pack_archive
from asyncfl_bench.tracking.runs import load_points, load_runs

ALPHA = "heterogeneity.alpha"
WORDS = ["model=softmax", "n_clients=20", "budget.server_iterations=60", "progress=false", "delay=exponential"]
MSE = ["diagnostics=mse", "diagnostics.every=2", "client.batch_size=5"]


pytestmark = pytest.mark.slow  # its runs take seconds


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Eight measured runs: two rules by two skews by two seeds."""
    folder = tmp_path_factory.mktemp("measured")
    for algorithm in ("fedbuff", "ace"):
        for alpha in ("0.1", "1.0"):
            for seed in ("0", "1"):
                words = [f"algorithm={algorithm}", f"{ALPHA}={alpha}", f"seed={seed}"]
                assert run([*WORDS, *MSE, *words, f"hydra.run.dir={folder}/{algorithm}-{alpha}-{seed}"]).ok
    placed = group_runs(load_runs(folder), panels=[ALPHA])
    return Page(PageSpec("", "", "", (ALPHA,), ()), placed, load_points(placed.runs))


def test_the_table_averages_steps_and_seeds_and_predicts_the_noise(page):
    table = error_table(page.runs, page.points).set_index(["series", "cell"])
    row = table.loc[("ACE", "α = 0.1")]
    mine = page.runs[(page.runs["algorithm"] == "ace") & (page.runs[ALPHA] == 0.1)]
    lines = [pd.read_json(f"{run}/metrics.jsonl", lines=True) for run in mine.index]
    for column, name in (("a2", "noise"), ("c2", "delay"), ("error", "error")):
        means = [part[f"mse/{name}"].mean() for part in lines]
        assert (row[column], row[f"{column}_std"]) == pytest.approx((np.mean(means), np.std(means, ddof=1)))
    assert row["a2_predicted"] == pytest.approx(np.mean([part["mse/sigma2_cached"].mean() for part in lines]) / 20)
    buffered = table.loc[("FedBuff", "α = 0.1")]
    assert buffered["a2_predicted"] == pytest.approx(buffered["sigma2"] / 10)
    assert 0.5 < buffered["a2_ratio"] < 2 and 0.5 < row["a2_ratio"] < 2
    assert row["b2"] < 1e-9 * row["error"] < buffered["b2"]  # no bias from partial participation
    assert len(table) == 4 and (table["seeds"] == 2).all()


def test_where_clients_stopped_the_means_are_over_the_points_after_the_stop(tmp_path):
    words = ["availability=dropout", "availability.at_iteration=20", "availability.share=0.5", "evaluation.every=10"]
    assert run([*WORDS, *MSE, *words, "algorithm=ace", f"hydra.run.dir={tmp_path}/stopped"]).ok
    placed = group_runs(load_runs(tmp_path))
    (row,) = error_table(placed.runs, load_points(placed.runs)).to_dict("records")
    lines = pd.read_json(tmp_path / "stopped" / "metrics.jsonl", lines=True)
    after = lines[lines["iteration"] > 20]
    assert row["c2"] == pytest.approx(after["mse/delay"].mean()) != pytest.approx(lines["mse/delay"].mean())
    assert row["frozen"] == pytest.approx(after["mse/frozen"].mean()) and len(after) == 4


def test_the_slope_of_the_drift_is_that_of_a_least_squares_line(page):
    (mine,) = page.runs.index[
        (page.runs["algorithm"] == "fedbuff") & (page.runs[ALPHA] == 0.1) & (page.runs["seed"] == 0)
    ]
    arrivals = pd.read_parquet(f"{mine}/mse_arrivals.parquet")
    arrivals = arrivals[arrivals["iteration"] >= arrivals["iteration"].max() / 2]
    slope, _ = np.polyfit(arrivals["staleness"], arrivals["drift"], 1)
    alone = error_table(page.runs.loc[[mine]], page.points[page.points["run"] == mine])
    assert alone["drift_slope"].item() == pytest.approx(slope)
    assert alone["staleness"].item() == pytest.approx(arrivals["staleness"].mean())
    bins = drift_by_staleness(page.runs.loc[[mine]])
    first = arrivals[arrivals["staleness"] == 1]
    assert bins["drift"].iloc[0] == pytest.approx(first["drift"].mean()) and bins["uploads"].iloc[0] == len(first)


def test_bins_of_several_runs_are_those_of_their_uploads_together(page):
    mine = page.runs[(page.runs["algorithm"] == "fedbuff") & (page.runs[ALPHA] == 0.1)]
    parts = [pd.read_parquet(f"{run}/mse_arrivals.parquet") for run in mine.index]
    late = pd.concat([part[part["iteration"] >= part["iteration"].max() / 2] for part in parts])
    some = late[late["staleness"].between(2, 3)]
    row = drift_by_staleness(mine).loc[1]
    assert len(parts) == 2 and row["uploads"] == len(some) >= 10
    assert row[["staleness", "drift"]].tolist() == pytest.approx(some[["staleness", "drift"]].mean().tolist())


def test_an_archive_holds_all_that_the_tables_need(page, tmp_path):
    pack_archive(page.runs.index, tmp_path / "runs.parquet")
    placed = group_runs(load_runs(tmp_path / "runs.parquet"), panels=[ALPHA])
    tables = [error_table(of.runs, load_points(of.runs)) for of in (page.placed, placed)]
    tables = [table.sort_values(["series", "cell"], ignore_index=True) for table in tables]
    pd.testing.assert_frame_equal(*tables)
    pd.testing.assert_frame_equal(drift_by_staleness(placed.runs), drift_by_staleness(page.runs))
    assert len(drift_by_staleness(placed.runs)) > 1


def test_the_drift_under_two_skews_is_compared_at_the_least_staleness_of_both(page):
    drifts = []
    for alpha in (0.1, 1.0):
        mine = page.runs.index[(page.runs["algorithm"] == "fedbuff") & (page.runs[ALPHA] == alpha)]
        parts = [pd.read_parquet(f"{run}/mse_arrivals.parquet") for run in mine]
        late = pd.concat([part[part["iteration"] >= part["iteration"].max() / 2] for part in parts])
        drifts.append(late.loc[late["staleness"] == 1, "drift"].mean())
    table = error_table(page.runs, page.points)
    table = page.with_keys(table).assign(cell=table["cell"])
    ratios = drift_ratios(page.runs, table, page.keys, ALPHA).set_index("series")
    assert ratios.loc["FedBuff", "drift"] == pytest.approx(drifts[0] / drifts[1])
    assert ratios.loc["FedBuff", "zeta2"] > 1.5, "alpha=0.1 is far more skewed than alpha=1"


def test_the_block_has_tables_and_figures_of_all_parts(page):
    parts = error_parts(page)
    page.parts = parts
    assert {"table1", "noise", "drift", "skews"} <= set(page.tables)
    assert page.tables["table1"]["series"].tolist() == ["ACE", "FedBuff"] * 2
    figures = {part.name: part.figure for part in parts if isinstance(part, Picture)}
    assert set(figures) == {"mse_parts", "mse_drift", "mse_correlation"}
    assert len(figures["mse_drift"].axes[0].lines) == 2 and len(figures["mse_parts"].axes) == 2


def test_runs_that_measured_nothing_are_one_message(page):
    with pytest.raises(BenchError, match="no finished run measured a step with diagnostics=mse"):
        error_table(page.runs, page.points[["run", "iteration"]])
