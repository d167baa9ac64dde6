""".npz files: a broken one is named, of several jobs one writes a missing one, the runs of a sweep read one once."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from ..files import atomic_write
from .data import DataError

# RuntimeError: encrypted members, and compressions that are not known
UNREADABLE = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
T = TypeVar("T")
_kept: list[tuple[object, Any]] = []  # the last key and what it gave


def kept(key: object, make: Callable[[], T]) -> T:
    """What ``make`` gave if the last call in this process had the same ``key``, else what it gives now.

    The runs of a sweep so read, check and digest their data once. Nobody may write into them.
    """
    if not (_kept and _kept[0][0] == key):
        _kept.clear()  # two data sets may not fit into memory
        _kept.append((key, make()))
    return _kept[0][1]


def version(path: Path) -> tuple[str, int, int]:
    """What tells a file from what it was before."""
    facts = path.stat()
    return str(path.resolve()), facts.st_mtime_ns, facts.st_size


def read_npz(path: Path, required: tuple[str, ...] = ARRAYS, optional: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """The arrays ``required``, and those of ``optional`` that are there. DataError names file and problem."""
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: a single array, not an .npz archive")
        with archive:
            missing = [name for name in required if name not in archive]
            if missing:
                found = " ".join(", ".join(archive.files).split()) or "nothing"  # a damaged name may have a line break
                raise DataError(f"{path}: no array {', '.join(missing)} in it (found {found})")
            return {name: archive[name] for name in (*required, *optional) if name in archive}
    except UNREADABLE as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: not a readable .npz file ({reason}); delete it or put a good one there") from error


def made_once(path: Path, make: Callable[[], dict[str, np.ndarray]], ways_out: str) -> Path:
    """As ``written_once``, with the arrays that ``make`` gives."""

    def content() -> Callable[[BinaryIO], None]:
        named: dict[str, Any] = dict(make())  # NumPy's hints take any keyword for its flag allow_pickle
        return lambda file: np.savez(file, **named)

    return written_once(path, content, ways_out)


def written_once(path: Path, content: Callable[[], Callable[[BinaryIO], object]], ways_out: str) -> Path:
    """Writes ``path`` unless it is there, and returns it: ``content`` gives what writes into the open file.

    Of several jobs one writes it and the others wait. DataError, with ``ways_out``, when the directory cannot be
    written.
    """
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.parent / f".{path.name}.lock"):
            if not path.exists():  # another job may have finished it while this one waited
                write = content()
                with atomic_write(path) as file:
                    write(file)
    except OSError as error:
        raise DataError(f"{path.parent} cannot be written ({error}). {ways_out}") from error
    return path
