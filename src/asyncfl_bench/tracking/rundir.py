"""The directory of one run: names, writers and digests of its files, from which all tables and figures are computed.

The entry ``files`` of summary.json has the SHA-256 of each other file of the run, and of the summary without its own
digest. A flipped bit is thus found before its number is used. Directories of earlier versions lack the entry.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BenchError
from ..files import LARGEST_FILE, atomic_write, open_own, open_regular, sha256_of, to_json_types
from ..stateful import Stateful

if TYPE_CHECKING:
    import torch

FILES = "files"
SUMMARY_NAME = "summary.json"
_LARGEST = 2**36  # bytes of a file
_LONGEST_LINE, _LARGEST_METRICS = 2**24, 4 * LARGEST_FILE  # bytes of metrics.jsonl
LOCK_NAME = ".lock"  # locked by the process of the run; a killed process leaves the file (see ``is_locked``)
CONFIG_NAME = "config.yaml"
METRICS_NAME = "metrics.jsonl"
CHECKPOINT_NAME = "checkpoint.pt"
TRACE_NAME = "trace.parquet"
RECORD_NAME, UPLOADS_NAME, COUNTS_NAME = "arrivals.csv", "uploads.bin", "counts.npy"  # of a live run
PARTITION_NAME = "partition.npz"
CLIENTS_NAME = "clients.parquet"
INITIAL_NAME, MODEL_NAME = "model_initial.pt", "model_final.pt"
ERROR_NAME = "error.txt"
# files written at the end of a run, and at its start
_TABLES = (TRACE_NAME, "exchanges.parquet", "cancelled.parquet", CLIENTS_NAME, "rule.parquet", "mse_arrivals.parquet")
AT_END = (SUMMARY_NAME, *_TABLES, MODEL_NAME, ERROR_NAME)
AT_START = (PARTITION_NAME, INITIAL_NAME, RECORD_NAME, UPLOADS_NAME, COUNTS_NAME)
REPORTED = (CONFIG_NAME, METRICS_NAME, RECORD_NAME, *_TABLES)  # read by reports, besides the summary
DIGESTED = tuple(dict.fromkeys((*REPORTED, *AT_START, *AT_END[1:])))  # checkpoints have a digest of each part
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
COUNTERS = ("iteration", "uploads", "client_steps", "virtual_time", "wall_time")  # of each point in metrics.jsonl
SENT = ("uplink_bytes", "downlink_bytes")  # also counters, but missing in some archived runs
_CHUNK_ROWS = 65_536  # a Python tuple takes some 400 bytes, a row of columns 73


class Trace(Stateful):
    """Collects rows in memory and writes them as parquet when closed. 73 bytes for a row of TRACE_TYPES.

    types  columns by name
    """

    def __init__(self, path: Path, types: dict[str, type] = TRACE_TYPES):
        self.path, self.types = Path(path), types
        self._pending: list[tuple] = []
        self._chunks: list[list[np.ndarray]] = [[np.empty(0, dtype) for dtype in self.types.values()]]

    def add(self, row: tuple) -> None:
        """Add a row, in the order of the columns."""
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
        """Return all rows so far, an array for each column."""
        self._convert()
        self._chunks = [[np.concatenate(parts) for parts in zip(*self._chunks, strict=True)]]
        return dict(zip(self.types, self._chunks[0], strict=True))

    def state_dict(self) -> dict[str, object]:
        """Return a torch tensor for each column, which ``torch.load`` accepts with ``weights_only=True``."""
        import torch

        return {name: torch.from_numpy(column.copy()) for name, column in self.columns().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the rows by those of ``state_dict()``."""
        self._pending = []
        self._chunks = [[state[name].numpy().astype(dtype) for name, dtype in self.types.items()]]

    def close(self) -> None:
        """Write the file atomically."""
        import pandas as pd

        with atomic_write(self.path) as file:
            pd.DataFrame(self.columns()).to_parquet(file, engine="pyarrow", index=False, write_page_checksum=True)


