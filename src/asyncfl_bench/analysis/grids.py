"""The runs that a sweep asks for, by their identities."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..config import Settings
from ..config.composition import Compositions, check_composed
from ..errors import BenchError
from ..models.pretrained import MINILM
from ..multirun.axes import drawn_grids
from ..multirun.grid import jobs_of
from ..tracking.records import Record
from ..tracking.runs import build_frame

_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")  # of a folder, which identifies the run in place of its path


@dataclass(frozen=True)
class Grid:
    """What a sweep asks for.

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
    """The jobs of a sweep, composed. Raises ConfigError when there is no such sweep, profile or scale.

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
