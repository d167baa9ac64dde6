"""Uploads that a live run keeps in a file, and their use in a replay.

Legend: d model parameters, u samples of the server, C classes, r uploads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ..clients.queue import ComputedUpload, Computer
from ..errors import BenchError, InputError
from ..files import existing_file, expand_home
from ..tracking.rundir import COUNTS_NAME
from .choice import Simulated, SimulatedConfig
from .record import AppendedFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ..clients.executors import SequentialComputer
    from ..clients.queue import PendingUploads, Start
    from ..clients.versions import Blocks
    from ..types import Work
    from .messages import ClientReply


def row_type(d: int, shape_uc: tuple[int, int] | None) -> np.dtype:
    """Return the type of a row in the file, of 4 (3 + d + u C) bytes. cycle: see Work"""
    fields: list[Any] = [("client", "<i4"), ("cycle", "<i4"), ("loss", "<f4"), ("vector_d", "<f4", (d,))]
    return np.dtype(fields if shape_uc is None else [*fields, ("outputs_uc", "<f4", shape_uc)])


class UploadFile(AppendedFile):
    """The file uploads.bin."""

    def __init__(self, path: Path, d: int, shape_uc: tuple[int, int] | None):
        super().__init__(path)
        self._row = np.zeros((), row_type(d, shape_uc))

    @property
    def bytes(self) -> int:
        return self.rows * self._row.nbytes

    def write(self, work: Work, reply: ClientReply) -> None:
        """Write an upload that the server uses now."""
        row = self._row
        row["client"], row["cycle"], row["loss"], row["vector_d"] = work.client, work.cycle, reply.loss, reply.vector_d
        if "outputs_uc" in (row.dtype.names or ()):
            row["outputs_uc"] = reply.outputs_uc
        self.append(row.tobytes())

    def find_ends(self, file: BinaryIO) -> Sequence[int]:
        return range(0, file.seek(0, 2) + 1, self._row.nbytes)


@dataclass
class RecordedConfig(SimulatedConfig):
    """
    path  required; uploads.bin of the live run
    """

    path: str | None = None
    computes = False

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "uploads.bin of a live run with live.keep_uploads=true; afl-run --replay DIR names it by itself"
        existing_file(self.path, allowed)

    @property
    def counts_file(self) -> Path:
        return expand_home(str(self.path), "path").with_name(COUNTS_NAME)


class Recorded(Simulated):
    """Clients are simulated with the stored uploads of a live run."""

    config: RecordedConfig
    absent = False


class UploadSource(Computer):
    """Source of uploads that are computed elsewhere. real: computer of this run, for its need of memory"""

    def __init__(self, real: SequentialComputer):
        self._real = real

    def vectors(self, local_steps: int) -> int:
        return self._real.vectors(local_steps)

    def close(self) -> None:
        self._real.close()


class StoredUploads(UploadSource):
    """The uploads in a file. Raises InputError unless the file is of a live run of this model."""

    def __init__(self, path: str, real: SequentialComputer, d: int, shape_uc: tuple[int, int] | None):
        super().__init__(real)
        self._path = expand_home(path, "path")
        kind = row_type(d, shape_uc)
        size = self._path.stat().st_size
        if not size or size % kind.itemsize:
            raise InputError(f"{self._path}: {size} bytes are not whole uploads of {kind.itemsize} bytes each")
        self._rows_r = np.memmap(self._path, kind, mode="r")
        pairs = zip(self._rows_r["client"].tolist(), self._rows_r["cycle"].tolist(), strict=True)
        self._row_of = {pair: row for row, pair in enumerate(pairs)}
        if len(self._row_of) < len(self._rows_r):
            raise InputError(f"{self._path}: has an upload twice; it is not of a live run of this model")

    def begin(self, pieces: list[Work], start: Start, out_pd: torch.Tensor, blocks: Blocks) -> PendingUploads:
        import torch

        (work,) = pieces
        if (number := self._row_of.get((work.client, work.cycle))) is None:
            raise BenchError(f"{self._path}: has no upload of client {work.client} for its work number {work.cycle}")
        row = self._rows_r[number]
        out_pd[0].copy_(torch.from_numpy(np.array(row["vector_d"])))
        outputs_uc = torch.from_numpy(np.array(row["outputs_uc"])) if "outputs_uc" in row.dtype.names else None
        return lambda: [ComputedUpload(torch.tensor(row["loss"], dtype=torch.float32), None, outputs_uc)]
