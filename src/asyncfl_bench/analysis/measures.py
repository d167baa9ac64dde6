"""The registry ``MEASURES`` of the names in pages and claims (CONTRIBUTING.md lists them), and their values for runs.

Legend: every series here has the runs as index; an axis is a resource that runs spend (``names.AXES``). A run's clients
are a frame as ``load_clients`` returns it, with a row for each client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType

import numpy as np
import pandas as pd

from ..errors import BenchError
from ..simulation.budget import TARGET
from ..tracking.runs import load_clients
from . import evaluations, names, step_errors
from .matching import MatchedRuns

MIN_LATE = 3  # evaluations in it
POINTS_OF_A_TIE = 1.0  # margin of differences in points, where none is declared
_WITH_STEP = ("accuracy", "best", "final", "last")  # measures that are one accuracy, a multiple of one test sample
LOG_RATIO = "100 x log ratio"  # unit of relative differences, which texts show as ratios
CHANCE_MARGIN = 5.0  # points above the most frequent class below which a method is at chance
# share of the most frequent test class [%], where classes are not balanced
_MOST_FREQUENT = {
    "synthetic": 24.4,  # mean over the judged seeds of the bank: each seed has other data, 16 to 41
    "synthetic_1_1": 70.05,
    "shakespeare": 18.8,
    "shakespeare_sized": 18.8,
    "mrpc": 67.6,
    "sst2": 50.9,
    "newsgroups20": 5.3,
    "mnist": 11.35,
    "digits": 10.6,
}
_GROUPS = 10  # of a run's clients, by their numbers of uploads


@dataclass(frozen=True)
class MeasureKind:
    """One measure: its computation and its meaning.

    compute      (runs, axis) -> a value a run; None for those at a budget, see ``RunMeasures.values_at_budget``
    unit         of a difference; lower: small values are good ones
    is_accuracy  a value of the metric, which may be at chance
    title        its name on pages, if another one;  decimals  shown there
    """

    unit: str
    lower: bool
    compute: Callable[[RunMeasures, str], pd.Series] | None = None
    is_accuracy: bool = False
    title: str = ""
    decimals: int = 1


class RunMeasures:
    """The measures of the runs of a page.

    limit   of virtual time, within which evaluations count; where runs of a protocol (cell key ``paper``) end earlier,
            that end is its limit
    levels  accuracy [%] that is timed, by data set
    """

    def __init__(
        self,
        placed: MatchedRuns,
        points: pd.DataFrame,
        metric: str = evaluations.ACCURACY,
        limit: float = math.inf,
        levels: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.placed, self.points, self.metric, self.limit, self.levels = placed, points, metric, limit, levels
        self._curves: dict[str, dict[object, tuple[np.ndarray, np.ndarray]]] = {}

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The runs that count and, with ``diverged`` True, the diverged runs, with their settings."""
        lost = self.placed.diverged
        runs = self.placed.runs.assign(diverged=False)
        return runs if lost.empty else pd.concat([runs, lost.assign(diverged=True)])

    @cached_property
    def limits(self) -> pd.Series:
        """Run -> limit of virtual time."""
        runs = self.placed.runs
        if "paper" not in self.placed.cells:
            return pd.Series(self.limit, index=runs.index)
        limits = evaluations.common_limit(runs, self.points, self.limit)
        return runs["paper"].map(limits).astype(float)

    @cached_property
    def early(self) -> pd.DataFrame:
        """The evaluations within the limit."""
        if (self.limits == math.inf).all():
            return self.points
        return self.points[self.points["virtual_time"] <= self.points["run"].map(self.limits)]

    def curves(self, axis: str) -> dict[object, tuple[np.ndarray, np.ndarray]]:
        """Run -> points on the axis in ascending order, and values of the metric."""
        if axis not in self._curves:
            frame = evaluations.curve(self.early, axis, self.metric)
            groups = frame.groupby("run", sort=False)
            self._curves[axis] = {run: (of["x"].to_numpy(), of["y"].to_numpy()) for run, of in groups}
        return self._curves[axis]

    def ends(self, runs: pd.Index, axis: str) -> pd.Series:
        """Return where each run ends on the axis; NaN for a run without evaluations."""
        curves = self.curves(axis)
        return pd.Series({run: curves[run][0][-1] if run in curves else math.nan for run in runs}, dtype=float)

    def values(self, name: str, axis: str) -> pd.Series:
        """Return the value of every run of a measure that needs no budget: one of ``MEASURES``, ``mse/…`` or a column
        of the runs. Raises BenchError for another name."""
        kind = MEASURES.get(name)
        if kind is not None and kind.compute is not None:
            found = kind.compute(self, axis)
        elif name.startswith("mse/"):
            found = self._error_parts.get(name, pd.Series(dtype=float))
        elif name in self.placed.runs:
            found = pd.to_numeric(self.placed.runs[name])
        else:
            raise BenchError(f"measure {name}: mse/…, a column of the runs or one of {', '.join(MEASURES)}")
        return found.reindex(self.placed.runs.index).astype(float)

    def values_at_budget(self, axis: str, runs: pd.Series, budgets: pd.Series) -> pd.DataFrame:
        """Return columns late, last and counted of each run at its budget; NaN for a run that ended before.

        late is the mean over the last fifth of the budget, over ``counted`` evaluations. last is the value at the
        budget, on a straight line between evaluations. None count of a run that ended at ``budget.target_accuracy``:
        an accuracy decides how long it is.
        """
        curves, rows = self.curves(axis), []
        for run, budget in zip(runs, budgets, strict=True):
            x_p, y_p = curves.get(run, (np.zeros(0), np.zeros(0)))
            late_p = evaluations.late_part(x_p, y_p, budget)
            is_there = len(x_p) > 0 and x_p[-1] >= budget
            late = late_p.mean() if is_there and len(late_p) else math.nan
            last = np.interp(budget, x_p, y_p, left=math.nan) if is_there else math.nan
            rows.append((late, last, len(late_p) if is_there else math.inf))
        reasons = self.runs.get("summary.stopped_by", pd.Series(index=self.runs.index, dtype=object))
        found = pd.DataFrame(rows, runs.index, ["late", "last", "counted"], dtype=float)
        return found.assign(counted=found["counted"].mask(runs.map(reasons).eq(TARGET), 0))

    def times_to(self, target: float | pd.Series, axis: str) -> pd.Series:
        """Return where on the axis each run first shows ``target`` [%], one number or one of each run; else NaN."""
        return evaluations.time_to_reach(self.early, target, axis, self.metric).reindex(self.placed.runs.index)

    def resolution(self, name: str, experiments: Collection[str] = ()) -> float:
        """Return the step of a measure that is one test accuracy [points]: one sample of the smallest test set of these
        experiments, by default of all; 0 for other measures and metrics, or if the number of samples is unknown."""
        if not (name in _WITH_STEP and names.is_percent(self.metric) and self.metric.startswith("test/")):
            return 0.0
        runs = self.runs[self.runs["experiment"].isin(experiments)] if experiments else self.runs
        samples = pd.to_numeric(runs.get("summary.task.test_samples", pd.Series(dtype=float))).min()
        return 100 / samples if samples > 0 else 0.0

    def unit(self, name: str) -> str:
        """Return the unit of a difference of the measure; a metric that is not an accuracy has none."""
        kind = MEASURES.get(name)
        return "" if kind is None or (kind.unit == "points" and not names.is_percent(self.metric)) else kind.unit

    def tie_margin(self, name: str, tie: float | None = None) -> float | None:
        """Return the margin of a tie [points], 1 unless another is declared; None for a measure in another unit, of
        which no tie is possible."""
        return (POINTS_OF_A_TIE if tie is None else tie) if self.unit(name) == "points" else None

    @cached_property
    def metric_is_lower_better(self) -> bool | None:
        """Return True if small values of the metric are good ones; None if its name does not decide it, and no
        observer of the runs declares it (``Observer.better``)."""
        known = names.lower_is_better(self.metric)
        declared = self.runs.get(f"summary.better.{self.metric}", pd.Series(dtype=object)).dropna().unique()
        return declared[0] == "lower" if known is None and len(declared) == 1 else known

    def lower_is_better(self, name: str) -> bool | None:
        """Return True if small values of the measure are good ones, as of parts of an error; None if it is a value of
        a metric of unknown direction."""
        kind = MEASURES.get(name)
        if kind is not None and kind.is_accuracy:
            return self.metric_is_lower_better
        return kind.lower if kind else True

    @cached_property
    def _error_parts(self) -> pd.DataFrame:
        """Return the table of the error's parts run by run, under names ``mse/…``; empty where none was measured."""
        keys = ["series", *self.placed.cells, "seed"]
        try:
            table = step_errors.error_table(self.placed.runs, self.points, keys[1:])
        except BenchError:
            return pd.DataFrame()
        table = table.rename(columns={key: f"mse/{key}" for key in table.columns if key not in keys})
        return self.placed.runs[keys].merge(table, how="left", on=keys).set_axis(self.placed.runs.index)


