"""Tables of an archive: columns with types and digests, lists as arrays, reading and writing."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import InputError, first_line
from ..files import check_unpacked_size, open_regular
from .records import Record

POINT, CLIENT = "point.", "client."  # before the name of a metric, and of a column of clients.parquet
_KEY, _VERSION = b"asyncfl_bench.archive", b"2"  # of the format, in the footer
_DIGESTS = b"asyncfl_bench.digests"  # of the columns, in the footer
SUPERSEDED = "superseded.txt"
_LARGEST_LIST = 2**24  # bytes of superseded.txt
FAMILIES = ("age/", "clients/", "in_flight/", "model/", "participation/", "staleness/", "train/")
_ROUNDED = tuple(POINT + name for name in (*FAMILIES, "test/loss", "validation/loss", "wall_time"))  # not on pages
_LOCAL = ("output_dir", "data_dir", "archive_dir", "resume", "tracking")
_LEVEL = 12  # of zstd: 19 takes seven times as long for 4 % less
_TEXTS = ("name", "identity", "experiment", "status", "config", "summary")


class NotAnArchive(InputError):
    """A parquet file is not an archive of runs."""


def check_columns(schema: Any) -> None:
    """Raise ValueError for a pyarrow schema that is not that of an archive."""
    import pyarrow as pa

    def is_number(kind: Any) -> bool:
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))

    types = {field.name: field.type for field in schema}
    if lacking := {*_TEXTS, "results_version"} - {*types}:
        raise ValueError(f"no column {min(lacking)}")
    for name, kind in types.items():
        if name in _TEXTS:
            ok = pa.types.is_string(kind)
        elif name.startswith((POINT, CLIENT)):
            ok = pa.types.is_list(kind) and is_number(kind.value_type)
        else:
            ok = is_number(kind)
        if not ok:
            raise ValueError(f"the column {name} has the type {kind}")


def column_digest(column: Any) -> str:
    """Return a digest of the type, lengths and values of a column. Pages and buffers do not matter."""
    import pyarrow as pa

    digest, whole = hashlib.blake2b(digest_size=16), column.combine_chunks()
    if pa.types.is_list(column.type):
        values = whole.flatten()
        digest.update(str(values.type).encode())
        for part in (whole.value_lengths().fill_null(-1), values.is_valid(), values.fill_null(0)):
            digest.update(part.to_numpy(zero_copy_only=False))
    else:
        digest.update(json.dumps([str(column.type), *whole.to_pylist()]).encode())
    return digest.hexdigest()


def split_lists(column: Any) -> list[np.ndarray | None]:
    """Return an array for each row of a column of lists; None for a run without the metric."""
    chunk = column.chunk(0) if column.num_chunks else column.combine_chunks()
    values = chunk.values.to_numpy(zero_copy_only=False)
    values = values.astype(np.float64) if values.dtype == np.float32 else values
    offsets, there = chunk.offsets.to_numpy(), chunk.is_valid().to_numpy(zero_copy_only=False)
    return [values[a:b] if ok else None for a, b, ok in zip(offsets[:-1], offsets[1:], there, strict=True)]


def build_table(records: Iterable[Record]) -> Any:
    """Return a table with a row for each record, by name and identity. Equal names become different."""
    import pyarrow as pa

    records = sorted(records, key=lambda record: (record.name, str(record.identity)))
    names = [one.name if str(one.identity) in one.name else f"{one.name}-{one.identity}" for one in records]
    counts = Counter(names)
    # without paths of the machine, because archives are shared
    portable = [_without_keys(one.config, _LOCAL) for one in records]
    texts = {
        "name": [f"{name}-{one.code}" if counts[name] > 1 else name for name, one in zip(names, records, strict=True)],
        "identity": [record.identity for record in records],
        "experiment": [record.experiment for record in records],
        "status": [record.status for record in records],
        "config": [json.dumps(config, default=str) for config in portable],
        "summary": [json.dumps(_without_keys(record.summary, ("command",))) for record in records],
    }
    arrays: dict[str, Any] = {name: pa.array(values, pa.string()) for name, values in texts.items()}
    arrays["results_version"] = pa.array([record.results_version for record in records], pa.int64())
    for first, tables in ((POINT, [one.points for one in records]), (CLIENT, [one.clients for one in records])):
        for name in sorted({name for table in tables for name in table}):
            columns = [table.get(name) for table in tables]
            whole = all(column is None or column.dtype.kind == "i" for column in columns)
            kind = pa.int64() if whole else pa.float32() if f"{first}{name}".startswith(_ROUNDED) else pa.float64()
            rows = [column if whole or column is None else column.astype(kind.to_pandas_dtype()) for column in columns]
            arrays[first + name] = pa.array(rows, pa.list_(kind), from_pandas=True)
    return pa.table(arrays)


def _without_keys(tree: dict[str, Any], keys: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in keys}


def write_table(table: Any, file: BinaryIO) -> None:
    """Write a table of runs as parquet, with the format and the digest of each column in its footer.

    Accuracies have few values, so a dictionary is smallest for them. Clients' accuracies are smallest as they are.
    Bytes of other numbers are sorted by significance.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    digests = {name: column_digest(table[name]) for name in table.column_names}
    table = table.replace_schema_metadata({_KEY: _VERSION, _DIGESTS: json.dumps(digests).encode()})
    numbers = [name for name in table.column_names if pa.types.is_list(table.schema.field(name).type)]
    inner = {name: f"{name}.list.element" if name in numbers else name for name in table.column_names}
    accuracies = CLIENT + "accuracy"
    split = [
        inner[name]
        for name in numbers
        if pa.types.is_floating(table.schema.field(name).type.value_type)
        and not name.endswith(("/accuracy", accuracies))
    ]
    pq.write_table(
        table,
        file,
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=[column for name, column in inner.items() if column not in split and name != accuracies],
        use_byte_stream_split=split,
        write_page_checksum=True,
        write_statistics=False,
    )


