"""How many members the author of a rule has to know."""

import inspect
from pathlib import Path

from asyncfl_bench.algorithms.base import RuleConfig, ServerRule
from asyncfl_bench.algorithms.common.split import SplitRule
from asyncfl_bench.algorithms.needs import Needs
from asyncfl_bench.stateful import Stateful
from asyncfl_bench.types import Recorder

MAX_MEMBERS = 28
MAX_ROWS = 30  # of the table in docs/explanation/architecture.md: one screen


def members(*classes: type) -> list[str]:
    """Public names that the bodies of the classes define or annotate, as CLASS.NAME."""
    found = []
    for one in classes:
        names = dict.fromkeys([*vars(one), *inspect.get_annotations(one)])
        found += [f"{one.__name__}.{name}" for name in names if not name.startswith("_")]
    return found


def test_the_contract_of_an_ordinary_rule_is_small():
    found = members(ServerRule, Stateful, RuleConfig)
    print(len(found), *found)
    assert len(found) <= MAX_MEMBERS


def test_the_table_of_members_is_complete_and_fits_on_one_screen():
    text = (Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## The server rule\n")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("| `")]
    assert len(table) <= MAX_ROWS
    named = "\n".join(line.split(" | ")[0] for line in table)
    missing = [
        name
        for name in members(ServerRule, Stateful, SplitRule, Recorder, RuleConfig)
        if f"`{name.partition('.')[2]}" not in named
    ]
    assert not missing
    assert not [name for name in members(Needs) if f"`{name.partition('.')[2]}" not in section]
