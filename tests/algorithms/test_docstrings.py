"""The example in a rule's docstring runs."""

import doctest
import importlib

import pytest
import yaml

from asyncfl_bench.algorithms.common.trial import after_each
from asyncfl_bench.config import options
from asyncfl_bench.config.part_sources import config_directory


def rule_of(name):
    content = yaml.safe_load((config_directory() / "algorithm" / f"{name}.yaml").read_text())
    module, _, rule = content["_target_"].rpartition(".")
    return getattr(importlib.import_module(module), rule)


@pytest.mark.parametrize("name", options("algorithm"))
def test_the_example_in_a_rules_docstring_runs(name):
    rule = rule_of(name)
    examples = doctest.DocTestFinder(recurse=False).find(rule, globs={rule.__name__: rule, "after_each": after_each})
    assert sum(len(test.examples) for test in examples) >= 1, f"{rule.__name__} has no >>> example"
    for test in examples:
        assert doctest.DocTestRunner().run(test).failed == 0
