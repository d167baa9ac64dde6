"""The measurements for a GPU run to their end without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "prove_gpu.py"


@pytest.mark.process
def test_every_line_of_the_measurements_is_tried_with_graphs_that_are_not_there(tmp_path):
    page = tmp_path / "page.md"
    command = [sys.executable, SCRIPT, page, "--device", "cpu", "--quick"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, env=environment, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    text = page.read_text(encoding="utf-8")
    sections = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert sections == [
        *("speed of the machine", "stacks of models", "gradients as graphs", "runs of the engine"),
        *("group of runs", "cost of an arrival", "memory of runs"),
    ]
    assert "FAILED" not in text and "left out" not in text and "False" not in text
    assert "| 2 | 2 | " in text
    assert "| as eager |" in text and "| graph |" in text and "| batched |" in text
