"""Names of functions, methods and classes say what they do or return."""

import ast
import re
from collections import defaultdict
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
PACKAGE = SOURCES / "asyncfl_bench"
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
heard answered joined at of_stage without_time
typed waits inside listed deletes instead explained resumed searched importable Earlier Word word
"""
FORBIDDEN = frozenset(WORDS.split())
# bounds that the author of a rule types beside the type of a setting: Annotated[float, within("[0, 1)")]
PHRASES = {("ranges.py", "within")}
# file names in more than one folder, and why
_PAIR = "the pages of reports/blocks show what diagnostics/ of this name measures"
_STORED = "class paths in archived settings name both files"
REPEATED = {
    "__init__.py": "Python's name",
    "base.py": "the base class of a folder's parts",
    "clients.py": _PAIR,
    "given.py": _STORED,
    "local.py": _STORED,
    "mse.py": _PAIR,
    "pages.py": "one of each paper",
}


def test_no_definition_is_named_by_a_bare_participle_preposition_adverb_or_pronoun():
    paths = list(PACKAGE.rglob("*.py"))
    assert len(paths) > 200
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in paths
        for name in re.findall(r"^ *(?:async )?(?:def|class) _*(\w+)", path.read_text(encoding="utf-8"), re.M)
        if name in FORBIDDEN
    }
    assert found == PHRASES


def test_several_pieces_of_work_are_called_pieces():
    paths = [*PACKAGE.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]
    found = {path for path in paths if re.search(r"\bworks(?:\[| =|: |, )|\bin works\b", path.read_text("utf-8"))}
    assert len(paths) > 400 and not found - {Path(__file__)}


def test_a_public_class_or_alias_has_one_meaning_in_the_package():
    """An alias is a name in CamelCase that a module gives to a type. Hydra's plugins of this package count, too."""
    places = defaultdict(set)
    for path in SOURCES.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for one in re.finditer(r"^ *class (\w+)|^([A-Z]\w*[a-z]\w*) = ", text, re.M):
            places[one[1] or one[2]].add(str(path.relative_to(SOURCES)))
    assert len(places) > 400
    assert not {name: where for name, where in places.items() if len(where) > 1 and not name.startswith("_")}


def test_file_names_that_repeat_are_listed_with_the_reason():
    folders = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        folders[path.name].append(path.parent.name)
    assert {name for name, where in folders.items() if len(where) > 1} == REPEATED.keys()


def test_no_function_is_longer_than_sixty_lines():
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds) and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert not found
