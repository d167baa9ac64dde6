"""Blocks about single clients: accuracy by the client's own labels (evaluation.clients=true), kept uploads, live runs.

Legend: n clients, C classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...analysis import names
from ...analysis.contrasts import Contrast
from ...analysis.measures import client_tenths, kept_by_label, kept_shares, straggler_shares
from ...errors import InputError, first_line
from ...files import LARGEST_FILE, open_regular, read_parquet
from ...tracking.rundir import RECORD_NAME, TRACE_NAME
from ...tracking.runs import load_clients
from ..pages.page import Page
from ..pages.spec import Measure
from ..pages.write import Part, Picture, Table, draw_picture, mean_and_deviation
from .comparisons import decision_columns, decision_texts
from .figures import Line, Panel, line_panels
from .maps import label_maps

_SHOWN = {
    "mean_accuracy": "mean",
    "worst_tenth_accuracy": "worst 10 %",
    "slow_quarter_accuracy": "slow quarter",
    "fast_quarter_accuracy": "fast quarter",
}
_SLOWEST = {"accuracy": "slowest tenth", "class_accuracy": "class they hold most of", "share": "their share of it"}
_SLOWEST_TEXT = (
    "Of the tenth of the clients with the longest mean delay: what they may expect of the final model, its accuracy on "
    "the class of which they hold the largest share, and that share [%]."
)
_COLUMN = "summary.clients."
_TEXT = (
    "What a client may expect of the final model: test accuracy by class, weighted by the client's own labels. Slow "
    "and fast are the quarters of the clients with the longest and the shortest mean delay of their work."
)
_KEPT_TEXT = (
    "Share of uploads that are in a step of the server [%]: of all clients, of the quarters with the longest and the "
    "shortest mean delay of their work; and of the samples behind uploads, for the label least and most kept."
)

_LIVE_TEXT = (
    "Clients of live runs. A delay is the time that a client's work took until its upload arrived; staleness is the "
    "mean of the client's uploads [server iterations]. Lost work has no upload; a refused upload was not valid."
)
_NOTED, _REFUSED = "summary.replayed.", "summary.live.refused."
_LEFT = "summary.live.left"  # of every live run
_COLUMNS = {"delay_median": "delay, median [s]", "delay_90": "delay, 90 % [s]", "staleness": "staleness, mean"}
_TYPES = {"client": int, "duration": float, "arrived": int}  # of a record
_COUNTS = ("uploads", "lost", "refused")


def client_accuracy(page: Page) -> list[Part]:
    """Return expected accuracies of clients; nothing if no run was made with ``evaluation.clients=true``."""
    if f"{_COLUMN}mean_accuracy" not in page.runs or page.runs[f"{_COLUMN}mean_accuracy"].isna().all():
        return []
    clients = load_clients(page.runs).join(page.runs[["series", "cell", "seed", *page.keys]], on="run")
    clients = clients[clients["accuracy"].notna()]
    return [
        "## Per-client accuracy",
        _TEXT,
        _accuracy_table(page),
        *_accuracy_by_uploads_figure(page, clients),
        *_split_figure(page, clients),
    ]


def straggler_accuracy(page: Page) -> list[Part]:
    """Return accuracies of the slowest clients and of the class of which they hold most; nothing without measured
    clients."""
    clients = load_clients(page.runs)
    if clients.empty or clients["accuracy"].isna().all():
        return []
    found = pd.DataFrame({run: straggler_shares(of) for run, of in clients.groupby("run")}).T[[*_SLOWEST]]
    return [
        "## Accuracy of the slowest clients and of their class",
        _SLOWEST_TEXT,
        _means_table(page, "stragglers", found, _SLOWEST),
    ]


@dataclass(frozen=True)
class KeptUploads:
    """The block of uploads that a selecting rule kept; nothing if no run recorded them.

    by_number  labels in the figure in the order of their numbers, as where latency follows them
    """

    by_number: bool = False

    def __call__(self, page: Page) -> list[Part]:
        clients = load_clients(page.runs)
        if "kept" not in clients or clients["kept"].isna().all():
            return []
        clients = clients[clients["kept"].notna()].join(page.runs[["series", "cell", "seed"]], on="run")
        found = pd.DataFrame({run: kept_shares(of) for run, of in clients.groupby("run")}).T
        shares = _means_table(page, "kept", found, {str(name): str(name) for name in found})
        order = "label" if self.by_number else "labels of a run, the most kept first"
        panels = _client_panels(page, clients, self._kept_by_position)
        figure = line_panels(panels, order, "samples of the label kept [%]", x_log=False)
        alt = "Share of each label's uploaded samples that were in kept uploads"
        return ["## Whose uploads were kept", _KEPT_TEXT, shares, *draw_picture("kept_labels", figure, alt)]

    def _kept_by_position(self, of: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of labels, and the kept share of each by run and position, the most kept label first."""
        share_sc = np.array([kept_by_label(run).to_numpy() for _, run in of.groupby("run")])
        share_sc = share_sc if self.by_number else -np.sort(-share_sc)
        return np.arange(share_sc.shape[1]) + (0.0 if self.by_number else 1.0), share_sc


