from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from asyncfl_bench.analysis import claims
from asyncfl_bench.analysis.claims import Claim, PageVerdicts, Verdict, from_json, judge_claim, read_claims, to_json
from asyncfl_bench.analysis.contrasts import MEASURES, values_of
from asyncfl_bench.analysis.place import MatchedRuns
from asyncfl_bench.errors import BenchError

SWEEPS = Path(__file__).parents[2] / "sweeps"
ALPHA = "heterogeneity.alpha"


def runs(**by_algorithm) -> pd.DataFrame:
    """algorithm -> values of seeds 0, 1, …; or (settings, values)."""
    rows = []
    for name, of in by_algorithm.items():
        settings, values = of if isinstance(of, tuple) else ({}, of)
        algorithm = name.partition("__")[0]
        rows += [{"algorithm": algorithm, **settings, "seed": s, "value": v} for s, v in enumerate(values)]
    return pd.DataFrame(rows)


def ask(frame: pd.DataFrame, cells=(), where=None, series=None, **decide) -> Verdict:
    decide = {"measure": "accuracy", **decide}
    claim = Claim("ace", "x", "item", "place", "sentence", ("ace/figure2",), decide, where or {}, series=series or {})
    return judge_claim(claim, lambda name, axis, at, across: frame, list(cells))


# ACE and vanilla ASGD of five seeds at α = 0.1, β = 5 on digits
ACE, ASGD = [94.4, 95.0, 95.6, 94.4, 94.4], [94.1, 90.3, 93.3, 94.4, 93.9]


def test_one_order_is_a_paired_interval():
    found = ask(runs(ace=ACE, asgd=ASGD), kind="order", groups=[["ace"], ["asgd"]])
    differences = [a - b for a, b in zip(ACE, ASGD, strict=True)]
    interval = stats.ttest_1samp(differences, 0).confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-3)
    assert found.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-3)
    assert (found.verdict, found.seeds, found.contrasts, found.agree) == ("undecided", 5, 1, 0)
    assert found.result_text == "ACE - vanilla ASGD: +1.56 points [-0.89, +4.01], p 0.15"


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ([95.0, 96.0, 97.0], [94.0, 94.9, 96.1], "holds"),
        ([94.0, 94.9, 96.1], [95.0, 96.0, 97.0], "fails"),
        ([95.0, 96.0, 97.0], [94.0, 97.0, 95.0], "undecided"),
        ([95.0, 96.0], [90.0, 91.0], "undecided"),
        ([95.0, 96.0, 97.0], [95.0, 96.0, 97.0], "undecided"),
        ([95.0, 96.0, math.nan], [90.0, 91.0, 92.0], "undecided"),
    ],
)
def test_an_order_holds_fails_or_stays_open(first, second, verdict):
    assert ask(runs(ace=first, asgd=second), kind="order", groups=[["ace"], ["asgd"]]).verdict == verdict


def test_two_seeds_are_named_as_the_reason():
    found = ask(runs(ace=[95.0, 96.0], asgd=[90.0, 91.0]), kind="order", groups=[["ace"], ["asgd"]])
    assert found.reason == "2 seeds" and math.isnan(found.low) and found.difference == 5
    assert found.result_text == "ACE - vanilla ASGD: +5.00 points; 2 seeds"


def test_every_cell_and_pair_must_hold_and_the_least_certain_is_shown():
    cells = [runs(ace=({ALPHA: a}, [90 + gap, 91 + gap, 92.1 + gap]), asgd=({ALPHA: a}, [90.0, 91, 92]),
                  fedbuff=({ALPHA: a}, [50.0, 51, 52])) for a, gap in ((0.1, 3), (0.3, 0.5))]  # fmt: skip
    found = ask(pd.concat(cells), [ALPHA], kind="order", groups=[["ace"], ["asgd", "fedbuff"]])
    assert (found.verdict, found.contrasts, found.agree) == ("holds", 4, 4)
    assert found.contrast == "ACE - vanilla ASGD, α = 0.3" and found.difference == pytest.approx(0.5333, abs=1e-4)
    below = cells[0].assign(value=cells[0]["value"].where(cells[0]["algorithm"] != "ace", [88, 89.1, 90] + [0] * 6))
    found = ask(pd.concat([below, cells[1]]), [ALPHA], kind="order", groups=[["ace"], ["asgd", "fedbuff"]])
    assert (found.verdict, found.agree, found.against) == ("fails", 3, 1)
    assert found.contrast == "ACE - vanilla ASGD, α = 0.1" and found.high < 0


