"""Writing a file whole or not at all, and numbers as valid JSON."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_write(path: Path, previous: Path | None = None) -> Iterator[BinaryIO]:
    """An open binary file that takes the place of ``path`` when the block ends without an exception.

    Readers see the old content or the new one. A failed block leaves the old content and no debris.
    previous  where the old content is kept, if anywhere; at no moment is there nothing under ``path`` itself
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            _keep(path, previous)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(path: Path) -> None:
    """Removes what killed processes left of ``path``. Only for a file that no other process is writing."""
    for temporary in path.parent.glob(f".{path.name}.*.tmp"):
        temporary.unlink(missing_ok=True)


def _keep(path: Path, previous: Path) -> None:
    link = path.with_name(path.name + ".link")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:  # a file system without links
        shutil.copyfile(path, link)
    os.replace(link, previous)


def is_held(path: Path) -> bool:
    """Whether a process holds this lock file, as one does that is at a run."""
    from filelock import FileLock, Timeout

    if not path.exists():
        return False
    try:
        with FileLock(path).acquire(timeout=0):
            return False
    except Timeout:
        return True


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
