"""Claims: the comparison that a claim asks, and the verdict of its runs (statistics.md, CONTRIBUTING.md)."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from asyncfl_bench.analysis import claims, verdicts
from asyncfl_bench.analysis.claims import Claim, PageVerdicts, Verdict, read_claims, read_verdicts, to_json
from asyncfl_bench.analysis.comparison import compare_pairs, values_at_equal_budget
from asyncfl_bench.analysis.matching import MatchedRuns
from asyncfl_bench.analysis.measures import MEASURES, RunMeasures
from asyncfl_bench.analysis.statistics import ALPHA as LEVEL
from asyncfl_bench.analysis.statistics import LEVELS
from asyncfl_bench.analysis.verdicts import judge_claim
from asyncfl_bench.errors import BenchError
from asyncfl_bench.papers import paper_pages
from asyncfl_bench.tracking.runs import load_runs

ROOT = Path(__file__).parents[2]
SWEEPS = ROOT / "sweeps"
PAPERS = claims.papers_with_claims()
ALPHA = "heterogeneity.alpha"
NOTHING = pd.DataFrame()


def runs(**by_algorithm) -> pd.DataFrame:
    """algorithm -> values of seeds 0, 1, …; or (settings, values)."""
    rows = []
    for name, of in by_algorithm.items():
        settings, values = of if isinstance(of, tuple) else ({}, of)
        algorithm = name.partition("__")[0]
        rows += [{"algorithm": algorithm, **settings, "seed": s, "value": v} for s, v in enumerate(values)]
    return pd.DataFrame(rows)


class GivenValues(RunMeasures):
    """Measures of runs whose values are given: ``value`` at every budget and of every measure, ``last`` the last."""

    def __init__(self, frame: pd.DataFrame, cells=(), planned: pd.DataFrame = NOTHING) -> None:
        frame = frame.reset_index(drop=True)
        frame = frame.assign(
            series=frame.get("series", frame["algorithm"]),
            experiment=frame.get("experiment", frame["algorithm"]),
            cell=["; ".join(f"{row[key]}" for key in cells) for _, row in frame.iterrows()],
        )
        lost = frame.get("lost", pd.Series(False, index=frame.index)).fillna(False).astype(bool)
        super().__init__(
            MatchedRuns(frame[~lost], NOTHING, NOTHING, len(frame), list(cells), diverged=frame[lost], planned=planned),
            NOTHING,
        )

    def values(self, name, axis):
        return self.placed.runs["value"].astype(float)

    def times_to(self, target, axis):
        return self.values("", axis)

    def ends(self, runs, axis):
        return self.placed.runs.get("end", pd.Series(1.0, index=self.placed.runs.index)).reindex(runs).astype(float)

    def values_at_budget(self, axis, runs, budgets):
        found = self.placed.runs.reindex(runs).set_axis(runs.index)
        given = {"late": found["value"], "last": found["last" if "last" in found else "value"], "counted": math.inf}
        return pd.DataFrame(given).astype(float)


def ask(
    frame: pd.DataFrame, cells=(), where=None, series=None, seen=0, changed=False, planned=NOTHING, **decide
) -> Verdict:
    decide = {"measure": "late", **decide}
    claim = Claim("ace", "x", "item", "place", "sentence", ("ace/figure2",), decide, where or {}, series=series or {},
                  changed=changed)  # fmt: skip
    return judge_claim(claim, GivenValues(frame, cells, planned), seen).verdict


# ACE and vanilla ASGD of five seeds at α = 0.1, β = 5 on digits
ACE, ASGD = [94.4, 95.0, 95.6, 94.4, 94.4], [94.1, 90.3, 93.3, 94.4, 93.9]
ORDER = {"kind": "order", "groups": [["ace"], ["asgd"]]}


def order(first: list[float], second: list[float], **more) -> Verdict:
    return ask(runs(ace=first, asgd=second), **(ORDER | more))


def test_one_order_is_a_paired_interval_of_its_look():
    found = order(ACE, ASGD)
    differences = [a - b for a, b in zip(ACE, ASGD, strict=True)]
    interval = stats.ttest_1samp(differences, 0).confidence_interval(1 - LEVELS[5])
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-3)
    repeated = [stats.ttest_1samp(differences[:n], 0).pvalue * LEVEL / LEVELS[n] for n in (3, 5)]
    assert found.p == pytest.approx(min(*repeated, 1), rel=1e-3)
    assert (found.verdict, found.seeds, found.total, found.contrasts, found.agree) == ("inconclusive", 5, 5, 1, 0)
    assert found.details_text.startswith("ACE - vanilla ASGD: +1.56 points [-3.07, +6.19], p 0.63, 5 seeds")
    assert found.reason == "needs about 25 seeds"


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ([95.0, 96.0, 97.0], [94.0, 94.9, 96.1], "holds"),
        ([94.0, 94.9, 96.1], [95.0, 96.0, 97.0], "fails"),
        ([95.0, 96.0, 97.0], [95.02, 95.99, 97.0], "tie"),
        ([95.0, 96.0, 97.0], [94.0, 97.0, 95.0], "inconclusive"),
        ([95.0, 96.0], [90.0, 91.0], "inconclusive"),
        ([95.0, 96.0, math.nan], [90.0, 91.0, 92.0], "inconclusive"),
    ],
)
def test_an_order_holds_fails_ties_or_stays_open(first, second, verdict):
    assert order(first, second).verdict == verdict


def test_two_seeds_are_named_as_the_reason():
    found = order([95.0, 96.0], [90.0, 91.0])
    assert found.reason == "2 seeds, where a test needs 3" and math.isnan(found.low) and found.difference == 5
    assert found.details_text == "ACE - vanilla ASGD: +5.00 points, 2 seeds; 2 seeds, where a test needs 3"


def test_fewer_than_five_seeds_are_an_indication():
    better = [94.0, 94.9, 96.1, 90.0, 91.0]
    for seeds, indication in ((3, "3 seeds"), (4, "4 seeds"), (5, "")):
        found = order([value + 1 for value in better[:seeds]], better[:seeds])
        assert (found.indication, found.marked_word) == (indication, "holds (preliminary)" if indication else "holds")


def test_every_cell_and_pair_must_hold_and_the_least_certain_is_shown():
    cells = [runs(ace=({ALPHA: a}, [90 + gap, 91 + gap, 92.1 + gap]), asgd=({ALPHA: a}, [90.0, 91, 92]),
                  fedbuff=({ALPHA: a}, [50.0, 51, 52])) for a, gap in ((0.1, 3), (0.3, 0.5))]  # fmt: skip
    groups = {"kind": "order", "groups": [["ace"], ["asgd", "fedbuff"]]}
    found = ask(pd.concat(cells), [ALPHA], **groups)
    assert (found.verdict, found.contrasts, found.agree) == ("holds", 4, 4)
    assert found.contrast == "ACE - vanilla ASGD, α = 0.3" and found.difference == pytest.approx(0.5333, abs=1e-4)
    below = cells[0].assign(value=cells[0]["value"].where(cells[0]["algorithm"] != "ace", [88, 89.01, 90] + [0] * 6))
    found = ask(pd.concat([below, cells[1]]), [ALPHA], **groups)
    assert (found.verdict, found.agree, found.against) == ("fails", 3, 1)
    assert found.contrast == "ACE - vanilla ASGD, α = 0.1" and found.high < 0


def test_a_chain_compares_neighbours_only():
    frame = runs(ace=[59.0, 59.1, 59.2], ca2fl=[48.0, 48.1, 48.3], fedbuff=[37.0, 37.1, 37.3])
    found = ask(frame, kind="order", groups=[["ace"], ["ca2fl"], ["fedbuff"]])
    assert (found.verdict, found.contrasts) == ("holds", 2)


def open_pairs(count: int) -> pd.DataFrame:
    others = {f"asgd__{i}": ({ALPHA: i}, [90.0, 89 + i, 92]) for i in range(1, count)}
    return runs(**others, **{f"ace__{i}": ({ALPHA: i}, [90.0, 91.0, 92.5]) for i in range(1, count)})


def test_one_reversal_among_many_pairs_is_not_enough_to_fail():
    """A repeated p of 0.02 alone refutes; as one of ten comparisons it is what chance gives."""
    one = runs(ace=[88.5, 89.1, 90.4], asgd=[90.0, 91, 92])  # minus 1.5, 1.9, 1.6: t 13.9, p 0.0052, repeated 0.017
    assert ask(one, **ORDER).verdict == "fails"
    found = ask(pd.concat([one.assign(**{ALPHA: 0}), open_pairs(10)]), [ALPHA], **ORDER)
    assert (found.verdict, found.against, found.contrasts) == ("inconclusive", 1, 10)
    assert "1 comparison contrary, but not after Holm's correction" in found.reason


def test_one_tie_refutes_a_superiority_over_several_by_holm():
    """Doubled one-sided p at the margin: 0.0125 is below 5 % among two, not among ten."""
    tied = runs(ace=[90.05, 91.0, 91.98], asgd=[90.0, 91, 92]).assign(**{ALPHA: 0})
    differences = [0.05, 0.0, -0.02]
    margin = [1 - value for value in differences]
    p_tie = stats.ttest_1samp(margin, 0).pvalue * LEVEL / LEVELS[3]
    alone = ask(tied, [ALPHA], **ORDER)
    assert alone.verdict == "tie" and alone.p == pytest.approx(p_tie, rel=1e-3)
    assert ask(pd.concat([tied, open_pairs(2)]), [ALPHA], **ORDER).verdict == "tie"
    weak = runs(ace=[90.2, 91.0, 91.9], asgd=[90.0, 91, 92]).assign(**{ALPHA: 0})
    p_weak = stats.ttest_1samp([0.8, 1.0, 1.1], 0).pvalue * LEVEL / LEVELS[3]
    assert 0.025 < p_weak < LEVEL and ask(weak, [ALPHA], **ORDER).verdict == "tie"
    among = ask(pd.concat([weak, open_pairs(4)]), [ALPHA], **ORDER)
    assert (among.verdict, among.ties) == ("inconclusive", 1)


def test_a_contrary_comparison_is_named_before_a_tie():
    frame = pd.concat([
        runs(ace=({ALPHA: 0.1}, [50.0, 51, 52]), asgd=({ALPHA: 0.1}, [50.01, 51, 52])),
        runs(ace=({ALPHA: 0.3}, [50.0, 51, 52]), asgd=({ALPHA: 0.3}, [60.0, 61, 62.1])),
    ])  # fmt: skip
    found = ask(frame, [ALPHA], **ORDER)
    assert (found.verdict, found.ties, found.against) == ("fails", 1, 1)
    assert found.tally == "0 of 2 as claimed, 1 contrary, 1 tied"


def test_the_margin_of_a_tie_may_be_declared_and_a_lead_of_a_size_cannot_tie():
    values = [95.0, 96.0, 97.0], [94.7, 95.8, 96.9]  # 0.3, 0.2, 0.1
    assert order(*values).verdict == "tie"
    assert order(*values, tie=0.5).verdict == "inconclusive"
    assert order(*values, at_least=3).verdict == "fails"


def test_a_mean_over_cells_takes_seeds_that_have_all():
    frame = pd.concat([
        runs(ace=({ALPHA: 0.1}, [95.0, 96, 97, 98]), asgd=({ALPHA: 0.1}, [94.0, 94.5, 95, 96])),
        runs(ace=({ALPHA: 0.3}, [95.0, 96, 97]), asgd=({ALPHA: 0.3}, [96.0, 96.5, 97])),
    ])  # fmt: skip
    found = ask(frame, [ALPHA], over="mean", **ORDER)
    # seed 0: (1 - 1) / 2, seed 1: (1.5 - 0.5) / 2, seed 2: (2 + 0) / 2
    assert (found.seeds, found.difference, found.contrasts) == (3, 0.5, 1)
    assert found.contrast == "ACE - vanilla ASGD, mean of 2 cells"


def test_together_asks_for_the_mean_over_methods():
    """ACE beats one by 3 and is 1 below the other: 1 above their mean."""
    frame = runs(ace=[63.0, 64, 65.1], asgd=[60.0, 61, 62], fedbuff=[64.0, 65, 66])
    groups = {"kind": "order", "groups": [["ace"], ["asgd", "fedbuff"]]}
    assert ask(frame, **groups).verdict == "fails"
    found = ask(frame, together=True, **groups)
    assert (found.verdict, found.contrasts, found.difference) == ("holds", 1, pytest.approx(1.033, abs=1e-3))
    assert found.contrast == "mean of 2 comparisons"
    assert ask(frame[frame["algorithm"] != "asgd"], together=True, **groups).verdict == "not run"


def test_missing_runs_leave_a_claim_open_but_not_run_needs_none_at_all():
    frame = runs(ace=[95.0, 96, 97], asgd=[90.0, 91, 92.1])
    found = ask(frame, kind="order", groups=[["ace"], ["asgd", "fedbuff"]])
    assert found.verdict == "inconclusive" and found.agree == 1 and found.reason == "runs missing: ACE - FedBuff"
    assert ask(frame, kind="order", groups=[["ca2fl"], ["fedbuff"]]).verdict == "not run"
    assert ask(frame, where={"dataset": "cifar10"}, **ORDER).verdict == "not run"


TIMES = {"kind": "order", "measure": "time_to_target", "axis": "virtual_time", "target": 30}


def test_a_claim_about_every_cell_does_not_hold_while_the_sweep_has_cells_without_an_answer():
    frame = runs(ace=({ALPHA: 0.1}, [97.0] * 5), asgd=({ALPHA: 0.1}, [95.0, 95.1, 94.9, 95.0, 95.0]))
    both, alone = (
        pd.DataFrame([(one, alpha, None) for one in of for alpha in (0.1, 0.3)], columns=["algorithm", ALPHA, "delay"])
        for of in (("ace", "asgd"), ("ace", "fedbuff"))
    )
    whole = both[both[ALPHA] == 0.1]
    assert ask(frame, [ALPHA], planned=whole, **ORDER).verdict == "holds"
    assert ask(frame.assign(delay=math.nan), [ALPHA, "delay"], planned=whole, **ORDER).verdict == "holds"
    for more in ({}, {"over": "mean"}, {"together": True}):
        found = ask(frame, [ALPHA], planned=both, **ORDER, **more)
        assert (found.verdict, found.reason.partition(":")[0]) == ("inconclusive", "runs missing")
        assert (found.contrasts, found.agree, found.seeds) == (2, 1, 3)
    assert ask(frame, [ALPHA], planned=pd.concat([whole, alone]), **ORDER).verdict == "holds"  # asked of ACE alone
    assert ask(frame, [ALPHA], {ALPHA: 0.1}, planned=both, **ORDER).verdict == "holds"


def times(end: float = 100.0, **by_algorithm) -> pd.DataFrame:
    return runs(**by_algorithm).assign(end=end, **{"delay.unit": "seconds"})


def test_small_times_are_good():
    found = ask(times(asyncfeded=[12.0, 14, 16], fedavg=[40.0, 42.5, 45]), **TIMES, groups=[["asyncfeded"], ["fedavg"]])
    assert found.verdict == "holds" and found.difference == pytest.approx(28.5) and found.unit == "s"
    frame = times(asyncfeded=[5.0, 10, 20], fedavg=[40.0, 40, 80])  # 8, 4 and 4 times as long
    found = ask(frame, **TIMES, relative=True, at_least=100 * math.log(2), groups=[["asyncfeded"], ["fedavg"]])
    assert found.contrast == "time to target, FedAvg / AsyncFedED, as a multiple of the claimed 2"
    assert found.numbers.startswith("ratio 2.52 [") and found.low == pytest.approx(92.4 - 7.91 * 23.1, abs=0.2)


def test_a_missed_target_counts_as_the_end_of_the_budget():
    frame = times(asyncfeded=[12.0, 14, 16], fedprox=[math.nan] * 3)
    found = ask(frame, **TIMES, groups=[["asyncfeded"], ["fedprox"]])
    assert (found.verdict, found.difference) == ("holds", 86)  # restricted to 100
    assert ask(frame, **TIMES, groups=[["fedprox"], ["asyncfeded"]]).verdict == "fails"


def test_a_time_beyond_the_end_of_a_run_that_missed_the_target_is_cut_there():
    """Known of both is what happened until 50: neither was there."""
    frame = times(asyncfeded=[math.nan] * 3, fedprox=[80.0, 81, 82])
    frame["end"] = frame["end"].where(frame["algorithm"] != "asyncfeded", 50.0)
    found = ask(frame, **TIMES, groups=[["asyncfeded"], ["fedprox"]])
    assert (found.verdict, found.reason) == ("inconclusive", "target never reached")
    assert found.measured_text == "time to target, FedProx - AsyncFedED"  # no number: it would compare ends of budgets
    sooner = frame.assign(value=[math.nan] * 3 + [40.0, 60, 41])
    found = ask(sooner, **TIMES, groups=[["fedprox"], ["asyncfeded"]])
    assert found.difference == pytest.approx((10 + 0 + 9) / 3, abs=1e-3)


def test_a_target_that_no_run_reached_gives_no_answer():
    found = ask(times(asyncfeded=[math.nan] * 3, fedprox=[math.nan] * 3), **TIMES, groups=[["asyncfeded"], ["fedprox"]])
    assert (found.verdict, found.reason) == ("inconclusive", "target never reached")


def delays(alpha: float, short: list[float], long: list[float], algorithm: str = "fedbuff") -> pd.DataFrame:
    rows = {f"{algorithm}__{d}": ({ALPHA: alpha, "delay": d}, v) for d, v in
            (("exp_beta5", short), ("exp_beta30", long))}  # fmt: skip
    return runs(**rows)


LOSES = {"kind": "loses", "along": "delay", "start": "exp_beta5", "end": "exp_beta30"}


def ask_loss(frame: pd.DataFrame, where=None, series=("fedbuff",), **more) -> Verdict:
    decide = {"measure": "late", **LOSES, "series": list(series), **more}
    claim = Claim("ace", "x", "item", "place", "sentence", ("ace/figure2",), decide, where or {})
    return judge_claim(claim, GivenValues(frame, [ALPHA, "delay"])).verdict


def test_a_loss_is_start_minus_end_in_every_cell():
    frame = pd.concat([delays(0.1, [60.0, 62, 64], [50.0, 52.5, 54]), delays(0.3, [70.0, 72, 74], [68.0, 70.1, 72])])
    found = ask_loss(frame)
    assert (found.verdict, found.contrasts) == ("holds", 2)
    assert found.contrast == "accuracy lost by FedBuff from β = 5 to 30, α = 0.3" and found.difference == pytest.approx(
        1.967, abs=1e-3
    )
    beyond = ask_loss(frame, at_least=5)
    assert (beyond.verdict, beyond.agree, beyond.against) == ("fails", 1, 1)


def test_an_interaction_is_the_difference_of_losses_seed_by_seed():
    # losses 10, 9.5, 10 at alpha 0.1 and 2, 1.9, 2 at 0.3: 8, 7.6, 8 more
    frame = pd.concat([delays(0.1, [60.0, 62, 64], [50.0, 52.5, 54]), delays(0.3, [70.0, 72, 74], [68.0, 70.1, 72])])
    found = ask_loss(frame, where={ALPHA: 0.1}, than={ALPHA: 0.3})
    assert (found.verdict, found.difference, found.seeds) == ("holds", pytest.approx(7.867, abs=1e-3), 3)
    assert ask_loss(frame, where={ALPHA: 0.3}, than={ALPHA: 0.1}).verdict == "fails"


def test_a_series_loses_less_than_others():
    frame = pd.concat(
        [delays(0.1, [60.0, 62, 64], [50.0, 53, 54]), delays(0.1, [90.0, 91, 92], [89.0, 90, 91.5], "ace")]
    )
    found = ask_loss(frame, series=["ace"], others=["fedbuff"])
    assert found.verdict == "holds" and found.difference == pytest.approx((9 + 8 + 9.5) / 3, abs=1e-3)


def of_classes(frame: pd.DataFrame, classes: int = 10, dataset: str = "cifar10") -> pd.DataFrame:
    return frame.assign(**{"summary.task.classes": classes, "dataset": dataset})


@pytest.mark.parametrize(
    ("first", "second", "dataset", "reason"),
    [
        ([14.0, 14.1, 14.2], [10.0, 10.1, 10.3], "cifar10", "at chance"),  # both below 10 + 5
        ([15.1, 15.1, 15.2], [10.0, 10.1, 10.1], "cifar10", ""),
        ([72.0, 72.1, 72.2], [68.0, 68.1, 68.3], "mrpc", "at chance"),  # 67.6 + 5
        ([73.0, 73.1, 73.2], [68.0, 68.1, 68.2], "mrpc", ""),
    ],
)
def test_two_methods_below_the_floor_have_no_answer(first, second, dataset, reason):
    classes = 2 if dataset == "mrpc" else 10
    found = ask(of_classes(runs(ace=first, asgd=second), classes, dataset), **ORDER)
    assert (found.reason, found.verdict) == (reason, "inconclusive" if reason else "holds")
    assert found.agree == (0 if reason else 1)


def test_a_comparison_at_chance_does_not_ease_holms_correction_of_the_others():
    """Its small p would leave the reversal as the only one of two that is tested."""
    chance = runs(ace=({ALPHA: 0.1}, [12.0, 12.1, 12.2]), asgd=({ALPHA: 0.1}, [10.0, 10.1, 10.2]))
    weak = runs(ace=({ALPHA: 0.3}, [88.6, 89.3, 90.0]), asgd=({ALPHA: 0.3}, [90.0, 91, 92]))
    reversal = ask(of_classes(weak), [ALPHA], **ORDER)
    assert reversal.verdict == "fails" and LEVEL / 2 < reversal.p < LEVEL
    found = ask(of_classes(pd.concat([chance, weak])), [ALPHA], **ORDER)
    assert (found.verdict, found.against) == ("inconclusive", 1)


def test_a_loss_needs_a_partner_that_starts_above_the_floor():
    robust = delays(0.1, [60.0, 61, 62], [59.0, 60, 61], "ace")
    low = delays(0.1, [14.0, 14.1, 14.0], [10.0, 10.0, 10.1])
    high = delays(0.1, [40.0, 41, 42], [10.0, 10.0, 10.0])
    asked = {"series": ["ace"], "others": ["fedbuff"]}
    found = ask_loss(of_classes(pd.concat([robust, low])), **asked)
    assert (found.verdict, found.reason) == ("inconclusive", "at chance")
    assert ask_loss(of_classes(pd.concat([robust, high])), **asked).verdict == "holds"  # an end at chance is a loss


def test_a_number_printed_in_a_paper_may_be_at_chance():
    frame = of_classes(runs(ace=[10.0, 10.1, 9.9]))
    assert ask(frame, kind="equals", measure="best", expected={"ace": 10}, margin=1).verdict == "holds"


def test_a_diverged_run_counts_as_chance_and_is_not_missing():
    frame = of_classes(runs(ace=[60.0, 61, 62], asgd=[math.nan] * 3))
    frame["lost"] = frame["algorithm"] == "asgd"
    for measure in ("late", "best"):
        found = ask(frame, measure=measure, **ORDER)
        assert (found.verdict, found.difference, found.seeds) == ("holds", 51, 3)
    late = ask(times(ace=[12.0, 14, 16], asgd=[math.nan] * 3).assign(lost=frame["lost"]), **(TIMES | ORDER | {
        "measure": "time_to_target"}))  # fmt: skip
    assert (late.verdict, late.difference) == ("holds", 86)


def test_a_measure_without_a_value_at_chance_names_the_partner_that_diverged():
    frame = runs(ace=[1.0, 2, 3], asgd=[math.nan] * 3)
    frame["lost"] = frame["algorithm"] == "asgd"
    frame = pd.concat([frame, runs(fedbuff=[5.0, 6, 7])])
    found = ask(frame, kind="order", measure="unsteadiness", groups=[["ace"], ["asgd", "fedbuff"]])
    assert (found.verdict, found.reason) == ("inconclusive", "partner diverged")
    alone = ask(frame, measure="unsteadiness", **ORDER)
    assert (alone.verdict, alone.reason) == ("not run", "partner diverged")


def test_equal_within_a_margin_needs_the_whole_interval_inside():
    def close(values: list[float], margin: float) -> Verdict:
        frame = pd.concat([runs(ace=({"algorithm.cache.precision": "fp32"}, [90.0, 91, 92])),
                           runs(ace=({"algorithm.cache.precision": "int8"}, values))])  # fmt: skip
        decide = {"kind": "close", "along": "algorithm.cache.precision", "values": ["fp32", "int8"], "margin": margin}
        claim = Claim("ace", "x", "i", "p", "s", ("ace/figure_a3",), {"measure": "late", "series": ["ace"], **decide})
        cells = ["algorithm.cache.precision"]
        return judge_claim(claim, GivenValues(frame, cells)).verdict

    near = [89.9, 91.0, 92.1]  # differences 0.1, 0, -0.1: 0 ± 0.457 at the first look
    assert close(near, 0.5).verdict == "holds" and close(near, 0.4).verdict == "inconclusive"
    far = close([87.0, 88.1, 88.9], 1)  # 3, 2.9, 3.1, which is 2 beyond the margin
    repeated = stats.ttest_1samp([2, 1.9, 2.1], 0).pvalue * LEVEL / LEVELS[3]
    assert far.verdict == "fails" and far.p == pytest.approx(repeated, rel=1e-3)
    assert close([90.0, 91, 92], 1).verdict == "holds"


def test_alike_asks_for_a_tie_of_two_series():
    asked = {"kind": "alike", "groups": [["ace"], ["asgd"]]}
    frame = runs(ace=[90.0, 91, 92], asgd=[89.9, 91.0, 92.1])
    assert ask(frame, **asked, margin=2).verdict == "holds"
    apart = ask(runs(ace=[90.0, 91, 92], asgd=[80.0, 81, 82.1]), **asked, margin=2)
    assert (apart.verdict, apart.against, apart.ties) == ("fails", 1, 0)


def test_wider_bands_are_larger_distances_from_the_mean_of_three_seeds_whatever_later_ones_are():
    frame = runs(asgd=[80.0, 100, 90, 110, 70], ace=[90.0, 90.1, 89.9, 90.2, 89.8])
    found = ask(frame, kind="wider", groups=[["asgd"], ["ace"]])
    assert found.difference == pytest.approx((10 + 10 + 0 + 20 + 20) / 5 - 0.12) and found.seeds == 5
    frame = runs(asgd=[80.0, 100, 90, 200], ace=[90.0, 90.1, 89.9, 90.2])
    found = ask(frame, kind="wider", groups=[["asgd"], ["ace"]])
    assert found.difference == pytest.approx(130 / 4 - 0.4 / 4) and (found.seeds, found.total) == (3, 4)
    assert ask(frame, kind="wider", groups=[["ace"], ["asgd"]]).difference == -found.difference


def test_counted_numbers_need_one_run_and_may_be_settings():
    frame = runs(ace=[102.0], fedbuff=[1.0]).assign(n_clients=100, **{"algorithm.buffer_size": 10})
    equals = {"kind": "equals", "measure": "server_vectors", "margin": 5, "counted": True}
    assert ask(frame, **equals, expected={"ace": "n_clients"}).marked_word == "holds"
    found = ask(frame, **equals, expected={"ace": 100, "fedbuff": "algorithm.buffer_size"})
    assert (found.verdict, found.difference, found.agree) == ("fails", -9.0, 1)
    sampled = {**equals, "counted": False}
    assert ask(frame, **sampled, expected={"ace": "n_clients"}).reason == "1 seed, where a test needs 3"


def test_a_number_is_reached_from_the_good_side():
    few, many = {"measure": "versions", "expected": {"fedecho": 8.5}}, runs(fedecho=[13.0, 14.0, 14.0])
    found = ask(many, kind="reaches", **few)
    assert (found.verdict, found.difference) == (
        "fails",
        -5.167,
    ) and found.contrast == "8.5 minus stored versions of FedEcho"
    assert ask(runs(fedecho=[7.0, 7.0, 7.1]), kind="reaches", **few).verdict == "holds"
    assert ask(many, kind="reaches", measure="late", expected={"fedecho": 8.5}).verdict == "holds"  # more is better


def test_published_numbers_are_compared_cell_by_cell_with_the_test_sets_error():
    [claim] = [claim for claim in read_claims("asyncfeded") if claim.id == "figure3-published"]
    full = {"paper": "asyncfeded/synthetic", "profile": "published", "scale": "full"}
    full["algorithm.staleness_weight"] = None
    frame = pd.concat([
        runs(asyncfeded=({**full, "availability.probability": 0.1}, [99.30, 99.40, 99.41])),
        runs(fedavg=({**full, "availability.probability": 0.9}, [75.0, 76.7, 97.2])),
    ])  # fmt: skip
    cells = ["paper", "availability.probability"]
    found = judge_claim(claim, GivenValues(frame, cells)).verdict
    assert found.contrasts == 20 and found.verdict == "inconclusive" and found.agree == 1
    assert (
        found.reason.endswith("FedAvg (P = 0.5) and 15 more; needs about 30 seeds (1 of 19 open)")
        and found.contrast == "best test accuracy minus the published 93.056 for FedAvg (P = 0.9), margin ± 2"
    )
    small = frame.assign(scale="small")
    assert judge_claim(claim, GivenValues(small, cells)).verdict.verdict == "not run"


def test_the_rest_are_all_other_values_of_the_same_settings():
    frame = pd.concat([runs(fedprox=({"algorithm.mu": mu}, [v])) for mu, v in ((0.01, 95.9), (0.1, 95.3), (1.0, 96.4))])
    found = ask(frame, kind="order", measure="best", groups=[[{"algorithm": "fedprox", "algorithm.mu": 0.1}], "rest"])
    assert (found.contrasts, found.verdict, found.indication) == (2, "inconclusive", "1 seed")
    assert found.contrast == "FedProx (μ = 0.1) - FedProx (μ = 1.0)"


def test_a_planned_value_without_runs_is_one_of_the_rest():
    frame = pd.concat(
        [runs(fedprox=({"algorithm.mu": mu}, [v, v + 0.1, v + 0.3, v, v])) for mu, v in ((0.1, 90), (1.0, 60))]
    )
    groups = [[{"algorithm": "fedprox", "algorithm.mu": 0.1}], "rest"]
    assert ask(frame, kind="order", measure="best", groups=groups).verdict == "holds"
    planned = pd.DataFrame([{"algorithm": "fedprox", "algorithm.mu": mu} for mu in (0.01, 0.1, 1.0)])
    found = ask(frame, kind="order", measure="best", groups=groups, planned=planned)
    assert (found.contrasts, found.verdict) == (2, "inconclusive") and "runs missing" in found.reason


def test_a_series_may_be_any_of_several_settings():
    own = {"algorithm": "fedecho", "any": [{"unlabelled": "images"}, {"unlabelled": "held_back", "dataset": "digits"}]}
    ask_own = {"kind": "order", "groups": [["own"], ["fedbuff"]], "series": {"own": own}}
    for chosen, found in ((("images", "cifar10"), 3), (("held_back", "digits"), 3), (("held_back", "cifar10"), 0)):
        settings = dict(zip(("unlabelled", "dataset"), chosen, strict=True))
        frame = pd.concat([runs(fedecho=(settings, [22.0, 22.1, 22.2])), runs(fedbuff=[11.0, 11.1, 11.3])])
        assert ask(frame, **ask_own).seeds == found


# rule 0: seeds that were seen before the rules were declared
LEAD, LEVEL_OFF = [60.0, 61.0, 62.0], [50.0, 51.0, 52.1]


def both(late: list[float], last: list[float] | None = None) -> pd.DataFrame:
    """ACE's late and last values beside vanilla ASGD, which has 50, 51, 52.1, …"""
    other = [50 + seed + 0.1 * (seed == 2) for seed in range(len(late))]
    frame = runs(ace=late, asgd=other)
    return frame.assign(last=[*(last or late), *other])


