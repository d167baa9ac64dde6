"""Rules that reduce to others (limits.yaml), and the page and the figure that show it, in docs/explanation/."""

import functools
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from asyncfl_bench.config import options
from asyncfl_bench.experiment.contract import BrokenContract, check_limit, run_to_end

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import rules

LIMITS = [
    pytest.param(limit, id=f"{limit.rule} is {limit.other}", marks=[] if limit.bits else pytest.mark.slow)
    for limit in rules.limits()
]


ended = functools.lru_cache(maxsize=8)(run_to_end)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_rule_becomes_another_where_its_limit_says_so_and_only_there(limit):
    check_limit(limit, ended)


def test_a_limit_that_does_not_hold_and_one_that_holds_everywhere_are_found():
    holds = next(limit for limit in rules.limits() if (limit.rule, limit.other) == ("ringmaster", "asgd"))
    with pytest.raises(BrokenContract, match=r"is not asgd with algorithm\.threshold=2"):
        check_limit(replace(holds, settings=["algorithm.threshold=2"]), ended)
    with pytest.raises(BrokenContract, match=r"is asgd also with algorithm\.threshold=999"):
        check_limit(replace(holds, unless=["algorithm.threshold=999"]), ended)


def test_limits_are_of_rules_that_are_there_and_no_two_lines_say_the_same():
    found = rules.limits()
    assert {limit.rule for limit in found} | {limit.other for limit in found} <= set(options("algorithm"))
    assert len({(limit.rule, limit.other, limit.when) for limit in found}) == len(found) >= 30


def test_the_page_and_the_figure_say_what_the_rules_say():
    assert rules.PAGE.read_text() == rules.page(), "make rules"
    assert rules.FIGURE.read_text() == rules.figure(), "make rules"


def test_what_a_server_is_told_is_read_off_its_code():
    known = rules.rules()
    assert rules.told(known["asgd"]) == "nothing" and rules.told(known["ace"]) == "client"
    assert rules.told(known["delay_adaptive_asgd"]) == "version"
    assert rules.told(known["gas"]) == "client, version, K, labels, label counts"
    assert "projections" in rules.told(known["afbs"])  # which it says by itself
    assert rules.bytes_of_an_update(known["fedac"]) == "8 d + 8 d"
    assert rules.sections(known["asgd"])["Memory"] == "0" and rules.sections(known["asgd"])["State"] == "none"