def chance_levels(runs: pd.DataFrame) -> pd.Series:
    """Return the share of the most frequent test class of each run [%]; 0 where it is unknown."""
    classes = pd.to_numeric(runs.get("summary.task.classes", pd.Series(math.nan, index=runs.index)))
    balanced = (100 / classes.where(classes > 0)).fillna(0.0)
    known = runs.get("dataset", pd.Series("", index=runs.index)).map(_MOST_FREQUENT).astype(float)
    return balanced.where(balanced > known.fillna(0.0), known.fillna(0.0))


def _best_value(of: RunMeasures, axis: str) -> pd.Series:
    return evaluations.best_values(of.early, of.metric, of.metric_is_lower_better)


def _time_to_target(of: RunMeasures, axis: str) -> pd.Series:
    runs = of.placed.runs
    best = evaluations.best_values(of.early, of.metric).reindex(runs.index)
    means = best.groupby([runs["cell"], runs["series"]]).transform("mean")
    return of.times_to(0.9 * means.groupby(runs["cell"]).transform("min"), axis)


def _mean_of_points(name: str, of: RunMeasures, axis: str) -> pd.Series:
    return of.points.reindex(columns=["run", name]).dropna().groupby("run")[name].mean()


def _similarity_gap(more: str, less: str, of: RunMeasures, axis: str) -> pd.Series:
    columns = [f"similarity/{name}" for name in (more, less)]
    found = of.points.reindex(columns=["run", *columns]).dropna().groupby("run")[columns].mean()
    return 1000 * (found[columns[0]] - found[columns[1]])


