"""Writing a file whole or not at all, reading and checking files of other people, valid JSON, and lines for people."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import stat
import sys
import time
import unicodedata
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, get_type_hints

from .errors import ConfigError, check

_DEPTH = 20  # of nested lists and mappings
_DEEP = f"nested more than {_DEPTH} deep"
_LONG = 2**16  # characters of YAML that cannot nest too deeply for its parser
_LARGEST_TEXT = 2**24  # bytes of a text of which all is read
LARGEST_FILE = 2**30  # bytes of a file that other people wrote or named
_MOST_CELLS = 2**27  # of a table
_WIDTH_OF_TEXT = 4  # cells of numbers that take the memory of one of text
_UNPACKED = 100  # times the size of a table's file
_RECENT = 2 * 10**9  # nanoseconds in which a file may change twice at one time of its clock
_REMEMBERED = 4096  # texts that are kept for later processes
_texts: dict[str, str] = {}  # that ``recall`` knows, by key
_Schema = TypeVar("_Schema")
_NUMBERS: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float)}
_LARGEST = 1e300  # a number of more digits is none of a page


@contextmanager
def atomic_write(path: Path, previous: Path | None = None) -> Iterator[BinaryIO]:
    """Open a binary file that replaces ``path`` when the block ends without an exception.

    Readers see the old content or the new one. A failed block leaves the old content and no debris.
    previous  where the old content is moved, if anywhere; a kill just then leaves it there, and nothing under ``path``
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # of an ended process of this number, or a link
        with naming_file(path), open(temporary, "xb") as file:
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


def open_regular(path: str | Path, mode: str = "rb", largest: float = math.inf, **options: Any) -> Any:
    """Open a file to read it. Raises OSError for a device, a pipe and a file of more bytes than ``largest``."""

    def find_problem(facts: os.stat_result) -> str:
        return f"is larger than {largest / 2**20:.0f} MiB" if facts.st_size > largest else ""

    return open(os.path.expanduser(path), mode, opener=partial(_open_number, find_problem), **options)


def open_own(path: Path, mode: str, **options: Any) -> Any:
    """Open a file of a run directory to write to it. Raises OSError for a link, as that would change another file."""
    problem = "is a link to another file; remove it"

    def open_number(name: str, flags: int) -> int:
        if os.path.islink(name):
            raise OSError(errno.EINVAL, problem, name)
        kept = flags & ~os.O_TRUNC | os.O_NOFOLLOW
        number = _open_number(lambda facts: problem if facts.st_nlink > 1 else "", name, kept)
        if flags & os.O_TRUNC:
            os.ftruncate(number, 0)
        return number

    return open(path, mode, opener=open_number, **options)


def _open_number(find_problem: Callable[[os.stat_result], str], name: str, flags: int) -> int:
    """Return the descriptor of an opened regular file. Raises OSError for anything else, and for a problem."""
    number = os.open(name, flags | os.O_NONBLOCK, 0o666)  # a pipe would wait for its other end
    facts = os.fstat(number)
    if problem := find_problem(facts) if stat.S_ISREG(facts.st_mode) else "is not a regular file":
        os.close(number)
        raise OSError(errno.EINVAL, problem, name)
    return number


def sha256_of(path: str | Path, largest: float = math.inf) -> str:
    """Return the SHA-256 of a file as hex digits. Raises OSError as ``open_regular``."""
    with open_regular(path, largest=largest) as file:
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
        file.write(text.encode(errors="replace"))


def expand_home(path: str | Path, key: str) -> Path:
    """Return a path whose ``~`` or ``~user`` is a home folder. Raises ConfigError for a user without one.

    key  setting or option that has the path
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(key, path, "names the home folder of an unknown user; write the whole path") from None


def existing_file(path: str | None, allowed: str) -> Path:
    """Return the file that a setting ``path`` names. Raises ConfigError if there is none. allowed: what it must be"""
    file = expand_home(path or "", "path")
    check(file.is_file(), "path", path, allowed)
    return file


def cache_folder() -> Path:
    """Return the folder of the user's caches: ``asyncfl_bench`` in $XDG_CACHE_HOME, else in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or expand_home("~/.cache", "XDG_CACHE_HOME")) / "asyncfl_bench"


