"""The error of server steps in numbers, from runs made with diagnostics=mse.

The error u - grad F(w_t) is A (noise of mini-batches) + B (bias of participation) + C (delay); see diagnostics/mse.py.
Legend: M uploads of a buffer, n clients, n_t clients in ACED's mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pandas as pd

from ..diagnostics.mse import LAGS, merge_bins
from ..errors import BenchError

# column of the table: metric
_MEASURED = {"a2": "noise", "b2": "bias", "c2": "delay", "error": "error", "zeta2": "zeta2", "drift": "drift"}
_MEASURED |= {"sigma2": "sigma2", "sigma2_cached": "sigma2_cached"}
_SAID = {"drift_slope": "slope", "staleness": "staleness_mean"}
_MIN_UPLOADS = 10  # of a bin of the drift


def error_table(runs: pd.DataFrame, points: pd.DataFrame, by: Sequence[str] = ("cell",)) -> pd.DataFrame:
    """Return a row per series and ``by`` (columns of ``runs``): means over steps and seeds, in squared gradient norms.

    a2, b2, c2, error     E|A|^2, E|B|^2, E|C|^2, E|A+B+C|^2; with ``_std`` the sample deviation over seeds
    frozen                of clients that stopped, where some did: |their last gradients less those at w_t|^2 / n^2;
                          all means of such a run are over the points after the stop
    a2_predicted          the paper's value of E|A|^2, see ``predicted_noise``; a2_ratio: measured over it
    drift_slope           least squares: growth of |w_t - w^{v_i}|^2 per iteration of staleness, second half
    correlation_k         of A_t with A_{t+k}
    Raises BenchError when no run was measured.
    """
    if "mse/noise" not in points or points["mse/noise"].isna().all():
        raise BenchError("no finished run measured a step with diagnostics=mse, so there is no error to take apart")
    measured = points[points["mse/noise"].notna()].groupby("run")
    rows = pd.DataFrame({run: _run_errors(pd.Series(runs.loc[str(run)]), lines) for run, lines in measured}).T
    groups = rows.join(runs[["series", *by]]).groupby(["series", *by], sort=False, dropna=False)
    spread = groups[[*rows.columns.intersection(["a2", "b2", "c2", "error", "frozen"])]].std(ddof=1).add_suffix("_std")
    table = groups.mean().join(spread).assign(seeds=groups.size()).reset_index()
    return table.assign(a2_ratio=table["a2"] / table["a2_predicted"])


def _run_errors(run: pd.Series, lines: pd.DataFrame) -> dict[str, float]:
    """Return a row of ``error_table`` for one run from its measured points."""
    lines = lines.reindex(columns=lines.columns.union([f"mse/{name}" for name in _MEASURED.values()]))
    stopped = "mse/frozen" in lines and bool(lines["mse/frozen"].notna().any())
    lines = lines[lines["mse/frozen"].notna()] if stopped else lines
    row = {column: lines[f"mse/{name}"].mean() for column, name in _MEASURED.items()}
    row |= {"frozen": lines["mse/frozen"].mean()} if stopped else {}
    row["a2_predicted"] = predicted_noise(run, lines)
    for lag in LAGS:
        last = lines.get(f"mse/noise_correlation_{lag}", pd.Series(dtype=float)).dropna()
        row[f"correlation_{lag}"] = float(last.iloc[-1]) if len(last) else math.nan
    said = {name: run.get(f"summary.diagnosed.drift.{key}") for name, key in _SAID.items()}
    return row | {name: math.nan if value is None else float(value) for name, value in said.items()}


def predicted_noise(run: pd.Series, lines: pd.DataFrame) -> float:
    """Return the paper's E|A|^2 (section 4, K = 1): sigma^2 divided by the uploads in a step's mean.

    sigma^2 for ASGD, sigma^2 / M for FedBuff and CA2FL, over all uploads; sigma^2 / n for ACE and sigma^2 / n_t for
    ACED, over the uploads in the cache, where slow clients count as much as busy ones. NaN for other rules.
    """
    if run["algorithm"] in ("asgd", "delay_adaptive_asgd"):
        return float(lines["mse/sigma2"].mean())
    if run["algorithm"] in ("fedbuff", "ca2fl"):
        return float(lines["mse/sigma2"].mean()) / run["algorithm.buffer_size"]
    if run["algorithm"] == "ace":
        return float(lines["mse/sigma2_cached"].mean()) / run["n_clients"]
    if run["algorithm"] == "aced":
        return float((lines["mse/sigma2_cached"] / lines["rule/active_clients_mean"]).mean())
    return math.nan


def drift_by_staleness(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean staleness and mean drift of uploads whose staleness is 1, 2-3, 4-7, …; bins of at least 10 uploads.

    The index is the whole part of the staleness's binary logarithm.
    """
    texts = runs.get("summary.diagnosed.drift.bins", pd.Series(dtype=object)).dropna()
    bins = merge_bins([one for text in texts for one in json.loads(text)])
    means = pd.DataFrame.from_dict(bins, orient="index", columns=["uploads", "staleness", "drift"])
    return means[means["uploads"] >= _MIN_UPLOADS]


def drift_ratios(runs: pd.DataFrame, table: pd.DataFrame, cells: Sequence[str], skew: str) -> pd.DataFrame:
    """Return drift and zeta^2 at the strongest skew divided by those at the weakest, at the least common staleness.

    One row per series and value of the other keys; empty where there is one skew only.
    table  of ``error_table`` with the keys of its cells; cells: these keys; skew: one of them
    """
    rest, ratios = ["series", *(key for key in cells if key != skew)], []
    for keys, same in table.groupby(rest, sort=False):
        ends = same.sort_values(skew, key=lambda values: values.astype(float)).iloc[[0, -1]]
        own = runs[runs["series"] == keys[0]]
        low, high = (drift_by_staleness(own[own["cell"] == cell]) for cell in ends["cell"])
        both = low.index.intersection(high.index)
        if ends["cell"].nunique() > 1 and len(both):
            zeta2 = ends["zeta2"].iloc[0] / ends["zeta2"].iloc[1]
            drift = low["drift"][both[0]] / high["drift"][both[0]]
            ratios.append({**dict(zip(rest, keys, strict=True)), "drift": drift, "zeta2": zeta2})
    return pd.DataFrame(ratios)
