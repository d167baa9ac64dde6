from __future__ import annotations

import math
import re
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from asyncfl_bench.analysis.statistics import ALPHA, LEVELS, decide_by_looks, seeds_needed

ROOT = Path(__file__).parents[2]
SIMULATE = runpy.run_path(str(ROOT / "scripts" / "looks.py"))
LOOKS = tuple(LEVELS)


def decide(values, **more):
    return decide_by_looks(pd.Series(values, dtype=float), **more)


def test_one_look_is_students_interval_at_the_level_of_the_look():
    values = [2.0, 2.2, 2.1]
    found, reference = decide(values), stats.ttest_1samp(values, 0)
    interval = reference.confidence_interval(1 - 0.0156)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(reference.pvalue * 0.05 / 0.0156)
    assert (found.verdict, found.n, found.total) == ("larger", 3, 3)


def test_the_levels_are_spent_once_and_their_critical_t_are_those_of_the_page():
    assert sum(LEVELS.values()) == pytest.approx(ALPHA)
    rows = re.findall(r"^\| (\d+) \| (0\.\d{4}) \| ([\d.]+) \|$", page_section("**2. Looks.**"), re.M)
    assert {int(seeds): float(level) for seeds, level, _ in rows} == dict(LEVELS)
    for seeds, level, critical in rows:
        assert round(stats.t.isf(float(level) / 2, int(seeds) - 1), 2) == float(critical)


@pytest.mark.parametrize(("seeds", "look"), [(8, 8), (9, 8)])  # between looks the level of the last one reached
def test_the_first_decision_is_kept_while_estimate_and_interval_are_those_of_all_seeds(seeds, look):
    values = [2.0, 2.2, 2.1, *(seeds - 3) * [-9.0]]
    found = decide(values)
    assert (found.verdict, found.n, found.total, found.mean) == ("larger", 3, seeds, pytest.approx(np.mean(values)))
    interval = stats.ttest_1samp(values, 0).confidence_interval(1 - LEVELS[look])
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.low < 0 < found.high  # although it is decided


def test_the_repeated_p_is_the_smallest_of_the_looks():
    p = []
    values = [1.0, 3.0, 2.0, 0.2, 2.8, 1.0, -1.0, 0.5]
    for seeds in (3, 5, 8):
        p.append(stats.ttest_1samp(values[:seeds], 0).pvalue * ALPHA / LEVELS[seeds])
        assert decide(values[:seeds]).p == pytest.approx(min(*p, 1))
    assert p[2] > min(p)  # the last look alone is weaker
    assert decide([0.0, 1.0, -1.0]).p == 1


def test_between_looks_the_largest_look_that_was_reached_decides_on_the_lowest_seeds():
    values = pd.Series([5.0, 5.0, 0.1, -0.1, 0.2, 0.0], index=[9, 8, 0, 1, 2, 3])  # 6 seeds: look 2
    found = decide_by_looks(values)
    assert (found.n, found.total, found.verdict) == (5, 6, "open")
    assert found.p == decide_by_looks(values.drop(9)).p
    assert decide_by_looks(pd.concat([values, pd.Series([math.nan], index=[4])])).n == 5


def test_fewer_than_three_seeds_are_unknown():
    found = decide([1.0, 1.1])
    assert (found.verdict, found.n, found.total) == ("unknown", 2, 2) and math.isnan(found.p)


def test_seeds_that_were_fixed_in_advance_are_one_look_at_five_percent():
    values = [1.0, 1.4, 0.6, 1.2]
    found, interval = decide(values, levels=None), stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high, found.n) == (pytest.approx(interval.low), pytest.approx(interval.high), 4)
    assert found.p == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    assert (found.verdict, decide(values).verdict) == ("larger", "open")


def test_an_interval_that_excludes_zero_is_decided_before_a_tie():
    """0.5 within ± 0.04 is inside the margin of 1, and above zero."""
    inside = decide([0.49, 0.5, 0.51], margin=1.0)
    assert inside.verdict == "larger" and inside.low > 0 and inside.high < 1
    assert decide([-0.01, 0.0, 0.012], margin=1.0).verdict == "tie"
    assert decide([-0.01, 0.0, 0.012]).verdict == "open"  # without a margin no tie


