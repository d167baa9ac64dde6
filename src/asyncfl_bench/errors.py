"""Errors a user can act on. Each prints as one message; none needs a stack trace to be understood."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType
from typing import Any

EXIT_INTERRUPTED = 75  # "try again later": a run resumes from its checkpoint, a repeated multirun from its runs
MOST_LISTED = 10  # names in a message
PACKAGE = __name__.partition(".")[0]
_OURS = (Path(__file__).parent, Path(__file__).parents[1] / "hydra_plugins")


class BenchError(Exception):
    """A failure with a message written for the user. Ends a command with exit code 1."""

    exit_code = 1


class InputError(BenchError):
    """A file or a package that a run needs is missing or broken. Ends a command with exit code 2, like a setting."""

    exit_code = 2


class RunInUse(BenchError):
    """Another process works on the run. A multirun postpones the run."""


class ConfigError(BenchError):
    """A setting that cannot work. Ends a command with exit code 2, before any work is done.

    key      dotted path of the setting (``heterogeneity.alpha``)
    value    what was given
    allowed  what would have been accepted, as a short phrase
    """

    exit_code = 2

    def __init__(self, key: str, value: object, allowed: str):
        self.key, self.value, self.allowed = key, value, allowed
        super().__init__(key, value, allowed)  # all three: errors travel between processes by pickle

    def __str__(self) -> str:
        return f"{self.key}={format_value(self.value)}: {self.allowed}"

    def with_prefix(self, prefix: str) -> ConfigError:
        """Return this error with ``prefix.`` before its key: a part knows its field, and the caller knows the group."""
        return ConfigError(f"{prefix}.{self.key}" if self.key else prefix, self.value, self.allowed)


class RunTooLarge(ConfigError):
    """The run needs more memory than is free."""


@contextmanager
def naming_group(group: str) -> Iterator[None]:
    """Add the group, unless it is empty, to the key of a ConfigError in the block. n_clients is already complete."""
    try:
        yield
    except ConfigError as error:
        raise (error if error.key == "n_clients" or not group else error.with_prefix(group)) from None


class Stopped(Exception):
    """Computing was given up because the run is to stop; it will be asked for again and has the same result then."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def typed_line(error: BaseException) -> str:
    """Return ``ValueError: first line``; the type alone if the error has no text."""
    line, kind = first_line(error), type(error).__name__
    return line if line == kind else f"{kind}: {line}"


def lacks_memory(error: BaseException) -> bool:
    """Return True if an error means lack of memory. Python, torch and the loader of libraries have different
    messages."""
    said = ("allocate memory", "failed to map segment", "out of memory", "not enough memory")
    return isinstance(error, MemoryError) or any(words in str(error) for words in said)


def describe_lack_of_memory(error: BaseException) -> str:
    """Return an error of ``lacks_memory`` in one line."""
    return f"there is not enough memory: {typed_line(error)}"


def format_value(value: object) -> str:
    """Return a value as written on the command line and in yaml."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def check(ok: bool, key: str, value: object, allowed: str) -> None:
    """Raise ConfigError(key, value, "must be <allowed>") unless ``ok``."""
    if not ok:
        raise ConfigError(key, value, f"must be {allowed}")


def check_choice(key: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ConfigError unless ``value`` is one of ``choices``; name the nearest one."""
    if value not in choices:
        raise ConfigError(key, value, must_be_one_of(value, choices))


def must_be_one_of(word: object, known: Iterable[str], command: str = "") -> str:
    """Return ``must be one of ace, aced``, after the nearest name where there is one.

    command  prints all names; needed where there may be more than MOST_LISTED
    """
    names = [*known]
    near = did_you_mean(word, names).strip(" ()")
    must = f"must be one of {list_some(names, command)}"
    return f"{near} It {must}" if near else must


def list_some(names: Iterable[str], command: str = "") -> str:
    """Return at most MOST_LISTED of the names, and how many more there are. command: as in ``must_be_one_of``."""
    listed = [*names]
    text = ", ".join(listed[:MOST_LISTED])
    if len(listed) <= MOST_LISTED:
        return text
    return f"{text} and {len(listed) - MOST_LISTED} more" + (f" ({command} lists them)" if command else "")


def did_you_mean(word: object, known) -> str:
    """Return `` (did you mean 'ace'?)`` or an empty string."""
    from difflib import get_close_matches

    names = {str(name).lower(): str(name) for name in known}
    near = get_close_matches(str(word).lower(), names, n=1, cutoff=0.5)
    return f" (did you mean '{names[near[0]]}'?)" if near else ""