def _kept_of_slow(of: RunMeasures, axis: str) -> pd.Series:
    clients = load_clients(of.placed.runs)
    known = clients[clients["kept"].notna()] if "kept" in clients else clients[:0]
    return pd.Series({run: kept_shares(own)["slow quarter"] for run, own in known.groupby("run")}, dtype=float)


def _diagnosed(name: str, of: RunMeasures, axis: str) -> pd.Series:
    runs = of.placed.runs
    return pd.to_numeric(runs.get(f"summary.diagnosed.{name}", pd.Series(math.nan, index=runs.index)))


def _uploads_per_iteration(of: RunMeasures, axis: str) -> pd.Series:
    runs = of.placed.runs
    first = runs["n_clients"].where(runs["algorithm"].isin(("ace", "aced")), 0)
    return (runs["summary.used.uploads"] - first) / (runs["summary.used.server_iterations"] - (first > 0))


def _state_vectors(place: str, of: RunMeasures, axis: str) -> pd.Series:
    return of.placed.runs[f"summary.state_bytes.{place}"] / (4 * of.placed.runs["summary.parameters"])


def _versions(of: RunMeasures, axis: str) -> pd.Series:
    return of.points.reindex(columns=["run", "in_flight/versions_max"]).groupby("run").max().iloc[:, 0]


MEASURES = {
    # the metric: at the budget; mean over the last fifth of it; highest, or lowest if that is better; last
    "accuracy": MeasureKind("points", False, None, True),
    "late": MeasureKind("points", False, None, True),
    "best": MeasureKind("points", False, _best_value, True),
    "final": MeasureKind("points", False, lambda of, axis: evaluations.final_values(of.points, of.metric), True),
    # along the axis, to 90 % of the run's own best, of the lowest mean best of the cell, to the paper's accuracy
    "time_to_90": MeasureKind(
        "", True, lambda of, axis: of.times_to(0.9 * evaluations.best_values(of.early, of.metric), axis)
    ),
    "time_to_target": MeasureKind("", True, _time_to_target),
    "time_to_level": MeasureKind(
        "", True, lambda of, axis: of.times_to(of.placed.runs["dataset"].map(of.levels).astype(float), axis)
    ),
    # mean change between evaluations, from the time of 90 % of the best on
    "unsteadiness": MeasureKind("points", True, lambda of, axis: evaluations.unsteadiness(of.early)),
    # mean over evaluations; diagnostics=dissimilarity
    "dissimilarity": MeasureKind("", True, partial(_mean_of_points, "dissimilarity/squared")),
    # mean over evaluations of a difference of cosines; diagnostics=similarity
    **{
        name: MeasureKind("thousandths of cosine", lower, partial(_similarity_gap, *kinds), title=title, decimals=2)
        for name, lower, kinds, title in (
            ("similarity_gap", False, ("same", "different"), "same minus different labels [1/1000]"),
            ("similarity_gap_apart", True, ("same_apart", "different_fresh"), "the same, models apart [1/1000]"),
        )
    },
    # of wall times and of uploads in a server step; diagnostics=server_time
    **{
        f"{name}{end}_ms": MeasureKind(
            "ms", True, partial(_diagnosed, f"{name}{end}_ms"), title=f"{title}{word} [ms]", decimals=2
        )
        for name, title in (("server_step", "server step"), ("buffer_fill", "buffer fill"))
        for end, word in (("", ", median"), ("_low", ", first quartile"), ("_high", ", third quartile"))
    },
    "kept": MeasureKind("uploads", True, partial(_diagnosed, "kept"), title="uploads kept"),
    # share of the uploads of the slow quarter of the clients that are in a step; evaluation.clients=true
    "kept_of_slow": MeasureKind("points", False, _kept_of_slow, title="uploads of the slow quarter kept [%]"),
    "uploads": MeasureKind("uploads", False, lambda of, axis: evaluations.final_values(of.early, "uploads")),
    "uploads_per_iteration": MeasureKind("uploads", True, _uploads_per_iteration),  # without a first round of all
    "server_vectors": MeasureKind("vectors", True, partial(_state_vectors, "server")),  # state in vectors of d floats
    "client_vectors": MeasureKind("vectors", True, partial(_state_vectors, "clients")),  # of all clients together
    # in ACED's mean, over evaluations
    "active_clients": MeasureKind(
        "clients", False, partial(_mean_of_points, "rule/active_clients_mean"), title="clients in the mean, n_t"
    ),
    "versions": MeasureKind("versions", True, _versions),  # most versions of the model in clients' work at once
}


