"""Which settings runs differ in, beyond the digits shown, and what to call their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..config import NOT_IDENTITY, ORIGINS, PARTS
from ..tracking.runs import FIXED, shown
from .names import natural

ETA = "algorithm.eta"  # c * sqrt(n / T), so told by algorithm.c where that is given


def rank(value: object) -> tuple:
    """A sort key of settings: numbers by their size, beyond the digits shown."""
    return natural("-" if shown(value) == "-" else _python(value))


def texts(values: pd.Series) -> list[str]:
    """What values are called: six digits, or all where six do not tell them apart."""
    found = [shown(value) for value in values]
    return found if len(set(found)) == exact(values).nunique() else [in_full(value) for value in values]


def is_setting(key: str) -> bool:
    """Whether a column of ``load_runs`` is a setting that decides a run's numbers, its seed apart."""
    if key in NOT_IDENTITY:
        return False
    first = key.partition(".")[0]
    others = (*NOT_IDENTITY, *FIXED, *ORIGINS, *PARTS, "summary", "series", "cell", "tuned", "listed")
    return first not in others or ("." in key and first in PARTS and first not in NOT_IDENTITY)


def telling_apart(runs: pd.DataFrame, given: Sequence[str], besides: str | None = None) -> list[str]:
    """Keys that, beside those ``given``, are needed to tell apart runs that differ in more than their seed.

    Names of groups come first: where another delay was chosen, its settings need not be named one by one.
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
        codes = _refined(codes, runs[key])
    found = []
    for key in ordered:
        if key in chosen and not any(_splits(codes, runs[own]) for own in settings if own.startswith(f"{key}.")):
            continue  # another name for the same settings
        if _splits(codes, runs[key]):
            codes = _refined(codes, runs[key])
            found.append(key)
    return found


def in_full(value: object) -> str:
    """``shown``, with all digits."""
    value = _python(value)
    return repr(value) if isinstance(value, float) and value == value else shown(value)


def exact(values: pd.Series) -> pd.Series:
    """Values as text that tells any two apart, beyond the digits shown; the same for every way to have none."""
    return pd.Series(["-" if shown(value) == "-" else repr(_python(value)) for value in values], index=values.index)


def _refined(codes: pd.Series, values: pd.Series) -> pd.Series:
    pairs = pd.Series(list(zip(codes, exact(values), strict=True)), index=codes.index)
    return pd.Series(pd.factorize(pairs)[0], index=codes.index)


def _splits(codes: pd.Series, values: pd.Series) -> bool:
    return _refined(codes, values).nunique() > codes.nunique()


def _python(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