def _means_table(
    page: Page, name: str, found: pd.DataFrame, titles: dict[str, str], gap: Callable[[pd.DataFrame], Any] | None = None
) -> Table:
    """Return by cell and series the means over seeds of a run's numbers.

    titles  heading of each shown number
    gap     numbers of a series by seed -> the decision about a difference of two of them
    """
    rows, texts = [], []
    for cell, series, of in page.groups(page.runs[["series", "cell", "seed"]].join(found, how="inner")):
        counted = decision_columns(gap(of.set_index("seed"))) if gap else {"seeds": len(of)}
        rows.append({"cell": cell, "series": series, **of[[*found]].mean(), **counted})
        shown = {title: mean_and_deviation(of[key]) for key, title in titles.items()}
        texts.append({"cell": cell, "algorithm": series, **shown})
    data = pd.DataFrame(rows)
    last = decision_texts(data, "fast - slow") if gap else {}
    return Table(name, pd.DataFrame(texts).assign(**last), page.with_keys(data), 2)


def _client_panels(
    page: Page,
    clients: pd.DataFrame,
    line_arrays: Callable[[pd.DataFrame], tuple[np.ndarray, np.ndarray]],
    least: float = -math.inf,
    **look: Any,
) -> list[Panel]:
    """Return a panel a cell with a line a series: means over seeds with bars of one deviation.

    line_arrays  clients of a series in a cell -> positions, and values by seed and position
    least        lower end of bars
    """
    panels = {cell: Panel(str(cell), [], top=100.0) for cell in page.cells.index}
    for cell, series, of in page.groups(clients[clients["series"].isin(page.series_in_figures)]):
        x, y_sp = line_arrays(of)
        mean = y_sp.mean(axis=0)
        std = y_sp.std(axis=0, ddof=1) if len(y_sp) > 1 else np.zeros_like(mean)
        low = np.maximum(mean - std, least)
        line = Line(series, page.styles[series], x, mean, low, mean + std, points=True, **look)
        panels[cell].lines.append(line)
    return [*panels.values()]


def _accuracy_table(page: Page) -> Table:
    """Return by cell and series the means over clients and seeds, and the fast quarter minus the slow one, seed by
    seed."""
    runs = page.runs[page.runs[f"{_COLUMN}mean_accuracy"].notna()]
    percent = 100 * runs.filter(regex=f"^{re.escape(_COLUMN)}").astype(float)

    def gap(by_seed: pd.DataFrame) -> Contrast:
        return page.decide(by_seed["fast_quarter_accuracy"] - by_seed["slow_quarter_accuracy"], Measure("late"))

    return _means_table(page, "clients", percent.rename(columns=lambda key: key.removeprefix(_COLUMN)), _SHOWN, gap)


