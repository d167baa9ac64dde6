"""What the runs of a page have set otherwise than their sweep: then they are not the paper's experiment."""

from __future__ import annotations

from collections.abc import Callable

from ...config import NOT_IDENTITY
from ..load import shown
from .selection import Grid, Selection, finder

SettingsOf = Callable[[list[list[str]]], list[dict[str, object]]]  # overrides of runs -> their resolved settings, flat


def changed_settings(
    selection: Selection, grids: list[Grid], overrides: list[str], settings_of: SettingsOf
) -> dict[str, str]:
    """key -> ``[4] instead of [128, 64]``, in any series or cell, of what neither the sweep varies nor a seed decides.

    Settings that only a run or only today's version has are left out.
    """
    found: dict[str, str] = {}
    job_of = finder(grids, selection.tuned)
    groups = list(selection.runs.values())
    varied_of = [[key for key, _ in job_of(runs[0]) or ()] for runs in groups]
    words = [[f"{key}={runs[0].value(key)}" for key in keys] for runs, keys in zip(groups, varied_of, strict=True)]
    wanted_of = settings_of([[*overrides, *one] for one in words])
    for runs, varied, wanted in zip(groups, varied_of, wanted_of, strict=True):
        for run in runs:
            for key in sorted(run.settings.keys() & wanted.keys()):
                decided = key in varied or key == "seed" or key.partition(".")[0] in NOT_IDENTITY
                if not decided and run.settings[key] != wanted[key]:
                    found[key] = f"{shown(run.settings[key])} instead of {shown(wanted[key])}"
    return found