def test_an_unchanged_claim_counts_seen_seeds_if_the_last_value_says_the_same():
    found = ask(both(LEAD), seen=3, **ORDER)
    assert (found.verdict, found.seeds, found.indication) == ("holds", 3, "3 seeds")  # few, but a first look
    five = ask(both([60.0, 61, 62, 63, 64]), seen=3, **ORDER)
    assert (five.marked_word, five.seeds, five.total) == ("holds", 3, 5)


def test_seen_seeds_with_another_verdict_by_the_last_value_are_an_indication_until_three_new_ones():
    late = [60.0, 61.0, 62.0, 63.0, 64.0, 65.1]
    last = [60.0, 40.0, 80.0, 63.0, 64.0, 65.1]
    found = ask(both(late[:5], last[:5]), seen=3, **ORDER)
    assert (found.marked_word, found.indication) == ("holds (preliminary)", "the last accuracy gives another verdict")
    new = ask(both(late, last), seen=3, **ORDER)
    assert (new.verdict, new.seeds, new.total, new.indication) == ("holds", 3, 3, "3 seeds")
    assert new.difference == pytest.approx(np.mean([63 - 53, 64 - 54, 65.1 - 55]), abs=1e-2)


def test_a_changed_claim_starts_with_new_seeds():
    seen = ask(both([60.0, 61, 62, 63, 64]), seen=3, changed=True, **ORDER)
    assert (seen.marked_word, seen.indication) == ("holds (preliminary)", "claim changed after these runs")
    new = [*LEAD, 40.0, 41.0, 42.1]  # the new seeds say the contrary
    found = ask(both(new), seen=3, changed=True, **ORDER)
    assert (found.verdict, found.seeds, found.total) == ("fails", 3, 3)
    assert ask(both(new), seen=0, changed=True, **ORDER).verdict == "holds"  # none was seen: look 1


