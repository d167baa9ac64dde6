"""Trackers that write the points of metrics.jsonl in another format. A resumed run writes them again."""

from __future__ import annotations

import csv
import json
import math
import shutil
from typing import Any, cast

from ..config.overrides import flat_items
from ..files import open_own, spreadsheet_cell, to_json_types
from .rundir import METRICS_NAME, read_metrics
from .trackers import RunFacts, Tracker

CSV_NAME = "metrics.csv"
EVENTS_NAME = "tensorboard"


class CsvTracker(Tracker):
    """``metrics.csv`` with a line for each point and a column for each metric. Missing numbers are empty cells."""

    def start(self, run: RunFacts) -> None:
        self._source, self._path = run.directory / METRICS_NAME, run.directory / CSV_NAME
        self._columns: list[str] = []
        self._write_all()

    def log(self, row: dict[str, object]) -> None:
        if not set(row) <= set(self._columns):  # the first point, or one with a new metric
            self._write_all()
            return
        with open_own(self._path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns, restval="").writerow(cast("dict[str, Any]", to_json_types(row)))

    def _write_all(self) -> None:
        rows = read_metrics(self._source)
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        with open_own(self._path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns, restval="")
            if rows:
                writer.writerow({name: spreadsheet_cell(name) for name in self._columns})
            writer.writerows(rows)


class TensorboardTracker(Tracker):
    """Scalars over server iterations, the config as text, and settings with results for the HParams tab."""

    needs = ("tensorboard", "tensorboard")

    def start(self, run: RunFacts) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.directory / EVENTS_NAME
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = SummaryWriter(str(folder))
        self._config = run.config
        self._writer.add_text("config", f"```json\n{json.dumps(run.config, indent=2, default=str)}\n```")
        for row in read_metrics(run.directory / METRICS_NAME):
            self.log(row)

    def log(self, row: dict[str, object]) -> None:
        for name, value in row.items():
            if isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, row["iteration"])
        self._writer.flush()

    def finish(self, summary: dict[str, object], exit_code: int) -> None:
        settings = {key: value for key, value in flat_items(self._config) if isinstance(value, (bool, int, float, str))}
        items = flat_items(cast("dict[str, Any]", summary.get("final") or {}), "final/")
        final = {key: value for key, value in items if isinstance(value, (int, float)) and math.isfinite(value)}
        self._writer.add_hparams(settings, final, run_name=".")  # not as a separate run
        self._writer.close()