def test_the_p_of_a_tie_is_twice_the_larger_one_sided_p_and_below_the_level_if_the_interval_is_inside():
    values = [0.1, -0.2, 0.15, 0.0, -0.1]
    larger = max(
        stats.ttest_1samp(values, 1, alternative="less").pvalue,
        stats.ttest_1samp(values, -1, alternative="greater").pvalue,
    )
    one = decide(values, margin=1.0, levels=None)
    assert one.p_tie == pytest.approx(2 * larger)
    for scale in (1.0, 3.0, 4.0, 5.0, 8.0):
        found = decide([scale * value for value in values], margin=1.0, levels=None)
        assert (found.p_tie < 0.05) == (found.low > -1 and found.high < 1)


def test_a_tie_that_was_decided_stays_when_later_seeds_differ():
    values = [-0.01, 0.0, 0.012, 3.0, 3.1, 3.2, 3.1, 3.0]
    found = decide(values, margin=1.0)
    assert (found.verdict, found.n, found.total) == ("tie", 3, 8)


def test_an_equivalence_is_decided_at_its_margin():
    far = decide([3.0, 3.05, 3.1], margin=1.0, question="equivalence")
    assert far.verdict == "larger" and far.low > 1
    at_margin = stats.ttest_1samp([2.0, 2.05, 2.1], 0).pvalue
    assert far.p == pytest.approx(at_margin * ALPHA / LEVELS[3])
    assert decide([-3.0, -3.05, -3.1], margin=1.0, question="equivalence").verdict == "smaller"
    assert decide([0.4, 0.5, 0.6], margin=1.0, question="equivalence").verdict == "tie"
    assert decide([0.8, 1.0, 1.2], margin=1.0, question="equivalence").verdict == "open"


@pytest.mark.parametrize(("effect", "seeds"), [(6.0, 3), (3.0, 5), (1.7, 8), (1.2, 12), (0.9, 20), (0.3, 150)])
def test_the_seeds_needed_are_the_first_look_with_eighty_percent_power(effect, seeds):
    assert seeds_needed(effect, 1.0, None) == seeds
    assert seeds_needed(-effect, 1.0, None) == seeds
    if seeds > 20:
        return
    power = {n: stats.nct.sf(stats.t.isf(LEVELS[n] / 2, n - 1), n - 1, effect * n**0.5) for n in LOOKS}
    assert power[seeds] >= 0.8 and all(power[n] < 0.8 for n in LOOKS if n < seeds)


def test_no_number_of_seeds_decides_an_effect_of_zero_without_a_margin():
    assert seeds_needed(0.0, 1.0, None) is None and seeds_needed(0.0, 0.0, None) is None
    assert seeds_needed(0.0, 1.0, 2.0) == seeds_needed(2.0, 1.0, None)  # a tie is as far away as the margin
    assert seeds_needed(0.9, 1.0, 1.0, "equivalence") is None
    assert seeds_needed(math.nan, 1.0, None) is None


def test_the_simulation_decides_as_the_program_does():
    """Sign, seeds and repeated p of the vectorised looks, sample by sample."""
    generator = np.random.default_rng(5)
    differences = generator.standard_normal((60, 20)) + np.repeat([0.0, 0.8, -2.0], 20)[:, None]
    signs, used = SIMULATE["find_decisions"](differences)
    p = SIMULATE["repeated_p_values"](differences)
    words = {1: "larger", -1: "smaller", 0: "open"}
    for row, sign, seeds, repeated in zip(differences, signs, used, p, strict=True):
        found = decide(row)
        assert (found.verdict, found.n) == (words[sign], seeds)
        assert found.p == pytest.approx(repeated)
    assert set(signs) == {-1, 0, 1}


SAMPLES, FAMILIES = 60_000, 8_000


def three_errors(share: float, samples: int) -> float:
    return 3 * math.sqrt(share * (1 - share) / samples)


