"""Rules of the house, kept by tests."""

import ast
from pathlib import Path

import pytest

from asyncfl_bench.config import options

PACKAGE = Path(__file__).parents[1] / "src" / "asyncfl_bench"
ROOT = PACKAGE.parents[1]
LAYERS = ("algorithms", "clients", "tasks", "simulation")


def imports_of(path: Path) -> set[str]:
    """Sub-packages of asyncfl_bench that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 2 and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("asyncfl_bench."):
            found.add(node.module.split(".")[1])
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_algorithms_clients_tasks_and_simulation_do_not_import_each_other(layer):
    for path in (PACKAGE / layer).glob("*.py"):
        assert not imports_of(path) & (set(LAYERS) - {layer}), path.name


def test_only_the_composition_root_knows_all_parts():
    for layer in (*LAYERS, "tracking", "reports", "diagnostics"):
        for path in (PACKAGE / layer).glob("*.py"):
            assert not imports_of(path) & {"experiment", "cli"}, path.name


def test_server_rules_never_ask_for_the_clock_the_data_or_the_tracker():
    for path in (PACKAGE / "algorithms").glob("*.py"):
        assert imports_of(path) <= {"errors", "storage", "types"}, path.name


@pytest.mark.parametrize("name", options("algorithm"))
def test_every_algorithm_has_its_file_test_docstring_and_row_in_the_readme(name):
    source = (
        PACKAGE / "algorithms" / f"{name}.py" if name != "asgd" else PACKAGE / "algorithms" / "asgd.py"
    ).read_text()
    for word in ("Rule ", "Upload ", "State ", "Limits ", "arXiv"):
        assert word in source, f"{name}: the docstring lacks {word!r}"
    assert f"`{name}`" in (ROOT / "README.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "algorithms").glob("test_*.py"))
    assert name in tests