def test_a_chain_compares_neighbours_only():
    frame = runs(ace=[9.0, 9.1, 9.2], ca2fl=[8.0, 8.1, 8.3], fedbuff=[7.0, 7.1, 7.3])
    found = ask(frame, kind="order", groups=[["ace"], ["ca2fl"], ["fedbuff"]])
    assert (found.verdict, found.contrasts) == ("holds", 2)


def test_one_reversal_among_many_pairs_is_not_enough_to_fail():
    """p = 0.03 alone refutes; as one of ten comparisons it is what chance gives."""
    low = [88.9, 88.8, 90.4]  # minus 1.1, 2.2, 1.6: mean 1.633, s 0.551, t 5.14, p 0.036
    one = runs(ace=low, asgd=[90.0, 91, 92])
    assert ask(one, kind="order", groups=[["ace"], ["asgd"]]).verdict == "fails"
    others = {f"asgd__{i}": ({ALPHA: i}, [90.0, 89 + i, 92]) for i in range(1, 10)}
    aces = {f"ace__{i}": ({ALPHA: i}, [90.0, 91.0, 92.5]) for i in range(1, 10)}
    frame = pd.concat([one.assign(**{ALPHA: 0}), runs(**others, **aces)])
    found = ask(frame, [ALPHA], kind="order", groups=[["ace"], ["asgd"]])
    assert (found.verdict, found.against, found.contrasts) == ("undecided", 0, 10)


def test_a_mean_over_cells_takes_seeds_that_have_all():
    frame = pd.concat([
        runs(ace=({ALPHA: 0.1}, [95.0, 96, 97, 98]), asgd=({ALPHA: 0.1}, [94.0, 94.5, 95, 96])),
        runs(ace=({ALPHA: 0.3}, [95.0, 96, 97]), asgd=({ALPHA: 0.3}, [96.0, 96.5, 97])),
    ])  # fmt: skip
    found = ask(frame, [ALPHA], kind="order", over="mean", groups=[["ace"], ["asgd"]])
    # seed 0: (1 - 1) / 2, seed 1: (1.5 - 0.5) / 2, seed 2: (2 + 0) / 2
    assert (found.seeds, found.difference, found.contrasts) == (3, 0.5, 1)
    assert found.contrast == "ACE - vanilla ASGD, mean of 2 cells"


def test_missing_runs_leave_a_claim_open_but_not_run_needs_none_at_all():
    frame = runs(ace=[95.0, 96, 97], asgd=[90.0, 91, 92.1])
    found = ask(frame, kind="order", groups=[["ace"], ["asgd", "fedbuff"]])
    assert found.verdict == "undecided" and found.agree == 1 and "no runs: ACE - FedBuff" in found.reason
    assert ask(frame, kind="order", groups=[["ca2fl"], ["fedbuff"]]).verdict == "not run"
    assert ask(frame, kind="order", where={"dataset": "cifar10"}, groups=[["ace"], ["asgd"]]).verdict == "not run"


def test_small_times_are_good_and_a_run_that_never_came_is_no_number():
    frame = runs(asyncfeded=[12.0, 14, 16], fedavg=[40.0, 44, 49], fedprox=[60.0, 61, math.nan])
    order = {"kind": "order", "measure": "time_to_target", "axis": "virtual_time"}
    found = ask(frame.assign(**{"delay.unit": "seconds"}), **order, groups=[["asyncfeded"], ["fedavg"]])
    assert found.verdict == "holds" and found.difference == pytest.approx(30.33, abs=0.01) and found.unit == "s"
    late = ask(frame, **order, groups=[["asyncfeded"], ["fedprox"]])
    assert (late.verdict, late.seeds) == ("undecided", 2)
    never = ask(frame, **order, groups=[["fedprox"], ["fedavg"]])
    assert never.verdict == "undecided" and never.reason == "not every run came to it" and math.isnan(never.low)


