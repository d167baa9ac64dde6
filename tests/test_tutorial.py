"""The pages own_rule.md and message_rule.md of the documentation, followed literally."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.process]

ROOT = Path(__file__).parents[1]
PAGES = {  # by the rule that is added
    rule: (ROOT / "docs" / f"{name}.md").read_text()
    for rule, name in {"cutoff": "start/own_rule", "split_asgd": "howto/message_rule"}.items()
}
PACKAGE = PAGES["cutoff"]
(LIMIT,) = re.findall(r"```yaml limit\n(.*?)```", PACKAGE, re.S)


def blocks(kind, page):
    """Name of a file -> its content, of the blocks that are marked so."""
    return dict(re.findall(rf"```\w+ {kind}=(\S+)\n(.*?)```", page, re.S))


def commands(kind, page):
    """The words after afl-run of every line of a block of commands."""
    (lines,) = re.findall(rf"```sh {kind}\n(.*?)```", page, re.S)
    return [shlex.split(line, comments=True)[1:] for line in lines.splitlines()]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with the tutorial's files and new golden trajectories in it."""
    copy = tmp_path_factory.mktemp("copy")
    for folder in ("src", "conf", "tests", "sweeps", "docs", "examples", "scripts"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", copy)
    files = blocks("file", PAGES["cutoff"])
    assert len(files) == 3
    for name, content in files.items():
        (copy / name).write_text(content)
    with (copy / "docs" / "explanation" / "limits.yaml").open("a") as file:
        file.write(LIMIT)
    answer = call(copy, "tests/algorithms/golden.py", "cutoff")
    assert answer.returncode == 0, answer.stderr
    return copy


def call(project, *words):
    paths = os.pathsep.join(str(project / folder) for folder in ("src", "tests"))
    return subprocess.run(
        [sys.executable, *words], cwd=project, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )


@pytest.mark.parametrize("rule", PAGES)
def test_the_tutorials_commands_answer_as_it_says(rule, project):
    first, second = commands("run", PAGES[rule])
    answer = call(project, "-m", "asyncfl_bench", *first)
    assert answer.returncode == 0 and f"{rule}-digits-exponential-seed0" in answer.stdout, answer.stderr
    answer = call(project, "-m", "asyncfl_bench", *second)
    assert answer.returncode == 2
    assert f"`{answer.stderr.strip()}`" in PAGES[rule]
    (check,) = commands("check", PAGES[rule])
    assert check[-1] == f"algorithm={rule}", "the check names the page's rule"


def test_the_example_of_split_learning_passes_its_check(project):
    answer = call(project, "-m", "asyncfl_bench", *commands("check", PAGES["split_asgd"])[0])
    assert answer.returncode == 0 and "It is fedavg: one client." in answer.stdout, answer.stdout + answer.stderr


HOUSE = {  # tests that every algorithm must pass, and how many of them are about this one at least
    "algorithms/test_contract.py": 6,
    "algorithms/test_docstrings.py": 1,
    "algorithms/test_golden.py": 2,
    "algorithms/test_limits.py": 1,
    "algorithms/test_cutoff.py": 1,
    "config/test_descriptions.py": 1,
    "test_config.py": 2,
    "test_layers.py": 1,
}


def test_what_the_tutorial_makes_passes_its_tests_and_those_of_the_house(project):
    words = ["-m", "pytest", "-m", "", "-k", "cutoff", "-vv", *(f"tests/{file}" for file in HOUSE)]
    answer = call(project, *words)
    assert answer.returncode == 0, answer.stdout
    for file, least in HOUSE.items():
        assert len(re.findall(rf"^tests/{file}::.* PASSED", answer.stdout, re.M)) >= least, file


def test_nothing_else_has_to_know_the_new_algorithm(project):
    files = ["config/test_resolve.py", "test_ranges.py", "test_layers.py", "algorithms/test_golden.py"]
    words = [f"tests/{file}" for file in files]
    answer = call(project, "-m", "pytest", *words, "-k", "not a_trajectory")
    assert answer.returncode == 0, answer.stdout


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The package of docs/start/own_rule.md."""
    folder = tmp_path_factory.mktemp("mylab")
    ((name, change),) = blocks("change", PACKAGE).items()
    rule = blocks("file", PAGES["cutoff"])["src/asyncfl_bench/algorithms/cutoff.py"]
    for line in filter(None, change.splitlines()):
        module, _, names = line.removeprefix("from asyncfl_bench.").partition(" import ")
        (old,) = (one for one in rule.splitlines() if one.startswith("from .") and one.endswith(f" import {names}"))
        assert old.split()[1].lstrip(".") == module.removeprefix("algorithms.")
        rule = rule.replace(old, line)
    module = "asyncfl_bench.algorithms.cutoff.Cutoff"
    settings = blocks("file", PACKAGE)["conf/algorithm/cutoff.yaml"].replace(module, "mylab.cutoff.Cutoff")
    files = {name: rule, "src/mylab/__init__.py": "", "src/mylab/conf/algorithm/cutoff.yaml": settings}
    files |= {"src/mylab/conf/limits.yaml": LIMIT} | blocks("own", PACKAGE)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def elsewhere(words, folder, *paths):
    """A command in a folder outside the project, which is found as an installed package is."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [ROOT / "src", *paths]))}
    command = [sys.executable, "-P", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_package_of_ones_own_runs_from_its_folder(lab):
    check, words = commands("own", PACKAGE)
    answer = elsewhere(["-m", "asyncfl_bench", *words], lab / "src")
    assert answer.returncode == 0 and "cutoff-digits-exponential-seed0" in answer.stdout, answer.stderr
    answer = elsewhere(["-m", "asyncfl_bench", *check], lab / "src")
    assert answer.returncode == 0 and answer.stdout.count("ok ") == 7, answer.stdout + answer.stderr
    assert "It is asgd: R >= T." in answer.stdout


def test_an_installed_package_of_ones_own_is_a_choice_like_any_other(lab, tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*pip, tmp_path / "site", lab], check=True)
    (grid,) = commands("installed", PACKAGE)
    answer = elsewhere(["-m", "asyncfl_bench", *grid], tmp_path, tmp_path / "site")
    assert answer.returncode == 0 and "2 runs, 0 of them finished already" in answer.stderr, answer.stderr
    assert elsewhere(["-m", "asyncfl_bench.reports.cli", "runs"], tmp_path).returncode == 0  # the package is not needed
    assert "| ASGD with a cutoff" in (tmp_path / "runs" / "report" / "README.md").read_text()
