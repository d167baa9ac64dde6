"""Makers of the CPUs of runs: libraries for matrices round differently on each, compiled kernels do not."""

from __future__ import annotations

import pandas as pd

from ..errors import list_some

_MAKERS = ("Intel", "AMD")  # in the names of processors, for runs whose summary has no maker
_COMPATIBLE = "MKL_CBWR"  # in the name of a library that rounds alike on all


def maker_of(device: object, maker: object, library: object, executor: object) -> str | None:
    """Return the maker of the CPU that the bits of a run depend on; None where they do not, or where it is unknown.

    All arguments are of the run's summary, None or NaN if it lacks them.
    """
    if not str(device).startswith("cpu") or executor == "native" or _COMPATIBLE in str(library):
        return None
    return maker if isinstance(maker, str) else next((name for name in _MAKERS if name in str(device)), None)


def describe_mixed_makers(runs: pd.DataFrame) -> str:
    """Return a line on series whose runs are of CPUs of several makers; empty if there are none.

    runs  rows of ``load_runs``, with a column ``series`` where series are named
    """
    keys = [f"summary.{name}" for name in ("device", "cpu.maker", "cpu.torch", "executor")]
    rows = runs.reindex(columns=keys).itertuples(index=False, name=None)
    makers = pd.Series([maker_of(*row) for row in rows], index=runs.index)
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