class MetricsFile:
    """metrics.jsonl: a JSON object for each logged point. The first point creates the file ``path``.

    Points are appended and flushed, so that a killed run keeps them.

    NaN and infinite numbers are written as ``null``, which is valid JSON and which pandas reads as NaN. The status of a
    diverged run is in summary.json.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self._file: Any = None

    def write(self, row: dict[str, object]) -> None:
        """Append one point: the five COUNTERS first, then the metrics in the given order."""
        ordered = {name: row[name] for name in COUNTERS} | row
        line = json.dumps(to_json_types(ordered), allow_nan=False) + "\n"
        if self._file is None:
            self._file = open_own(self.path, "a+b", buffering=0)  # one write for each line, without a buffer
            self._file.seek(0)
            self._file.truncate(self._file.readall().rfind(b"\n") + 1)  # a killed run may have left half a line
        elif not os.fstat(self._file.fileno()).st_nlink:
            raise BenchError(f"{self.path}: was removed while the run was writing to it")
        self._file.write(line.encode())

    def truncate(self, lines: int) -> None:
        """Keep the first ``lines`` complete lines, which a resumed run had logged at its checkpoint.

        Raises BenchError if there are fewer, because the resumed run would have a gap.
        """
        self.close()
        if not lines:
            self.path.unlink(missing_ok=True)
            return
        with open_own(self.path, "a+b") as file:
            file.seek(0)
            for found in range(lines):
                if not file.readline().endswith(b"\n"):
                    raise BenchError(
                        f"{self.path} holds {found} complete lines but the checkpoint was written after {lines}: "
                        "the run cannot be resumed; delete its directory to start it again"
                    )
            file.truncate(file.tell())

    def count_whole_lines(self) -> int:
        """Return the number of lines before the first one that is incomplete or not a JSON object."""
        count = 0
        with suppress(BenchError):
            for _ in iter_metrics(self.path):
                count += 1
        return count

    def sync(self) -> None:
        """Wait until the lines are on the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_metrics(path: Path) -> list[dict[str, object]]:
    """Return all points of a metrics.jsonl without a half-written last line; none of a missing file.

    Raises BenchError with the number of a complete line that is not a JSON object.
    """
    return list(iter_metrics(path))


def iter_metrics(path: Path) -> Iterator[dict[str, object]]:
    """Yield the points of ``read_metrics`` one by one, because long runs have hundreds of thousands."""
    path = Path(path)
    if not path.exists():
        return
    with open_regular(path, largest=_LARGEST_METRICS) as file:
        for number in itertools.count(1):
            line = file.readline(_LONGEST_LINE)
            if len(line) < _LONGEST_LINE and not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise BenchError(f"{path}, line {number}: not a JSON object")
            yield row


def describe_changed_file(summary: Mapping[str, Any], directory: Path, names: Sequence[str]) -> str:
    """Return a description of the first file that changed since the run wrote it; empty without a change.

    Missing files, and files of a summary without digests, count as unchanged. Raises OSError for a file that cannot be
    read.
    """
    if FILES not in summary:
        return ""
    known = summary[FILES]
    if not isinstance(known, dict) or known.get(SUMMARY_NAME) != _content_digest(summary):
        return f"{SUMMARY_NAME} is not the file that the run wrote"
    for name in names:
        if (directory / name).is_file() and known.get(name) != sha256_of(directory / name, _LARGEST):
            return f"{name} is not the file that the run wrote"
    return ""


def _content_digest(summary: Mapping[str, Any]) -> str:
    """Return the digest of a summary without its own digest. The layout in the file does not matter."""
    others = {name: digest for name, digest in summary[FILES].items() if name != SUMMARY_NAME}
    return hashlib.sha256(json.dumps({**summary, FILES: others}, sort_keys=True).encode()).hexdigest()


