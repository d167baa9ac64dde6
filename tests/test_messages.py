"""What a wrong command or call answers: each is in messages.txt, with the whole message below it.

`make messages` writes the messages again, and their difference is read in review. A line without ">>>" is the words of
afl-run, or a command of afl-report in a folder with the runs some/ and an empty folder. A call sees the names of the
test file that its section is called after, its folder HERE, monkeypatch, afl_run and afl_report. "…" stands for text
that differs between machines, or comes from another package.
"""

import importlib.util
import os
import re
import shlex
import sys
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from reports.runs_by_hand import write_run

from asyncfl_bench.reports import cli

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("messages.txt")
INDENT = "    "
CALL = ">>> "

pytestmark = pytest.mark.timeout(60)  # some files are made to hang a reader


def read_cases():
    """[(section, command, message)] in the file's order."""
    section, cases = "", []
    for line in FILE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith(INDENT):
            cases[-1][2] = line.removeprefix(INDENT)
        elif line:
            cases.append([section, line, ""])
    return cases


CASES = read_cases()


@cache
def names_of(file):
    """All names of a test file."""
    spec = importlib.util.spec_from_file_location(file.removesuffix(".py").replace("/", "."), ROOT / "tests" / file)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def matches(message, said):
    return bool(re.fullmatch(".*".join(map(re.escape, message.split("…"))), said))


@pytest.fixture(scope="module")
def renewed():
    """{(section, command): message}: where `make messages` collects them, to write the file."""
    found = {} if "RENEW_MESSAGES" in os.environ else None
    yield found
    if found:
        lines, last = [], None
        for section, command, message in CASES:
            lines += [] if section == last else ["", f"## {section}"]
            lines += [command, INDENT + found.get((section, command), message)]
            last = section
        FILE.write_text("\n".join(lines[1:]) + "\n", "utf-8")


def answer_of(result):
    """Return what a command said; its exit code too, unless it is 2."""
    code = "" if result.returncode == 2 else f"exit code {result.returncode}: "
    return code + result.stdout + re.sub(r"^afl-(run|report): ", "", result.stderr).removesuffix("\n")


@pytest.fixture
def ask(monkeypatch, tmp_path, forgotten_parts, request):
    """``ask(section, command)``: the message, in which HERE and ROOT stand for the test's folder and the checkout."""

    def afl_report(*words):
        capsys = request.getfixturevalue("capsys")
        try:
            code = cli.main(words)
        except SystemExit as end:
            code = end.code
        return CompletedProcess(words, code, *capsys.readouterr())

    def call(section, code):
        answers = []
        names = {"HERE": tmp_path, "monkeypatch": monkeypatch}
        for name, command in (("afl_run", request.getfixturevalue("afl_run")), ("afl_report", afl_report)):
            names[name] = lambda *words, command=command: answers.append(answer_of(command(*words)))
        try:
            exec(compile(code, FILE, "exec"), names_of(section) | names)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return " ".join(answers) or "no error"

    def command(section, words):
        result, noted = request.getfixturevalue("answer")(words)
        assert noted.settings is None and not noted.planned and not result.stdout, "it would run"
        assert not list(tmp_path.iterdir()), "nothing is left on disk"
        return answer_of(result)

    def report(section, words):
        write_run(Path("some/runs"))
        Path("empty").mkdir()
        before = {*tmp_path.rglob("*")}
        said = answer_of(afl_report(*shlex.split(words)))
        assert {*tmp_path.rglob("*")} == before, "nothing is left on disk"
        return said

    def message(section, text):
        kinds = {CALL: call, "afl-report ": report, "": command}
        kind = next(kind for kind in kinds if text.startswith(kind))
        said = kinds[kind](section, text.removeprefix(kind))
        return said.replace(str(tmp_path), "HERE").replace(str(ROOT), "ROOT")

    return message


def with_tier(section, command, message):
    marks = [pytest.mark.slow] if section.endswith("(slow)") else []
    return pytest.param(section, command, message, id=f"{section}: {command:.80}", marks=marks)


@pytest.mark.parametrize(("section", "command", "message"), [with_tier(*case) for case in CASES])
def test_a_mistake_is_answered_by_its_message(section, command, message, ask, renewed):
    said = ask(section, command)
    if renewed is not None:
        lasting = re.sub(
            r"(one of|known:|choice:|groups|pages:) .* and \d+ more", r"\1 … more", said
        )  # these lists grow
        renewed[section, command] = message if "…" in message and matches(message, said) else lasting
    assert "\n" not in said and not said.startswith("NameError")
    assert renewed is not None or matches(message, said), f"{said}\nmake messages"


def test_no_mistake_is_listed_twice():
    commands = [f"{section if command.startswith(CALL) else ''} {command}" for section, command, _ in CASES]
    assert len(commands) == len({*commands})