def delays(alpha: float, short: list[float], long: list[float], algorithm: str = "fedbuff") -> pd.DataFrame:
    rows = {f"{algorithm}__{d}": ({ALPHA: alpha, "delay": d}, v) for d, v in
            (("exp_beta5", short), ("exp_beta30", long))}  # fmt: skip
    return runs(**rows)


LOSES = {"kind": "loses", "along": "delay", "start": "exp_beta5", "end": "exp_beta30"}


def test_a_loss_is_start_minus_end_in_every_cell():
    frame = pd.concat([delays(0.1, [60.0, 62, 64], [50.0, 53, 54]), delays(0.3, [70.0, 72, 74], [69.0, 71.1, 73])])
    found = judge_loss(frame)
    assert (found.verdict, found.contrasts) == ("holds", 2)
    assert found.contrast == "loss of FedBuff, β 5 to 30, α = 0.3" and found.difference == pytest.approx(
        0.967, abs=1e-3
    )
    beyond = judge_loss(frame, at_least=5)
    assert (beyond.verdict, beyond.agree, beyond.against) == ("fails", 1, 1)


def judge_loss(frame: pd.DataFrame, where=None, series=("fedbuff",), **more) -> Verdict:
    decide = {"measure": "accuracy", **LOSES, "series": list(series), **more}
    claim = Claim("ace", "x", "item", "place", "sentence", ("ace/figure2",), decide, where or {})
    return judge_claim(claim, lambda name, axis, at, across: frame, [ALPHA, "delay"])


def test_an_interaction_is_the_difference_of_losses_seed_by_seed():
    # losses 10, 9, 10 at alpha 0.1 and 1, 0.9, 1 at 0.3: 9, 8.1, 9 more
    frame = pd.concat([delays(0.1, [60.0, 62, 64], [50.0, 53, 54]), delays(0.3, [70.0, 72, 74], [69.0, 71.1, 73])])
    found = judge_loss(frame, where={ALPHA: 0.1}, than={ALPHA: 0.3})
    assert (found.verdict, found.difference, found.seeds) == ("holds", 8.7, 3)
    assert judge_loss(frame, where={ALPHA: 0.3}, than={ALPHA: 0.1}).verdict == "fails"


def test_a_series_loses_less_than_others():
    frame = pd.concat(
        [delays(0.1, [60.0, 62, 64], [50.0, 53, 54]), delays(0.1, [90.0, 91, 92], [89.0, 90, 91.5], "ace")]
    )
    found = judge_loss(frame, series=["ace"], others=["fedbuff"])
    assert found.verdict == "holds" and found.difference == pytest.approx((9 + 8 + 9.5) / 3, abs=1e-3)


def test_equal_within_a_margin_needs_the_whole_interval_inside():
    def close(values: list[float], margin: float) -> Verdict:
        frame = pd.concat([runs(ace=({"algorithm.cache.precision": "fp32"}, [90.0, 91, 92])),
                           runs(ace=({"algorithm.cache.precision": "int8"}, values))])  # fmt: skip
        claim = {"kind": "close", "along": "algorithm.cache.precision", "values": ["fp32", "int8"], "margin": margin}
        claim |= {"measure": "accuracy", "series": ["ace"]}
        return judge_claim(
            Claim("ace", "x", "i", "p", "s", ("ace/figure_a3",), claim), lambda *_: frame, ["algorithm.cache.precision"]
        )

    near = [89.9, 91.0, 92.1]  # differences 0.1, 0, -0.1: 0 ± 0.248
    assert close(near, 0.3).verdict == "holds" and close(near, 0.2).verdict == "undecided"
    far = close([87.0, 88.1, 88.9], 1)  # 3, 2.9, 3.1: 3 ± 0.248, which is 2 beyond the margin
    assert far.verdict == "fails" and far.p == pytest.approx(stats.ttest_1samp([2, 1.9, 2.1], 0).pvalue, rel=1e-3)
    assert close([90.0, 91, 92], 1).verdict == "holds"


