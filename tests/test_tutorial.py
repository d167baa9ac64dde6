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
    """A copy of the project with the tutorial's files in it."""
    copy = tmp_path_factory.mktemp("copy")
    for folder in ("src", "conf", "tests", "sweeps"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    files = re.findall(r"```\w+ file=(\S+)\n(.*?)```", PAGE, re.S)
    assert len(files) == 3
    for name, content in files:
        (copy / name).write_text(content)
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


def test_the_tutorials_tests_and_the_contract_suite_pass(project):
    words = ("-m", "pytest", "-q", "--import-mode=importlib", "tests/algorithms/test_ringmaster.py")
    answer = call(project, *words, "tests/algorithms/test_contract.py", "-k", "ringmaster")
    assert answer.returncode == 0, answer.stdout
    passed = int(re.search(r"(\d+) passed", answer.stdout)[1])
    assert passed >= 2 + 2 + 2 + 1 + 6 + 1
