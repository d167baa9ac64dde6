"""Runs that were made before, once more: ``--replay DIR`` of a live run, ``--repeat ARCHIVE IDENTITY`` of an archived
one. torch is imported after the settings are known to be valid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..files import expand_home, show
from ..multirun.run import closing_line

if TYPE_CHECKING:
    from ..config import Settings
    from ..experiment import RunResult


def replay_run(flag: str, names: list[str]) -> int:
    """Run the replay of a live run; print and note whether it gives the same bits. Returns 1 if it does not."""
    if len(names) != 1 or names[0].startswith("-"):
        raise ConfigError(flag, " ".join(names), f"must name one run directory: afl-run {flag} DIR")
    from ..experiment.replay import compare_result, note_comparison, replay_settings

    settings = replay_settings(names[0])
    result = execute_and_print(settings)
    if result.signal is not None:
        return result.exit_code
    live = expand_home(names[0], flag)
    comparison = compare_result(live, result)
    show(comparison)
    note_comparison(live, comparison, settings.identity)
    return 1 if comparison.difference else 0


def repeat_run(flag: str, names: list[str]) -> int:
    """Run an archived run again and print whether it gives the same numbers. Returns 1 if it does not."""
    overrides = [word for word in names if "=" in word]
    names = [word for word in names if word not in overrides]
    if len(names) != 2 or any(word.startswith("-") for word in (*names, *overrides)):
        example = f"afl-run {flag} results/ace/archive 5b1a564a data_dir=DIR"
        raise ConfigError(flag, " ".join(names), f"must name an archive and the identity of a run: {example}")
    from ..experiment.replay import compare_repetition, find_archived_run, settings_to_repeat

    archive, identity = names
    record = find_archived_run(archive, identity)
    result = execute_and_print(settings_to_repeat(record, archive, overrides))
    if result.signal is not None:
        return result.exit_code
    repetition = compare_repetition(record, result)
    show(repetition)
    return 1 if repetition.difference else 0


def execute_and_print(settings: Settings) -> RunResult:
    """Run and print the closing line."""
    from ..experiment import execute  # torch comes in here

    result = execute(settings, ends_process=True)
    show(closing_line(result, settings.time_unit))
    return result
