"""Subjects of ``decide=true`` and their words, judged pairs of methods in cells, and files ``decide-….json``.

A multirun under ``decide=true`` chooses its seeds by looks (docs/reference/statistics.md, rules 2 and 3). A file
``decide-….json`` in its folder records this, and a report on these runs also judges by looks.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from ..errors import BenchError, ConfigError, check_choice, did_you_mean
from ..files import build_plain, read_json, write_text
from .comparison import compare_pairs
from .contrasts import Contrast
from .matching import MatchedRuns
from .measures import RunMeasures
from .names import AXES
from .statistics import LEVELS

PAIR_MEASURE = "late"
FIRST_LOOK = min(LEVELS)
_FILES = "decide-*.json"


@dataclass(frozen=True)
class Subject:
    """One claim, or one pair of methods in a cell, as the runs of a look judge it.

    word        its decision, as ``ace/figure2-ace-first holds``; empty while it is open
    text        numbers, or the reason why it is open
    needed      experiments of its first look; is_begun: they have the seeds of that look
    contrasts   its comparisons on the seeds that count; first_seed: the first that counts
    """

    name: str
    word: str
    text: str
    needed: frozenset[str]
    contrasts: tuple[Contrast, ...] = ()
    first_seed: int = 0
    is_begun: bool = True

    def wanted_runs(self, look: int, projected: bool = False) -> set[tuple[str, int]]:
        """Return (experiment, seed) of the runs that a look of that many seeds needs.

        Comparisons without an answer, and those that are decided as claimed, get no seeds.
        projected  without comparisons that fewer seeds probably decide
        """
        if self.word:
            return set()
        experiments = self.needed
        if self.is_begun and look > FIRST_LOOK:
            before = max(fewer for fewer in LEVELS if fewer < look)
            known = [one for one in self.contrasts if len(one.by_seed) > 0 and one.experiments <= self.needed]
            is_open = [one for one in known if one.side != "agree" and not one.no_answer]
            if projected:
                is_open = [one for one in is_open if (one.needed_seeds or math.inf) > before]
            experiments = frozenset().union(*(one.experiments for one in is_open))
        return set(itertools.product(experiments, range(self.first_seed, self.first_seed + look)))


@dataclass(frozen=True)
class Decision:
    """The pairs that a multirun of a user's own grid decides, as its folder has it for reports.

    compare      a name of ``algorithm`` or a series; empty: all pairs
    tie          margin of a tie [points]; cells: keys of the cells; experiments: those of its runs
    seconds_before  of computing that its folder had before the first look
    """

    compare: str
    tie: float
    axis: str
    cells: tuple[str, ...]
    experiments: tuple[str, ...]
    seconds_before: float = 0.0

    def path(self, folder: Path) -> Path:
        """Return the file of decisions in a folder. Equal runs and ``compare`` have the same file."""
        text = " ".join([self.compare, *self.experiments])
        return folder / _FILES.replace("*", hashlib.sha256(text.encode()).hexdigest()[:8])

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(self.path(folder), json.dumps(asdict(self), indent=1) + "\n")


def read_decision(path: Path) -> Decision:
    """Raise BenchError for a file that is damaged."""
    try:
        decision = build_plain(Decision, read_json(path))
        check_choice("axis", decision.axis, tuple(AXES))
        return decision
    except (ConfigError, OSError, ValueError, TypeError) as error:
        raise BenchError(f"{path}: {error}; remove it, and repeat afl-run … decide=true") from None


def decision_of(paths: Iterable[str | Path], experiments: Iterable[str]) -> Decision | None:
    """Return the decision about most of these experiments at or below the folders; None if there is none."""
    shown = set(experiments)
    folders = [path if path.is_dir() else path.parent for path in map(Path, paths)]
    found = [read_decision(path) for folder in folders for path in sorted(folder.rglob(_FILES))]
    known = [one for one in found if shown & set(one.experiments)]
    return max(known, key=lambda one: len(shown & set(one.experiments)), default=None)


def pairs_of(placed: MatchedRuns, compare: str = "") -> list[tuple[str, str]]:
    """Return the pairs of series that have a cell in common: ``compare`` (a name of ``algorithm`` or a series) with
    each other series, by default all.

    Raises ConfigError for a name that no run has, or fewer than two series.
    """
    runs, shown = placed.runs, placed.series_names
    if len(shown) < 2:
        raise ConfigError("decide", "true", "needs two methods to compare, for example algorithm=ace,mine")
    own = shown
    if compare:
        own = sorted({*runs.loc[runs["algorithm"] == compare, "series"]} or {one for one in shown if one == compare})
        known = [*dict.fromkeys([*runs["algorithm"], *shown])]
        if not own:
            wanted = f"must be one of {', '.join(known)}{did_you_mean(compare, known)}"
            raise ConfigError("decide.compare", compare, wanted)
    cells = {series: set(of["cell"]) for series, of in runs.groupby("series")}
    others = [one for one in shown if one not in own]
    pairs = itertools.product(own, others) if compare else itertools.combinations(shown, 2)
    found = [(one, other) for one, other in pairs if cells[one] & cells[other]]
    if not found:
        raise ConfigError("decide.compare", compare, "meets no other method in a cell; give the same values to all")
    return found


def judge_pairs(measured: RunMeasures | None, planned: MatchedRuns, decision: Decision, most: int) -> list[Subject]:
    """Return every pair of the decision in every cell; planned: a run of each experiment, which need not be there."""
    pairs, judged = pairs_of(planned, decision.compare), {}
    if measured is not None:
        rows = compare_pairs(measured, PAIR_MEASURE, decision.axis, LEVELS, pairs, decision.tie, most=most)
        judged = {tuple(of): contrast for *of, contrast in rows.itertuples(index=False, name=None)}
    runs = planned.runs.groupby(["cell", "series"])["experiment"].agg(frozenset).to_dict()
    found = []
    for cell, (one, other) in itertools.product(planned.cell_names, pairs):
        if (cell, one) not in runs or (cell, other) not in runs:
            continue
        contrast = judged.get((cell, one, other), Contrast(f"{one} - {other}", cell))
        name = ", ".join(filter(None, (contrast.name, cell)))
        word = "" if contrast.side == "open" else ", ".join(filter(None, (_pair_word(contrast), cell)))
        begun = contrast.interval.total >= FIRST_LOOK
        found.append(Subject(name, word, contrast.reason, runs[cell, one] | runs[cell, other], (contrast,), 0, begun))
    return found


def decision_table(contrasts: Sequence[Contrast]) -> pd.DataFrame:
    """Return the table of pairs: pair, cell, difference, interval, verdict, look that gave it, and all seeds."""
    looks = {seeds: number for number, seeds in enumerate(LEVELS, start=1)}
    rows = []
    for one in contrasts:
        found = one.interval
        interval = "-" if math.isnan(found.low) else f"[{found.low:+.2f}, {found.high:+.2f}]"
        difference = "-" if math.isnan(found.mean) else f"{found.mean:+.2f}"
        verdict = _pair_word(one) if one.side != "open" else f"open: {one.reason}"
        rows.append((one.name, one.cell or "-", difference, interval, verdict, looks.get(found.n, "-"), found.total))
    return pd.DataFrame(rows, columns=["pair", "cell", "difference", "interval", "verdict", "look", "seeds"])


def _pair_word(contrast: Contrast) -> str:
    """Return which method of a decided pair is better, in words."""
    first, _, second = contrast.name.partition(" - ")
    words = {"agree": f"{first} above {second}", "against": f"{second} above {first}"}
    return words.get(contrast.side, f"{first} ties with {second}")


def cell_keys(values: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys, among overrides of every job, that make cells: all jobs have them, and they have several values.

    Keys that only some jobs have name the series.
    """
    keys = [key for key in values[0] if key not in ("algorithm", "seed") and all(key in one for one in values)]
    return [key for key in keys if len({one[key] for one in values}) > 1]