def describe_error(error: BaseException) -> str:
    """Return the kind and the message of an error in one line, with the line in the user's code where it arose."""
    location = user_location(error)
    text = f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else typed_line(error)
    return f"{text} ({location})" if location else text


def user_location(error: BaseException) -> str:
    """Return ``mine.py, line 9``: the last line outside this package and all installed ones that the error passed.

    Lines that called this package do not count. Returns an empty string where there is none.
    """
    location = ""
    called = False
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if any(Path(file).is_relative_to(folder) for folder in _OURS):
            called = True
        elif called and is_user_file(file):
            location = describe_location(file, line)
    if isinstance(error, SyntaxError) and is_user_file(error.filename or "<"):
        return describe_location(str(error.filename), error.lineno)
    return location


def describe_location(file: str | Path, line: int | None = None) -> str:
    """Return ``mine.py, line 9``, with the path as seen from the current directory where the file is below it."""
    path = Path(file)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}, line {line}" if line else str(shown)


def is_built_in(target: Any) -> bool:
    """Return True for classes and functions of this package."""
    return bool(target.__module__.partition(".")[0] == PACKAGE)


def location_of_code(code: CodeType) -> str:
    """Return the file and the first line of a function's code; an empty string for code of this package."""
    return describe_location(code.co_filename, code.co_firstlineno) if is_user_file(code.co_filename) else ""


def wrong_return(part: object, method: str, answer: object, expected: str) -> BenchError:
    """Return an error for what a method of a part returned, with its file and line where a user wrote it.

    expected  continues "must return"
    """
    cls = part.__class__  # of a ProbedRule the class of its rule
    location = location_of_code(code) if (code := getattr(getattr(cls, method), "__code__", None)) else ""
    said = f"{cls.__name__}.{method} returned {answer!r:.100}: it must return {expected}"
    return BenchError(f"{location}: {said}" if location else said)


def is_user_file(file: str) -> bool:
    """Return True for a file that is neither of this package, nor of Python, nor installed."""
    path = Path(file)
    of_others = (*_OURS, Path(sysconfig.get_path("stdlib")))
    installed = {"site-packages", "dist-packages"} & {*path.parts}
    return not file.startswith("<") and not installed and not any(path.is_relative_to(one) for one in of_others)


@contextmanager
def locating_user_errors() -> Iterator[None]:
    """Turn an exception that arises in a user's own code into an InputError with its file and line."""
    try:
        yield
    except (BenchError, Stopped):
        raise
    except (Exception, SystemExit) as error:
        if lacks_memory(error) or not (location := user_location(error)):
            raise
        raise InputError(f"{location}: {typed_line(error)}") from error


@contextmanager
def locating_yaml_errors(group: str, choice: str, file: Path) -> Iterator[None]:
    """Turn an exception that arises when the yaml of a choice is read into a ConfigError with its file and line."""
    try:
        yield
    except BenchError:
        raise
    except Exception as error:
        raise ConfigError(group, choice, _describe_yaml_error(file, error)) from None


def _describe_yaml_error(file: Path, error: Exception) -> str:
    """Return what is wrong in a yaml file, with the line where that is known."""
    import yaml

    if (line := _line_of_loop(file)) is not None:
        return f"{describe_location(file, line)}: the alias is within what it repeats; write the values instead"
    problem = str(getattr(error, "problem", None) or error).strip()
    mark: Any = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    if mark is None:
        return f"{describe_location(file)}: cannot be read: {problem.partition(chr(10))[0]}"
    last = len(file.read_text(encoding="utf-8").splitlines())  # an error at the end is said of the line after it
    location = describe_location(file, min(mark.line + 1, last))
    if problem.startswith("found duplicate key"):
        return f"{location}: {problem.removeprefix('found duplicate ')} is set before; remove one of the two lines"
    wrong = "is not YAML" if not isinstance(error, yaml.constructor.ConstructorError) else "cannot be read"
    return f"{location}: {wrong}: {problem}; write a line KEY: VALUE for each setting"


def _line_of_loop(file: Path) -> int | None:
    """Return the line of an alias within the value that it repeats; None without one."""
    import yaml

    anchors: list[str | None] = []  # of the lists and mappings that are open
    with suppress(yaml.YAMLError, OSError, ValueError):
        for event in yaml.parse(file.read_text(encoding="utf-8"), yaml.SafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                anchors.append(event.anchor)
            elif isinstance(event, yaml.CollectionEndEvent):
                anchors.pop()
            elif isinstance(event, yaml.AliasEvent) and event.anchor in anchors:
                mark: Any = event.start_mark
                return int(mark.line) + 1
    return None
