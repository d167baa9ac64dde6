"""One row per arrival, kept in memory and written at the end: trace.parquet, and tables with other columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..files import atomic_write
from ..stateful import Stateful

TRACE_TYPES = {
    "upload": np.int64,  # number of this arrival, from 1
    "time": np.float64,  # virtual time, in the unit of the delay
    "client": np.int64,
    "dispatched_iteration": np.int64,
    "iteration": np.int64,  # server iterations done when it arrived
    "staleness": np.int64,
    "samples": np.int64,
    "local_steps": np.int64,
    "model_changed": np.bool_,
    "delay": np.float64,  # virtual time between dispatch and arrival
}
_CHUNK_ROWS = 65_536  # Python tuples cost some 400 bytes a row, columns 73: convert before they pile up


class Trace(Stateful):
    """Collects the arrivals of a run in memory and writes them when closed. 73 bytes per arrival with TRACE_TYPES.

    types  the columns by name
    """

    def __init__(self, path: Path, types: dict[str, type] = TRACE_TYPES):
        self.path, self.types = Path(path), types
        self._pending: list[tuple] = []
        self._chunks: list[list[np.ndarray]] = [[np.empty(0, dtype) for dtype in self.types.values()]]

    def add(self, row: tuple) -> None:
        """One arrival, as a tuple in the order of the columns."""
        self._pending.append(row)
        if len(self._pending) >= _CHUNK_ROWS:
            self._convert()

    def _convert(self) -> None:
        if self._pending:
            columns = zip(*self._pending, strict=True)
            pairs = zip(columns, self.types.values(), strict=True)
            self._chunks.append([np.array(values, dtype=dtype) for values, dtype in pairs])
            self._pending = []

    def columns(self) -> dict[str, np.ndarray]:
        """All arrivals so far, one array per column."""
        self._convert()
        self._chunks = [[np.concatenate(parts) for parts in zip(*self._chunks, strict=True)]]
        return dict(zip(self.types, self._chunks[0], strict=True))

    def state_dict(self) -> dict[str, object]:
        """For the checkpoint: one torch tensor per column (``torch.load`` takes these with ``weights_only=True``)."""
        import torch

        return {name: torch.from_numpy(column.copy()) for name, column in self.columns().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the arrivals by those of ``state_dict()``."""
        self._pending = []
        self._chunks = [[state[name].numpy().astype(dtype) for name, dtype in self.types.items()]]

    def close(self) -> None:
        """Write the file, whole or not at all."""
        import pandas as pd

        with atomic_write(self.path) as file:
            pd.DataFrame(self.columns()).to_parquet(file, engine="pyarrow", index=False, write_page_checksum=True)
