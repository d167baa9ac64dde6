"""Which rule becomes which (docs/limits.yaml), and the page and the figure that show it (docs/rules.md)."""

import functools
import sys
from pathlib import Path

import pytest
import torch

from asyncfl_bench.config import compose, options
from asyncfl_bench.experiment.build import build_run

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import rules

WORLD = [
    *("model.hidden=[8]", "n_clients=6", "client.batch_size=8", "delay=exponential", "budget.uploads=42", "seed=3"),
    *("device=cpu", "threads=1", "executor=sequential"),
]
LIMITS = [
    pytest.param(limit, id=f"{limit.rule} is {limit.other}", marks=[] if limit.bits else pytest.mark.slow)
    for limit in rules.limits()
]


@functools.lru_cache(maxsize=8)
def ended(*words):
    """((server iterations, uploads), model) at the end of a run."""
    parts = build_run(compose([*WORLD, *words]))
    parts.simulation.run()
    parts.executor.close()
    counters = parts.simulation.counters
    return (counters.iteration, counters.uploads), parts.model_d.clone()


def apart(one_d, other_d):
    return float((one_d - other_d).norm() / other_d.norm())


@pytest.mark.parametrize("limit", LIMITS)
def test_a_rule_becomes_another_where_its_limit_says_so_and_only_there(limit):
    counted, model_d = ended(f"algorithm={limit.rule}", *limit.both, *limit.settings)
    counted_other, other_d = ended(f"algorithm={limit.other}", *limit.both, *limit.own)
    assert counted == counted_other and counted[0] >= 4
    if limit.bits:
        assert torch.equal(model_d, other_d)
    else:
        assert apart(model_d, other_d) < 1e-5
    others = [word for word in limit.unless if not word.startswith("algorithm.")]
    elsewhere = ended(f"algorithm={limit.rule}", *limit.both, *limit.settings, *limit.unless)
    unlike = ended(f"algorithm={limit.other}", *limit.both, *limit.own, *others)
    assert elsewhere[0] != unlike[0] or apart(elsewhere[1], unlike[1]) > 1e-3


def test_limits_are_of_rules_that_are_there_and_no_two_lines_say_the_same():
    found = rules.limits()
    assert {limit.rule for limit in found} | {limit.other for limit in found} <= set(options("algorithm"))
    assert len({(limit.rule, limit.other, limit.when) for limit in found}) == len(found) >= 30


def test_the_page_and_the_figure_say_what_the_rules_say():
    assert rules.PAGE.read_text() == rules.page(), "make rules"
    assert rules.FIGURE.read_text() == rules.figure(), "make rules"


def test_what_a_server_is_told_is_read_off_its_code():
    known = rules.rules()
    assert rules.told(known["asgd"]) == "nothing" and rules.told(known["ace"]) == "who"
    assert rules.told(known["delay_adaptive_asgd"]) == "version"
    assert rules.told(known["gas"]) == "who, version, K, labels, counts of labels"
    assert "projections" in rules.told(known["afbs"])  # which it says by itself
    assert rules.bytes_of_an_update(known["fedac"]) == "8 d + 8 d"
    assert rules.sections(known["asgd"])["Memory"] == "0" and rules.sections(known["asgd"])["State"] == "none"
