"""The directory of one run: its files, from which all tables and figures are computed, and their digests.

The entry ``files`` of summary.json has the SHA-256 of each other file of the run, and of the summary without the digest
of itself. A flipped bit is thus found before its number is used. Directories of earlier versions lack the entry.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BenchError
from ..files import atomic_write, open_regular, sha256_of, to_json_types
from .metrics import MetricsFile
from .trace import TRACE_TYPES, Trace

if TYPE_CHECKING:
    import torch

FILES = "files"
SUMMARY_NAME = "summary.json"
_LARGEST = 2**36  # bytes of a file
LOCK_NAME = ".lock"  # held while a process works on the run; a killed one leaves the file (see ``is_locked``)
CONFIG_NAME = "config.yaml"
METRICS_NAME = "metrics.jsonl"
CHECKPOINT_NAME = "checkpoint.pt"
TRACE_NAME = "trace.parquet"
RECORD_NAME, UPLOADS_NAME, COUNTS_NAME = "arrivals.csv", "uploads.bin", "counts.npy"  # of a live run
PARTITION_NAME = "partition.npz"
CLIENTS_NAME = "clients.parquet"
INITIAL_NAME, MODEL_NAME = "model_initial.pt", "model_final.pt"
ERROR_NAME = "error.txt"
# what only the end of a run writes, and what its beginning does
_TABLES = (TRACE_NAME, "exchanges.parquet", "cancelled.parquet", CLIENTS_NAME, "rule.parquet", "mse_arrivals.parquet")
AT_END = (SUMMARY_NAME, *_TABLES, MODEL_NAME, ERROR_NAME)
AT_START = (PARTITION_NAME, INITIAL_NAME, RECORD_NAME, UPLOADS_NAME, COUNTS_NAME)
REPORTED = (CONFIG_NAME, METRICS_NAME, RECORD_NAME, *_TABLES)  # what reports read besides the summary
DIGESTED = tuple(dict.fromkeys((*REPORTED, *AT_START, *AT_END[1:])))  # checkpoints have a sum over each of their parts


def sealed_summary(summary: Mapping[str, Any], directory: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the summary as JSON types, with the entry ``files``.

    names  of files that are digested, those that are there; a summary that has the entry keeps the digests in it
    Raises OSError for a file that cannot be read, TypeError for a value that JSON does not have.
    """
    known = summary.get(FILES)
    if known is None:
        known = {name: sha256_of(directory / name) for name in names if (directory / name).is_file()}
    content: Any = to_json_types({**summary, FILES: {**known}})
    content[FILES][SUMMARY_NAME] = _content_digest(content)
    return dict(content)


def describe_changed_file(summary: Mapping[str, Any], directory: Path, names: Sequence[str]) -> str:
    """Return which of the files is not the one that the run wrote, in a few words; empty if none is.

    A file that is missing is not changed, and neither is any file of a summary without digests.
    Raises OSError for a file that cannot be read, or that no run writes.
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
    """Return the digest of a summary, without the digest of itself, whatever its layout in the file."""
    others = {name: digest for name, digest in summary[FILES].items() if name != SUMMARY_NAME}
    return hashlib.sha256(json.dumps({**summary, FILES: others}, sort_keys=True).encode()).hexdigest()


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

    def write_config(self, text: str) -> None:
        """config.yaml: the resolved config as YAML text."""
        with atomic_write(self.path / CONFIG_NAME) as file:
            file.write(text.encode())

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """summary.json. Its presence says the run ended, so it is written last. NaN and infinities become null.

        It has digests of the other files as they are now, or those that ``summary`` has.
        """
        content = sealed_summary(summary, self.path, DIGESTED)
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
        """Remove what killed processes left half written. Only while no other process is at the run."""
        for path in self.path.glob(".*.tmp"):
            path.unlink(missing_ok=True)

    def reopen(self) -> None:
        """Before a run resumes in its directory: what an end of it has left there is not true any more."""
        for name in AT_END:  # the summary first: it says that the rest is whole
            (self.path / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Before a run begins in its directory: removes all that an earlier one has left there, except its settings."""
        self.reopen()
        for name in (*AT_START, CHECKPOINT_NAME, f"{CHECKPOINT_NAME}.previous"):
            (self.path / name).unlink(missing_ok=True)
        self.metrics.truncate(0)

    def copy_start_from(self, earlier: RunDirectory, lines: int) -> None:
        """Copy what the run in ``earlier`` had written when it had logged ``lines`` points."""
        for name in (METRICS_NAME, *AT_START):
            if (earlier.path / name).exists():
                with open_regular(earlier.path / name) as source, atomic_write(self.path / name) as file:
                    shutil.copyfileobj(source, file)
        self.metrics.truncate(lines)

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

    def write_counts(self, counts_nc: np.ndarray) -> None:
        """counts.npy: how many samples of each label each client has, (n, classes)."""
        with atomic_write(self.path / COUNTS_NAME) as file:
            np.save(file, counts_nc)

    def write_model(self, name: str, named_tensors: Mapping[str, torch.Tensor]) -> None:
        """A file with a plain dict of CPU tensors, for ``torch.load(..., weights_only=True)``."""
        import torch

        # Clones: parameters are views of one flat buffer, and a saved view brings its whole buffer along.
        tensors = {key: tensor.detach().cpu().clone() for key, tensor in named_tensors.items()}
        with atomic_write(self.path / name) as file:
            torch.save(tensors, file)

    def close(self) -> None:
        """Close metrics.jsonl and write the tables that were opened. May be called twice."""
        self.metrics.close()
        while self._tables:
            self._tables.popitem()[1].close()
