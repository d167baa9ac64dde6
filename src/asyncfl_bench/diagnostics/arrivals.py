"""What the arrivals of a run look like: staleness, participation, training loss. Costs microseconds per arrival."""

from __future__ import annotations

import numpy as np

from ..simulation.engine import Observer
from ..types import Upload


class Arrivals(Observer):
    """Sums up uploads between two logged points, and who took part since the start.

    n      number of clients
    trace  tracking.trace.Trace to write one row per arrival to, or None
    """

    def __init__(self, n: int, trace=None):
        self.uploads_n = [0] * n
        self._trace = trace
        self._uploads = 0
        self._clear()

    def _clear(self) -> None:
        self._staleness: list[int] = []
        self._loss = None

    def arrived(self, upload: Upload, changed: bool, time: float) -> None:
        self._uploads += 1
        self.uploads_n[upload.client] += 1
        self._staleness.append(upload.staleness)
        # stays on the device: reading it here would wait for the device at every upload
        self._loss = upload.loss.clone() if self._loss is None else self._loss.add_(upload.loss)
        if self._trace is not None:
            self._trace.add(
                (
                    self._uploads,
                    time,
                    upload.client,
                    upload.base_iteration,
                    upload.base_iteration + upload.staleness,
                    upload.staleness,
                    upload.samples,
                    upload.local_steps,
                    changed,
                )
            )

    def metrics(self) -> dict[str, float]:
        """Metrics over the uploads since the last call; participation since the start of the run."""
        row: dict[str, float] = {}
        if self._staleness:
            staleness = np.asarray(self._staleness)
            row["train/loss"] = float(self._loss) / len(staleness)
            row["staleness/mean"] = float(staleness.mean())
            row["staleness/p95"] = float(np.percentile(staleness, 95))
            row["staleness/max"] = float(staleness.max())
        counts = np.sort(np.asarray(self.uploads_n, dtype=float))
        if counts.sum() > 0:
            n = len(counts)
            row["participation/heard_share"] = float((counts > 0).mean())
            row["participation/gini"] = float(2 * (np.arange(1, n + 1) @ counts) / (n * counts.sum()) - (n + 1) / n)
            row["participation/top10_share"] = float(counts[-10:].sum() / counts.sum())
        self._clear()
        return row

    def state_dict(self) -> dict:
        return {
            "uploads_n": list(self.uploads_n),
            "uploads": self._uploads,
            "staleness": list(self._staleness),
            "loss": self._loss,
        }

    def load_state_dict(self, state: dict) -> None:
        self.uploads_n, self._uploads = list(state["uploads_n"]), state["uploads"]
        self._staleness, self._loss = list(state["staleness"]), state["loss"]
