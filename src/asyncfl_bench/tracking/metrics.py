"""metrics.jsonl: a JSON object for each logged point, appended and flushed, so that a killed run keeps its points."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import BenchError
from ..files import LARGEST_FILE, open_own, open_regular, to_json_types

COUNTERS = ("iteration", "uploads", "client_steps", "virtual_time", "wall_time")
_LONGEST_LINE, _LARGEST = 2**24, 4 * LARGEST_FILE  # bytes
SENT = ("uplink_bytes", "downlink_bytes")  # also counters, but missing in some archived runs


class MetricsFile:
    """Appends points to ``path``. The first point creates the file.

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
    with open_regular(path, largest=_LARGEST) as file:
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
