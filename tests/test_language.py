"""What a person reads has none of the turns that make a reader stumble."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = """
README.md CONTRIBUTING.md AGENTS.md RELEASE.md Makefile docs/**/*.md
conf/**/*.yaml sweeps/**/*.yaml sweeps/*.md src/**/*.py src/**/*.yaml scripts/**/*.py examples/*.ipynb
"""
TURNS = """
for who|anew|whom|nobody|everybody|(?:come|comes|came) to|(?:go|goes|going|went) on|stead of|in the stead
under way|so many|begun|handed out|one's own|of its own|of their own|what came of|lies?|(?:is|are) told
no linear|(?<!there )is no(?! longer| more)|who has left|those that have
"""
FORBIDDEN = re.compile(rf"\b(?:{'|'.join(TURNS.split(chr(10))[1:-1])})\b")
# (file, phrase) where a turn is right
ALLOWED = {("src/asyncfl_bench/papers/asyncfeded/claims.yaml", "reaches 90 % of its own")}


def texts(path: Path) -> Iterator[str]:
    """What a person reads in a file, in lower case, each on one line: all of it, or strings and comments of code."""
    whole = path.read_text(encoding="utf-8").lower()
    if path.suffix != ".py":
        yield " ".join(re.sub(r"\n *# ?", " ", whole).split())
    elif FORBIDDEN.search(" ".join(re.sub(r"[\"'#]", " ", whole).split())):  # parsing takes ten times as long
        nodes = (node.value for node in ast.walk(ast.parse(whole)) if isinstance(node, ast.Constant))
        sentences = (text for text in nodes if isinstance(text, str) and re.search(r"\s", text))
        comments = (re.sub(r"^.*?#", "", block[0], flags=re.M) for block in re.finditer(r"(?:^.*#.*\n)+", whole, re.M))
        yield from (" ".join(text.split()) for text in (*sentences, *comments))


def forbidden_turns(path: Path) -> list[str]:
    """Each with the words beside it."""
    name = path.relative_to(ROOT).as_posix()
    right = [phrase for file, phrase in ALLOWED if file == name]
    found = []
    for text in texts(path):
        for phrase in right:
            text = text.replace(phrase, "")
        found += [f"{name}: {text[max(0, at.start() - 30) : at.end() + 30]}" for at in FORBIDDEN.finditer(text)]
    return found


def test_texts_have_no_turn_that_makes_a_reader_stumble():
    paths = [path for place in PLACES.split() for path in ROOT.glob(place)]
    assert len(paths) > 400
    assert not [turn for path in paths for turn in forbidden_turns(path)]


def test_turns_are_found_in_strings_and_comments_across_lines_but_not_in_names(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    code = tmp_path / "code.py"
    code.write_text('begun = 1  # not under\n# way\nsay("It is no "\n    "number", {"begun": 2})\n"""Done\nanew."""\n')
    found = {turn.partition(": ")[2] for turn in forbidden_turns(code)}
    assert found == {"it is no number", "done anew.", "not under way"}
