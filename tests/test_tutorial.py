"""docs/tutorial_algorithm.md, followed literally in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.process]

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial_algorithm.md").read_text()


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with the tutorial's files, its row and new golden trajectories in it."""
    copy = tmp_path_factory.mktemp("copy")
    for folder in ("src", "conf", "tests", "sweeps", "docs"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", copy)
    files = re.findall(r"```\w+ file=(\S+)\n(.*?)```", PAGE, re.S)
    assert len(files) == 3
    for name, content in files:
        (copy / name).write_text(content)
    (row,) = re.findall(r"```markdown\n(.*?)```", PAGE, re.S)
    readme = (ROOT / "README.md").read_text()
    last = next(line for line in readme.splitlines(keepends=True) if line.startswith("| `asyncfeded`"))
    (copy / "README.md").write_text(readme.replace(last, last + row))
    answer = call(copy, "tests/algorithms/golden.py")  # make golden
    assert answer.returncode == 0, answer.stderr
    return copy


def call(project, *words):
    paths = os.pathsep.join(str(project / folder) for folder in ("src", "tests"))
    return subprocess.run(
        [sys.executable, *words], cwd=project, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )


def test_the_tutorials_commands_answer_as_it_says(project):
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    first, second = (line.split()[1:] for line in commands.splitlines())
    answer = call(project, "-m", "asyncfl_bench.cli", *first)
    assert answer.returncode == 0 and "ringmaster-digits-exponential-seed0" in answer.stdout, answer.stderr
    answer = call(project, "-m", "asyncfl_bench.cli", *second)
    assert answer.returncode == 2
    assert f"`{answer.stderr.strip()}`" in PAGE


HOUSE = {  # tests that every algorithm must pass, and how many of them are about this one at least
    "algorithms/test_ringmaster.py": 2,
    "algorithms/test_contract.py": 2 + 2 + 1 + 6 + 1,
    "algorithms/test_docstrings.py": 2,
    "algorithms/test_golden.py": 2,
    "test_config.py": 3,
    "test_layers.py": 1,
    "test_resume.py": 1,  # killed at random moments
}


@pytest.mark.parametrize("file", HOUSE)
def test_what_the_tutorial_makes_passes_the_tests_of_the_house(file, project):
    answer = call(project, "-m", "pytest", "-m", "", f"tests/{file}", "-k", "ringmaster")
    assert answer.returncode == 0, answer.stdout
    assert int(re.search(r"(\d+) passed", answer.stdout)[1]) >= HOUSE[file]


def test_nothing_else_has_to_know_the_new_algorithm(project):
    files = ["config/test_resolve.py", "test_ranges.py", "test_layers.py", "algorithms/test_golden.py"]
    words = [f"tests/{file}" for file in files]
    answer = call(project, "-m", "pytest", *words, "-k", "not a_trajectory")
    assert answer.returncode == 0, answer.stdout
