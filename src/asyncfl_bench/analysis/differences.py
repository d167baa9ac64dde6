"""Which settings runs differ in, beyond the digits shown, and what to call their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..config import NOT_IDENTITY, ORIGINS, PARTS
from ..tracking.runs import FIXED, setting_text
from .names import natural_key

ETA = "algorithm.eta"  # c * sqrt(n / T), so told by algorithm.c where that is given


def sort_key(value: object) -> tuple:
    """Return a sort key of settings: numbers by size, beyond the digits shown."""
    return natural_key("-" if setting_text(value) == "-" else _to_python(value))


def value_texts(values: pd.Series) -> list[str]:
    """Return the text of each value: six digits, or all digits if six make two values alike."""
    found = [setting_text(value) for value in values]
    return found if len(set(found)) == exact_texts(values).nunique() else [full_text(value) for value in values]


def is_setting(key: str) -> bool:
    """Whether a column of ``load_runs`` is a setting that decides a run's numbers, its seed apart."""
    if key in NOT_IDENTITY:
        return False
    first = key.partition(".")[0]
    others = (*NOT_IDENTITY, *FIXED, *ORIGINS, *PARTS, "summary", "series", "cell", "tuned", "listed")
    return first not in others or ("." in key and first in PARTS and first not in NOT_IDENTITY)


def distinguishing_keys(runs: pd.DataFrame, given: Sequence[str], besides: str | None = None) -> list[str]:
    """Return the keys, beside those ``given``, that tell apart runs that differ in more than their seed.

    Names of groups come first: if another delay was chosen, its settings need not be named one by one.
    besides  a group that is not looked at
    """
    if runs.empty:
        return []
    settings = [key for key in runs.columns if is_setting(key)]
    chosen = [key for key in PARTS if key in runs and key not in NOT_IDENTITY]
    ordered = [*chosen, *sorted(settings, key=lambda key: key == ETA)]
    ordered = [key for key in ordered if key.partition(".")[0] != besides]
    codes = pd.Series(0, index=runs.index)
    for key in given:
        codes = _refine_groups(codes, runs[key])
    found = []
    for key in ordered:
        if key in chosen and not any(_is_split_by(codes, runs[own]) for own in settings if own.startswith(f"{key}.")):
            continue  # another name for the same settings
        if _is_split_by(codes, runs[key]):
            codes = _refine_groups(codes, runs[key])
            found.append(key)
    return found


def full_text(value: object) -> str:
    """Return the text of a setting with all digits."""
    value = _to_python(value)
    return repr(value) if isinstance(value, float) and value == value else setting_text(value)


def exact_texts(values: pd.Series) -> pd.Series:
    """Return values as text with all digits; every way to have no value gives the same text."""
    return pd.Series(
        ["-" if setting_text(value) == "-" else repr(_to_python(value)) for value in values], index=values.index
    )


def _refine_groups(codes: pd.Series, values: pd.Series) -> pd.Series:
    """Return group numbers in which runs of one group that differ in ``values`` are apart."""
    pairs = pd.Series(list(zip(codes, exact_texts(values), strict=True)), index=codes.index)
    return pd.Series(pd.factorize(pairs)[0], index=codes.index)


def _is_split_by(codes: pd.Series, values: pd.Series) -> bool:
    """Return True if some group has several of the values."""
    return _refine_groups(codes, values).nunique() > codes.nunique()


def _to_python(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