def test_every_comparison_of_a_changed_claim_needs_three_new_seeds():
    frame = pd.concat([both([*LEAD, 63.0, 64.0, 65.1]), runs(fedbuff=LEVEL_OFF).assign(last=LEVEL_OFF)])
    found = ask(frame, seen=3, changed=True, kind="order", groups=[["ace"], ["asgd", "fedbuff"]])
    assert (found.verdict, found.indication) == ("holds", "claim changed after these runs")


# measured runs
def measured_runs(curves: dict[tuple[str, int], tuple[list[float], list[float]]], **columns) -> RunMeasures:
    """(algorithm, seed) -> iterations and accuracies [%] of its evaluations."""
    index = pd.Index([f"{algorithm} {seed}" for algorithm, seed in curves], name="run")
    frame = pd.DataFrame({"algorithm": [one for one, _ in curves], "seed": [seed for _, seed in curves]}, index=index)
    frame = frame.assign(series=frame["algorithm"], cell="", **{"experiment": frame["algorithm"], **columns})
    rows = [
        (run, place, float(place), value / 100)
        for run, (places, values) in zip(index, curves.values(), strict=True)
        for place, value in zip(places, values, strict=True)
    ]
    points = pd.DataFrame(rows, columns=["run", "iteration", "virtual_time", "test/accuracy"])
    return RunMeasures(MatchedRuns(frame, NOTHING, NOTHING, len(frame)), points)


