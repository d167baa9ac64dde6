"""Each setting is described once, in the docstring of its Config, and its default is only there."""

import inspect
import re

import pytest
from omegaconf import OmegaConf

from asyncfl_bench.config import compose, options
from asyncfl_bench.config.choices import choice_file
from asyncfl_bench.config.classes import class_sections, part_class
from asyncfl_bench.config.manual import _comments, describe_settings
from asyncfl_bench.config.part_sources import class_names, config_directory
from asyncfl_bench.config.settings import PARTS, ROOT_SECTIONS, SEARCH_SPACE, TRACKING, RootConfig
from asyncfl_bench.ranges import default_values, setting_texts

CHOICES = [(group, name) for group in (*PARTS, TRACKING) for name in options(group)]
CHOICES = [(group, name) for group, name in CHOICES if class_names(choice_file(group, name))]


def section_of(group, name):
    """The settings that a yaml lists, its class's Config, and the comments beside the settings."""
    file = choice_file(group, name)
    comments = _comments(file)
    ((key, section),) = class_sections(group, OmegaConf.to_container(OmegaConf.load(file))).items()
    schema = part_class(f"{group}._target_", section["_target_"]).Config
    return section, schema, {name.removeprefix(f"{key}."): text for name, text in comments.items()}


SCHEMAS = {section_of(*one)[1] for one in CHOICES} | {RootConfig, *ROOT_SECTIONS.values()}


def words(text):
    return set(re.findall(r"\w{4,}", text.lower()))


def test_every_setting_has_a_text():
    assert len(SCHEMAS) > 80
    assert [(cls, name) for cls in SCHEMAS for name in default_values(cls) if name not in setting_texts(cls)] == []


def test_a_docstring_describes_settings_that_there_are_and_repeats_no_text_of_a_base():
    for schema in SCHEMAS:
        for cls in schema.__mro__:
            lines = inspect.cleandoc(vars(cls).get("__doc__") or "").splitlines()
            named = [match[1] for line in lines if (match := re.match(r"(\w+(?:, \w+)*) {2,}\S", line))]
            assert {name for names in named for name in names.split(", ")} <= {*default_values(schema)}, cls
        for name, text in setting_texts(schema).items():
            said = text.split("; ")
            assert len(said) == len(set(said)), (schema, name)


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_a_yaml_lists_only_settings_of_its_class_that_differ_from_the_default(group, name):
    listed, schema, comments = section_of(group, name)
    defaults, texts = default_values(schema), setting_texts(schema)
    own = {
        key: value for key, value in listed.items() if key not in ("_target_", "defaults", "default_step", SEARCH_SPACE)
    }
    assert own.keys() <= defaults.keys()
    assert [key for key, value in own.items() if value == defaults[key]] == [], "the class has these defaults"
    for key in own:
        repeated = words(comments.get(key, "")) & words(texts[key])
        assert 2 * len(repeated) <= len(words(comments.get(key, ""))), f"{key}: {texts[key]}"


def test_the_file_of_groups_lists_no_setting():
    tree = OmegaConf.load(config_directory() / "config.yaml")
    assert {*tree} == {"defaults", "hydra"}


def test_a_value_of_a_yaml_and_defaults_of_the_class_are_composed():
    composed = compose(["delay=exp_beta30"]).tree["delay"]
    assert {key: value for key, value in composed.items() if key != "_target_"} == {
        "beta": 30.0,
        "compute": 1.0,
        "clients": "exponential",
        "redraw": True,
        "unit": "ticks",
    }
    rows = {key: (value, text) for key, value, _, text in describe_settings("delay", "uniform_by_label")}
    assert rows["delay.low"] == ("0.0", "units; of clients that hold the first label")
    rows = [key for key, *_ in describe_settings("tracking", "wandb")]
    assert rows[:2] == ["tracking.wandb.project", "tracking.wandb.entity"]
