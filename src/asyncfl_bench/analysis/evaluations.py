"""Functions of evaluation points: curves, late, final and best values, times to a level, and the axes of budgets.

Accuracies are in percent, times in the unit of the virtual clock. Frames of points are those of ``load_points``.
Results have a value for each run, in the order of runs, with the index ``run`` unless stated otherwise.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from .names import AXES, is_percent

_LIMITS = dict(zip(AXES, ("server_iterations", "uploads", "virtual_time", "bytes"), strict=True))  # of the budget
ACCURACY, TIME = "test/accuracy", "virtual_time"
LATE_SHARE = 0.2  # of the budget: the last part of it
GRID_POINTS = 200  # of a mean curve where seeds were evaluated at different points
_ROUNDING = 1e-12  # 0.9 * 0.8 is a little more than 0.72 in binary; an accuracy of 0.72 has reached it


def curve(points: pd.DataFrame, axis: str, metric: str = ACCURACY) -> pd.DataFrame:
    """Return columns run, x, y of the evaluations that have both, by x; of several at one x the last.

    y is in percent for accuracies.
    """
    if metric not in points or axis not in points:
        return pd.DataFrame({"run": [], "x": [], "y": []}).astype({"x": float, "y": float})
    scale = 100.0 if is_percent(metric) else 1.0
    found = pd.DataFrame({"run": points["run"], "x": points[axis].astype(float), "y": scale * points[metric]})
    found = found.dropna(subset=["x", "y"])
    run_code = pd.factorize(found["run"])[0]
    found = found.iloc[np.lexsort((found["x"].to_numpy(), run_code))]  # stable: of equal x the later point stays later
    return found.drop_duplicates(["run", "x"], keep="last").reset_index(drop=True)


def late_part(x_p: np.ndarray, y_p: np.ndarray, budget: float) -> np.ndarray:
    """Return the values of a curve in the last fifth of the budget, whose mean is ``late``."""
    return y_p[(x_p > (1 - LATE_SHARE) * budget) & (x_p <= budget)]


def late_values(points: pd.DataFrame, metric: str = ACCURACY) -> pd.Series:
    """Return ``late`` of each run that has the metric: its mean over the last fifth of the run's uploads.

    See rule 1 of docs/reference/statistics.md.
    """
    curves = curve(points, "uploads", metric).groupby("run", sort=False)
    parts = {run: late_part(of["x"].to_numpy(), of["y"].to_numpy(), of["x"].iloc[-1]) for run, of in curves}
    return pd.Series({run: part.mean() for run, part in parts.items()}, dtype=float)


def mean_curve(
    points: pd.DataFrame, axis: str, metric: str = ACCURACY, logarithmic: bool = False, limit: float | None = None
) -> pd.DataFrame:
    """Return the mean over runs (the seeds of one series and cell), and the mean minus and plus one standard deviation.

    points       of these runs only
    logarithmic  points are spread as on a logarithmic axis, from the first evaluation after 0
    limit        nothing is computed beyond it
    Columns x, mean, low, high, seeds. Between its evaluations a run is a straight line, as at equal budget. The curve
    begins where all runs have a value and ends at the largest budget that all have spent. low and high of one run are
    its value; those of accuracies stay within 0 and 100.
    """
    curves = [(of["x"].to_numpy(), of["y"].to_numpy()) for _, of in curve(points, axis, metric).groupby("run")]
    if logarithmic:
        curves = [(x_p[x_p > 0], y_p[x_p > 0]) for x_p, y_p in curves]
    curves = [(x_p, y_p) for x_p, y_p in curves if len(x_p)]
    if not curves:
        return pd.DataFrame(columns=["x", "mean", "low", "high", "seeds"], dtype=float)
    start, end = max(x_p[0] for x_p, _ in curves), min(x_p[-1] for x_p, _ in curves)
    end = end if limit is None else min(end, limit)
    if all(np.array_equal(x_p, curves[0][0]) for x_p, _ in curves):
        grid_g = curves[0][0][curves[0][0] <= end]
    else:
        grid_g = np.unique(np.concatenate([x_p for x_p, _ in curves]))
        grid_g = grid_g[(grid_g >= start) & (grid_g <= end)]
        if len(grid_g) > GRID_POINTS:
            spread = np.geomspace if logarithmic else np.linspace
            grid_g = spread(start, end, GRID_POINTS)
            grid_g[-1] = end  # not a rounding beyond the last evaluation
    values_sg = np.stack([np.interp(grid_g, x_p, y_p) for x_p, y_p in curves])
    mean_g = values_sg.mean(axis=0)
    std_g = values_sg.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros_like(mean_g)
    low_g, high_g = mean_g - std_g, mean_g + std_g
    if is_percent(metric):
        low_g, high_g = np.clip(low_g, 0, 100), np.clip(high_g, 0, 100)
    return pd.DataFrame({"x": grid_g, "mean": mean_g, "low": low_g, "high": high_g, "seeds": len(curves)})


def final_values(points: pd.DataFrame, metric: str = ACCURACY) -> pd.Series:
    """Return the last value of every run that has one."""
    return curve(points, "iteration", metric).drop_duplicates("run", keep="last").set_index("run")["y"]


def best_values(points: pd.DataFrame, metric: str = ACCURACY, lower: bool | None = False) -> pd.Series:
    """Return the highest value of every run that has one, or the lowest if ``lower``; none for None (not known)."""
    values = curve(points if lower is not None else points[:0], TIME, metric).groupby("run", sort=False)["y"]
    return values.min() if lower else values.max()


def time_to_reach(
    points: pd.DataFrame, target: float | pd.Series, axis: str = TIME, metric: str = ACCURACY
) -> pd.Series:
    """Return where an evaluation of each run first shows at least ``target``; NaN if none does.

    target  of each run, or of all: ``0.9 * best_values(points)`` gives the time to 90 % of each run's own best
    """
    curves = curve(points, axis, metric)
    goal = curves["run"].map(target) if isinstance(target, pd.Series) else target
    hits = curves[curves["y"] >= goal * (1 - _ROUNDING)]
    return hits.groupby("run", sort=False)["x"].min().reindex(curves["run"].unique())


def unsteadiness(points: pd.DataFrame) -> pd.Series:
    """Return the mean absolute change of accuracy between evaluations, after a run first has 90 % of its best.

    NaN with fewer than two evaluations.
    """
    curves = curve(points, TIME)
    late = curves[curves["x"] >= curves["run"].map(time_to_reach(points, 0.9 * best_values(points)))]
    means = late.groupby("run", sort=False)["y"].agg(lambda y: y.diff().abs().mean())
    return means.reindex(curves["run"].unique())


def common_limit(runs: pd.DataFrame, points: pd.DataFrame, most: float) -> pd.Series:
    """Return the limit of compared runs: ``most``, or the earliest end among the runs of one value of ``paper``.

    Only runs that ended by their time limit count. A run without clients left ends early, and a limit of iterations or
    uploads would cut all runs where the fastest ends.
    Returns the limit by value of the cells' key ``paper``.
    """
    ends = curve(points, TIME).groupby("run", sort=False)["x"].max().reindex(runs.index)
    if "summary.stopped_by" in runs:
        ends = ends.where(runs["summary.stopped_by"] == TIME)
    return ends.groupby(runs["paper"], sort=False).min().clip(upper=most).fillna(most)


def limiting_axis(runs: pd.DataFrame) -> str:
    """Return the axis that most runs' budgets limit, server iterations before the others.

    On that axis all runs can be compared at their end; on another axis some have hardly started.
    """
    there = _limited_axes(runs)
    first = there.idxmax(axis=1)[there.any(axis=1)]
    counts = first.value_counts().reindex([*_LIMITS], fill_value=0)
    return str(counts.idxmax())


def shared_axis(runs: pd.DataFrame) -> str | None:
    """Return the first axis that the budget of every run limits; None if there is none."""
    limited = _limited_axes(runs).all()
    return str(limited.idxmax()) if limited.any() else None


def _limited_axes(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a table of runs by axes: True where the run's budget limits the axis."""
    unset = pd.Series(float("nan"), index=runs.index)
    return pd.DataFrame({axis: runs.get(f"budget.{limit}", unset).notna() for axis, limit in _LIMITS.items()})
