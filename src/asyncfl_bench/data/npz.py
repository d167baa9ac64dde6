"""Reading, caching and writing of .npz files: several jobs write a file once, and the runs of a sweep read it once."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from ..errors import first_line
from ..files import atomic_write
from .base import DataError

# RuntimeError: encrypted members, and compressions that are not known
UNREADABLE = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
T = TypeVar("T")
_cached: list[tuple[object, Any]] = []  # the last key and its value


def load_cached(key: object, make: Callable[[], T]) -> T:
    """Return the result of ``make``, or that of the last call in this process if its ``key`` was the same.

    So the runs of a sweep read, check and digest their data once. The result must not be changed.
    """
    if not (_cached and _cached[0][0] == key):
        _cached.clear()  # two data sets may not fit into memory
        _cached.append((key, make()))
    return _cached[0][1]


def file_version(path: Path) -> tuple[str, int, int]:
    """Return (path, time of the last change, bytes), which differ after a change of the file."""
    facts = path.stat()
    return str(path.resolve()), facts.st_mtime_ns, facts.st_size


def read_npz(path: Path, required: tuple[str, ...] = ARRAYS, optional: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Return the arrays ``required`` and the present ones of ``optional``. Raises DataError with file and problem."""
    if path.exists() and not path.is_file():  # reading from a pipe would wait for a writer
        raise DataError(f"{path}: not a file; put a readable .npz file there")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            wanted = f"an .npz archive with {', '.join(required)} (numpy.savez)"
            raise DataError(f"{path}: must be {wanted}, found a single array, as numpy.save writes it")
        with archive:
            missing = [name for name in required if name not in archive]
            if missing:
                found = " ".join(", ".join(archive.files).split()) or "nothing"  # a damaged name may have a line break
                raise DataError(f"{path}: no array {', '.join(missing)} in it (found {found})")
            return {name: archive[name] for name in (*required, *optional) if name in archive}
    except UNREADABLE as error:
        names = ", ".join(f"{name}=..." for name in required)
        remedy = f"numpy.savez(FILE, {names}) writes one; if it was downloaded, delete it"
        if path.suffix != ".npz":
            remedy = f"numpy.savez(FILE, {names}) writes one; in Python, run(dataset=FRAME) takes a table of pandas"
        raise DataError(f"{path}: not a readable .npz file ({describe_unreadable(error)}); {remedy}") from error


def describe_unreadable(error: Exception) -> str:
    """Return in one line why NumPy cannot read a file."""
    reason = first_line(error)
    return "another format, or Python objects" if "pickle" in reason else reason  # NumPy advises to load them


def build_cached(path: Path, make: Callable[[], dict[str, np.ndarray]], ways_out: str) -> Path:
    """Write the arrays of ``make`` to an .npz file, as ``write_once`` does."""

    def write(file: BinaryIO, arrays: dict[str, Any]) -> None:  # NumPy's hints take any keyword for its allow_pickle
        np.savez(file, **arrays)

    return write_once(path, make, write, ways_out)


def write_once(path: Path, make: Callable[[], T], write: Callable[[BinaryIO, T], object], ways_out: str) -> Path:
    """Write ``path`` unless it exists, and return it. ``write`` writes the result of ``make`` into the open file.

    One of several jobs writes the file, and the others wait. Raises DataError with ``ways_out`` if the directory cannot
    be written.
    """
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.parent / f".{path.name}.lock"):
            if not path.exists():  # another job may have finished it while this one waited
                content = make()
                with atomic_write(path) as file:
                    write(file, content)
    except OSError as error:
        raise DataError(f"{path.parent} cannot be written ({error}). {ways_out}") from error
    return path