def test_plateaus_compare_two_budgets_of_the_same_runs():
    def at(name: str, axis: str, budget: float | None, across: tuple[str, ...]) -> pd.DataFrame:
        return runs(ace=[90.0, 91, 92] if budget == 500 else [93.0, 94.1, 95])

    decide = {
        "kind": "close",
        "measure": "accuracy",
        "along": "at",
        "values": [500, 1000],
        "series": ["ace"],
        "margin": 1,
    }
    found = judge_claim(Claim("ace", "x", "i", "p", "s", ("ace/figure_a1",), decide), at, [])
    assert found.verdict == "fails" and found.difference == pytest.approx(-3.033)


def test_wider_bands_are_larger_distances_from_the_mean_over_seeds():
    frame = runs(asgd=[80.0, 100, 70, 110, 90], ace=[90.0, 90.1, 89.9, 90.2, 89.8])
    found = ask(frame, kind="wider", groups=[["asgd"], ["ace"]])
    assert found.difference == pytest.approx((10 + 10 + 20 + 20 + 0) / 5 - 0.12) and found.seeds == 5
    assert ask(frame, kind="wider", groups=[["ace"], ["asgd"]]).difference == -found.difference


def test_counted_numbers_need_one_run_and_may_be_settings():
    frame = runs(ace=[102.0], fedbuff=[1.0]).assign(n_clients=100, **{"algorithm.buffer_size": 10})
    equals = {"kind": "equals", "measure": "server_vectors", "margin": 5, "counted": True}
    assert ask(frame, **equals, expected={"ace": "n_clients"}).verdict == "holds"
    found = ask(frame, **equals, expected={"ace": 100, "fedbuff": "algorithm.buffer_size"})
    assert (found.verdict, found.difference, found.agree) == ("fails", -9.0, 1)
    sampled = {**equals, "counted": False}
    assert ask(frame, **sampled, expected={"ace": "n_clients"}).reason == "1 seed"


def test_a_number_is_reached_from_the_good_side():
    few, many = {"measure": "versions", "expected": {"fedecho": 8.5}}, runs(fedecho=[13.0, 15.0, 14.0])
    found = ask(many, kind="reaches", **few)
    assert (found.verdict, found.difference) == ("fails", -5.5) and found.contrast == "FedEcho against 8.5"
    assert ask(runs(fedecho=[7.0, 7.0, 8.0, 7.0]), kind="reaches", **few).verdict == "holds"
    assert ask(many, kind="reaches", measure="late", expected={"fedecho": 8.5}).verdict == "holds"  # more is better


def test_versions_in_flight_are_the_most_of_a_run():
    points = pd.DataFrame({"run": [0, 0, 1], "in_flight/versions_max": [11.0, 14.0, 9.0], "virtual_time": 0.0})
    known = pd.DataFrame({"algorithm": ["fedecho"] * 3, "seed": [0, 1, 2]})
    placed = MatchedRuns(known, *[pd.DataFrame()] * 2, 3)
    found = values_of(placed, points)("versions", "iteration", None, ())["value"]
    assert found[:2].tolist() == [14.0, 9.0] and math.isnan(found[2])


def test_published_numbers_are_compared_cell_by_cell_with_the_test_sets_error():
    [claim] = [claim for claim in read_claims("asyncfeded") if claim.id == "figure3-published"]
    full = {"paper": "asyncfeded/synthetic", "profile": "published", "scale": "full"}
    full["algorithm.staleness_weight"] = None
    frame = pd.concat([
        runs(asyncfeded=({**full, "availability.probability": 0.1}, [99.30, 99.40, 99.41])),
        runs(fedavg=({**full, "availability.probability": 0.9}, [75.0, 76.7, 97.2])),
    ])  # fmt: skip
    found = judge_claim(claim, lambda *_: frame, ["paper", "availability.probability"])
    assert found.contrasts == 20 and found.verdict == "undecided" and found.agree == 1
    assert "FedAsync+Hinge, P = 0.1 - 98.671" in found.reason and found.contrast == "FedAvg, P = 0.9 - 93.056"
    small = frame.assign(scale="small")
    assert judge_claim(claim, lambda *_: small, ["paper", "availability.probability"]).verdict == "not run"


