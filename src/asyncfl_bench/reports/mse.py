"""The error of server steps, taken apart (ACE paper, arXiv:2511.19066, table 1), from runs made with diagnostics=mse.

The error u - grad F(w_t) is A (noise of mini-batches) + B (bias of who takes part) + C (delay); see diagnostics/mse.py.
Legend: M uploads of a buffer, n clients, n_t clients in ACED's mean.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..diagnostics.correlation import LAGS
from ..diagnostics.mse import ARRIVALS_NAME
from ..errors import BenchError
from . import style
from .figures import Line, Panel, line_panels
from .style import Style
from .write import Part, Picture, Table

if TYPE_CHECKING:
    from .page import Page

# column of the table: metric
_MEASURED = {"a2": "noise", "b2": "bias", "c2": "delay", "error": "error", "zeta2": "zeta2", "drift": "drift"}
_MEASURED |= {"sigma2": "sigma2", "sigma2_cached": "sigma2_cached"}
_PARTS = {"a2": Style("#56B4E9", "o"), "b2": Style("#D55E00", "s"), "c2": Style("#000000", "^")}
_PART_NAMES = {"a2": "A, noise", "b2": "B, bias", "c2": "C, delay", "error": "A + B + C"}
_ZERO = 1e-12  # below this share of the largest part a part is rounding
_MIN_UPLOADS = 10  # of a bin of the drift


class ErrorParts:
    """The block of this module: three tables and three figures of the runs that were measured."""

    def __call__(self, page: Page) -> list[Part]:
        keys = list(page.keys)
        table = error_table(page.placed.runs, page.points, keys)
        shown = {key: [style.short(key, value) for value in table[key]] for key in keys}
        names = {style.key_label(key, table[key]): shown[key] for key in keys}

        def part(columns: dict[str, list[str]]) -> pd.DataFrame:
            return pd.DataFrame({"algorithm": table["series"], **names, **columns})

        parts = {
            f"E|{name.partition(',')[0]}|²": [
                _number(mean, std) for mean, std in zip(table[c], table[f"{c}_std"], strict=True)
            ]
            for c, name in _PART_NAMES.items()
        }
        noise = {"E|A|²": "a2", "predicted": "a2_predicted", "ratio": "a2_ratio", "σ²": "sigma2"}
        drift = {"mean staleness": "staleness", "mean drift": "drift", "slope": "drift_slope", "ζ²": "zeta2"}
        words = 1 + len(keys)
        return [
            "## The three parts of the error",
            "Means over measured steps and seeds ± the sample standard deviation over seeds, in squared norms of "
            "gradients; updates of rules for differences are divided by −η_l.",
            Table("table1", part(parts), table, words),
            _parts_figure(table, keys),
            "## Noise: predicted by the paper and measured",
            Table("noise", part(_columns(table, noise)), table[["series", *keys, *noise.values()]], words),
            "## Drift |w_t − w_v|² of a client's model",
            Table("drift", part(_columns(table, drift)), table[["series", *keys, *drift.values()]], words),
            *_skews(page, table, keys),
            *_drift_figure(page, table, keys),
            "## Correlation of the noise with that of k iterations later",
            _correlation_figure(table, keys),
        ]


def error_table(runs: pd.DataFrame, points: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """One row per series and cell: means over steps and seeds, in squared gradient norms.

    a2, b2, c2, error     E|A|^2, E|B|^2, E|C|^2, E|A+B+C|^2; with ``_std`` the sample deviation over seeds
    a2_predicted          what the paper gives for E|A|^2, see ``predicted_noise``; a2_ratio: measured over it
    drift_slope           least squares: growth of |w_t - w^{v_i}|^2 per iteration of staleness, second half
    correlation_k         of A_t with A_{t+k}
    Raises BenchError when no run was measured.
    """
    if "mse/noise" not in points or points["mse/noise"].isna().all():
        raise BenchError("no finished run measured a step with diagnostics=mse, so there is no error to take apart")
    measured = points[points["mse/noise"].notna()]
    rows = [
        {"series": run.series, **{key: runs.at[name, key] for key in keys}, **_of_run(runs.loc[name], lines)}
        for name, lines in measured.groupby("run", sort=False)
        for run in [runs.loc[name]]
    ]
    grouped = pd.DataFrame(rows).groupby(["series", *keys], sort=False)
    table = grouped.mean(numeric_only=True)
    spread = grouped[["a2", "b2", "c2", "error"]].std(ddof=1)
    table = table.join(spread.add_suffix("_std")).assign(seeds=grouped.size()).reset_index()
    table["a2_ratio"] = table["a2"] / table["a2_predicted"]
    order = table.apply(lambda row: (*(style.natural(row[k]) for k in keys), style.series_order(row["series"])), axis=1)
    return table.loc[sorted(table.index, key=order.__getitem__)].reset_index(drop=True)


def _of_run(run: pd.Series, lines: pd.DataFrame) -> dict[str, float]:
    row = {column: float(lines.get(f"mse/{name}", pd.Series(dtype=float)).mean()) for column, name in _MEASURED.items()}
    row["a2_predicted"] = predicted_noise(run, lines)
    for lag in LAGS:
        last = lines.get(f"mse/noise_correlation_{lag}", pd.Series(dtype=float)).dropna()
        row[f"correlation_{lag}"] = float(last.iloc[-1]) if len(last) else math.nan
    arrivals = arrivals_of(str(run.name))
    spread = arrivals["staleness"].var() if len(arrivals) else 0.0
    row["drift_slope"] = arrivals["staleness"].cov(arrivals["drift"]) / spread if spread else math.nan
    row["staleness"] = float(arrivals["staleness"].mean()) if len(arrivals) else math.nan
    return row


def predicted_noise(run: pd.Series, lines: pd.DataFrame) -> float:
    """E|A|^2 as the paper has it (section 4, K = 1): sigma^2 over the number of uploads in a step's mean.

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


