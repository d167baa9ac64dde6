"""The page about the error of server steps, from real small runs."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from asyncfl_bench import run
from asyncfl_bench.errors import BenchError
from asyncfl_bench.reports.load import load_runs
from asyncfl_bench.reports.mse import claims, table1, write_page_parts
from asyncfl_bench.reports.mse_table import drift_by_staleness, drift_ratios

ALPHA = "heterogeneity.alpha"
WORDS = ["model=softmax", "n_clients=20", "budget.server_iterations=60", "progress=false", "delay=exponential"]
MSE = ["diagnostics=mse", "diagnostics.every=2", "client.batch_size=5"]


@pytest.fixture
def runs(tmp_path):
    for algorithm in ("fedbuff", "ace"):
        for alpha in ("0.1", "1.0"):
            for seed in ("0", "1"):
                words = [f"algorithm={algorithm}", f"heterogeneity.alpha={alpha}", f"seed={seed}"]
                assert run([*WORDS, *MSE, *words]).ok
    run([*WORDS, "algorithm=asgd"])  # not measured: left out
    return load_runs([tmp_path / "runs"])


def test_the_table_averages_steps_and_seeds_and_predicts_the_noise(runs):
    table = table1(runs)
    assert table["algorithm"].tolist() == ["fedbuff", "ace", "fedbuff", "ace"]
    assert table["heterogeneity.alpha"].tolist() == ["0.1", "0.1", "1.0", "1.0"] and (table["seeds"] == 2).all()
    mine = [r for r in runs if r.algorithm == "ace" and r.settings["heterogeneity.alpha"] == 0.1]
    lines = [pd.read_json(r.path / "metrics.jsonl", lines=True) for r in mine]
    row = table.iloc[1]
    for column, name in (("a2", "noise"), ("c2", "delay"), ("error", "error")):
        means = [part[f"mse/{name}"].mean() for part in lines]
        assert row[column] == pytest.approx(np.mean(means)) and row[f"{column}_std"] == pytest.approx(
            np.std(means, ddof=1)
        )
    assert row["a2_predicted"] == pytest.approx(np.mean([part["mse/sigma2_cached"].mean() for part in lines]) / 20)
    buffered = table.iloc[0]
    assert buffered["a2_predicted"] == pytest.approx(buffered["sigma2"] / 10)
    assert 0.5 < buffered["a2_ratio"] < 2 and 0.5 < row["a2_ratio"] < 2


def test_the_slope_of_the_drift_is_that_of_a_least_squares_line(runs):
    (mine,) = (r for r in runs if (r.algorithm, r.seed, r.settings["heterogeneity.alpha"]) == ("fedbuff", 0, 0.1))
    arrivals = pd.read_parquet(mine.path / "mse_arrivals.parquet")
    arrivals = arrivals[arrivals["iteration"] >= arrivals["iteration"].max() / 2]
    slope, _ = np.polyfit(arrivals["staleness"], arrivals["drift"], 1)
    assert table1([mine])["drift_slope"].item() == pytest.approx(slope)
    bins = drift_by_staleness([mine])
    first = arrivals[arrivals["staleness"] == 1]
    assert bins["drift"].iloc[0] == pytest.approx(first["drift"].mean()) and bins["uploads"].iloc[0] == len(first)


def test_the_drift_under_two_skews_is_compared_at_the_least_staleness_of_both(runs):
    mine = [r for r in runs if r.algorithm == "fedbuff"]
    drifts = []
    for alpha in (0.1, 1.0):
        parts = [pd.read_parquet(r.path / "mse_arrivals.parquet") for r in mine if r.settings[ALPHA] == alpha]
        late = pd.concat([part[part["iteration"] >= part["iteration"].max() / 2] for part in parts])
        drifts.append(late.loc[late["staleness"] == 1, "drift"].mean())
    (row,) = drift_ratios(mine, [ALPHA], ALPHA).to_dict("records")
    assert row["drift"] == pytest.approx(drifts[0] / drifts[1])
    assert row["zeta2"] > 1.5, "alpha=0.1 is far more skewed than alpha=1"


def test_the_page_has_its_tables_its_figures_and_a_verdict_for_every_claim_it_can_judge(runs, tmp_path):
    parts = write_page_parts(runs, tmp_path / "page")
    text = "\n\n".join(parts)
    for name in ("mse_parts.png", "mse_drift.png", "mse_correlation.png"):
        assert f"]({name})" in text
        assert imread(tmp_path / "page" / name).std() > 0.05
    assert len(pd.read_csv(tmp_path / "page" / "table1.csv")) == 4
    assert "Heterogeneity amplification" in text
    assert "B is zero for ACE: confirmed" in text and "Averaging all clients reduces A most: confirmed in all 2" in text
    assert "asgd" not in text.split("## The paper's table 1")[1].split("## Drift")[0]


def test_a_claim_the_numbers_contradict_is_not_confirmed():
    table = pd.DataFrame(
        {
            "algorithm": ["ca2fl", "fedbuff"],
            "a2": 1.0,
            "a2_ratio": 1.5,
            "b2": [2.0, 1.0],
            "c2": 1.0,
            "error": 3.0,
            "drift": 1.0,
        }
    )
    assert "Calibration reduces B: not confirmed, ca2fl has 2 times that of fedbuff." in claims(table, [])
    assert "The size of A, measured over what the paper predicts: ca2fl 1.5, fedbuff 1.5." in claims(table, [])


def test_without_measured_runs_there_is_one_message(tmp_path):
    run([*WORDS, "algorithm=asgd"])
    with pytest.raises(BenchError, match="no finished run was made with diagnostics=mse"):
        write_page_parts(load_runs([tmp_path / "runs"]), tmp_path / "page")