def judge(measured: RunMeasures, **decide) -> Verdict:
    claim = Claim("ace", "x", "i", "p", "s", ("ace/figure2",), {"measure": "late", "axis": "iteration", **decide})
    return judge_claim(claim, measured).verdict


def long_curve(end: float, *last: float) -> tuple[list[float], list[float]]:
    """Evaluations at every twentieth of the budget: 20 % before the last values."""
    places = np.linspace(0, end, 21)
    return places.tolist(), [20.0] * (21 - len(last)) + list(last)


def test_late_is_the_mean_over_the_last_fifth_of_the_budget():
    curves = {("ace", s): long_curve(100, 50 + s, 60 + s, 70 + s, 80 + s) for s in range(3)}
    curves |= {("asgd", s): long_curve(100, 30, 30, 30, 30 + 0.1 * s) for s in range(3)}
    measured = measured_runs(curves)
    found = judge(measured, **ORDER)
    assert found.yardstick == "late" and found.difference == pytest.approx((65 + 66 + 67) / 3 - 30.025, abs=0.01)
    assert judge(measured, **(ORDER | {"measure": "accuracy"})).difference == pytest.approx(80 + 1 - 30.1, abs=0.01)


def test_fewer_than_three_late_evaluations_leave_the_last_value_and_mark_it():
    sparse = ([0.0, 50.0, 100.0], [10.0, 40.0, 60.0])
    curves = {("ace", s): (sparse[0], [v + s for v in sparse[1]]) for s in range(3)}
    curves |= {("asgd", s): long_curve(100, 30, 30, 30, 35 + s) for s in range(3)}
    found = judge(measured_runs(curves), **ORDER)
    assert (found.yardstick, found.difference) == ("last", 25)  # of both methods, though one has a late value
    assert found.measured_text.endswith("3 seeds, by the last accuracy")