class RunDirectory:
    """Creates ``path`` and writes its files. All files but metrics.jsonl are written atomically.

    metrics  metrics.jsonl (``metrics.write(row)``)
    Raises BenchError if the directory cannot be created.
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

    def write_config(self, text: str) -> None:
        """Write config.yaml, the resolved config as YAML text."""
        with atomic_write(self.path / CONFIG_NAME) as file:
            file.write(text.encode())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, the last file, as its presence marks the end of a run. NaN and infinities become null.

        It contains the digests of the other files, or those in ``summary``.
        Raises OSError for a file that cannot be read, TypeError for a value that JSON cannot hold.
        """
        known = summary.get(FILES)
        if known is None:
            known = {name: sha256_of(self.path / name) for name in DIGESTED if (self.path / name).is_file()}
        content: Any = to_json_types({**summary, FILES: {**known}})
        content[FILES][SUMMARY_NAME] = _content_digest(content)
        text = json.dumps(content, indent=2, allow_nan=False) + "\n"
        with atomic_write(self.path / SUMMARY_NAME) as file:
            file.write(text.encode())

    @contextmanager
    def removing_if_empty(self) -> Iterator[None]:
        """Remove the directory at the end of the block if it is empty, as after a refused run."""
        try:
            yield
        finally:
            with suppress(OSError):
                self.path.rmdir()

    def remove_leftovers(self) -> None:
        """Remove half written files of killed processes. Only valid while no other process has the run."""
        for path in self.path.glob(".*.tmp"):
            path.unlink(missing_ok=True)

    def reopen(self) -> None:
        """Remove the files of an earlier end, before a run resumes."""
        for name in AT_END:  # the summary first, as it marks the others as complete
            (self.path / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all files of an earlier run except its settings, before a run starts."""
        self.reopen()
        for name in (*AT_START, CHECKPOINT_NAME, f"{CHECKPOINT_NAME}.previous"):
            (self.path / name).unlink(missing_ok=True)
        self.metrics.truncate(0)

    def copy_start_from(self, earlier: RunDirectory, lines: int) -> None:
        """Copy the files that the run in ``earlier`` had written after ``lines`` points."""
        for name in (METRICS_NAME, *AT_START):
            if (earlier.path / name).exists():
                with open_regular(earlier.path / name) as source, atomic_write(self.path / name) as file:
                    shutil.copyfileobj(source, file)
        self.metrics.truncate(lines)

    def open_trace(self, facts: Sequence[str] = ()) -> Trace:
        """Return the table of arrivals, trace.parquet. facts: names of further columns of numbers"""
        return self.open_table(TRACE_NAME, TRACE_TYPES | dict.fromkeys(facts, float))

    def open_table(self, name: str, types: dict[str, type]) -> Trace:
        """Return a table with these columns, which its ``close`` or that of the directory writes as ``name``."""
        return self._tables.setdefault(name, Trace(self.path / name, types))

    def write_partition(self, indices_n: Sequence[np.ndarray]) -> None:
        """Write partition.npz, with the sample indices of client i as ``client_i``."""
        # Any: NumPy's hints take any keyword for its flag allow_pickle
        arrays: dict[str, Any] = {f"client_{i}": np.asarray(indices) for i, indices in enumerate(indices_n)}
        with atomic_write(self.path / PARTITION_NAME) as file:
            np.savez(file, **arrays)

    def write_counts(self, counts_nc: np.ndarray) -> None:
        """Write counts.npy, the (n, classes) samples of each label at each client."""
        with atomic_write(self.path / COUNTS_NAME) as file:
            np.save(file, counts_nc)

    def write_model(self, name: str, named_tensors: Mapping[str, torch.Tensor]) -> None:
        """Write a dict of CPU tensors, for ``torch.load(..., weights_only=True)``."""
        import torch

        # Clones: parameters are views of one flat buffer, and a view is saved with its whole buffer.
        tensors = {key: tensor.detach().cpu().clone() for key, tensor in named_tensors.items()}
        with atomic_write(self.path / name) as file:
            torch.save(tensors, file)

    def close(self) -> None:
        """Close metrics.jsonl and write the open tables. May be called twice."""
        self.metrics.close()
        while self._tables:
            self._tables.popitem()[1].close()
