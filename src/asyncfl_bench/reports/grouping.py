"""Which runs may be averaged: those that differ in nothing but the seed."""

from __future__ import annotations

from collections.abc import Iterable

from ..config import NOT_IDENTITY
from ..errors import ConfigError, did_you_mean
from .load import Run, shown

_NOT_SETTINGS = frozenset(("seed", *NOT_IDENTITY))  # runs that differ in these only may share a row


def differing_keys(runs: list[Run], by: Iterable[str] = ()) -> list[str]:
    """Keys that tell apart runs of the same algorithm, after those asked for in ``by``.

    When a whole group was exchanged (``delay=exponential`` beside ``delay=constant``) the group's name is the key, and
    its own settings are keys only where they differ under the same choice.

    Raises ConfigError when a key of ``by`` is in no run.
    """
    known = _all_keys(runs)
    for key in by:
        if key not in known:
            raise ConfigError("--by", key, f"must be a config key of these runs{did_you_mean(key, known)}")
    found = {key for same in _split(runs, lambda run: run.algorithm) for key in _keys_apart(same)}
    found.discard("algorithm")
    return list(dict.fromkeys([*by, *(key for key in known if key in found)]))


def differing_between_algorithms(runs: list[Run], columns: Iterable[str]) -> list[str]:
    """Groups or keys outside the algorithm that differ between algorithms and that no column shows."""
    apart = _keys_apart(runs) - set(columns)
    return [key for key in _all_keys(runs) if key in apart and key.partition(".")[0] != "algorithm"]


def _keys_apart(runs: list[Run]) -> set[str]:
    """Keys (or names of exchanged groups) whose values tell ``runs`` apart."""
    keys = set()
    within: dict[str, set[str]] = {}  # group: settings that differ although the choice is the same
    for key in _varying(runs):
        group = key.partition(".")[0]
        if group not in within:
            by_choice = _split(runs, lambda run, group=group: run.choices.get(group))
            within[group] = {varying for same in by_choice for varying in _varying(same)}
            if len(by_choice) > 1:
                keys.add(group)
        if key in within[group]:
            keys.add(key)
    return keys


def _varying(runs: list[Run]) -> set[str]:
    """Settings with more than one value among ``runs``; to lack a setting is a value too."""
    keys = {key for run in runs for key in run.settings if _is_setting(key)}
    missing = object()
    return {key for key in keys if len({_comparable(run.settings.get(key, missing)) for run in runs}) > 1}


def _comparable(value: object) -> object:
    return shown(value) if isinstance(value, (list, dict)) else (type(value) is bool, value)  # true is not 1


def _is_setting(key: str) -> bool:
    return key.partition(".")[0] not in _NOT_SETTINGS


def _all_keys(runs: list[Run]) -> list[str]:
    """Names of groups and settings in the order of the configs, groups first."""
    choices = dict.fromkeys(key for run in runs for key in run.choices)
    return list(choices | dict.fromkeys(key for run in runs for key in run.settings))


def _split(runs: list[Run], key) -> list[list[Run]]:
    parts: dict[object, list[Run]] = {}
    for run in runs:
        parts.setdefault(key(run), []).append(run)
    return list(parts.values())
