"""Warnings about runs that a comparison mixes or left at their defaults: CPU makers, step sizes."""

from __future__ import annotations

import functools
import math
from typing import Any

import pandas as pd

from ..config import compose
from ..config.composition import STEPS
from ..config.overrides import type_text
from ..config.places import command_text
from ..config.settings import NOT_IDENTITY, ORIGINS, PARTS
from ..errors import BenchError, ConfigError, format_value, list_some
from ..tracking.runs import FIXED
from .selection import planned_frame

_MAKERS = "(Intel|AMD)"  # in the names of processors, for runs whose summary has no maker
_COMPATIBLE = "MKL_CBWR"  # in the name of a library that rounds alike on all
_LEFT_OUT = {*NOT_IDENTITY, *STEPS, "sweep"} - {"data_dir"}
_GROUPS = [name for name in (*PARTS, *ORIGINS) if name not in {*_LEFT_OUT, "algorithm"}]


def describe_mixed_makers(runs: pd.DataFrame) -> str:
    """Return a line on series whose runs are of CPUs of several makers; empty if there are none.

    runs  rows of ``load_runs``, with a column ``series`` where series are named
    """
    facts = runs.reindex(columns=[f"summary.{name}" for name in ("device", "cpu.maker", "cpu.torch", "executor")])
    device, _, library, executor = (values.astype(str) for _, values in facts.items())
    depends = device.str.startswith("cpu") & (executor != "native") & ~library.str.contains(_COMPATIBLE, regex=False)
    makers = facts["summary.cpu.maker"].astype(object).fillna(device.str.extract(_MAKERS, expand=False)).where(depends)
    names = runs["series"] if "series" in runs else runs["algorithm"]
    mixed: dict[str, None] = {}
    found: dict[str, None] = {}
    for _, own in makers.dropna().groupby(runs["experiment"], sort=False):
        if own.nunique() > 1:
            mixed[str(names[own.index[0]])] = None
            found |= dict.fromkeys(own)
    if not mixed:
        return ""
    cpus = " and ".join(sorted(found))
    return f"seeds of {list_some(mixed)} are from CPUs of {cpus}, where the last digits of this network differ"


def describe_default_steps(runs: pd.DataFrame) -> str:
    """Return a line on methods whose step sizes are defaults, with the command that searches those of all methods;
    empty if there are none.

    runs  rows of ``load_runs``, with a column ``series`` where series are named
    """
    found = runs[runs.get("summary.default_steps", pd.Series(index=runs.index, dtype=object)).eq(True)]
    if found.empty:
        return ""
    names = list_some(dict.fromkeys(found["series" if "series" in runs else "algorithm"]))
    said = f"the step sizes of {names} are defaults, neither chosen nor searched; the command that searches all"
    words = ["sweep=tune", f"algorithm={','.join(dict.fromkeys(runs['algorithm']))}"]
    try:
        return f"{said}: {command_text([*words, *_common_words(found)])}"
    except BenchError:  # a rule or a file that this command does not find
        return f"{said}, with the other settings of these runs: {command_text(words)}"


def _common_words(runs: pd.DataFrame) -> list[str]:
    """Return the overrides that give these settings to a multirun, steps excepted. Raises ConfigError."""
    rows = runs.drop_duplicates("experiment").to_dict("records")
    changes = [_changed_settings(row) for row in rows]
    texts: dict[str, dict[str, None]] = {key: {} for one in changes for key in one}
    for key, values in texts.items():
        for row, changed in zip(rows, changes, strict=True):
            if key in changed or not key.startswith("algorithm."):
                values[type_text(key, _to_text(row.get(key))).partition("=")[2]] = None
    for key, values in texts.items():
        if key.startswith("budget.") and "null" in values:
            raise ConfigError(key, ",".join(values), "one search has limits of the same kind")
    return [f"{key}={','.join(values)}" for key, values in texts.items()]


def _changed_settings(row: dict[Any, Any]) -> list[str]:
    """Return the groups and settings that differ from those of a run of the same algorithm without further words.

    Raises ConfigError.
    """
    words = [f"algorithm={row['algorithm']}"]
    plain = _plain_row(*words)
    groups = [name for name in _GROUPS if name in row and _to_text(row[name]) != _to_text(plain.get(name))]
    plain = _plain_row(*words, *(type_text(name, _to_text(row[name])) for name in groups))
    keys = [key for key in plain if not {key, key.partition(".")[0]} & _LEFT_OUT and not key.endswith("._target_")]
    changed = [key for key in keys if key in row and _to_text(row[key]) != _to_text(plain[key])]
    without = [key for key in changed if key.startswith("budget.") and _to_text(row[key]) == "null"]
    return [*groups, *(key for key in changed if key not in (*groups, *without))]  # one limit replaces the others


@functools.cache
def _plain_row(*words: str) -> dict[str, Any]:
    """Return the settings of a run with these words alone, named as ``load_runs`` names them. Raises ConfigError."""
    row = planned_frame([compose(list(words))]).iloc[0].to_dict()
    return {str(key): row[key] for key in row if key not in FIXED and not str(key).startswith("summary.")}


def _to_text(value: Any) -> str:
    """Return a setting as it is typed; columns with gaps have floats and NaN."""
    if isinstance(value, float):
        value = None if math.isnan(value) else int(value) if value.is_integer() else value
    return format_value(value)