def arrivals_of(run: str) -> pd.DataFrame:
    """Staleness and drift of every upload in the second half of a run's iterations; none without the file, as in an
    archive. In the first half the way from the initial model hides what noise and skew add to it.
    """
    path = Path(run) / ARRIVALS_NAME
    if not path.exists():
        return pd.DataFrame(columns=["staleness", "drift"], dtype=float)
    arrivals = pd.read_parquet(path)
    return arrivals[arrivals["iteration"] >= arrivals["iteration"].max() / 2]


def drift_by_staleness(runs: list[str]) -> pd.DataFrame:
    """Mean staleness and mean drift of uploads whose staleness is 1, 2-3, 4-7, …; bins of at least 10 uploads.

    The index is the whole part of the staleness's binary logarithm.
    """
    arrivals = pd.concat([arrivals_of(run) for run in runs])
    arrivals = arrivals[arrivals["staleness"] > 0]
    bins = arrivals.groupby(np.floor(np.log2(arrivals["staleness"].to_numpy(dtype=float))))
    means = bins[["staleness", "drift"]].mean().assign(uploads=bins.size())
    return means[means["uploads"] >= _MIN_UPLOADS]


def drift_ratios(runs: pd.DataFrame, table: pd.DataFrame, keys: list[str], skew: str) -> pd.DataFrame:
    """Drift and zeta^2 under the strongest skew over those under the weakest, at the least staleness that both have.

    One row per series and remaining setting; empty where there is one skew only. skew: a key, less is more skewed.
    """
    rest, ratios = ["series", *(key for key in keys if key != skew)], []
    for place, cell in table.groupby(rest, sort=False):
        ends = [cell.loc[cell[skew].astype(float).idxmin()], cell.loc[cell[skew].astype(float).idxmax()]]
        same = runs[(runs[rest] == list(place)).all(axis=1)]
        low, high = (drift_by_staleness(list(same.index[same[skew] == end[skew]].astype(str))) for end in ends)
        both = low.index.intersection(high.index)
        if ends[0][skew] != ends[1][skew] and len(both):
            drift = low["drift"][both[0]] / high["drift"][both[0]]
            zeta2 = ends[0]["zeta2"] / ends[1]["zeta2"]
            ratios.append({**dict(zip(rest, place, strict=True)), "drift": drift, "zeta2": zeta2})
    return pd.DataFrame(ratios)