def test_a_later_seed_with_two_late_evaluations_keeps_their_mean():
    """The three lowest seeds have four: they choose the mean for all."""
    curves = {("ace", s): long_curve(100, *[late] * 4) for s, late in enumerate((30, 60, 45))}
    curves |= {("ace", s): ([0.0, 85.0, 100.0], [10.0, 50.0, 70.0]) for s in (3, 4)}
    curves |= {("asgd", s): long_curve(100, *[30] * 4) for s in range(5)}
    found = judge(measured_runs(curves), **ORDER)
    assert (found.yardstick, found.seeds) == ("late", 5)
    assert found.difference == pytest.approx((0 + 30 + 15 + 30 + 30) / 5)


def test_two_budgets_of_the_same_runs_have_one_yardstick():
    """At 10 there is one evaluation in the last fifth, at 100 there are five."""
    places, values = list(range(0, 101, 5)), [float(place) for place in range(0, 101, 5)]
    measured = measured_runs({("ace", s): (places, [v + s for v in values]) for s in range(3)})
    asked = {"kind": "close", "along": "at", "values": [10, 100], "series": ["ace"], "margin": 1}
    found = judge(measured, **asked)
    assert (found.yardstick, found.difference, found.verdict) == ("last", -90, "fails")


def test_a_look_keeps_its_numbers_when_later_seeds_end_earlier_or_have_fewer_evaluations():
    curves = {("ace", s): long_curve(100, 50 + s, 60 + s, 70 + s, 80 + s) for s in range(3)}
    curves |= {("asgd", s): long_curve(100, 30, 30, 30, 30 + 0.1 * s) for s in range(3)}
    later = {(one, s): ([0.0, 5.0, 10.0], [10.0, 10.0, 10.0]) for one in ("ace", "asgd") for s in (3, 4)}
    before, after = (judge(measured_runs(one), **ORDER) for one in (curves, curves | later))
    assert (before.verdict, before.p) == ("holds", after.p)
    assert (after.verdict, after.yardstick, after.seeds, after.total) == ("holds", "late", 3, 5)


