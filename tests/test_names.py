"""Names of functions, methods and classes say what they do or return."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "asyncfl_bench"
# rooms whose names are checked
ROOMS = (
    "algorithms",
    "analysis",
    "clients",
    "diagnostics",
    "tracking",
    "simulation",
    "storage.py",
    "stateful.py",
    "types.py",
)
# participles, prepositions, adverbs and pronouns that say nothing by themselves
WORDS = """
name setting rank exact texts final late best short natural limited charged matching published paired placed judge
kept maps stamps equal malformed archived finished sent named packed covers walk checked checkable
told held kept served shown given taken asked used said moved begun left lost spent stored filled balanced untouched
along beside over under within away like alike above below about after before against apart of on
each others other where whole same lone twin deaf past outlook hear accepts continues anchor Answer Question
"""
FORBIDDEN = frozenset(form for word in WORDS.split() for form in (word, word.capitalize()))


def definitions(path: Path) -> list[tuple[int, str]]:
    """(line, name without leading underscores) of every function, method and class."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [
        (node.lineno, node.name.lstrip("_"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds)
    ]


def test_no_definition_is_named_by_a_bare_participle_preposition_adverb_or_pronoun():
    paths = [
        path for room in ROOMS for path in ((PACKAGE / room).rglob("*.py") if "." not in room else [PACKAGE / room])
    ]
    assert len(paths) > 60
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in paths
        for line, name in definitions(path)
        if name in FORBIDDEN
    ]
    assert not found