def test_the_rest_are_all_other_values_of_the_same_settings():
    frame = pd.concat([runs(fedprox=({"algorithm.mu": mu}, [v])) for mu, v in ((0.01, 95.9), (0.1, 95.3), (1.0, 96.4))])
    found = ask(frame, kind="order", measure="best", groups=[[{"algorithm": "fedprox", "algorithm.mu": 0.1}], "rest"])
    assert (found.contrasts, found.verdict, found.reason) == (2, "undecided", "1 seed")
    assert found.contrast == "FedProx, μ = 0.1 - FedProx, μ = 1.0"


def test_a_series_may_be_any_of_several_settings():
    own = {"algorithm": "fedecho", "any": [{"unlabelled": "images"}, {"unlabelled": "held_back", "dataset": "digits"}]}
    ask_own = {"kind": "order", "groups": [["own"], ["fedbuff"]], "series": {"own": own}}
    for chosen, found in ((("images", "cifar10"), 3), (("held_back", "digits"), 3), (("held_back", "cifar10"), 0)):
        settings = dict(zip(("unlabelled", "dataset"), chosen, strict=True))
        frame = pd.concat([runs(fedecho=(settings, [2.0, 2.1, 2.2])), runs(fedbuff=[1.0, 1.1, 1.3])])
        assert ask(frame, **ask_own).seeds == found


def test_two_runs_of_a_seed_in_one_cell_are_refused():
    with pytest.raises(BenchError, match="ACE has several runs with one seed"):
        ask(pd.concat([runs(ace=[1.0]), runs(ace=[2.0], asgd=[1.0])]), kind="order", groups=[["ace"], ["asgd"]])


def test_measures_come_from_runs_and_their_evaluations():
    index = pd.Index(["a", "b", "c"], name="run")
    used = {"summary.used.uploads": [599.0, 50.0, 5000.0], "summary.used.server_iterations": [500.0, 50.0, 500.0]}
    table = pd.DataFrame(
        {"algorithm": ["ace", "asgd", "fedbuff"], "series": ["ACE", "vanilla ASGD", "FedBuff"], "cell": "", "seed": 0,
         "n_clients": 100, **used, "summary.state_bytes.server": [6124080, 0, 60040], "summary.parameters": 15010},
        index=index,
    )  # fmt: skip
    rows = [(run, i, i, acc) for run, accs in (("a", [0.1, 0.5, 0.9]), ("b", [0.1, 0.6, 0.4]), ("c", [0.2, 0.3, 0.8]))
            for i, acc in zip((0, 10, 20), accs, strict=True)]  # fmt: skip
    points = pd.DataFrame(rows, columns=["run", "iteration", "virtual_time", "test/accuracy"])
    placed = MatchedRuns(table, pd.DataFrame(), pd.DataFrame(), 3)
    measure = values_of(placed, points)

    def values(name: str, at: float | None = None) -> list[float]:
        return measure(name, "iteration", at, ())["value"].tolist()

    assert values("accuracy") == pytest.approx([90, 40, 80]) and values("accuracy", 10) == pytest.approx([50, 60, 30])
    assert values("best") == pytest.approx([90, 60, 80])
    assert values("late") == pytest.approx([50, 110 / 3, 130 / 3])  # of the last ten, or of those there are
    assert values("time_to_90") == [20, 10, 20]
    assert values("time_to_target") == [20, 10, 20]  # 90 % of 60 = 54: a has 50 at 10
    assert values_of(placed, points, limit=10)("best", "", None, ())["value"].tolist() == pytest.approx([50, 60, 30])
    runs = MatchedRuns(table.assign(dataset=["cifar10", "cifar10", "digits"]), *[pd.DataFrame()] * 2, 3)
    timed_values = values_of(runs, points, levels={"cifar10": 55.0})
    timed = timed_values("time_to_level", "iteration", None, ())["value"].tolist()
    assert timed[:2] == [20, 10] and math.isnan(timed[2])  # nothing is timed on digits
    assert values("uploads_per_iteration") == [1.0, 1.0, 10.0]  # ACE's first round of 100 left out
    assert values("server_vectors") == pytest.approx([102, 0, 1])