@pytest.mark.parametrize(("last", "first"), [([90.0, 91.2, 92.1, 93.0, 94.1, 95.0], 0), ([10.0] * 6, 3)])
def test_a_pair_of_a_page_and_of_a_claim_use_the_same_seeds(last, first):
    measured = GivenValues(both([90.0, 91.1, 92.3, 93.0, 94.2, 95.1], last))
    claim = Claim("ace", "x", "i", "p", "s", ("ace/figure2",), {"measure": "late", **ORDER})
    (pair,) = compare_pairs(measured, "late", "iteration", pairs=[("ace", "asgd")], seen=3)["contrast"]
    (judged,) = judge_claim(claim, measured, seen=3).contrasts
    assert pair.by_seed.index.tolist() == judged.by_seed.index.tolist() == list(range(first, 6))
    pd.testing.assert_series_equal(pd.Series(pair.numbers), pd.Series(judged.numbers), check_exact=True)


def test_a_small_test_set_widens_only_the_intervals_of_its_own_cell():
    """Three equal differences of 2 points: their standard deviation is taken as one test sample / sqrt(6)."""
    both_cells = [
        runs(ace=({"dataset": name}, [52.0] * 3), asgd=({"dataset": name}, [50.0] * 3)).assign(
            **{"experiment": name, "summary.task.test_samples": samples}
        )
        for name, samples in (("small", 100), ("large", 10_000))
    ]
    measured = GivenValues(pd.concat(both_cells), ["dataset"])
    pairs = compare_pairs(measured, "best", "iteration", levels=None).set_index("cell")["contrast"]
    claim = Claim("ace", "x", "i", "p", "s", ("ace/figure2",), ORDER | {"measure": "best"})
    judged = {one.cell_keys["dataset"]: one for one in judge_claim(claim, measured).contrasts}
    for name, step in (("small", 1), ("large", 0.01)):
        half = stats.t.ppf(0.975, 2) * step / math.sqrt(6) / math.sqrt(3)
        assert pairs[name].interval.low == pytest.approx(2 - half)
        assert judged[name].resolution == pairs[name].resolution == pytest.approx(step)


def test_the_budget_of_a_contrast_is_that_of_its_own_runs():
    """Vanilla ASGD ends at 10 and does not shorten the comparison of the two others, which end at 100 and 200."""

    def rising(end: float, slope: float) -> tuple[list[float], list[float]]:
        return np.linspace(0, end, 81).tolist(), (slope * np.linspace(0, end, 81)).tolist()

    curves = {("ace", s): rising(100, 0.9 + 0.01 * s) for s in range(3)}
    curves |= {("fedbuff", s): rising(200, 0.4) for s in range(3)}
    curves |= {("asgd", s): rising(10, 0.4) for s in range(3)}
    measured = measured_runs(curves)
    pair = judge(measured, kind="order", groups=[["ace"], ["fedbuff"]])
    short = judge(measured, kind="order", groups=[["ace"], ["asgd"]])
    assert pair.difference == pytest.approx(0.51 * 90.6, rel=0.02)  # late: the mean over 80 .. 100
    assert (short.difference, short.yardstick) == (pytest.approx(0.51 * 10), "last")
    half = judge(measured, kind="order", groups=[["ace"], ["fedbuff"]], budget=[0.5, 1])
    assert half.contrasts == 2 and half.contrast.endswith("at 50 % of the budget")
    assert half.difference == pytest.approx(pair.difference / 2, rel=0.05)


def test_pairs_of_a_page_have_the_verdict_of_the_claim_about_them():
    curves = {("ace", s): long_curve(100, 50, 50 + s, 52, 53) for s in range(3)}
    curves |= {("asgd", s): long_curve(60, 50, 50, 52.2, 53) for s in range(3)}
    curves |= {("fedbuff", s): long_curve(100, 30, 30, 30, 30) for s in range(3)}
    measured = measured_runs(curves)
    pairs = compare_pairs(measured, "late", "iteration").set_index(["first", "second"])["contrast"]
    assert len(pairs) == 3
    for (first, second), contrast in pairs.items():
        found = judge(measured, kind="order", groups=[[first], [second]])
        assert found.low == pytest.approx(contrast.interval.low, rel=1e-3, abs=1e-6)
        assert found.difference == pytest.approx(contrast.interval.mean, rel=1e-3, abs=1e-6)
    [alone] = compare_pairs(measured, "late", "iteration", pairs=[("fedbuff", "ace")])["contrast"]
    assert alone.interval.mean == pytest.approx(-pairs[("ace", "fedbuff")].interval.mean)


