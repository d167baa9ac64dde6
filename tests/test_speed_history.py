"""The history of speed that ``make bench`` keeps."""

import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import history

HERE = ("cpu", 2, "2.15.0")


@pytest.fixture
def folder(tmp_path):
    fast = [
        history.Row("W1", "LeNet5", "ratio", 4.0, 3.8, 4.2),
        history.Row("start", "afl-run", "seconds", 2.0, 1.9, 2.2),
    ]
    history.append(tmp_path, fast, *HERE, "2026-11-21")
    return tmp_path


def measured(folder, ratio, seconds):
    rows = [history.Row("W1", "LeNet5", "ratio", ratio, ratio - 0.1, ratio + 0.1)]
    rows.append(history.Row("start", "afl-run", "seconds", seconds, seconds - 0.1, seconds + 0.1))
    history.append(folder, rows, *HERE, "2026-11-22")


def slower(folder):
    found = history.slower(pd.read_csv(folder / history.FILE))
    return [] if found.empty else list(found["name"])


def test_a_ratio_that_fell_below_its_former_range_and_a_time_that_rose_above_it_are_slower(folder):
    assert slower(folder) == []
    measured(folder, ratio=3.6, seconds=2.4)
    assert slower(folder) == ["W1", "start"]


@pytest.mark.parametrize(("ratio", "seconds"), [(3.75, 2.25), (5.0, 1.0)])
def test_what_is_within_the_former_range_or_faster_is_not_named(folder, ratio, seconds):
    measured(folder, ratio, seconds)
    assert slower(folder) == []


def test_another_machine_has_a_history_of_its_own(folder):
    history.append(folder, [history.Row("W1", "LeNet5", "ratio", 1.0, 0.9, 1.1)], "cpu", 4, "2.15.0", "2026-11-22")
    assert slower(folder) == []


def test_the_page_has_the_last_measurement_of_each_row_and_names_the_slower_ones(folder):
    measured(folder, ratio=3.0, seconds=2.0)
    history.write_page(folder)
    text = (folder / "README.md").read_text()
    assert "- **Slower**: W1" in text and "**Slower**: start" not in text
    rows = [line for line in text.splitlines() if line.startswith(("| W1", "| start"))]
    assert [row.split(" | ")[2] for row in rows] == ["3", "2"]