def _accuracy_by_uploads_figure(page: Page, clients: pd.DataFrame) -> list[Picture]:
    """Return tenths of a run's clients by their uploads, a panel a cell."""

    def accuracy_of_tenths(of: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        positions, accuracies = zip(*(client_tenths(run) for _, run in of.groupby("seed")), strict=True)
        return np.mean(positions, axis=0), np.array(accuracies)

    panels = _client_panels(page, clients, accuracy_of_tenths, least=0.0, linked=False)
    label = "uploads of a client, over the mean of all"
    x_log = 2 if all((line.x > 0).all() for panel in panels for line in panel.lines) else False
    figure = line_panels(panels, label, "expected accuracy of the client [%]", x_log=x_log)
    over = "mean and deviation over seeds" if clients["seed"].nunique() > 1 else "one seed"
    alt = f"Expected accuracy of clients against how often they were heard, tenths of the clients, {over}"
    return draw_picture("clients_heard", figure, alt)


def _split_figure(page: Page, clients: pd.DataFrame) -> list[Picture]:
    """Return the labels of the clients under the first seed, a map for each split; clients by their most frequent
    label."""
    keys = [key for key in page.keys if key.startswith("heterogeneity")]
    labels = [key for key in clients if str(key).startswith("label_")]
    first = clients[clients["seed"] == clients["seed"].min()]
    maps = {}
    for _, of in first.groupby(keys, sort=True, dropna=False) if keys else [((), first)]:
        one = of[of["run"] == of["run"].iloc[0]]
        held_nc = one[labels].dropna(axis=1).to_numpy(float)
        share_nc = held_nc / np.maximum(held_nc.sum(axis=1, keepdims=True), 1)
        order = np.lexsort((-share_nc.max(axis=1), share_nc.argmax(axis=1)))
        texts = page.cell_texts.loc[one["cell"].iloc[0], keys]
        maps[names.cell_label(keys, list(texts))] = 100 * share_nc[order].T
    alt = "Share of each label among the samples of each client, of the first seed"
    return draw_picture("clients_split", label_maps(maps), alt)


def real_clients(page: Page) -> list[Part]:
    """Return a row for each client of live runs and one sentence on each replay; nothing without a live run."""
    if _LEFT not in page.runs or (live := page.runs[page.runs[_LEFT].notna()]).empty:
        return []
    tables, lines, shown_tables = [], [], list[Part]()
    for _, run in live.iterrows():
        said = _describe_replay(run)
        try:
            if (Path(str(run.name)) / RECORD_NAME).exists():  # an archive holds no records
                tables.append(_client_table(run))
        except InputError as error:
            said = f"left out; {error}"
        names = (run["series"], run["cell"], f"seed {run['seed']}")
        lines.append(f"- {', '.join(filter(None, names))}: {said}")
    if tables:
        data = pd.concat(tables, ignore_index=True)
        first = ["cell", "series", "seed"]
        data = data[[*first, *data.columns.drop(first)]]
        shown = data.rename(columns={"series": "algorithm"} | _COLUMNS).astype(str)
        for name, title in _COLUMNS.items():
            shown[title] = ["-" if value != value else f"{value:.3g}" for value in data[name]]
        shown = shown if shown["cell"].nunique() > 1 else shown.drop(columns="cell")
        words = [*shown].index("client") + 1
        shown_tables = [Table("real_clients", shown, page.with_keys(data), words)]
    return ["## Real and replayed", _LIVE_TEXT, *shown_tables, "\n".join(lines)]


def _client_table(run: pd.Series) -> pd.DataFrame:
    """Return a row for each client of a live run. Raises InputError."""
    folder = Path(str(run.name))
    try:
        with open_regular(folder / RECORD_NAME, largest=LARGEST_FILE) as file:
            record = pd.read_csv(file, keep_default_na=False, dtype=_TYPES)
        trace = read_parquet(folder / TRACE_NAME).select(["client", "staleness"]).to_pandas()
        delays = record[record["arrived"] == 1].groupby("client")["duration"]
        ended = record[record["arrived"] == 0]
        is_refused = ended["why"].isin([key.removeprefix(_REFUSED) for key in run.dropna().index])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"its {RECORD_NAME} or {TRACE_NAME} cannot be read ({first_line(error)})") from None
    columns = {
        "uploads": trace.groupby("client").size(),
        "delay_median": delays.median(),
        "delay_90": delays.quantile(0.9),
        "staleness": trace.groupby("client")["staleness"].mean(),
        "lost": ended[~is_refused].groupby("client").size(),
        "refused": ended[is_refused].groupby("client").size(),
    }
    table = pd.DataFrame(columns, index=pd.RangeIndex(int(run["n_clients"]), name="client"))
    table[[*_COUNTS]] = table[[*_COUNTS]].fillna(0).astype(int)
    return table.reset_index().assign(cell=run["cell"], series=run["series"], seed=run["seed"])


def _describe_replay(run: pd.Series) -> str:
    """Return the result of ``afl-run --replay`` as text."""
    same = run.get(f"{_NOTED}same_bits")
    if same is None or same != same:
        return "not replayed; `afl-run --replay DIR` repeats it in the simulator"
    if same:
        counts = f"{run[f'{_NOTED}arrivals']:g} arrivals, {run[f'{_NOTED}points']:g} evaluations"
        return f"the replay has the same bits (model, {counts}; uploads {run[f'{_NOTED}uploads']})"
    remark = run[f"{_NOTED}remark"]
    return f"the replay differs: {run[f'{_NOTED}difference']}" + (f" ({remark})" if remark else "")
