"""Table 1 of the ACE paper (arXiv:2511.19066) in numbers, from runs made with diagnostics=mse.

Legend: M uploads of a buffer, n clients, n_t clients in ACED's mean, A noise, B bias, C delay (see diagnostics/mse.py).
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..diagnostics.correlation import LAGS
from ..diagnostics.mse import ARRIVALS_NAME
from ..errors import BenchError
from ..tracking.metrics import read_metrics
from ..tracking.rundir import METRICS_NAME
from .grouping import differing_keys
from .load import Run

# the paper's order of methods; others follow
ORDER = ("asgd", "delay_adaptive_asgd", "fedbuff", "ca2fl", "aced", "ace")
# column of the table: metric; `delay` and the like are names of config groups, which are columns too
MEASURED = {"a2": "noise", "b2": "bias", "c2": "delay", "error": "error", "zeta2": "zeta2", "drift": "drift"}
MEASURED |= {"sigma2": "sigma2", "sigma2_cached": "sigma2_cached"}


def measured_runs(runs: list[Run]) -> list[Run]:
    """Those that ended well and were measured. Raises BenchError when there is none."""
    found = [run for run in runs if run.status == "ok" and run.choices.get("diagnostics") == "mse"]
    if not found:
        raise BenchError("no finished run was made with diagnostics=mse, so there is no error to take apart")
    return found


def keys_of(runs: list[Run]) -> list[str]:
    """Settings that tell apart runs of one algorithm: the columns beside it."""
    return differing_keys(runs)


def table1(runs: list[Run]) -> pd.DataFrame:
    """One row per algorithm and setting: means over steps and seeds, in squared gradient norms.

    a2, b2, c2, error          E|A|^2, E|B|^2, E|C|^2, E|A+B+C|^2; with ``_std`` the sample deviation over seeds
    a2_predicted               what the paper gives for E|A|^2, see ``predicted_noise``
    a2_ratio                   measured over predicted
    drift_slope                least squares: growth of |w_t - w^{v_i}|^2 per iteration of staleness, second half
    correlation_k              of A_t with A_{t+k}
    """
    runs = measured_runs(runs)
    keys = keys_of(runs)
    rows = pd.DataFrame([{"algorithm": run.algorithm, **_words(run, keys), **_of_run(run)} for run in runs])
    grouped = rows.groupby(["algorithm", *keys], sort=False)
    table = grouped.mean(numeric_only=True)
    spread = grouped[["a2", "b2", "c2", "error"]].std(ddof=1)
    table = table.join(spread.add_suffix("_std")).assign(seeds=grouped.size()).reset_index()
    table["a2_ratio"] = table["a2"] / table["a2_predicted"]
    return in_order(table, keys)


def in_order(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Rows by setting, exp_beta5 before exp_beta30, and within one setting by algorithm in the paper's order."""

    def place(row) -> tuple:
        rank = ORDER.index(row["algorithm"]) if row["algorithm"] in ORDER else len(ORDER)
        return (*(_natural(row[key]) for key in keys), rank, row["algorithm"])

    places = [place(row) for _, row in table.iterrows()]
    return table.iloc[sorted(range(len(table)), key=places.__getitem__)].reset_index(drop=True)


def _natural(word: str) -> list[tuple]:
    """Sorts numbers inside words by their size."""
    return [
        (0, float(part)) if part[:1].isdigit() else (1, part) for part in re.split(r"(\d+(?:\.\d+)?)", word) if part
    ]


def predicted_noise(run: Run, lines: pd.DataFrame) -> float:
    """E|A|^2 as the paper has it (section 4, K = 1): sigma^2 over the number of uploads in a step's mean.

    sigma^2 for ASGD, sigma^2 / M for FedBuff and CA2FL, over all uploads; sigma^2 / n for ACE and sigma^2 / n_t for
    ACED, over the uploads in the cache, where slow clients count as much as busy ones. NaN for other rules.
    """
    sigma2, cached = lines["mse/sigma2"].mean(), lines["mse/sigma2_cached"].mean()
    setting: Any = run.settings.get
    if run.algorithm in ("asgd", "delay_adaptive_asgd"):
        return sigma2
    if run.algorithm in ("fedbuff", "ca2fl"):
        return sigma2 / setting("algorithm.buffer_size")
    if run.algorithm == "ace":
        return cached / setting("n_clients")
    if run.algorithm == "aced":
        return float((lines["mse/sigma2_cached"] / lines["rule/active_clients_mean"]).mean())
    return math.nan


