"""Directories and archives of other people: they run no code, write nowhere else and end in one line."""

from __future__ import annotations

import pandas as pd
from reports.runs_by_hand import write_run

from asyncfl_bench.files import spreadsheet_cell
from asyncfl_bench.reports.cli import main
from asyncfl_bench.tracking.archive import pack_archive
from asyncfl_bench.tracking.runs import load_runs

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b1A\u202eba"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b1A\u202eba"


def test_names_of_foreign_runs_reach_terminals_and_pages_without_control_characters(tmp_path, capsys):
    places = [tmp_path / "runs", tmp_path / "runs.parquet"]
    for seed in (0, 1):
        names = {"label": f"=HYPERLINK(1){ESCAPES}\n# title", "name": f"run{ESCAPES}\nforged line"}
        write_run(places[0], "mine", seed=seed, summary=names)
    pack_archive(places[:1], places[1])
    write_run(places[0], "other", summary={"data_digest": [ESCAPES], "name": f"run{ESCAPES}"})  # unreadable
    assert main([str(places[0])]) == 0
    page = places[0] / "report"
    texts = [*capsys.readouterr(), *(path.read_text() for path in page.glob("*.[mc]*"))]
    assert len(texts) > 3 and all(set(ESCAPES) & set(text) <= set(SHOWN) for text in texts)
    assert f"=HYPERLINK(1){SHOWN}" in texts[0]
    assert pd.read_csv(page / "measured.csv", dtype=str)["series"][0] == rf"'=HYPERLINK(1){SHOWN}\n# title"
    runs = load_runs(places[1])
    assert all(text.isprintable() for text in [*runs.index, *runs["name"], *runs["summary.label"]])


def test_a_cell_of_text_is_no_formula_and_a_number_stays_one():
    cells = ["=1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "-", "+1.5", "-1e-05", "ace - asgd", 3, None]
    assert [cell for cell in cells if spreadsheet_cell(cell) != cell] == cells[:5]
    assert spreadsheet_cell("=1") == "'=1"
