"""Statistics of arrivals: staleness, participation and training loss. Cost: microseconds per arrival."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..simulation.observer import Observer
from ..types import Upload, Work


class Arrivals(Observer):
    """Summarizes the uploads between two logged points, and the participation since the start.

    n      number of clients
    trace  table with a row for each arrival, or None
    rule   server rule, whose ``arrival_facts`` are the last columns of the trace
    """

    state_names = (
        *("uploads_n", "_uploads", "_works_n", "_delay_n", "_version_n", "_staleness_sum", "_staleness_max"),
        *("_in_flight", "_known_losses", "_versions", "_staleness", "_clients", "_iterations", "_losses_before"),
    )

    def __init__(self, n: int, trace=None, rule=None):
        self.uploads_n = [0] * n
        self._works_n, self._delay_n = [0] * n, [0.0] * n  # work that takes time and arrives; sum of its delays
        self._version_n = [0] * n  # model version of each client's latest upload
        self._staleness_sum, self._staleness_max = 0, 0
        # model version -> work in flight that started from it and will arrive
        self._in_flight: Counter[int] = Counter()
        self._known_losses: set[int] = set()  # sequence numbers of work in flight whose loss was drawn at dispatch
        # description of the first upload since the last logged point whose training loss was not finite
        self.first_unfinite: str | None = None
        self._trace, self._rule = trace, rule
        self._facts = () if rule is None else rule.arrival_facts
        self._uploads = 0
        self._clear()

    def _clear(self) -> None:
        self._staleness: list[int] = []
        self._versions: list[int] = []  # at each arrival: model versions of the work in flight
        self._clients: list[int] = []
        self._iterations: list[int] = []  # server iterations done when it arrived
        # tensors: reading them here would wait for the device at every upload
        self._losses: list = []
        self._losses_before: list[float] = []  # read already, before a checkpoint

    def dispatched(self, work: Work, model_d) -> None:
        if work.takes_slot and not work.lost:
            self._works_n[work.client] += 1
            self._delay_n[work.client] += work.due - work.start
        if work.lost:
            self._known_losses.add(work.sequence)
        else:
            self._in_flight[work.iteration] += 1

    def discarded(self, work: Work) -> None:
        if work.sequence in self._known_losses:
            self._known_losses.remove(work.sequence)
        else:
            self._release_version(work.iteration)

    def _release_version(self, version: int) -> None:
        self._in_flight[version] -= 1
        if not self._in_flight[version]:
            del self._in_flight[version]

    @property
    def mean_delay_n(self) -> np.ndarray:
        """(n,) mean delay of the work dispatched to each client; NaN without any.

        Work in flight is included, as slow clients would seem fast without it. Lost work and a first round, which takes
        no time, are left out."""
        works_n = np.asarray(self._works_n, dtype=float)
        return np.divide(self._delay_n, works_n, out=np.full(len(works_n), np.nan), where=works_n > 0)

    def arrived(self, upload: Upload, changed: bool, time: float) -> None:
        self._uploads += 1
        self.uploads_n[upload.client] += 1
        self._version_n[upload.client] = upload.base_iteration
        self._versions.append(len(self._in_flight))
        self._release_version(upload.base_iteration)
        self._staleness.append(upload.staleness)
        self._staleness_sum += upload.staleness
        self._staleness_max = max(self._staleness_max, upload.staleness)
        self._clients.append(upload.client)
        self._iterations.append(upload.base_iteration + upload.staleness)
        self._losses.append(upload.loss)
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
                    upload.delay,
                    *(getattr(self._rule, name) for name in self._facts),
                )
            )

    def metrics(self, iteration: int) -> dict[str, float]:
        """Return metrics over the uploads since the last call, and over participation since the start.

        iteration  server iterations done, from which the ages of the clients' latest uploads are counted
        """
        row: dict[str, float] = {}
        self.first_unfinite = None
        if self._staleness:
            staleness = np.asarray(self._staleness)
            losses = self._read_losses()
            row["train/loss"] = float(losses.mean())
            if not np.isfinite(losses).all():
                index = int(np.flatnonzero(~np.isfinite(losses))[0])
                self.first_unfinite = (
                    f"upload {self._uploads - len(losses) + index + 1} of client {self._clients[index]} with "
                    f"staleness {self._staleness[index]}, after {self._iterations[index]} server iterations"
                )
            of = {"mean": staleness.mean(), "median": np.median(staleness), "p95": np.percentile(staleness, 95)}
            row |= {f"staleness/{name}": float(value) for name, value in (of | {"max": staleness.max()}).items()}
        if self._versions:
            row["in_flight/versions_mean"] = float(np.mean(self._versions))
            row["in_flight/versions_max"] = float(max(self._versions))
        counts = np.sort(np.asarray(self.uploads_n, dtype=float))
        if counts.sum() > 0:
            age = iteration - np.asarray(self._version_n)[np.asarray(self.uploads_n) > 0]
            row["age/mean"], row["age/max"] = float(age.mean()), float(age.max())
            row["participation/heard_share"] = float((counts > 0).mean())
            row["participation/gini"] = _gini(counts)
            row["participation/top10_share"] = float(counts[-10:].sum() / counts.sum())
        self._clear()
        return row

    def summary(self, iterations: int) -> dict[str, float | int | None]:
        """Return numbers over the whole run for summary.json; None without arrivals or without server iterations."""
        counts, uploads = np.sort(np.asarray(self.uploads_n, dtype=float)), self._uploads
        return {
            "staleness_mean": self._staleness_sum / uploads if uploads else None,
            "staleness_max": self._staleness_max if uploads else None,
            "gini": _gini(counts) if uploads else None,
            "never_heard": int((counts == 0).sum()),
            "uploads_per_iteration": uploads / iterations if iterations else None,
        }

    def _read_losses(self) -> np.ndarray:
        """Return the training losses of the uploads since the last call, with one wait for the device."""
        import torch

        read = torch.stack(self._losses).double().cpu().numpy() if self._losses else np.empty(0)
        return np.concatenate([self._losses_before, read])

    def state_dict(self) -> dict:
        self._losses, self._losses_before = [], self._read_losses().tolist()
        return super().state_dict()

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self._losses = []


def _gini(sorted_n: np.ndarray) -> float:
    """Return the Gini coefficient of ascending counts: 0 if all are equal, (n - 1) / n if one client has all."""
    n = len(sorted_n)
    return float(2 * (np.arange(1, n + 1) @ sorted_n) / (n * sorted_n.sum()) - (n + 1) / n)