def arrivals_of(run: Run) -> pd.DataFrame:
    """Staleness, drift and noise of every upload in the second half of a run's iterations; none without the file.

    In the first half the way from the initial model, long and the same for all, hides what noise and skew add to it.
    """
    path = run.path / ARRIVALS_NAME
    if not path.exists():
        return pd.DataFrame(columns=["staleness", "drift"], dtype=float)
    arrivals = pd.read_parquet(path)
    return arrivals[arrivals["iteration"] >= arrivals["iteration"].max() / 2]


def drift_by_staleness(runs: list[Run]) -> pd.DataFrame:
    """Mean staleness and mean drift of uploads whose staleness is 1, 2-3, 4-7, …; bins of at least 10 uploads.

    The index is the whole part of the staleness's binary logarithm.
    """
    arrivals = pd.concat([arrivals_of(run) for run in runs])
    arrivals = arrivals[arrivals["staleness"] > 0]
    bins = arrivals.groupby(np.floor(np.log2(arrivals["staleness"].to_numpy(dtype=float))))
    means = bins[["staleness", "drift"]].mean().assign(uploads=bins.size())
    return means[means["uploads"] >= 10]


def drift_ratios(runs: list[Run], keys: list[str], skew: str) -> pd.DataFrame:
    """Drift under the strongest skew over drift under the weakest, at the least staleness that both have.

    One row per algorithm and remaining setting, with the ratio of zeta^2 beside it; empty where there is one skew only.

    skew  a key of ``keys`` with numbers, where less is more skewed
    """
    table, rest = table1(runs), [key for key in keys if key != skew]
    ratios = []
    for (name, *values), cell in table.groupby(["algorithm", *rest], sort=False):
        cell = cell.sort_values(skew, key=lambda words: words.astype(float))
        ends = [cell.iloc[0], cell.iloc[-1]]
        same = dict(zip(rest, values, strict=True))
        chosen = [
            [run for run in runs if run.algorithm == name and _words(run, keys) == {**same, skew: end[skew]}]
            for end in ends
        ]
        low, high = (drift_by_staleness(part) for part in chosen)
        both = low.index.intersection(high.index)
        if ends[0][skew] != ends[1][skew] and len(both):
            drift = low["drift"][both[0]] / high["drift"][both[0]]
            ratios.append({"algorithm": name, **same, "drift": drift, "zeta2": ends[0]["zeta2"] / ends[1]["zeta2"]})
    return pd.DataFrame(ratios)


def _words(run: Run, keys: list[str]) -> dict[str, str]:
    return {key: run.value(key) for key in keys}


def _of_run(run: Run) -> dict[str, float]:
    lines = pd.DataFrame(read_metrics(Path(run.path) / METRICS_NAME))
    if "mse/noise" not in lines:
        raise BenchError(f"{run.path}: no step was measured; evaluation.every or diagnostics.every is beyond its end")
    lines = lines[lines["mse/noise"].notna()]
    row = {column: float(lines[f"mse/{name}"].mean()) for column, name in MEASURED.items()}
    row["a2_predicted"] = float(predicted_noise(run, lines))
    for lag in LAGS:
        last = lines.get(f"mse/noise_correlation_{lag}", pd.Series(dtype=float)).dropna()
        row[f"correlation_{lag}"] = float(last.iloc[-1]) if len(last) else math.nan
    arrivals = arrivals_of(run)
    spread = arrivals["staleness"].var() if len(arrivals) else 0.0
    row["drift_slope"] = arrivals["staleness"].cov(arrivals["drift"]) / spread if spread else math.nan
    row["staleness"] = float(arrivals["staleness"].mean()) if len(arrivals) else math.nan
    return row
