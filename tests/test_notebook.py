"""The notebooks in examples/ run as they stand."""

from pathlib import Path

import nbformat
import pytest
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