def test_five_looks_raise_at_most_five_percent_false_alarms_and_half_of_them_hold():
    differences = np.random.default_rng(2).standard_normal((SAMPLES, 20))
    signs, _ = SIMULATE["find_decisions"](differences)
    assert (signs != 0).mean() < 0.05 - three_errors(0.04, SAMPLES) / 3
    assert (signs > 0).mean() < 0.025 and (signs < 0).mean() < 0.025
    uncorrected, _ = SIMULATE["find_decisions"](differences, SIMULATE["UNCORRECTED"])
    assert (uncorrected != 0).mean() > 0.15


def test_a_claim_of_several_contrasts_that_is_not_true_holds_in_at_most_a_fortieth():
    """One of three is exactly zero, the others are large: the intersection-union test needs no correction."""
    generator = np.random.default_rng(3)
    differences = generator.standard_normal((20_000, 3, 20)) + np.array([0.0, 2.0, 3.0])[:, None]
    signs, _ = SIMULATE["find_decisions"](differences)
    assert 0.01 < (signs > 0).all(-1).mean() < 0.025


@pytest.mark.parametrize("pairs", [6, pytest.param(16, marks=pytest.mark.slow)])
def test_holm_over_repeated_p_values_keeps_a_family_at_five_percent(pairs):
    share = SIMULATE["family_error"](pairs, np.random.default_rng(4), FAMILIES)
    assert 0.03 < share < 0.05 + three_errors(0.05, FAMILIES)


def page_section(title: str) -> str:
    text = (ROOT / "docs" / "reference" / "statistics.md").read_text()
    return text[text.index(title) :].partition("\n**3.")[0]


def power_table() -> list[tuple[float, float, float, float]]:
    number = r" ([\d.]+) \|"
    rows = re.findall(rf"^\|{4 * number}$", page_section("`python scripts/looks.py`"), re.M)
    return [(float(effect), float(share), float(used), float(mean)) for effect, share, used, mean in rows]


def test_the_power_printed_on_the_page_is_that_of_the_looks():
    generator = np.random.default_rng(6)
    assert [effect for effect, *_ in power_table()] == list(SIMULATE["EFFECTS"])
    for effect, share, used, mean in power_table():
        found = SIMULATE["share_decided"](effect, generator, samples=10_000)
        assert found[0] == pytest.approx(share, abs=three_errors(0.3, 10_000))
        assert found[1] == pytest.approx(used, abs=0.25)
        assert found[2] == pytest.approx(mean, abs=0.02)


def test_looks_are_no_guard_against_a_method_that_collapses_as_the_page_says():
    found = SIMULATE["collapse_error"](np.random.default_rng(7), samples=10_000)
    (said,) = re.findall(r"is called better in (\d+) % of", " ".join(page_section("`python scripts/looks.py`").split()))
    assert found == pytest.approx(int(said) / 100, abs=0.005 + three_errors(found, 10_000))


@pytest.mark.slow
def test_the_page_prints_what_the_script_prints(capsys):
    SIMULATE["main"]()
    printed = capsys.readouterr().out
    rows = re.findall(r"effect ([\d.]+): decided ([\d.]+), seeds ([\d.]+), estimate ([\d.]+)", printed)
    assert [tuple(map(float, row)) for row in rows] == power_table()
    uncorrected = float(re.search(r"five looks at p < 0.05 each: ([\d.]+)", printed)[1])
    collapses = float(re.search(r"mean zero: above in ([\d.]+)", printed)[1])
    families = [float(one) for one in re.search(r"pairs: ([\d.]+) ([\d.]+)", printed).groups()]
    page = page_section("`python scripts/looks.py`")
    assert f"a false alarm in {100 * uncorrected:.1f} % of samples" in page
    assert (
        f"{SIMULATE['DEPTH']} standard deviations" in page and f"is called better in {100 * collapses:.0f} % of" in page
    )
    assert f"one false alarm in {100 * families[0]:.1f} and {100 * families[1]:.1f} % of" in page