def test_a_run_that_its_target_accuracy_ended_has_no_late():
    curves = {("ace", 0): ([0, 9, 10, 11], [10, 50, 60, 70]), ("asgd", 0): ([0, 9, 10, 11], [10, 20, 30, 40])}
    found = {}
    for stop in ("server_iterations", "target_accuracy"):
        measured = measured_runs(curves, **{"summary.stopped_by": [stop, "server_iterations"]})
        found[stop] = values_at_equal_budget(measured, "late", "iteration")
    assert found["server_iterations"]["value"].tolist() == pytest.approx([60, 30])
    assert found["target_accuracy"]["value"].tolist() == pytest.approx([70, 40])
    assert found["target_accuracy"]["is_last"].all() and not found["server_iterations"]["is_last"].any()


def test_measures_come_from_runs_and_their_evaluations():
    used = {"summary.used.uploads": [599.0, 50.0, 5000.0], "summary.used.server_iterations": [500.0, 50.0, 500.0]}
    columns = {"n_clients": 100, **used, "summary.state_bytes.server": [6124080, 0, 60040], "summary.parameters": 15010}
    curves = {"ace": [10, 50, 90], "asgd": [10, 60, 40], "fedbuff": [20, 30, 80]}
    measured = measured_runs({(name, 0): ([0, 10, 20], of) for name, of in curves.items()}, **columns)

    def values(name: str) -> list[float]:
        return measured.values(name, "iteration").tolist()

    def at(budget: float) -> list[float]:
        runs = pd.Series(measured.placed.runs.index)
        return measured.values_at_budget("iteration", runs, pd.Series(budget, runs.index))["last"].tolist()

    assert at(20) == pytest.approx([90, 40, 80]) and at(10) == pytest.approx([50, 60, 30])
    assert at(15) == pytest.approx([70, 50, 55]) and np.isnan(at(25)).all()  # no run spent 25
    assert values("best") == pytest.approx([90, 60, 80]) and values("final") == pytest.approx([90, 40, 80])
    assert values("time_to_90") == [20, 10, 20]
    assert measured.times_to(54, "iteration").tolist() == [20, 10, 20]
    early = RunMeasures(measured.placed, measured.points, limit=10)
    assert early.values("best", "").tolist() == pytest.approx([50, 60, 30])
    placed = MatchedRuns(measured.placed.runs.assign(dataset=["cifar10", "cifar10", "digits"]), NOTHING, NOTHING, 3)
    timed = RunMeasures(placed, measured.points, levels={"cifar10": 55.0}).values("time_to_level", "iteration").tolist()
    assert timed[:2] == [20, 10] and math.isnan(timed[2])  # nothing is timed on digits
    assert values("uploads_per_iteration") == [1.0, 1.0, 10.0]  # ACE's first round of 100 left out
    assert values("server_vectors") == pytest.approx([102, 0, 1])
    with pytest.raises(BenchError, match="measure speed"):
        values("speed")


def test_versions_in_flight_are_the_most_of_a_run():
    points = pd.DataFrame({"run": [0, 0, 1], "in_flight/versions_max": [11.0, 14.0, 9.0], "virtual_time": 0.0})
    known = pd.DataFrame({"algorithm": ["fedecho"] * 3, "seed": [0, 1, 2]})
    found = RunMeasures(MatchedRuns(known, NOTHING, NOTHING, 3), points).values("versions", "iteration")
    assert found[:2].tolist() == [14.0, 9.0] and math.isnan(found[2])


def test_parts_of_the_error_are_taken_run_by_run():
    index = pd.Index(["no folder 0", "no folder 1"], name="run")
    table = pd.DataFrame(
        {"algorithm": "ace", "series": "ACE", "cell": "", "seed": [0, 1], "n_clients": 10}, index=index
    )
    points = pd.DataFrame({"run": [index[0], index[0], index[1]], "iteration": [5, 10, 5], "mse/noise": [1.0, 3.0, 5.0],
                           "mse/sigma2": 50.0, "mse/sigma2_cached": 20.0, "mse/bias": 0.0})  # fmt: skip
    placed = MatchedRuns(table, NOTHING, NOTHING, 2)
    measured = RunMeasures(placed, points)
    assert measured.values("mse/a2", "").tolist() == [2, 5]
    assert measured.values("mse/a2_ratio", "").tolist() == [1, 2.5]  # sigma^2 / n = 2
    assert RunMeasures(placed, points[["run", "iteration"]]).values("mse/a2", "").isna().all()


@pytest.mark.slow
def test_a_page_judges_the_claims_of_its_sweep_and_other_readings_name_no_claim_without_runs():
    curves = {("ace", s): long_curve(500, 95, 95, 95, 95 + s) for s in range(3)}
    curves |= {("ca2fl", s): long_curve(500, 50, 50, 50, 50 + s) for s in range(3)}
    measured = measured_runs(curves, profile="published", length="standard")
    found = {one.verdict.claim: one.verdict for one in verdicts.evaluate_claims("ace/figure2", measured)}
    assert list(found) == [claim.key for claim in read_claims("ace") if "ace/figure2" in claim.sweeps]
    first = found["ace/figure2-ace-first"]
    assert (first.verdict, first.agree, first.contrasts) == ("inconclusive", 1, 4)
    assert first.reason.startswith("runs missing") and "ACE - FedBuff" in first.reason
    assert found["ace/figure2-skew"].verdict == "not run"
    other = [one.verdict.claim for one in verdicts.evaluate_claims("ace/figure2_time_clock", measured)]
    assert "ace/figure2-ace-first" in other and "ace/figure2-skew" not in other
    assert verdicts.evaluate_claims("quickstart/six_algorithms", measured) == []


WITHOUT_ARCHIVED_RUNS = {  # another sweep made some of their runs, or their data set was not run
    "ace/figure3b-small",
    "asyncfeded/figure2-faster-femnist",
    "asyncfeded/figure2-faster-shakespeare",
    "fedecho/gain-knowledge",
    "fedecho/gain-stragglers",
    "fedecho/table7-entropy",
    "fedecho/table11-five",
}
WITHOUT_CLAIMS = {"afbs/ablation", "afbs/momentum", "fedecho/server_time", "fedecho/composition", "fedecho/table4"}


@pytest.mark.parametrize("paper", PAPERS)
def test_the_papers_claims_are_well_formed_and_every_sweep_has_one(paper):
    found = read_claims(paper)
    assert len(found) > 15 and all(claim.passage and claim.sentence and claim.item for claim in found)
    judged = {sweep for claim in found for sweep in claim.sweeps}
    sweeps = {f"{paper}/{path.stem}" for path in (SWEEPS / paper).glob("*.yaml")}
    assert judged <= sweeps
    assert sweeps - judged <= WITHOUT_CLAIMS
    known = set(MEASURES) | {
        f"mse/{column}" for column in ("a2", "b2", "error", "a2_ratio", "drift_slope", "correlation_1")
    }
    assert {claim.decide["measure"] for claim in found if claim.sweeps} <= known
    for claim in found:
        if isinstance(file := claim.decide.get("expected", {}).get("file"), str):
            assert (claims.paper_folders()[paper] / "published" / file).exists()


