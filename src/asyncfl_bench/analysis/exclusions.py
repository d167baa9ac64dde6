"""Reasons why a run does not count on a page: its status, results version, data, or a twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from ..config import results_version_of
from ..tracking.records import MEASURED, NUMBERS
from .differences import exact_texts

CODE = "code"
COPY = "copy"  # the reason of what an archive holds of a directory
OTHER_VERSION = "another results version"
_NUMBERS = tuple(f"summary.{section}." for section in NUMBERS)


def exclusion_reasons(runs: pd.DataFrame) -> pd.Series:
    """Return why each run does not count; empty for a run that does."""
    reasons = runs["status"].where(runs["status"] != "ok", "").astype(object)
    reasons[runs["status"].isin(MEASURED) & ~have_current_version(runs)] = OTHER_VERSION
    return reasons


def have_current_version(runs: pd.DataFrame) -> pd.Series:
    """Return which runs have the results version of their rule."""
    rules = runs.get("algorithm._target_", pd.Series(None, index=runs.index, dtype=object))
    return runs["results_version"] == rules.map(results_version_of)


def leave_out_broken_searches(runs: pd.DataFrame, labels: pd.DataFrame, reasons: pd.Series) -> None:
    """Leave out each series and cell of which values of a search have runs of another results version alone."""
    measured = reasons.isin(("", "diverged"))
    lost = (reasons == OTHER_VERSION) & labels["tuned"].notna() & ~runs["identity"].isin(runs["identity"][measured])
    places = pd.MultiIndex.from_frame(labels[["series", "cell"]])
    reasons[measured & places.isin(places[lost])] = "search by another results version"


def leave_out_duplicates(runs: pd.DataFrame, reasons: pd.Series, notes: pd.Series) -> None:
    """Of runs with one identity one counts: one that ended well, rather in a directory than in an archive.

    That an archive holds what a directory holds too is as it should be; other twins are named.
    """
    measured = reasons.isin(("", "diverged"))
    numbers = [key for key in runs.columns if str(key).startswith(_NUMBERS)]
    known = measured & runs["identity"].notna()  # planned runs of an encoder in a folder have none
    for _, twins in runs[known].groupby(["identity", CODE], sort=False, dropna=False):
        if len(twins) < 2:
            continue
        first, *others = sorted(twins.index, key=lambda run: (reasons[run] != "", "::" in str(run), str(run)))
        for run in others:
            alike = reasons[run] == reasons[first]
            other = [key for key in numbers if not _is_equal(runs.at[run, key], runs.at[first, key])] if alike else []
            reasons[run] = COPY if "::" in str(run) and alike and not other else "found twice"
            notes[run] = f"the same run as {'/'.join(Path(first).parts[-2:])}"  # a page names no place of one machine
            notes[run] += f", with another {other[0].removeprefix('summary.')}" if other else ""


def _is_equal(one: Any, other: Any) -> bool:
    """Return True for equal numbers, and if one is missing, as in a run of an earlier version."""
    return bool(one == other) or pd.isna(one) or pd.isna(other)


def leave_out_other_data(runs: pd.DataFrame, reasons: pd.Series, notes: pd.Series) -> None:
    """Runs on other samples than the rest with the same settings of the data: another file under the same name.

    Data may be drawn from the seed; where two seeds have the same samples, they are not, and all seeds must agree.
    """
    used = runs[(reasons == "") & runs["data_digest"].notna()]
    keys = [key for key in used.columns if key.startswith(("dataset.", "unlabelled."))]
    keys += ["evaluation.validation_share"] if "evaluation.validation_share" in used else []
    if "n_clients" in used:
        keys.append("n_clients")  # some data are drawn client by client
    if used.empty:
        return
    for _, same in used.groupby([exact_texts(used[key]) for key in keys] or (lambda _: 0), sort=False):
        shared = same.groupby("data_digest")["seed"].nunique().max() > 1
        for _, group in [(None, same)] if shared else same.groupby("seed", sort=False):
            counts = group["data_digest"].value_counts()
            if len(counts) < 2:
                continue
            usual = min(counts[counts == counts.max()].index)
            for run in group.index[group["data_digest"] != usual]:
                reasons[run] = "other data"
                notes[run] = f"samples {group['data_digest'][run]}; {counts.max()} runs of this data have {usual}"
