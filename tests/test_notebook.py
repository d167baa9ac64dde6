"""The notebooks and the script in examples/ run as they stand."""

import runpy
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
SHOWN = {  # the place of a code cell, and a part of what it shows
    "first_steps": (0, "<th>test accuracy</th>"),
    "own_rule": (1, "ok      resume"),
    "archived_runs": (0, "4 runs in mine.parquet"),
}


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebook_runs_and_is_committed_without_outputs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in codes)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    place, text = SHOWN[path.stem]
    assert text in str(codes[place].outputs)


def test_the_steps_on_the_griewank_function_are_those_of_equations_6_7_and_40():
    example = runpy.run_path(str(EXAMPLES / "griewank.py"))
    assert float(example["griewank"](torch.zeros(2))) == 0
    assert float(example["griewank"](torch.tensor([np.pi, 0.0]))) == pytest.approx(2 + np.pi**2 / 4000)
    start_d = torch.tensor(example["START"], dtype=torch.float64)
    updates = [example["local_update"](start_d, client) for client in range(4)]
    found = {name: example["aggregate"](create(), start_d, updates) for name, create in example["RULES"].items()}

    w, w_o = np.array(example["START"]), np.array(example["START"])
    mixed = w.copy()
    for arrival, update in enumerate(np.stack(updates)):
        gamma = np.linalg.norm(w - w_o) / np.linalg.norm(update)
        w = w + 5 / (gamma + 5) * update
        mixed = 0.9 * mixed + 0.1 * (w_o + update)
        np.testing.assert_allclose(found["AsyncFedED"][arrival + 1], w)
        np.testing.assert_allclose(found["FedAsync+Constant"][arrival + 1], mixed)
    last = {name: float((of[4] - of[3]).norm() / updates[3].norm()) for name, of in found.items()}
    assert last["AsyncFedED"] > 0.8 and last["FedAsync+Hinge"] < 0.01  # the slowest client's share


@pytest.mark.slow
def test_the_griewank_figure_is_drawn(tmp_path, capsys):
    runpy.run_path(str(EXAMPLES / "griewank.py"))["main"](str(tmp_path / "griewank.png"))
    assert (tmp_path / "griewank.png").stat().st_size > 20_000
    assert "| AsyncFedED | 0.941 | 1.017 | 0.864 | 0.058 | 0.603 |" in capsys.readouterr().out


def test_the_closed_form_of_a_quadratic_says_where_a_memory_of_every_client_pays():
    example = runpy.run_path(str(EXAMPLES / "memory.py"))
    form = example["closed_form"]
    assert form("ASGD", 1.0, 1.0, 1.0) == form("ACE", 1.0, 1.0, 1.0) == pytest.approx(0.004)
    assert form("ASGD", 1.0, 9.0, 1.0) == pytest.approx(5 * form("ACE", 1.0, 9.0, 1.0))
    assert form("ASGD", 1.0, 9.0, 0.0) == form("ACE", 1.0, 9.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("c", [1.0, 0.0])
@pytest.mark.parametrize("rule", ["ASGD", "ACE"])
def test_the_simulated_error_of_a_quadratic_is_that_of_the_closed_form(rule, c):
    example = runpy.run_path(str(EXAMPLES / "memory.py"))
    assert example["measure"](rule, 1.0, 3.0, c) == pytest.approx(example["closed_form"](rule, 1.0, 3.0, c), rel=0.1)
