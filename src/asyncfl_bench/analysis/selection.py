"""The composed jobs of a page's sweep (``Grid``), and the reasons why a run does not count."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ..config.composition import Compositions, check_composed
from ..config.settings import Settings, results_version_of
from ..errors import BenchError
from ..models.pretrained import MINILM
from ..multirun.axes import drawn_grids, jobs_of
from ..tracking.records import MEASURED, NUMBERS, Record
from ..tracking.runs import build_frame
from .names import full_text

_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")  # of a folder, which identifies the run in place of its path
CODE = "code"
COPY = "copy"  # the reason of an archived run whose directory is found too
OTHER_VERSION = "another results version"
_NUMBERS = tuple(f"summary.{section}." for section in NUMBERS)
PRECISION = "precision"


@dataclass(frozen=True)
class Grid:
    """The runs that a sweep asks for.

    jobs     a row a run: identity, experiment, seed, overrides (text), error (why it cannot be composed, else None),
             and a column of text for every key that the sweep gives several values
    command  the words after ``afl-run -m`` that start them
    planned  one row per experiment, see ``planned_frame``
    """

    sweep: str
    profile: str
    scale: str
    length: str
    jobs: pd.DataFrame
    command: tuple[str, ...] = ()
    words: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    planned: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)


def grid_of(sweep: str, profile: str, scale: str, length: str = "standard", more: Sequence[str] = ()) -> Grid:
    """Return the composed jobs of a sweep. Raises ConfigError for an unknown sweep, profile or scale.

    more  further overrides, as on the command line: ``["seed=0,1"]``
    """
    long = [f"length={length}"] if length != "standard" else []
    command = (f"sweep={sweep}", f"profile={profile}", f"scale={scale}", *long, *more)
    grids = drawn_grids(list(command))
    words = tuple(tuple(job) for job in jobs_of(grids))
    known = dict.fromkeys(itertools.chain(*grids))
    varied = [key for key in known if len({value for grid in grids for value in grid.get(key, [None])}) > 1]
    rows: list[dict[str, Any]] = []
    by_experiment: dict[str, Settings] = {}
    for job, row in zip(words, job_identities(words), strict=True):
        if (settings := row.pop("settings")) is not None:
            by_experiment[row["experiment"]] = settings
        values = dict(text.split("=", 1) for text in job)
        rows.append(
            row
            | {"overrides": _DIGEST.sub("DIR", " ".join(job))}
            | {key: values.get(key) for key in varied if key != "seed"}
        )
    jobs = pd.DataFrame(rows)
    once = jobs["identity"].isna() | ~jobs["identity"].duplicated()  # two lists of words may give the same run
    kept = tuple(word for word, keep in zip(words, once, strict=True) if keep)
    command = tuple(_DIGEST.sub("DIR", word) for word in command)
    planned = planned_frame(by_experiment.values())
    return Grid(sweep, profile, scale, length, jobs[once].reset_index(drop=True), command, kept, planned)


def planned_frame(settings: Iterable[Settings]) -> pd.DataFrame:
    """Return one row per experiment, with the columns of settings that ``load_runs`` gives a run."""
    records: dict[str, Record] = {}
    for one in settings:
        summary: dict[str, Any] = {"results_version": one.results_version, "experiment": one.experiment}
        summary |= {"digests": one.digests, "code_digest": one.code_digest}
        summary |= {"label": one.label} if one.label else {}
        records[one.experiment] = Record(one.name, "ok", "", one.tree, summary)
    frame = build_frame(records)
    paths = frame.get("model.path", pd.Series(dtype=object))
    if paths.nunique() > 1:  # planned runs have not loaded their encoders
        frame["model"] = paths.where(paths != MINILM).fillna(frame["model"])
    return frame


def job_identities(words: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return identity, experiment, seed, error and settings of every job; jobs that differ only in their seed are
    composed once."""
    compositions = Compositions()
    by_words: dict[tuple[str, ...], Settings] = {}
    rows: list[dict[str, Any]] = []
    for job in words:
        try:
            run = compositions.config(job)
            rest = tuple(text for text in job if run.refers or not text.startswith("seed="))  # ${seed} may be in it
            if rest not in by_words:
                by_words[rest] = check_composed(run.tree, run.hydra, job)
            settings = by_words[rest]
        except BenchError as error:
            rows.append({"identity": None, "experiment": None, "seed": None, "error": str(error), "settings": None})
            continue
        listed = [int(text[5:]) for text in job if text.startswith("seed=") and not run.refers]
        seed = listed[-1] if listed else settings.root.seed
        settings.tree["seed"] = seed
        names = {"identity": settings.identity, "experiment": settings.experiment, "seed": seed}
        rows.append({**names, "error": None, "settings": settings})
    return rows


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
    groups = pd.MultiIndex.from_frame(labels[["series", "cell"]])
    reasons[measured & groups.isin(groups[lost])] = "search by another results version"


