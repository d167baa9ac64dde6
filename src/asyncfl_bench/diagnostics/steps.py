"""Observers of the global model: its change between logged points, facts about its steps, and the mean of versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..simulation.observer import Observer
from ..stateful import Stateful
from ..types import Recorder, Upload

if TYPE_CHECKING:
    from torch import Tensor

    from ..simulation.budget import Counters
    from ..tracking.rundir import RunDirectory, Trace

DECISIONS_NAME = "rule.parquet"


class Steps(Observer):
    """Measures the distance that the model moved between two logged points, and means of the rule's numbers.

    rule     server rule, whose ``averaged`` names the numbers of ``stats`` that are averaged
    model_d  (d,) global model, of which a copy is kept: d floats
    n        number of clients
    kept_n   uploads of each client that the rule kept; None for a rule that does not select uploads
    """

    state_names = ("_before_d", "_iterations", "_sums", "kept_n")

    def __init__(self, rule, model_d: Tensor, n: int):
        self._rule, self._model_d = rule, model_d
        self._columns = rule.decision_columns if isinstance(rule, Recorder) else ()
        self._before_d = model_d.clone()
        self._table: Trace | None = None
        self.kept_n: list[float] | None = None
        if "kept" in self._columns:
            self.kept_n = [0.0] * n
            self._client, self._kept = self._columns.index("client"), self._columns.index("kept")
        self._clear()

    def open(self, directory: RunDirectory) -> None:
        """Write the decisions of the rule to rule.parquet from now on, if it has any."""
        if self._columns:
            types: dict[str, type] = {"iteration": np.int64} | dict.fromkeys(self._columns, float)
            self._table = directory.open_table(DECISIONS_NAME, types)

    def _clear(self) -> None:
        self._iterations = 0
        self._sums: dict[str, Any] = dict.fromkeys(self._rule.averaged, 0.0)

    def iterated(self, counters: Counters) -> None:
        if self._sums:
            stats = self._rule.stats()
            for name in self._sums:
                self._sums[name] = self._sums[name] + stats[name]
            self._iterations += 1
        for row in self._rule.decisions() if self._columns else ():
            if self._table is not None:
                self._table.add((counters.iteration, *row))
            if self.kept_n is not None:
                self.kept_n[row[self._client]] += row[self._kept]

    def metrics(self) -> dict[str, float]:
        """Return metrics over the iterations since the last call."""
        row = {"model/change_norm": float((self._model_d - self._before_d).norm())}
        if self._iterations:
            row |= {f"{name}_mean": float(total) / self._iterations for name, total in self._sums.items()}
        self._before_d.copy_(self._model_d)
        self._clear()
        return row

    def state_dict(self) -> dict:
        self._sums = {name: float(total) for name, total in self._sums.items()}
        return super().state_dict()

    def parts(self) -> dict[str, Stateful]:
        return {} if self._table is None else {"table": self._table}


class ModelAverage(Observer):
    """Keeps the model after each of the last W uploads: W d floats. Its mean shows how much of a difference is noise.

    Source: averaging of iterates (Polyak, Juditsky 1992), here over a window.
    model_d  (d,) global model
    window   W
    last     test metrics of the mean at the latest point: accuracy (share), loss (nats)
    """

    state_names = ("_models_wd", "_seen", "last")

    def __init__(self, model_d: Tensor, window: int):
        self._model_d, self.window = model_d, window
        self._models_wd = model_d.new_zeros(window, len(model_d))
        self._seen = 0
        self.last: dict[str, float] = {}

    def arrived(self, upload: Upload, changed: bool, time: float) -> None:
        self._models_wd[self._seen % self.window] = self._model_d
        self._seen += 1

    @property
    def mean_d(self) -> Tensor:
        """(d,) mean of the kept models; the model itself before the first upload."""
        kept = min(self._seen, self.window)
        return self._models_wd[:kept].mean(0) if kept else self._model_d
