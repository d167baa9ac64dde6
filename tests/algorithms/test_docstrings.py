"""What a rule's docstrings say: settings one a line, and an example that runs."""

import dataclasses
import doctest
import importlib
import re

import pytest
import yaml

from asyncfl_bench.algorithms.common.trial import after_each
from asyncfl_bench.config import options
from asyncfl_bench.config.places import config_directory


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


@pytest.mark.parametrize("name", options("algorithm"))
def test_every_setting_of_a_rule_has_a_line_of_its_own(name):
    schema = rule_of(name).Config
    said = [line for cls in schema.__mro__ for line in (cls.__doc__ or "").splitlines()]
    for field in dataclasses.fields(schema):
        assert any(re.match(rf"\s+{field.name}  \S|\s+{field.name}\s{{2,}}\S", line) for line in said), field.name
