"""Every ``afl-run`` command of README and docs fits the settings; those of seconds run.

A comment behind a command that starts runs begins with its time on two cores (``# 3 s; …``, ``# 2 h``) or with what it
needs (``# needs Slurm``).
"""

import re
import shlex
from pathlib import Path

import pytest
from tiers import slow

from asyncfl_bench.config import compose, manual
from asyncfl_bench.config.composition import Compositions, asks_for_multirun
from asyncfl_bench.multirun import axes
from asyncfl_bench.multirun.decide_words import split_request

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OWN = re.compile(r"=(\S+,)?(mine|cutoff|split_asgd)\b")  # rules that a page adds: tests/test_tutorial.py follows it
OTHERS = (
    "--sync",
    "--import-fleet",
    "--check",
    "--resume",
    "--replay",
    "--repeat",
    "--list",
    "--config-dir",
    "--archive",
    "--cfg",
    "-sc",
)  # need files that a reader has
LIMIT = 5  # seconds


def commands(page: Path) -> list[tuple[str, str]]:
    """(command, comment) of each line of a ```sh block that starts runs or shows help."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [re.match(r"(?:.*; do .*?)?\s*(afl-run .*?)(?: & done; wait)?\s*(?:#\s*(.*))?$", line) for line in lines]
    pairs = [(match[1], match[2] or "") for match in found if match]
    return [(line, said) for line, said in pairs if not OWN.search(line) and line.split()[1] not in OTHERS]


def check_command(line: str) -> None:
    """Compose a single run, or the first and the last run of a multirun. Raises ConfigError."""
    flags, words = [], []
    for word in shlex.split(line)[1:]:
        (flags if word.startswith("-") else words).append(word)
    if "--live-app" in flags:
        words = ["live=flower", *words[1:]]
    if "--help" in flags:
        manual.describe_choices(words)
        return
    _, words = split_request(words)
    if "-m" not in flags and not asks_for_multirun(words):
        compose(words)
        return
    words = axes.expand_short_settings(words)
    shared = Compositions()
    grids = axes.drawn_grids(words)
    for place in (0, -1):
        shared.settings([f"{key}={values[place]}" for key, values in grids[place].items()])


def test_no_page_or_comment_chooses_a_launcher_with_a_dot_which_is_refused():
    files = [*PAGES, *(ROOT / "sweeps").rglob("*.yaml"), *(ROOT / "conf").rglob("*.yaml")]
    assert not [file for file in files if re.search(r"\bhydra\.(launcher|sweeper)=", file.read_text(encoding="utf-8"))]


NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
SWEEPS = ("docs/howto/cluster.md", "docs/howto/sweeps.md")  # with large sweeps: seconds


@pytest.mark.parametrize("page", [*(name for name in NAMES if name not in SWEEPS), *slow(*SWEEPS)])
def test_every_command_of_a_page_fits_the_settings(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for line, _ in commands(ROOT / page):
        check_command(line)


def test_commands_that_run_have_their_time_or_need():
    runs = [(line, said) for page in PAGES for line, said in commands(page)]
    starts = [(line, said) for line, said in runs if not re.search("--(help|plan|version)", line)]
    assert len(starts) >= 30
    assert not [line for line, said in starts if not re.match(r"\d+ (s|min|h)\b|needs ", said)]


RUN_ELSEWHERE = "agents.md"  # by tests/test_json.py
OF_SECONDS = re.compile(rf"[1-{LIMIT}] s\b")
QUICK = sorted(
    {line for page in PAGES if page.name != RUN_ELSEWHERE for line, said in commands(page) if OF_SECONDS.match(said)}
)


@pytest.mark.slow
@pytest.mark.parametrize("line", QUICK)
def test_a_command_of_seconds_runs(line, afl_run, tmp_path, monkeypatch):
    monkeypatch.setattr("asyncfl_bench.tracking.archive.checkout_directory", lambda: None)
    words = [word.replace("examples/", f"{ROOT}/examples/") for word in shlex.split(line)[1:]]
    done = afl_run(*words, "progress=false")
    assert done.returncode == 0, done.stderr
    assert [*tmp_path.glob("runs/**/summary.json")]
