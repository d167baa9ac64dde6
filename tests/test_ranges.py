"""What a setting may be is said once, and everything made of it is held to it."""

import dataclasses
import importlib
import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest
import yaml

from asyncfl_bench.config import options
from asyncfl_bench.config.part_sources import config_directory
from asyncfl_bench.config.settings import PARTS
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.ranges import CheckedSettings, Configured, at_least, describe_range, greater_than, one_of, within


@dataclass
class Base(CheckedSettings):
    share: Annotated[float, within("[0, 1)")] = 0.0
    rate: Annotated[float | None, greater_than(0, null="for the budget's")] = None
    count: Annotated[int, at_least(1)] = 1
    kind: Annotated[str, one_of("mean", "median")] = "mean"
    free: int = 0


@dataclass
class Changed(Base):
    share: float = 0.5  # only another default
    count: Annotated[int, at_least(3)] = 3


def test_what_is_in_range_or_null_is_taken():
    assert Base(share=0.99, rate=None, count=7, kind="median", free=-3).count == 7
    for name, words in (("rate", "a number > 0, or null for the budget's"), ("kind", "one of mean, median")):
        assert describe_range(Base, name) == words
    assert describe_range(Base, "free") is None


def test_a_subclass_keeps_a_range_or_says_another_one():
    assert (
        describe_range(Changed, "share") == "a number in [0, 1)"
        and describe_range(Changed, "count") == "a whole number >= 3"
    )
    for settings in ({"share": 1.0}, {"count": 2}):
        with pytest.raises(ConfigError):
            Changed(**settings)


def test_a_part_whose_settings_its_module_does_not_have_is_refused():
    body = "from __future__ import annotations\nclass Mine(Configured):\n    config: MineConfig\n"
    with pytest.raises(
        TypeError,
        match=r"^Mine: config: MineConfig is not a name of .*; import it there, or write Config = MineConfig$",
    ):
        exec(body, {"__name__": __name__, "Configured": Configured})
    with_value = body + "    Config = Base\n"
    exec(with_value, names := {"__name__": __name__, "Configured": Configured, "Base": Base})
    assert names["Mine"].Config is Base


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [("(0, 1]", (0.1, 1), (0, 1.1)), ("[0, 1]", (0, 1), (-1e-9, 2)), ("[0, 4294967295]", (0, 2**32 - 1), (2**32,))],
)
def test_intervals_mean_what_they_mean_in_mathematics(interval, inside, outside):
    assert all(map(within(interval).holds, inside)) and not any(map(within(interval).holds, [*outside, float("nan")]))


def schemas():
    for group in PARTS:
        for choice in options(group):
            content = yaml.safe_load((config_directory() / group / f"{choice}.yaml").read_text())
            module, _, name = content.get(group, content)["_target_"].rpartition(".")
            yield getattr(importlib.import_module(module), name).Config


def test_every_parts_settings_are_checked_and_every_override_of_the_check_keeps_it():
    for schema in set(schemas()):
        if not dataclasses.fields(schema):
            continue
        own = inspect.getsource(schema.__post_init__) if "__post_init__" in vars(schema) else "super().__post_init__()"
        if any(describe_range(schema, field.name) for field in dataclasses.fields(schema)):
            assert issubclass(schema, CheckedSettings) and "super().__post_init__()" in own, schema.__qualname__
