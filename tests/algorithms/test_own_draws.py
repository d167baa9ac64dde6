"""What a rule draws and decides for itself: the same bits wherever the rule runs and however often it is stopped."""

import pandas as pd
import pytest
from crashing import WORDS, assert_same
from toy import CoinFlips, Scripted, simulate, table_of

from asyncfl_bench import run
from asyncfl_bench.algorithms.base import StepConfig

FLIPS = [*WORDS, "algorithm=asgd", "algorithm._target_=toy.CoinFlips", "algorithm.eta=0.1", "model=softmax"]


@pytest.mark.slow
def test_decisions_are_one_row_a_server_iteration_and_part_of_what_is_resumed(monkeypatch):
    monkeypatch.setenv("ASYNCFL_BENCH_ALLOW", "toy")
    whole = run([*FLIPS, "budget.server_iterations=80", "output_dir=whole"])
    short = run([*FLIPS, "budget.server_iterations=40", "output_dir=short"])
    resumed = run([f"resume={short.directory}", "budget.server_iterations=80"])
    assert_same(resumed.directory, whole.directory)
    table = table_of(whole, "rule")
    pd.testing.assert_frame_equal(table_of(resumed, "rule"), table, check_exact=True)
    assert list(table) == ["iteration", "client", "staleness", "left_out"]
    assert table["iteration"].tolist() == list(range(1, 81))
    used = table_of(whole).query("model_changed")
    assert table["client"].tolist() == used["client"].tolist()
    assert table["left_out"].iloc[-1] + 80 == whole.summary["used"]["uploads"]


@pytest.mark.slow
def test_a_diagnostics_copy_of_the_rule_makes_the_same_draws():
    plain = run([*FLIPS, "budget.server_iterations=20", "output_dir=plain"])
    measured = run([*FLIPS, "budget.server_iterations=20", "diagnostics=mse", "diagnostics.every=1", "output_dir=mse"])
    assert measured.ok, measured.summary["error"]  # a copy that steps at other moments is an error
    pd.testing.assert_frame_equal(table_of(measured, "rule"), table_of(plain, "rule"))
    assert measured.metrics["mse/residual"].max() < 1e-3


def test_another_seed_gives_other_draws():
    used = []
    for seed in (0, 1):
        _, recorder, _ = simulate(CoinFlips(StepConfig(eta=0.1)), n=3, delay=Scripted([[1]] * 3), uploads=60, seed=seed)
        used.append([arrival.changed for arrival in recorder.arrivals])
    assert used[0] != used[1]
    assert sum(used[0]) == pytest.approx(30, abs=12)


def test_a_rule_that_decides_nothing_has_no_table():
    result = run([*WORDS, "algorithm=asgd", "model=softmax", "budget.server_iterations=5"])
    assert not (result.directory / "rule.parquet").exists()
