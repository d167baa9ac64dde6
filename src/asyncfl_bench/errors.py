"""Errors a user can act on. Each prints as one message; none needs a stack trace to be understood."""

from __future__ import annotations

EXIT_INTERRUPTED = 75  # "try again later": a run goes on from its checkpoint, a multirun by being repeated


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


class Stopped(Exception):
    """Computing was given up because the run is to stop; it will be asked for again and has the same result then."""


def lacks_memory(error: BaseException) -> bool:
    """Whether memory could not be had: Python, torch and the loader of libraries each say it in their way."""
    said = ("allocate memory", "failed to map segment", "out of memory", "not enough memory")
    return isinstance(error, MemoryError) or any(words in str(error) for words in said)


def format_value(value: object) -> str:
    """Return a value as written on the command line and in yaml."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def check(ok: bool, key: str, value: object, allowed: str) -> None:
    """Raises ConfigError(key, value, "must be <allowed>") unless ``ok``."""
    if not ok:
        raise ConfigError(key, value, f"must be {allowed}")


def check_choice(key: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises ConfigError unless ``value`` is one of ``choices``; names the nearest one."""
    if value not in choices:
        raise ConfigError(key, value, f"must be one of {', '.join(choices)}{did_you_mean(value, choices)}")


def did_you_mean(word: object, known) -> str:
    """`` (did you mean 'ace'?)`` or an empty string."""
    from difflib import get_close_matches

    names = {str(name).lower(): str(name) for name in known}
    near = get_close_matches(str(word).lower(), names, n=1, cutoff=0.5)
    return f" (did you mean '{names[near[0]]}'?)" if near else ""
