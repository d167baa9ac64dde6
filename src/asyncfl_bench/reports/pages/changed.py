"""What the runs of a page have set otherwise than their sweep: then they are not the paper's experiment."""

from __future__ import annotations

from collections.abc import Callable

from ...config import NOT_IDENTITY
from .selection import Grid, Selection, finder

SettingsOf = Callable[[list[str]], dict[str, object]]  # overrides of a run -> its resolved settings, flat


def changed_settings(
    selection: Selection, grids: list[Grid], overrides: list[str], settings_of: SettingsOf
) -> dict[str, str]:
    """key -> ``[4] instead of [128, 64]``, in any series or cell, of what neither the sweep varies nor a seed decides.

    One run stands for its series and cell, as ``select`` refuses others than like ones. Settings that only the run or
    only today's version has are left out.
    """
    found: dict[str, str] = {}
    job_of = finder(grids, selection.tuned)
    for runs in selection.runs.values():
        run = runs[0]
        varied = [key for key, _ in job_of(run) or ()]
        wanted = settings_of([*overrides, *(f"{key}={run.value(key)}" for key in varied)])
        for key in sorted(run.settings.keys() & wanted.keys()):
            decided = key in varied or key == "seed" or key.partition(".")[0] in NOT_IDENTITY
            if not decided and run.settings[key] != wanted[key]:
                found[key] = f"{run.settings[key]} instead of {wanted[key]}"
    return found