AT_BUDGET = tuple(name for name, kind in MEASURES.items() if kind.compute is None)


def kept_shares(run: pd.DataFrame) -> dict[str, float]:
    """Return shares [%] of a run's uploads that were kept: of all, of the slow and the fast quarter of the clients, and
    by samples in them, of the label least and most kept."""
    by_speed = run.sort_values("mean_delay", kind="stable")
    quarter = -(-len(run) // 4)
    parts = {"all": run, "slow quarter": by_speed.tail(quarter), "fast quarter": by_speed.head(quarter)}
    label_c = kept_by_label(run)
    of_parts = {name: 100 * float(of["kept"].sum() / of["uploads"].sum()) for name, of in parts.items()}
    return of_parts | {"label least kept": float(label_c.min()), "label most kept": float(label_c.max())}


def kept_by_label(run: pd.DataFrame) -> pd.Series:
    """Return by label the samples in a run's kept uploads over those in all of its uploads [%]."""
    held = run.filter(regex="^label_").dropna(axis=1)
    share = 100 * held.mul(run["kept"], axis=0).sum() / held.mul(run["uploads"], axis=0).sum()
    return share.rename(lambda name: int(str(name).rpartition("_")[2]))


def straggler_shares(run: pd.DataFrame) -> dict[str, float]:
    """Return in percent, of the slowest tenth of a run's clients: accuracy, share and class_accuracy.

    accuracy is the expected accuracy for these clients. share and class_accuracy are of the class of which they
    hold the largest share. The accuracies of classes follow from the clients', which are their means weighted by
    labels; NaN if the clients are too few for that.
    """
    held = run.filter(regex="^label_").dropna(axis=1)
    slow = run[run["mean_delay"].notna()].sort_values("mean_delay", kind="stable").tail(-(-len(run) // 10)).index
    share_c = (held.loc[slow].sum() / held.sum()).to_numpy()
    known = run["accuracy"].notna() & (held.sum(axis=1) > 0)
    mix = held[known].div(held[known].sum(axis=1), axis=0).to_numpy()
    accuracy_c, _, rank, _ = np.linalg.lstsq(mix, run.loc[known, "accuracy"].to_numpy(), rcond=None)
    own = int(np.nanargmax(share_c))
    of_class = accuracy_c[own] if rank == mix.shape[1] else np.nan
    found = {"accuracy": run.loc[slow, "accuracy"].mean(), "share": share_c[own], "class_accuracy": of_class}
    # the last digits of a solution of equations differ by CPU
    return {name: round(100 * float(value), 12) for name, value in found.items()}


def client_tenths(run: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return uploads over the mean of all, and accuracy [%], of ten groups of the run's clients. Groups with the fewest
    uploads come first."""
    known = run[run["accuracy"].notna()].sort_values("uploads", kind="stable")
    parts = np.array_split(np.arange(len(known)), min(_GROUPS, len(known)))
    relative = (known["uploads"] / known["uploads"].mean()).to_numpy()
    accuracy = 100 * known["accuracy"].to_numpy()
    return np.array([relative[p].mean() for p in parts]), np.array([accuracy[p].mean() for p in parts])