def _skews(page: Page, table: pd.DataFrame, keys: list[str]) -> list[Part]:
    skew = next((key for key in keys if key.startswith("heterogeneity.")), None)
    ratios = drift_ratios(page.placed.runs, table, keys, skew) if skew else pd.DataFrame()
    if not len(ratios):
        return []
    rest = [key for key in keys if key != skew]
    shown = {"algorithm": ratios["series"]} | {
        style.key_label(key, ratios[key]): [style.short(key, value) for value in ratios[key]] for key in rest
    }
    shown |= {"drift ratio": ratios["drift"].map(_number), "ζ² ratio": ratios["zeta2"].map(_number)}
    return [
        "Strongest over weakest skew, at the least staleness of both:",
        Table("skews", pd.DataFrame(shown), ratios, 1 + len(rest)),
    ]


def _cells(table: pd.DataFrame, keys: list[str]) -> list[tuple[str, pd.DataFrame]]:
    if not keys:
        return [("", table)]
    return [(style.cell_label(keys, cell), of_cell) for cell, of_cell in table.groupby(keys, sort=False)]


def _parts_figure(table: pd.DataFrame, keys: list[str]) -> Picture:
    names = sorted(set(table["series"]), key=style.series_order)
    largest = table[list(_PARTS)].to_numpy().max()
    panels = []
    for title, cell in _cells(table, keys):
        lines = []
        for part, look in _PARTS.items():
            some = cell[cell[part] > _ZERO * largest]
            x, y, half = some["series"].map(names.index), some[part], some[f"{part}_std"]
            edges = ((y - half).clip(y / 10).to_numpy(), (y + half).to_numpy())
            lines.append(
                Line(_PART_NAMES[part], look, x.to_numpy(float), y.to_numpy(), *edges, points=True, linked=False)
            )
        panels.append(Panel(title, lines, names=[name.replace("delay-adaptive ", "delay-ad.\n") for name in names]))
    figure = line_panels(panels, "", "E|·|², squared gradient norm", y_log=True)
    return Picture("mse_parts", figure, "The three parts of the error; parts that are zero to rounding are left out.")


def _drift_figure(page: Page, table: pd.DataFrame, keys: list[str]) -> list[Part]:
    panels, runs = [], page.placed.runs
    for title, cell in _cells(table, keys):
        lines = []
        for _, row in cell.iterrows():
            same = runs[(runs[["series", *keys]] == list(row[["series", *keys]])).all(axis=1)]
            bins = drift_by_staleness(list(same.index.astype(str)))
            x, y = bins["staleness"].to_numpy(), bins["drift"].to_numpy()
            lines.append(Line(row["series"], page.styles[row["series"]], x, y))
        panels.append(Panel(title, lines))
    if not any(len(line.x) for panel in panels for line in panel.lines):
        return []
    figure = line_panels(panels, "staleness [server iterations]", "drift |w_t − w_v|²", x_log=2, y_log=True)
    return [Picture("mse_drift", figure, "Drift against staleness.")]


def _correlation_figure(table: pd.DataFrame, keys: list[str]) -> Picture:
    panels = []
    for title, cell in _cells(table, keys):
        lines = []
        for _, row in cell.iterrows():
            values = np.array([row[f"correlation_{lag}"] for lag in LAGS], dtype=float)
            known = np.isfinite(values)
            x = np.array(LAGS, dtype=float)[known]
            lines.append(Line(row["series"], page_style(table)[row["series"]], x, values[known]))
        panels.append(Panel(title, lines))
    figure = line_panels(panels, "k [server iterations]", "correlation of A(t) and A(t+k)", x_log=False, zero=True)
    return Picture("mse_correlation", figure, "Correlation of the noise of a step with that of a later one.")


def page_style(table: pd.DataFrame) -> dict[str, Style]:
    return style.styles(table["series"])


def _columns(table: pd.DataFrame, columns: dict[str, str]) -> dict[str, list[str]]:
    return {header: [_number(value) for value in table[column]] for header, column in columns.items()}


def _number(value: float, std: float = math.nan) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.2g}" if math.isnan(std) else f"{value:.2g} ± {std:.1g}"
