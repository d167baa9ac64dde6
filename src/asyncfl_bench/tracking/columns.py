"""Columns of an archive: their types, their digests, and their lists as arrays."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

POINT, CLIENT = "point.", "client."  # before the name of a metric, and of a column of clients.parquet
_TEXTS = ("name", "identity", "experiment", "status", "config", "summary")


def check_columns(schema: Any) -> None:
    """Raise ValueError for a pyarrow schema that no archive has."""
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
    """A hash of the type, lengths and values of a column, whatever its pages and buffers."""
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
    """Return a column of lists as an array a row; None for a run without such a metric."""
    chunk = column.chunk(0) if column.num_chunks else column.combine_chunks()
    values = chunk.values.to_numpy(zero_copy_only=False)
    values = values.astype(np.float64) if values.dtype == np.float32 else values
    offsets, there = chunk.offsets.to_numpy(), chunk.is_valid().to_numpy(zero_copy_only=False)
    return [values[a:b] if ok else None for a, b, ok in zip(offsets[:-1], offsets[1:], there, strict=True)]