@pytest.mark.slow
def test_a_page_judges_the_claims_of_its_sweep_and_other_readings_name_no_claim_without_runs():
    index = pd.Index([f"run {i}" for i in range(6)], name="run")
    table = pd.DataFrame({"algorithm": ["ace"] * 3 + ["ca2fl"] * 3, "seed": [0, 1, 2] * 2, "cell": ""}, index=index)
    table["series"] = table["algorithm"]
    values = [0.95, 0.96, 0.97, 0.5, 0.6, 0.7]
    points = pd.DataFrame(
        {"run": index, "iteration": 500, "uploads": 500, "virtual_time": 1.0, "test/accuracy": values}
    )
    placed = MatchedRuns(table, pd.DataFrame(), pd.DataFrame(), 6)
    found = {one.claim: one for one in claims.evaluate_claims("ace/figure2", placed, points)}
    assert list(found) == [claim.key for claim in read_claims("ace") if "ace/figure2" in claim.readings]
    first = found["ace/figure2-ace-first"]
    assert (first.verdict, first.agree, first.contrasts) == (
        "undecided",
        1,
        4,
    ) and "no runs: ACE - FedBuff" in first.reason
    lost = MatchedRuns(table, pd.DataFrame(), pd.DataFrame({"reason": ["diverged"]}), 6)
    [again] = [one for one in claims.evaluate_claims("ace/figure2", lost, points) if one.claim == first.claim]
    assert "no runs, or all diverged: ACE - FedBuff" in again.reason
    assert found["ace/figure2-skew"].verdict == "not run"
    other = [one.claim for one in claims.evaluate_claims("ace/figure2_time_clock", placed, points)]
    assert "ace/figure2-ace-first" in other and "ace/figure2-skew" not in other
    assert claims.evaluate_claims("quickstart/six_algorithms", placed, points) == []


def test_parts_of_the_error_are_taken_run_by_run():
    index = pd.Index(["no folder 0", "no folder 1"], name="run")
    table = pd.DataFrame(
        {"algorithm": "ace", "series": "ACE", "cell": "", "seed": [0, 1], "n_clients": 10}, index=index
    )
    points = pd.DataFrame({"run": [index[0], index[0], index[1]], "iteration": [5, 10, 5], "mse/noise": [1.0, 3.0, 5.0],
                           "mse/sigma2": 50.0, "mse/sigma2_cached": 20.0, "mse/bias": 0.0})  # fmt: skip
    measure = values_of(MatchedRuns(table, pd.DataFrame(), pd.DataFrame(), 2), points)
    assert measure("mse/a2", "", None, ())["value"].tolist() == [2, 5]
    assert measure("mse/a2_ratio", "", None, ())["value"].tolist() == [1, 2.5]  # sigma^2 / n = 2
    nothing = values_of(MatchedRuns(table, pd.DataFrame(), pd.DataFrame(), 2), points[["run", "iteration"]])
    assert nothing("mse/a2", "", None, ())["value"].isna().all()


