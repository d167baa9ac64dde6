"""Writing a file whole or not at all, numbers as valid JSON, and lines for people."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

_DEPTH = 20  # of nested lists and mappings
_DEEP = f"nested more than {_DEPTH} deep"
_LONG = 2**16  # characters of YAML that cannot nest too deeply for its parser
_RECENT = 2 * 10**9  # nanoseconds in which a file may change twice at one time of its clock
_REMEMBERED = 4096  # texts that are kept for later processes
_texts: dict[str, str] = {}  # that ``recall`` knows, by key


@contextmanager
def atomic_write(path: Path, previous: Path | None = None) -> Iterator[BinaryIO]:
    """An open binary file that takes the place of ``path`` when the block ends without an exception.

    Readers see the old content or the new one. A failed block leaves the old content and no debris.
    previous  where the old content is moved, if anywhere; a kill just then leaves it there, and nothing under ``path``
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming_file(path), open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Add ``path`` to an OSError in the block that names no file, as for a full disk while a file is open."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        problem: BaseException = error
        if isinstance(error, RuntimeError) and isinstance(error.__context__, (OSError, KeyboardInterrupt)):
            problem = error.__context__  # what stopped torch's writer, which then raises its own error
        if isinstance(problem, OSError) and problem.filename is None:
            problem.filename = str(path)
        raise problem from None


def sha256_of(path: str | Path) -> str:
    """Return the SHA-256 of a file as hex digits. Raises OSError."""
    with open(Path(path).expanduser(), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, computed once for each size and time of change. Raises OSError."""
    facts = path.stat()
    if time.time_ns() - facts.st_ctime_ns < _RECENT:
        return sha256_of(path)
    return recall(f"{path.resolve()} {facts.st_size} {facts.st_ctime_ns}", lambda: sha256_of(path))


def recall(key: str, make: Callable[[], str]) -> str:
    """Return what ``make`` returned for this key in this process, or in an earlier one of the user; else call it."""
    path, key = cache_folder() / "digests.json", hashlib.sha256(key.encode()).hexdigest()[:32]

    def read() -> dict[str, str]:
        with suppress(OSError, ValueError, TypeError):
            return {str(one): str(text) for one, text in dict(read_json(path)).items()}
        return {}

    if key not in _texts:
        _texts.update(read())
    if key not in _texts:
        _texts[key] = make()
        with suppress(OSError):  # then the next process computes it again
            path.parent.mkdir(parents=True, exist_ok=True)
            known = [*{**read(), key: _texts[key]}.items()]
            write_text(path, json.dumps(dict(known[-_REMEMBERED:])))
    return _texts[key]


def write_text(path: Path, text: str) -> None:
    """Write a text by ``atomic_write``."""
    with atomic_write(path) as file:
        file.write(text.encode())


def cache_folder() -> Path:
    """Where the user keeps what can be made again: ``asyncfl_bench`` in $XDG_CACHE_HOME, else in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asyncfl_bench"


def remove_leftovers(path: Path) -> None:
    """Removes what killed processes left of ``path``. Only for a file that no other process is writing."""
    for temporary in path.parent.glob(f".{path.name}.*.tmp"):
        temporary.unlink(missing_ok=True)


def is_locked(path: Path) -> bool:
    """Return True if a process holds this lock file, as each process does during a run."""
    from filelock import FileLock, Timeout

    if not path.exists():
        return False
    try:
        with FileLock(path).acquire(timeout=0.02, poll_interval=0.01):  # another process may be asking, too
            return False
    except Timeout:
        return True


def read_json(path: Path) -> Any:
    """What a file holds that somebody else may have written. Raises OSError, and ValueError as ``parse_json``."""
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str) -> Any:
    """The value of a text. Raises ValueError for what is not JSON or nested more deeply than anything this package
    writes."""
    try:
        return _check_depth(json.loads(text))
    except RecursionError:
        raise ValueError(_DEEP) from None


