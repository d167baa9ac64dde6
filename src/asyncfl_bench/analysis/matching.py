"""Runs sorted into series and cells: those of a sweep by its axes, a user's own by their settings.

A **cell** is one panel or column of an experiment (alpha and delay in ACE's figure 2), a **series** one line or row: an
algorithm, with a variant where several are compared. Runs of one series and cell differ in nothing but their seed (and
the tuned setting), so that no mean mixes settings.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from ..errors import BenchError, ConfigError, did_you_mean
from ..tracking.records import MEASURED
from ..tracking.runs import setting_text
from .evaluations import final_values
from .names import (
    ETA,
    cell_label,
    distinguishing_keys,
    full_text,
    has_value,
    natural_key,
    ordered_series,
    series_label,
    setting_label,
    sort_key,
    value_texts,
)
from .selection import (
    CODE,
    COPY,
    OTHER_VERSION,
    PRECISION,
    Grid,
    exclusion_reasons,
    job_identities,
    leave_out_broken_searches,
    leave_out_duplicates,
    leave_out_other_data,
)
from .statistics import MIN_SEEDS

# settings that make separate series; others make cells
OWN = (
    "algorithm.",
    "client.",
    "distillation.",
    "unlabelled.",
    "server_seconds_per_sample.",
    "model.cut.",
    "concurrency.",
)
STEP = "algorithm.c"
LABEL = "summary.label"  # name that a user's own rule declares
SEPARATOR = ", "  # between the names, and the values, of settings that are tuned together
LEFT_OUT = ("name", "reason", "note", "algorithm", "seed", "series", "cell")


@dataclass
class MatchedRuns:
    """Runs with their series and cell, the missing jobs, and the runs left out.

    runs      runs that count: the columns of ``load_runs``, and the names of series and cell, the keys of
              the cell, tuned_by (the setting tuned for its algorithm), tuned (its value) and listed (False: a seed or
              value beyond the sweep's). For settings tuned together tuned_by joins their names, tuned their values
    missing   jobs without a run; left_out: the other runs by their index, with reason and note
    expected  how many runs the sweep asks for; 0 without a sweep
    diverged  the runs that diverged, with the columns of ``runs``; planned: one row per experiment of the sweep
    cells     keys that make the cells; apart: settings that differ between series, and that nothing shows
    """

    runs: pd.DataFrame
    missing: pd.DataFrame
    left_out: pd.DataFrame
    expected: int
    cells: list[str] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    diverged: pd.DataFrame = field(default_factory=pd.DataFrame)
    planned: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def series_names(self) -> list[str]:
        return ordered_series(self.runs["series"])

    @property
    def cell_names(self) -> list[str]:
        """The cells, by the values of their keys."""
        return cells_in_order(self.runs, self.cells)


def match_runs(grid: Grid, runs: pd.DataFrame, *, cells: Sequence[str], tuned: Sequence[str] = ()) -> MatchedRuns:
    """Return the runs of a sweep among ``runs``, found by identity; a seed that the sweep does not list counts too.

    cells  keys that make the cells
    tuned  settings of which other values than the sweep's count as well, if everything else is a job's. Each
           algorithm has those of which the sweep gives it several values.
    Raises BenchError when runs of one series and cell differ in more than seed and tuned value.
    """
    cells = _split_precisions(runs[runs["experiment"].isin(grid.jobs["experiment"])], cells)
    experiments = set(grid.jobs["experiment"].dropna())
    for key in tuned:
        experiments |= _experiments_beyond(grid, runs, experiments, key)
    known = runs["experiment"].isin(experiments)
    reasons = exclusion_reasons(runs)
    reasons[~known & ~reasons.isin(("unreadable", "inconsistent"))] = "not in this sweep"
    labels = _label_runs(runs, cells, _variant_keys(grid, runs["algorithm"], cells, tuned))
    labels["tuned_by"], labels["tuned"] = "".join(tuned) or None, None
    if len(tuned) > 1:  # an algorithm has those of which the sweep gives it several values
        several = {
            algorithm: SEPARATOR.join(key for key in tuned if key in jobs and jobs[key].nunique() > 1) or None
            for algorithm, jobs in grid.jobs.groupby("algorithm")
        }
        labels["tuned_by"] = runs["algorithm"].map(several)
    for names in labels["tuned_by"].dropna().unique():
        own, keys = labels["tuned_by"] == names, names.split(SEPARATOR)
        values = runs.loc[own].reindex(columns=keys)
        texts = zip(*(value_texts(values[key]) for key in keys), strict=True)
        labels.loc[own, "tuned"] = [*values[names]] if len(keys) == 1 else [*map(SEPARATOR.join, texts)]
    labels["listed"] = runs["identity"].isin(grid.jobs["identity"])
    leave_out_broken_searches(runs, labels, reasons)
    placed = _build_matched_runs(runs, labels, reasons, cells, tuple(tuned))
    there = known & ~reasons.isin((OTHER_VERSION, "inconsistent"))
    missing = grid.jobs[~grid.jobs["identity"].isin(runs["identity"][there])].reset_index(drop=True)
    placed.missing, placed.expected, placed.planned = missing, len(grid.jobs), grid.planned
    return placed


def group_runs(
    runs: pd.DataFrame,
    compare: Sequence[str] = ("algorithm",),
    panels: Sequence[str] = (),
    where: Mapping[str, object] | None = None,
) -> MatchedRuns:
    """Return any runs, sorted into series and cells by their settings.

    compare  keys that make the series; panels: keys that make the cells; where: key -> value that runs must have
    Settings that differ inside a series and cell are never averaged over. Those of algorithm and client become a part
    of the series' name, others another key of the cell. Raises ConfigError when no run has such a key.
    """
    compared, panels = list(dict.fromkeys(compare)), list(dict.fromkeys(panels))
    for key in (*compared, *panels, *(where or {})):
        if key not in runs or key.startswith("summary."):
            known = [str(name) for name in runs.columns if not str(name).startswith("summary.")]
            raise ConfigError("key", key, f"must be a setting of these runs{did_you_mean(key, known)}")
    for key, value in (where or {}).items():
        exactly = has_value(runs[key], value)  # else what pages show: 0.1 finds the runs that pages call 0.1
        runs = runs[exactly if exactly.any() else runs[key].map(setting_text) == str(value)]
    reasons = exclusion_reasons(runs)
    used = runs[reasons == ""]
    panels = _split_precisions(used, panels)
    added = distinguishing_keys(used, [*compared, *panels])
    cells = [*panels, *(key for key in added if not _is_series_key(key))]
    own = [key for key in added if _is_series_key(key)]
    variants = {name: [*compared, *own] for name in runs["algorithm"]}
    if compared == ["algorithm"]:  # a name has the settings that vary for this algorithm, not for another
        groups = used.groupby("algorithm", sort=False)
        variants = {name: ["algorithm", *distinguishing_keys(group, cells)] for name, group in groups}
    labels = _label_runs(runs, cells, variants)
    labels["tuned_by"], labels["tuned"], labels["listed"] = None, None, True
    placed = _build_matched_runs(runs, labels, reasons, cells, ())
    placed.apart = distinguishing_keys(
        used, [*cells, *compared[compared == ["algorithm"] :], *own], besides="algorithm"
    )
    return placed


def _split_precisions(runs: pd.DataFrame, cells: Sequence[str]) -> list[str]:
    """Return the keys of cells, with the precision if a run has another one than fp32: no comparison mixes two."""
    is_split = PRECISION in runs and PRECISION not in cells and (runs[PRECISION] == "tf32").any()
    return [*cells, *([PRECISION] if is_split else [])]


def split_codes(runs: pd.DataFrame, counted: pd.Series | bool = True) -> pd.Series:
    """Return the series of runs, with the code of each run if runs of one series and cell have several.

    counted  which runs may make a name longer
    """
    groups = runs[pd.Series(counted, index=runs.index)].groupby(["series", "cell"], sort=False)[CODE]
    several = {series for (series, _), codes in groups if codes.nunique() > 1}
    return pd.Series(
        [
            f"{series}, {setting_label(CODE, code)}" if series in several and isinstance(code, str) else series
            for series, code in zip(runs["series"], runs[CODE], strict=True)
        ],
        index=runs.index,
        dtype=object,
    )


def cells_in_order(runs: pd.DataFrame, cells: Sequence[str]) -> list[str]:
    """Return the names of the cells, sorted by the values of their keys, numbers by size."""
    columns = [runs[key] for key in cells]
    values = {cell: tuple(map(sort_key, own)) for cell, *own in zip(runs["cell"], *columns, strict=True)}
    return sorted(values, key=lambda cell: values[cell])


def _build_matched_runs(
    runs: pd.DataFrame, labels: pd.DataFrame, reasons: pd.Series, cells: list[str], tuned: tuple[str, ...]
) -> MatchedRuns:
    """Leave out duplicates and runs on other samples, refuse what no mean may mix, and sort the rest."""
    notes = runs["note"].astype(object).copy()
    leave_out_duplicates(runs, reasons, notes)
    leave_out_other_data(runs, reasons, notes)
    everything = pd.concat([runs.drop(columns=labels.columns.intersection(runs.columns)), labels], axis=1).copy()
    everything["series"] = split_codes(everything, reasons.isin(("", "diverged")))
    used = everything[reasons == ""]
    _check_alike(used, tuned)
    names, panels = ordered_series(used["series"]), cells_in_order(used, cells)
    ranks = [
        (names.index(series), panels.index(cell), natural_key(value), natural_key(seed))
        for series, cell, value, seed in zip(used["series"], used["cell"], used["tuned"], used["seed"], strict=True)
    ]
    used = used.iloc[sorted(range(len(used)), key=lambda row: ranks[row])]
    named = ~reasons.isin(("", COPY))
    left = everything.reindex(columns=list(LEFT_OUT)).assign(reason=reasons, note=notes)[named]
    left = left.loc[sorted(left.index, key=lambda run: (reasons[run], str(run)))]
    return MatchedRuns(used, pd.DataFrame(), left, 0, cells, diverged=everything[reasons == "diverged"].copy())


def _check_alike(used: pd.DataFrame, tuned: Sequence[str]) -> None:
    for (series, cell, _), group in used.groupby(["series", "cell", used["tuned"].map(full_text)], sort=False):
        if group["experiment"].nunique(dropna=False) < 2:
            continue
        keys = [key for key in distinguishing_keys(group, []) if key not in tuned]
        values = {key: " and ".join(sorted(set(value_texts(group[key])))) for key in keys}
        differ = ", ".join(f"{key} ({text})" for key, text in values.items()) or "settings that this version lacks"
        raise BenchError(f"runs of {series} in {cell or 'one panel'} differ in {differ}; no mean may mix them")


def _label_runs(runs: pd.DataFrame, cells: list[str], variants: Mapping[Hashable, list[str]]) -> pd.DataFrame:
    """Return series and cell of every run, and the keys of the cell.

    variants  algorithm -> keys of its series' names; other algorithms are named by themselves
    """
    runs = runs.reindex(columns=runs.columns.union(cells, sort=False))  # none may have a key, where none can be read
    words = {key: value_texts(runs[key]) for key in cells}
    labels = pd.DataFrame({key: runs[key] for key in cells}, index=runs.index)
    labels["cell"] = [cell_label(cells, [words[key][i] for key in cells]) for i in range(len(runs))]
    own = {*itertools.chain(*variants.values())} - {"algorithm"}
    words = {key: value_texts(runs[key]) for key in own if key in runs}
    series = []
    called = runs[LABEL] if LABEL in runs else pd.Series(None, index=runs.index)
    for i, algorithm in enumerate(runs["algorithm"]):
        keys = variants.get(algorithm, ["algorithm"])
        values = {key: words[key][i] for key in keys if key in words and words[key][i] != "-"}
        label = called.iloc[i] if isinstance(called.iloc[i], str) else None
        series.append(
            series_label(algorithm, values, label) if "algorithm" in keys else cell_label([*values], [*values.values()])
        )
    labels["series"] = series
    return labels


def _variant_keys(
    grid: Grid, algorithms: pd.Series, cells: Sequence[str], tuned: Sequence[str]
) -> dict[Hashable, list[str]]:
    """Return algorithm -> ``algorithm`` and its keys, or its clients', that the sweep gives several values."""
    others = {"algorithm", *cells, *tuned, *([ETA] if STEP in grid.jobs or STEP in tuned else [])}
    keys = [key for key in grid.jobs.columns if _is_series_key(str(key)) and key not in others]
    found: dict[Hashable, list[str]] = {}
    for algorithm in algorithms.unique():
        jobs = grid.jobs[grid.jobs["algorithm"] == algorithm] if "algorithm" in grid.jobs else grid.jobs
        found[algorithm] = ["algorithm", *(key for key in keys if jobs[key].nunique(dropna=False) > 1)]
    return found


def _experiments_beyond(grid: Grid, runs: pd.DataFrame, known: set[str], tuned: str) -> set[str]:
    """Return the experiments of the sweep's cells whose values of the tuned setting only ``runs`` have."""
    if tuned not in runs:
        return set()
    unknown = runs[~runs["experiment"].isin(known) & runs["status"].isin(MEASURED)]
    values = sorted({*unknown[tuned].map(full_text)} - {"-"})
    rests = dict.fromkeys(
        tuple(text for text in job if not text.startswith((f"{tuned}=", "seed=")))
        for job in grid.words
        if any(text.startswith(f"{tuned}=") for text in job)
    )
    jobs = [(*rest, f"{tuned}={value}") for rest in rests for value in values]
    return {str(row["experiment"]) for row in job_identities(jobs) if row["experiment"] is not None}


def _is_series_key(key: str) -> bool:
    """Return True if the setting names a series; other settings make cells."""
    return f"{key}.".startswith(OWN)


def choose_tuned(placed: MatchedRuns, points: pd.DataFrame) -> tuple[MatchedRuns, pd.DataFrame]:
    """Keep the runs of one value, or of one point of several settings, for each series and cell: the best on validation
    samples.

    The lowest three seeds choose, so that later seeds change no number of a look. Only those values compete that have
    the most runs of these seeds that ended well: one that diverges for some seeds must not win by the others. Of equal
    accuracies the smaller value wins. A test accuracy takes no part. Where all runs diverged, those of the smallest
    value stay, as diverged ones.
    Returns ``placed`` with the chosen runs only, and one row for each series and cell: series, cell, its keys,
    tuned_by (the setting), tuned (the chosen value; None where no run has a validation accuracy: none of its runs
    count), validation (its mean at the end over these seeds, in percent), tried (number of values that were run),
    at_edge (a setting of the choice has the lowest or highest of these values, those of diverged runs included).
    """
    every = pd.concat([placed.runs, placed.diverged])
    every["last"] = final_values(points, "validation/accuracy").reindex(every.index)
    kept, rows = list[object](), []
    for _, group in every.groupby(["series", "cell"], sort=False):
        ended = group[~group.index.isin(placed.diverged.index)]
        if ended.empty or group["tuned"].nunique() < 2:
            smallest = min(group["tuned"].dropna(), key=natural_key, default=None)
            kept.extend(group.index[group["tuned"].isna() | (group["tuned"] == smallest)])
            continue
        first = group[group["seed"].isin(sorted({*group["seed"]})[:MIN_SEEDS])]
        values = sorted({*first["tuned"].dropna()}, key=natural_key)
        scores = first[first.index.isin(ended.index)].groupby("tuned")["last"]
        means = scores.agg(lambda of: of.mean(skipna=False))[scores.size() == scores.size().max()].dropna()
        known = {value: means[value] for value in values if value in means}
        chosen = max(known, key=lambda value: known[value], default=None)
        kept.extend(group.index[group["tuned"] == chosen])
        tried = zip(*(str(value).split(SEPARATOR) for value in (chosen, *values)), strict=True) if known else ()
        ordered = [(own, sorted(others, key=natural_key)) for own, *others in tried]
        edge = any(of[0] != of[-1] and own in (of[0], of[-1]) for own, of in ordered)
        group_keys = {key: ended[key].iloc[0] for key in ("series", "cell", *placed.cells, "tuned_by")}
        rows.append(
            group_keys | {"tuned": chosen, "validation": known.get(chosen), "tried": len(values), "at_edge": edge}
        )
    names = ["series", "cell", *placed.cells, "tuned_by", "tuned", "validation", "tried", "at_edge"]
    runs, lost = (frame[frame.index.isin(kept)] for frame in (placed.runs, placed.diverged))
    return replace(placed, runs=runs, diverged=lost), pd.DataFrame(rows, columns=names)