@pytest.mark.parametrize("paper", ["ace", "asyncfeded", "gas"])
def test_the_papers_claims_are_well_formed_and_every_sweep_has_one(paper):
    found = read_claims(paper)
    assert len(found) > 15 and all(claim.place and claim.sentence and claim.item for claim in found)
    readings = {sweep for claim in found for sweep in claim.readings}
    sweeps = {f"{paper}/{path.stem}" for path in (SWEEPS / paper).glob("*.yaml")}
    assert readings <= sweeps
    assert sweeps - readings <= {"ace/table_a2"}  # its runs are stand-ins for text
    known = set(MEASURES) | {f"mse/{column}" for column in ("a2", "b2", "a2_ratio", "drift_slope", "correlation_1")}
    assert {claim.decide["measure"] for claim in found if claim.readings} <= known
    for claim in found:
        if isinstance(file := claim.decide.get("expected", {}).get("file"), str):
            assert (claims.paper_folders()[paper] / "published" / file).exists()


def text_with_includes(sweep):
    text = (SWEEPS / f"{sweep}.yaml").read_text()
    return text + "".join(map(text_with_includes, re.findall(r"^  - (\w+/\w+)", text, re.M)))


@pytest.mark.parametrize("paper", ["ace", "asyncfeded", "gas"])
def test_claims_name_algorithms_and_settings_that_their_sweeps_vary(paper):
    """A misspelt name would find no runs and read as "not run" for ever."""
    algorithms = {path.stem for path in (SWEEPS.parent / "conf" / "algorithm").glob("*.yaml")}
    for claim in read_claims(paper):
        names = [*claim.decide.get("series", []), *claim.decide.get("others", [])]
        names += [name for group in claim.decide.get("groups", []) if group != "rest" for name in group]
        names += [name for name in claim.decide.get("expected", {}) if "file" not in claim.decide["expected"]]
        of = [name if isinstance(name, dict) else claim.series.get(name, {"algorithm": name}) for name in names]
        assert {settings["algorithm"] for settings in of} <= algorithms
        of += [one for settings in of for one in settings.get("any", [])]
        keys = {key for settings in of for key in settings if key not in ("label", "any")} | set(claim.where)
        keys |= {claim.decide.get("along", "at"), *claim.decide.get("than", {})} - {"at"}
        for sweep in claim.readings:
            text = text_with_includes(sweep)
            known = {"profile", "scale", "paper"} | ({"algorithm.rule"} if sweep.startswith("ace") else set())
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


def test_an_ill_formed_file_is_refused_with_the_claim(tmp_path, monkeypatch):
    def refuses(text: str, match: str) -> None:
        (tmp_path / "ace").mkdir(exist_ok=True)
        head = "name: ACE\nclaims:\n- {id: x, item: i, place: p, sentence: s, "
        (tmp_path / "ace" / "claims.yaml").write_text(head + text + "}\n")
        claims._read_content.cache_clear()
        with pytest.raises(BenchError, match=match):
            read_claims.__wrapped__("ace")

    monkeypatch.setattr(claims, "paper_folders", lambda: {"ace": tmp_path / "ace"})
    try:
        refuses("readings: [ace/figure2], decide: {kind: leads, measure: best}", "x: kind leads: one of order")
        refuses("readings: [ace/figure2], decide: {kind: order, measure: speed, groups: []}", "measure speed")
        refuses("readings: [ace/figure2], decide: {kind: order, measure: best}", "groups is missing")
        refuses("readings: [ace/figure2], decide: {kind: order, measure: best, groups: [], margin: 1}", "margin is")
        refuses("sorce: text, blocked: why", "sorce")
        refuses("source: text", "blocked or not_run")
    finally:
        claims._read_content.cache_clear()


def test_claims_json_comes_back_and_has_no_nan():
    verdicts = (Verdict("ace/x", "undecided", difference=1.5, seeds=2), Verdict("ace/y", "blocked", "why"))
    page = PageVerdicts("ace/figure2", "published", "small", "standard", verdicts)
    text = to_json(page)
    ((place, again),) = from_json(text)
    assert "NaN" not in text and to_json(again) == text and place == ""
    assert again.verdicts[0].difference == 1.5 and math.isnan(again.verdicts[0].low)
    assert [place for place, _ in from_json(f"[{text}]")] == ["#figure2-published-small"]
    with pytest.raises(BenchError, match="not of format"):
        from_json(text.replace('"format": 1', '"format": 0'))
