"""Names of functions, methods and classes say what they do or return."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "asyncfl_bench"
# participles, prepositions, adverbs and pronouns that say nothing by themselves
WORDS = """
setting rank exact texts final late best short natural limited charged matching published paired placed judge
maps stamps equal malformed archived finished sent named packed covers walk checked checkable
told held kept served shown given taken asked used said moved begun left lost spent stored filled balanced untouched
along beside over under within away like alike above below about after before against apart of on
each others other where whole same lone twin deaf past outlook hear accepts continues anchor Answer Question
noted watched probed complete finished ended searched drawn placed once told served shown planned tried alike
without like by by_kind varied raised made pooled seeded encoded padded compiled judged stopped own plain
Past Lines Known Pieces Chosen Checked
typed waits inside listed deletes instead explained resumed searched importable Earlier Word word
"""
FORBIDDEN = frozenset(WORDS.split())
# bounds that the author of a rule types beside the type of a setting: Annotated[float, within("[0, 1)")]
PHRASES = {("ranges.py", "within")}


def definitions(path: Path) -> list[tuple[int, str]]:
    """(line, name without leading underscores) of every function, method and class."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [
        (node.lineno, node.name.lstrip("_"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds)
    ]


def test_no_definition_is_named_by_a_bare_participle_preposition_adverb_or_pronoun():
    paths = list(PACKAGE.rglob("*.py"))
    assert len(paths) > 200
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in paths
        for line, name in definitions(path)
        if name in FORBIDDEN and (str(path.relative_to(PACKAGE)), name) not in PHRASES
    ]
    assert not found
