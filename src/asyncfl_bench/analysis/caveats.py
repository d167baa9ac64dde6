"""Warnings about runs that a comparison mixes or left at their defaults: CPU makers, step sizes."""

from __future__ import annotations

import pandas as pd

from ..config.part_sources import command_text
from ..errors import list_some

_MAKERS = "(Intel|AMD)"  # in the names of processors, for runs whose summary has no maker
_COMPATIBLE = "MKL_CBWR"  # in the name of a library that rounds alike on all


def describe_mixed_makers(runs: pd.DataFrame) -> str:
    """Return a line on series whose runs are of CPUs of several makers; empty if there are none.

    runs  rows of ``load_runs``, with a column ``series`` where series are named
    """
    facts = runs.reindex(columns=[f"summary.{name}" for name in ("device", "cpu.maker", "cpu.torch", "executor")])
    device, _, library, executor = (values.astype(str) for _, values in facts.items())
    depends = device.str.startswith("cpu") & (executor != "native") & ~library.str.contains(_COMPATIBLE, regex=False)
    makers = facts["summary.cpu.maker"].astype(object).fillna(device.str.extract(_MAKERS, expand=False)).where(depends)
    names = runs["series"] if "series" in runs else runs["algorithm"]
    is_mixed = makers.groupby(runs["experiment"]).transform("nunique") > 1
    if not is_mixed.any():
        return ""
    cpus = " and ".join(sorted(makers[is_mixed].dropna().unique()))
    series = list_some(dict.fromkeys(names[is_mixed]))
    return f"seeds of {series} are from CPUs of {cpus}, where the last digits of this network differ"


def describe_default_steps(runs: pd.DataFrame) -> str:
    """Return a line on methods whose step sizes are defaults, with the command that searches those of all methods;
    empty if there are none.

    runs  rows of ``load_runs``, with a column ``series`` where series are named
    """
    found = runs[runs.get("summary.default_steps", pd.Series(index=runs.index, dtype=object)).eq(True)]
    if found.empty:
        return ""
    names = list_some(dict.fromkeys(found["series" if "series" in runs else "algorithm"]))
    words = ["sweep=tune", f"algorithm={','.join(dict.fromkeys(runs['algorithm']))}"]
    said = f"the step sizes of {names} are defaults, neither chosen nor searched; the command that searches all"
    return f"{said}, with the other settings of these runs: {command_text(words)}"