def read_table(path: Path, wanted: Callable[[str], bool] | None = None) -> Any:
    """Return the columns of an archive, or only the wanted ones, each compared with its digest.

    Raises NotAnArchive or InputError.
    """
    from pyarrow.parquet import ParquetFile

    try:
        with open_regular(path) as raw, ParquetFile(raw, page_checksum_verification=True) as file:
            facts, names = file.schema_arrow.metadata or {}, file.schema_arrow.names
            if _KEY not in facts:
                raise NotAnArchive(f"{path}: not an archive of runs; move it elsewhere")
            if facts[_KEY] != _VERSION:
                text = facts[_KEY].decode(errors="replace")
                raise InputError(f"{path}: an archive of format {text}, which this version does not read")
            check_columns(file.schema_arrow)
            check_unpacked_size(file, path.stat().st_size)
            superseded, asked = _superseded_names(path), [name for name in names if not wanted or wanted(name)]
            named = [*asked, *({"name"} - {*asked} if superseded else ())]
            table, digests = file.read(columns=named), json.loads(facts[_DIGESTS])
        changed = {name for name in table.column_names if digests.get(name) != column_digest(table[name])}
        if changed := changed | ({*digests} ^ {*names}):
            raise ValueError(f"the digest of {', '.join(sorted(changed)[:3])} differs")
    except InputError:
        raise
    except Exception as error:  # the reader raises errors of any kind for a damaged footer
        if known := getattr(error, "strerror", None):
            raise InputError(f"{path}: {known}") from None
        reason = " ".join(first_line(error).split())
        raise InputError(f"{path}: damaged: {reason}; restore the file, for example with git") from None
    if superseded:
        table = table.filter([name not in superseded for name in table["name"].to_pylist()])
    return table.combine_chunks()


def _superseded_names(path: Path) -> set[str]:
    """Return the names of a file's superseded runs. Raises InputError for a malformed list."""
    try:
        with open_regular(path.with_name(SUPERSEDED), largest=_LARGEST_LIST) as file:
            lines = file.read().decode().splitlines()
    except FileNotFoundError:
        return set()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path.with_name(SUPERSEDED)}: {getattr(error, 'strerror', None) or 'not text'}") from None
    return {name for file, _, name in (line.partition(" ") for line in lines) if file == path.name}
