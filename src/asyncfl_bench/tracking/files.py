"""Writing a file whole or not at all, and numbers as valid JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """An open binary file that takes the place of ``path`` when the block ends without an exception.

    Readers see the old content or the new one. A failed block leaves the old content and no debris.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def plain(value: object) -> object:
    """``value`` in the types JSON knows. NaN and both infinities become None: JSON has no word for them.

    Scalars of NumPy and torch become Python numbers; tuples and arrays become lists. Raises TypeError for the rest.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy scalars and arrays, torch tensors: a number or a nested list
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} cannot be written as JSON: {value!r}")