def test_the_documentation_lists_every_measure_and_its_better_direction():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("### Measures")[2]
    assert [name for name in MEASURES if f"`{name}`" not in text] == []
    higher = {name for name, kind in MEASURES.items() if not (kind.lower or kind.is_accuracy)}
    assert set(text.partition("Higher is better: accuracies, ")[2].partition(".")[0].split(", ")) == {
        f"`{name}`" for name in higher
    }


def archived_runs(paper: str) -> pd.DataFrame:
    """The archived runs that ended well, each with a made-up value."""
    frame = load_runs(ROOT / "results" / paper / "archive")
    frame = frame[frame["status"] == "ok"]
    frame = frame[frame.reindex(columns=["client.momentum"])["client.momentum"].fillna(0) == 0]  # no sweep with claims
    return frame.assign(value=np.random.default_rng(0).uniform(40, 60, len(frame)))


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_every_claim_can_be_evaluated_on_the_archived_runs_of_its_sweep_or_has_none(paper):
    """Also of a claim without runs every comparison has its name, so that no setting is misspelt where runs exist."""
    pages, judged = paper_pages(), {claim.key: set() for claim in read_claims(paper)}
    for (sweep, profile, *_), frame in archived_runs(paper).groupby(["sweep", "profile", "scale", "length"]):
        if profile == "fair" or pages[sweep].searched:  # a page has the chosen step of each method
            frame = frame.drop_duplicates(["algorithm", "seed", *pages[sweep].cells])
        measured = GivenValues(frame, pages[sweep].cells)
        for claim in read_claims(paper):
            if sweep in claim.sweeps:
                found = judge_claim(claim, measured)
                assert found.verdict.verdict in claims.VERDICTS and found.contrasts
                judged[claim.key].add(found.verdict.verdict)
    runs_of = set(archived_runs(paper)["sweep"])
    asked = [
        claim for claim in read_claims(paper) if runs_of & set(claim.sweeps) and claim.where.get("scale") != "full"
    ]
    assert {claim.key for claim in asked if judged[claim.key] <= {"not run"}} <= WITHOUT_ARCHIVED_RUNS


@pytest.mark.parametrize("paper", PAPERS)
def test_seeds_that_were_seen_are_those_of_sweeps_and_scales_that_exist(paper):
    scales = {path.stem for path in (ROOT / "conf" / "scale").glob("*.yaml")}
    for key, value in claims._read_content(paper)["seen"].items():
        for scale, seeds in (value if isinstance(value, dict) else {key: value}).items():
            assert scale in scales and seeds >= 0
        assert key in scales or (SWEEPS / f"{key}.yaml").exists()


def test_seen_seeds_of_a_sweep_come_before_those_of_the_paper():
    assert claims.seen_seeds("ace/figure2", "medium") == 3 and claims.seen_seeds("ace/table_a1", "medium") == 1
    assert claims.seen_seeds("ace/figure2", "full") == 0


def text_with_includes(sweep):
    text = (SWEEPS / f"{sweep}.yaml").read_text()
    return text + "".join(map(text_with_includes, re.findall(r"^  - (\w+/\w+)", text, re.M)))


@pytest.mark.parametrize("paper", PAPERS)
def test_claims_name_algorithms_and_settings_that_their_sweeps_vary(paper):
    """A misspelt name would find no runs and read as "not run" for ever."""
    algorithms = {path.stem for path in (ROOT / "conf" / "algorithm").glob("*.yaml")}
    protocols = "".join(path.read_text() for path in (ROOT / "conf" / "paper").glob(f"{paper}/*.yaml"))
    for claim in read_claims(paper):
        names = [*claim.decide.get("series", []), *claim.decide.get("others", [])]
        names += [name for group in claim.decide.get("groups", []) if group != "rest" for name in group]
        names += [name for name in claim.decide.get("expected", {}) if "file" not in claim.decide["expected"]]
        of = [name if isinstance(name, dict) else claim.series.get(name, {"algorithm": name}) for name in names]
        assert {settings["algorithm"] for settings in of} <= algorithms
        of += [one for settings in of for one in settings.get("any", [])]
        keys = {key for settings in of for key, value in settings.items() if value is not None} - {"label", "any"}
        keys |= set(claim.where)
        keys |= {claim.decide.get("along", "at"), *claim.decide.get("than", {})} - {"at"}
        for sweep in claim.sweeps:
            text = text_with_includes(sweep) + protocols
            known = {"profile", "scale", "length", "paper", "dataset"} | (
                {"algorithm.rule"} if sweep.startswith("ace") else set()
            )
            assert {
                key for key in keys - known if f"{key.rpartition('.')[2]}:" not in text and key not in text
            } == set()


def test_orders_name_their_source_and_table_a2s_is_not_figure_3as():
    by_id = {claim.id: claim for claim in read_claims("ace")}
    assert by_id["figure3a-first"].decide["groups"] == [["aced"], ["ace", "ca2fl", "asgd"]]
    assert "caption of figure 3a" in by_id["figure3a-first"].source
    order = by_id["table-a2-order"]
    assert "ACED < ACE" in order.sentence and order.decide["groups"][:2] == [["ace"], ["aced"]]
    assert order.where == {"dataset": "newsgroups20"}  # of a stand-in it says nothing


def read_ill_formed(folder: Path, monkeypatch, text: str) -> None:
    head = "name: ACE\nclaims:\n- {id: x, item: i, passage: p, sentence: s, "
    (folder / "claims.yaml").write_text(head + text + "}\n")
    monkeypatch.setattr(claims, "paper_folders", lambda: {"ace": folder})
    claims._read_content.cache_clear()
    try:
        read_claims.__wrapped__("ace")
    finally:
        claims._read_content.cache_clear()


def test_claims_json_comes_back_and_has_no_nan(tmp_path):
    verdicts = (Verdict("ace/x", "inconclusive", difference=1.5, seeds=2), Verdict("ace/y", "blocked", "why"))
    page = PageVerdicts("ace/figure2", "published", "small", "standard", verdicts)
    text, path = to_json(page), tmp_path / "claims.json"
    path.write_text(text)
    ((place, again),) = read_verdicts(path)
    assert "NaN" not in text and to_json(again) == text and place == ""
    assert again.verdicts[0].difference == 1.5 and math.isnan(again.verdicts[0].low)
    path.write_text(f"[{text}]")
    assert [place for place, _ in read_verdicts(path)] == ["#figure2-published-small"]
    path.write_text(text.replace('"format": 2', '"format": 1'))
    with pytest.raises(BenchError, match="not of format"):
        read_verdicts(path)
    for damaged in (text[:40], text.replace('"claim"', '"clam"'), '{"format": 2}'):
        path.write_text(damaged)
        with pytest.raises(BenchError, match=r"claims\.json: .*; remove it and write all of its pages again"):
            read_verdicts(path)


def test_a_row_of_contrasts_is_unique_by_claim_contrast_and_cell():
    """Comparisons without runs once had the name of the one cell that has runs."""
    files = sorted((ROOT / "results").glob("*/*/*/contrasts.csv"))
    key = ["claim", "contrast", "cell"]
    twins = {file: int(pd.read_csv(file).duplicated(key).sum()) for file in files}
    assert len(twins) > 50 and not any(twins.values())


def test_a_paper_without_a_file_of_claims_has_no_claims(monkeypatch, tmp_path):
    monkeypatch.setattr(claims, "paper_folders", lambda: {"mine": tmp_path})
    assert read_claims("mine") == () and claims.papers_with_claims() == []