def read_yaml(path: Path) -> Any:
    """The same for YAML, whose anchors and aliases are refused too: a few lines of them unfold to any size, or to a
    value within itself."""
    import yaml

    text, loader = path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if "&" in text or len(text) > _LONG:
            depth = 0
            for event in yaml.parse(text, loader):
                if isinstance(event, yaml.AliasEvent):
                    raise ValueError("has aliases")
                depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
                if depth > _DEPTH:
                    raise ValueError(_DEEP)
        return _check_depth(yaml.load(text, loader))
    except RecursionError:
        raise ValueError(_DEEP) from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def to_yaml(value: Any) -> str:
    """The text of a value of plain containers, for ``read_yaml``: an object that is in it twice has no alias."""
    import yaml

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True)


def _check_depth(value: Any) -> Any:
    """Return ``value``. Raises ValueError for deep nesting."""
    level = [value]
    for _ in range(_DEPTH + 1):
        nested = [one for one in level if isinstance(one, (dict, list))]
        level = [item for one in nested for item in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return value
    raise ValueError(_DEEP)


def read_parquet(path: Path) -> Any:
    """The file's pyarrow.Table. Raises OSError, and ValueError for a damaged file."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        # pages have sums, except in files of others and of earlier versions
        with ParquetFile(
            path, page_checksum_verification=True
        ) as file:  # read_table would bring pandas along, a second that a plan does not have
            table = file.read()
        table.validate(full=True)  # else text that is not UTF-8 is only met where it is read
    except ArrowException as error:
        raise ValueError(str(error)) from None
    return table


def clean_text(text: object, one_line: bool = False) -> str:
    """Return the text with control characters as escapes (``\\x1b``). A terminal would obey those of a foreign name.

    one_line  line breaks and tabs are control characters too
    """
    plain, kept = str(text), "" if one_line else "\n\t"
    if plain.isprintable():
        return plain
    return "".join(
        one if one.isprintable() or one in kept or unicodedata.category(one) == "Zs" else ascii(one)[1:-1]
        for one in plain
    )


def spreadsheet_cell(value: object) -> object:
    """Return a cell for a CSV file. Text that a spreadsheet would compute as a formula gets an apostrophe before it."""
    if not isinstance(value, str) or len(value) < 2 or value[0] not in "=+-@\t\r":
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def read_tensors(path: Path, mapped: bool = False) -> Any:
    """What torch saved in a file: plain containers and tensors, on the CPU.

    mapped  tensors stay in the file until they are used, as they may be larger than memory
    Raises OSError, and ValueError for a damaged file, of which torch looks at no sum.
    """
    import torch

    try:
        with zipfile.ZipFile(path) as content:  # has a sum over each part
            if (damaged := content.testzip()) is not None:
                raise ValueError(f"damaged in {damaged}")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError:
        raise
    except Exception as error:  # truncated, foreign and damaged files raise many kinds
        raise ValueError(str(error)) from None


def say(message: str) -> None:
    """A clean line on standard error. Nothing depends on its being read: a lost reader or a full disk ends no run."""
    with suppress(OSError, ValueError):  # ValueError: closed
        if sys.stderr is not None:
            print(clean_text(message), file=sys.stderr, flush=True)


def show(result: object, end: str = "\n") -> None:
    """Print the clean text of a result on standard output. Raises OSError for a lost reader."""
    print(clean_text(result), end=end, flush=True)


def to_json_types(value: object) -> object:
    """Convert ``value`` to JSON types. NaN and both infinities become None, because JSON has no such numbers.

    Scalars of NumPy and torch become Python numbers; tuples and arrays become lists. Raises TypeError for the rest.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, dict):
        return {str(key): to_json_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_types(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy scalars and arrays, torch tensors: a number or a nested list
        return to_json_types(value.tolist())
    raise TypeError(f"{type(value).__name__} cannot be written as JSON: {value!r}")
