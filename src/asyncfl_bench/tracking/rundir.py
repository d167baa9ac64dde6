"""The directory of one run: everything a table or a figure is computed from, whatever the tracker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BenchError
from ..files import atomic_write, plain
from .metrics import MetricsFile
from .trace import TRACE_TYPES, Trace

if TYPE_CHECKING:
    import torch

CONFIG_NAME = "config.yaml"
METRICS_NAME = "metrics.jsonl"
SUMMARY_NAME = "summary.json"
CHECKPOINT_NAME = "checkpoint.pt"
TRACE_NAME = "trace.parquet"
PARTITION_NAME = "partition.npz"


class RunDirectory:
    """Creates ``path`` and writes its files. Every file but metrics.jsonl appears whole or not at all.

    metrics   the open metrics.jsonl (``metrics.write(row)``)
    Raises BenchError when the directory cannot be created.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BenchError(f"cannot create the run directory {self.path}: {error.strerror}") from error
        self.metrics = MetricsFile(self.path / METRICS_NAME)
        self._tables: dict[str, Trace] = {}

    @property
    def checkpoint_path(self) -> Path:
        return self.path / CHECKPOINT_NAME

    @property
    def summary_path(self) -> Path:
        return self.path / SUMMARY_NAME

    def write_config(self, text: str) -> None:
        """config.yaml: the resolved config as YAML text."""
        with atomic_write(self.path / CONFIG_NAME) as file:
            file.write(text.encode())

    def truncate_metrics(self, lines: int) -> None:
        """Keeps the first ``lines`` complete lines of metrics.jsonl (0: none). Raises BenchError when fewer exist."""
        self.metrics.truncate(lines)

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """summary.json. Its presence says the run ended, so it is written last. NaN and infinities become null."""
        text = json.dumps(plain(dict(summary)), indent=2, allow_nan=False) + "\n"
        with atomic_write(self.summary_path) as file:
            file.write(text.encode())

    def remove_summary(self) -> None:
        """Before a run is started again in its directory: it is not complete any more."""
        self.summary_path.unlink(missing_ok=True)

    def open_trace(self, facts: Sequence[str] = ()) -> Trace:
        """The run's trace, written as trace.parquet by its ``close`` or by the directory's.

        facts  names of further columns of numbers
        """
        return self.open_table(TRACE_NAME, TRACE_TYPES | dict.fromkeys(facts, float))

    def open_table(self, name: str, types: dict[str, type]) -> Trace:
        """A table of arrivals with these columns, written as ``name`` by its own ``close`` or by the directory's."""
        return self._tables.setdefault(name, Trace(self.path / name, types))

    def write_partition(self, indices_n: Sequence[np.ndarray]) -> None:
        """partition.npz: the sample indices of client i under the key ``client_i``."""
        # Any: NumPy's hints take any keyword for its flag allow_pickle
        arrays: dict[str, Any] = {f"client_{i}": np.asarray(indices) for i, indices in enumerate(indices_n)}
        with atomic_write(self.path / PARTITION_NAME) as file:
            np.savez(file, **arrays)

    def write_model(self, name: str, named_tensors: Mapping[str, torch.Tensor]) -> None:
        """``<name>.pt``: a plain dict of CPU tensors, for ``torch.load(..., weights_only=True)``."""
        import torch

        # Clones: parameters are views of one flat buffer, and a saved view brings its whole buffer along.
        tensors = {key: tensor.detach().cpu().clone() for key, tensor in named_tensors.items()}
        with atomic_write(self.path / f"{name}.pt") as file:
            torch.save(tensors, file)

    def close(self) -> None:
        """Closes metrics.jsonl and writes the tables that were opened. May be called twice."""
        self.metrics.close()
        while self._tables:
            self._tables.popitem()[1].close()