def leave_out_duplicates(runs: pd.DataFrame, reasons: pd.Series, notes: pd.Series) -> None:
    """Leave out all but one of the runs with one identity: one that ended well counts, rather in a directory.

    A run in both an archive and a directory is as it should be; other duplicates are named.
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
            both = runs.loc[[run, first], numbers if alike else []]  # one of an earlier version may lack a number
            other = [*both.columns[both.notna().all() & (both.iloc[0] != both.iloc[1])]]
            reasons[run] = COPY if "::" in str(run) and alike and not other else "found twice"
            notes[run] = f"the same run as {'/'.join(Path(first).parts[-2:])}"  # a page names no place of one machine
            notes[run] += f", with another {other[0].removeprefix('summary.')}" if other else ""


def leave_out_other_data(runs: pd.DataFrame, reasons: pd.Series, notes: pd.Series) -> None:
    """Leave out runs whose samples differ from those of most runs with equal data settings, as from another file.

    Data may be drawn from the seed; where two seeds have the same samples, they are not, and all seeds must agree.
    """
    used = runs[(reasons == "") & runs["data_digest"].notna()]
    keys = [key for key in used.columns if key.startswith(("dataset.", "unlabelled."))]
    keys += ["evaluation.validation_share"] if "evaluation.validation_share" in used else []
    if "n_clients" in used:
        keys.append("n_clients")  # some data are drawn client by client
    if used.empty:
        return
    for _, same in used.groupby([used[key].map(full_text) for key in keys] or (lambda _: 0), sort=False):
        shared = same.groupby("data_digest")["seed"].nunique().max() > 1
        for _, group in [(None, same)] if shared else same.groupby("seed", sort=False):
            counts = group["data_digest"].value_counts()
            if len(counts) < 2:
                continue
            usual = min(counts[counts == counts.max()].index)
            for run in group.index[group["data_digest"] != usual]:
                reasons[run] = "other data"
                notes[run] = f"samples {group['data_digest'][run]}; {counts.max()} runs of this data have {usual}"


def runs_for_page(runs: pd.DataFrame, grid: Grid) -> pd.DataFrame:
    """Return the runs made for this sweep with its profile, scale and length, and runs of other sweeps that fill
    gaps.

    A run of another sweep fills a gap if only it ended well, or else only it diverged: a sweep repeats neither. Runs of
    another results version do not count here.
    """
    own, current = are_made_for(grid, runs), have_current_version(runs)
    others, taken = runs[~own & current & runs["experiment"].isin(grid.jobs["experiment"])], own
    for number, status in enumerate(MEASURED):
        there = runs["identity"][taken & current & runs["status"].isin(MEASURED[: number + 1])]
        lent = others[(others["status"] == status) & ~others["identity"].isin(there)]
        taken = taken | runs.index.isin(lent.drop_duplicates("identity").index)
    return runs[taken]


def page_overrides(runs: pd.DataFrame, *choices: str) -> list[str]:
    """Return overrides that choose the encoders and the precisions of the runs made for a sweep; none for MiniLM and
    fp32 alone.

    A folder is chosen by the digest of its files, which identifies a run in place of the path.
    choices  sweep, profile, scale and length
    """
    sweep, profile, scale, length = choices
    made = runs[are_made_for(Grid(sweep, profile, scale, length, pd.DataFrame()), runs) & runs["status"].isin(MEASURED)]
    digests, paths = (
        made.get(key, pd.Series(None, made.index, object)) for key in ("summary.digests.model", "model.path")
    )
    names = sorted(set(digests.where(digests.notna(), paths).dropna()))
    precisions = sorted({value if isinstance(value, str) else "fp32" for value in made.get(PRECISION, ())})
    chosen = {"model.path": set(names) - {MINILM} and names, PRECISION: set(precisions) - {"fp32"} and precisions}
    return [f"{key}={','.join(values)}" for key, values in chosen.items() if values]


def are_made_for(grid: Grid, runs: pd.DataFrame) -> pd.Series:
    """Return which runs were made for this sweep with its profile, scale and length."""
    own = pd.Series(True, index=runs.index)
    for key in ("sweep", "profile", "scale", "length"):
        own &= runs[key] == getattr(grid, key) if key in runs else True
    return own
