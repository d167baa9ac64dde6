"""Measured fleets: a file (.csv or .parquet) with rows of numbers about clients.

Legend: n clients of the run, r rows of the file.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..errors import ConfigError, InputError, check, first_line
from ..files import LARGEST_FILE, existing_file, expand_home, open_regular, read_parquet

SUFFIXES = (".csv", ".parquet")
_WHOLE = re.compile("0|[1-9][0-9]*")
_INDEX = re.compile(r"__index_level_\d+__")  # pandas writes a frame's index under this name
_MOST_CELLS = 2**24  # of a .parquet file, whose cells become objects
POSITIVE = ("duration", "offline", "seconds_per_sample", "downlink", "uplink")  # other numbers may be 0
TEXTS = ("why",)  # columns that are not read


Layouts = tuple[tuple[str, ...], ...]


def check_file(path: str | None, columns: str, layouts: Layouts) -> None:
    """Raise ConfigError unless the file exists and has such a name, and InputError for other columns of a .csv.

    Rows are checked when the run is built. layouts: see ``FleetFile``
    """
    allowed = f"an existing .csv or .parquet file with the columns {columns}"
    file = existing_file(path, allowed)
    check(file.suffix.lower() in SUFFIXES, "path", path, allowed)
    if file.suffix.lower() == ".csv":
        with suppress(UnicodeDecodeError, csv.Error), file.open(encoding="utf-8-sig", newline="") as lines:
            names = [name.strip() for name in next(csv.reader(lines), [])]
            if names:
                _check_columns(file, names, layouts)


def _check_columns(file: Path, names: Iterable[str], layouts: Layouts) -> None:
    """Raise InputError unless the columns are ``client`` and those of a layout."""
    if not any({*names} == {"client", *layout} for layout in layouts):
        allowed = "; or ".join(", ".join(("client", *layout)) for layout in layouts)
        raise InputError(f"{file}: must have the columns {allowed}; found {', '.join(names) or 'none'}")


class FleetFile:
    """A file, read and checked.

    layouts  sets of columns beside `client`, one of which the file must have
    clients  ids in the order of the clients 0, 1, ...: by value if all are whole numbers >= 0, else as text
    client_r  (r,) ids
    columns  name -> (r,) finite numbers, > 0 for durations and ends, else >= 0
    Raises InputError with file, row and allowed values.
    """

    def __init__(self, path: str, layouts: Layouts):
        self.path = expand_home(path, "path")
        # locations: the line in which a row ends for a .csv, the row's number from 0 for a .parquet
        read = _read_csv if self.path.suffix.lower() == ".csv" else _read_parquet
        self._word, self._location_r, values = read(self.path)
        _check_columns(self.path, values, layouts)
        if not self._location_r:
            raise InputError(f"{self.path}: must have at least one row besides the names of its columns")
        self.client_r = [_cell_text(value) for value in values.pop("client")]
        if "" in self.client_r:
            raise self.refusal(self.client_r.index(""), "client must be a whole number or text, found nothing")
        self.clients = _sort_ids(set(self.client_r))
        self.columns = {name: self._numbers(name, column) for name, column in values.items() if name not in TEXTS}

    def rows_of(self, n: int) -> list[list[int]]:
        """Return (n,) lists of rows of the first n clients, in the file's order. ConfigError for fewer clients."""
        if n > len(self.clients):
            raise ConfigError("n_clients", n, f"must be at most {len(self.clients)}, the clients in {self.path}")
        rows: dict[str, list[int]] = {client: [] for client in self.clients}
        for row, client in enumerate(self.client_r):
            rows[client].append(row)
        return [rows[client] for client in self.clients[:n]]

    def client_values(self, n: int, columns: tuple[str, ...]) -> np.ndarray:
        """Return (n, columns) numbers of a file with one row for each client.

        Raises InputError for a second row of a client, and ConfigError for fewer clients.
        """
        rows_n = self.rows_of(n)
        for first, *more in rows_n:
            if more:
                raise self.refusal(
                    more[0], f"must have each client once, found that of {self.name_of_row(first)} again"
                )
        return np.array([[self.columns[name][rows[0]] for name in columns] for rows in rows_n])

    def name_of_row(self, row: int) -> str:
        """Return the location of a row in the file, for messages: `line 3`."""
        return f"{self._word} {self._location_r[row]}"

    def refusal(self, row: int, reason: str) -> InputError:
        return InputError(f"{self.path}, {self.name_of_row(row)}: {reason}")

    def _numbers(self, name: str, values: list) -> list[float]:
        least = math.ulp(0.0) if name in POSITIVE else 0.0
        numbers = []
        for row, value in enumerate(values):
            try:
                number = float(value)
            except (TypeError, ValueError):
                number = math.nan
            if not least <= number < math.inf:
                allowed = "a number > 0" if name in POSITIVE else "a number >= 0"
                raise self.refusal(row, f"{name} must be {allowed}, found {_cell_text(value) or 'nothing'}")
            numbers.append(number)
        return numbers


def check_same_clients(delay, availability) -> None:
    """Raise InputError if both are from files, and client i of the run has another id in the second file."""
    durations, sessions = delay.file, availability.file
    if durations is None or sessions is None:
        return
    # the files may have more clients than the run
    for client, (name, twin) in enumerate(zip(durations.clients[: delay.n], sessions.clients, strict=False)):
        if name != twin:
            difference = f"client {client} of the run is {name} in the one and {twin} in the other"
            raise InputError(f"{durations.path} and {sessions.path}: must name the same clients; {difference}")


def _read_csv(path: Path) -> tuple[str, list[int], dict[str, list]]:
    try:
        with open_regular(path, "r", LARGEST_FILE, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True)
            names = [name.strip() for name in next(reader, [])]
            lines, rows = [], []
            for cells in reader:
                if not "".join(cells).strip():
                    continue
                if len(cells) != len(names):
                    problem = f"must have {len(names)} values, one per column, found {len(cells)}"
                    raise InputError(f"{path}, line {reader.line_num}: {problem}")
                lines.append(reader.line_num)
                rows.append(cells)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a readable .csv file ({error})") from None
    return "line", lines, _name_columns(path, names, [[cells[index] for cells in rows] for index in range(len(names))])


def _read_parquet(path: Path) -> tuple[str, list[int], dict[str, list]]:
    try:
        table = read_parquet(path, _MOST_CELLS)
        columns = [column.to_pylist() for column in table.columns]
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: not a readable .parquet file ({first_line(error)})") from None
    values = _name_columns(path, table.column_names, columns)
    kept = {name: column for name, column in values.items() if not _INDEX.fullmatch(name)}
    return "row", list(range(len(table))), kept


def _name_columns(path: Path, names: list[str], columns: list[list]) -> dict[str, list]:
    if len(set(names)) < len(names):
        raise InputError(f"{path}: must have each column once, found {', '.join(names)}")
    return dict(zip(names, columns, strict=True))


def _sort_ids(ids: set[str]) -> list[str]:
    # `01` and `1` may be two clients, so an id with a leading zero is text
    if all(_WHOLE.fullmatch(text) for text in ids):
        return sorted(ids, key=lambda text: (len(text), text))  # by value, of any number of digits
    return sorted(ids)


def _cell_text(value: object) -> str:
    """Return the text in a cell; an empty text for a missing value."""
    if isinstance(value, str):
        return value.strip()
    if value is None or value != value:
        return ""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)