def is_locked(path: Path) -> bool:
    """Return True if a process holds this lock file, as each process does during a run. Raises OSError."""
    try:
        with open_regular(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # other processes may be asking, too
            return False
    except (FileNotFoundError, NotADirectoryError):
        return False
    except BlockingIOError:
        return True


def read_json(path: Path, largest: float = _LARGEST_TEXT) -> Any:
    """Return the value of a file that may be foreign. Raises OSError as ``open_regular``, ValueError as
    ``parse_json``."""
    return parse_json(read_text(path, largest))


def read_text(path: Path, largest: float = _LARGEST_TEXT, errors: str = "strict") -> str:
    """Return the text of a file that somebody else may have written. Raises OSError as ``open_regular``."""
    with open_regular(path, largest=largest) as file:
        return str(file.read(), "utf-8", errors)


def parse_json(text: str) -> Any:
    """Return the value of a text. Raises ValueError if it is not JSON or is nested more deeply than this package's
    files."""
    try:
        return _check_depth(json.loads(text))
    except RecursionError:
        raise ValueError(_DEEP) from None


def read_yaml(path: Path) -> Any:
    """Return the value of a YAML file. Anchors and aliases are refused, because a few lines of them unfold to any size.

    Raises as ``read_json``.
    """
    import yaml

    text, loader = read_text(path), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
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
    """Return the YAML text of plain containers, without aliases, for ``read_yaml``."""
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


def read_parquet(path: Path, cells: int = _MOST_CELLS) -> Any:
    """Return the file's pyarrow.Table. Raises OSError, ValueError if it is damaged, and as ``check_unpacked_size``."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        # read_table would bring pandas along, a second that a plan does not have
        with (
            open_regular(path, largest=LARGEST_FILE) as raw,
            ParquetFile(raw, page_checksum_verification=True) as file,  # files of others have no sums
        ):
            check_unpacked_size(file, path.stat().st_size, cells)
            table = file.read()
        table.validate(full=True)  # else text that is not UTF-8 is only met where it is read
    except ArrowException as error:
        raise ValueError(str(error)) from None
    return table


def check_unpacked_size(file: Any, size: int, cells: int = _MOST_CELLS) -> None:
    """Raise ValueError for a pyarrow ParquetFile whose table takes far more memory than its size [bytes] promises.

    cells  numbers that it may have; text counts ``_WIDTH_OF_TEXT`` times
    """
    groups = [file.metadata.row_group(row) for row in range(file.metadata.num_row_groups)]
    parts = [group.column(column) for group in groups for column in range(group.num_columns)]
    count = sum(part.num_values * (_WIDTH_OF_TEXT if "BYTE_ARRAY" in part.physical_type else 1) for part in parts)
    unpacked = sum(part.total_uncompressed_size for part in parts)
    if count > cells or unpacked > max(_LARGEST_TEXT, _UNPACKED * size):
        raise ValueError(f"unpacks to {count} values and {unpacked / 2**20:.0f} MiB, which is too much")


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


def read_tensors(path: Path, mapped: bool = False, checked: bool = True) -> Any:
    """Return the plain containers and tensors that torch saved in a file, on the CPU.

    mapped  tensors stay in the file until they are used, as they may be larger than memory
    checked  the file is read once before, to find flipped bits
    Raises OSError, and ValueError for a damaged file, of which torch looks at no sum.
    """
    import torch

    try:
        with open_regular(path) as raw, zipfile.ZipFile(raw) as content:  # has a sum over each part
            if any(part.file_size > part.compress_size for part in content.infolist()):
                raise ValueError("packed, which torch does not do")
            if checked and (damaged := content.testzip()) is not None:
                raise ValueError(f"damaged in {damaged}")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError:
        raise
    except Exception as error:  # truncated, foreign and damaged files raise many kinds
        raise ValueError(str(error)) from None


def say(message: str) -> None:
    """Print a line on standard error. A lost reader or a full disk ends no run."""
    with suppress(OSError, ValueError):  # ValueError: closed
        if sys.stderr is not None:
            print(clean_text(message), file=sys.stderr, flush=True)


say_once = cache(say)  # in a process, not for each run of a sweep


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


def build_plain(schema: type[_Schema], content: Mapping[str, Any]) -> _Schema:
    """Return an instance of a dataclass of texts, numbers and tuples of texts.

    Raises ValueError that names the field for a value of another type, TypeError for an unknown or a missing field.
    """
    values = dict(content)
    for name, hint in get_type_hints(schema).items():
        if name in values:
            values[name] = _check_value(name, hint, values[name])
    return schema(**values)


def _check_value(name: str, hint: Any, value: Any) -> Any:
    """Return the value of a field, its text clean. Raises ValueError."""
    if hint is str and isinstance(value, str):
        return clean_text(value, one_line=True)
    if hint in _NUMBERS and type(value) in _NUMBERS[hint] and not abs(value) > _LARGEST:
        return value
    if hint == tuple[str, ...] and isinstance(value, list):
        return tuple(_check_value(name, str, one) for one in value)
    kinds = {str: "a text", int: "a whole number", float: "a number", tuple[str, ...]: "a list of texts"}
    if hint in kinds:
        raise ValueError(f"{name} must be {kinds[hint]}")
    return value
