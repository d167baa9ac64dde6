"""What real clients took and lost, and whether the simulator repeated their runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ...errors import InputError, first_line
from ...files import LARGEST_FILE, open_regular, read_parquet
from ...tracking.rundir import RECORD_NAME, TRACE_NAME
from ..pages.page import Page
from ..pages.write import Part, Table

_TEXT = (
    "Clients of live runs. A delay is the time that a client's work took until its upload arrived; staleness is the "
    "mean of the client's uploads [server iterations]. Lost work has no upload; a refused upload was not valid."
)
_NOTED, _REFUSED = "summary.replayed.", "summary.live.refused."
_LEFT = "summary.live.left"  # of every live run
_COLUMNS = {"delay_median": "delay, median [s]", "delay_90": "delay, 90 % [s]", "staleness": "staleness, mean"}
_TYPES = {"client": int, "duration": float, "arrived": int}  # of a record
_COUNTS = ("uploads", "lost", "refused")


class RealClients:
    """The block of live runs, a row for each client and one sentence on each replay; nothing without a live run."""

    def __call__(self, page: Page) -> list[Part]:
        if _LEFT not in page.runs or (live := page.runs[page.runs[_LEFT].notna()]).empty:
            return []
        tables, lines = [], []
        for _, run in live.iterrows():
            said = _describe_replay(run)
            try:
                if (Path(str(run.name)) / RECORD_NAME).exists():  # an archive holds no records
                    tables.append(_client_table(run))
            except InputError as error:
                said = f"left out; {error}"
            names = (run["series"], run["cell"], f"seed {run['seed']}")
            lines.append(f"- {', '.join(filter(None, names))}: {said}")
        shown = [_join_tables(page, tables)] if tables else []
        return ["## Real and replayed", _TEXT, *shown, "\n".join(lines)]


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


def _join_tables(page: Page, tables: list[pd.DataFrame]) -> Table:
    data = pd.concat(tables, ignore_index=True)
    first = ["cell", "series", "seed"]
    data = data[[*first, *data.columns.drop(first)]]
    shown = data.rename(columns={"series": "algorithm"} | _COLUMNS).astype(str)
    for name, title in _COLUMNS.items():
        shown[title] = ["-" if value != value else f"{value:.3g}" for value in data[name]]
    words = [name for name in ("cell", "algorithm", "seed") if name != "cell" or shown[name].nunique() > 1]
    return Table("real_clients", shown[[*words, *shown.columns[3:]]], page.with_keys(data), len(words) + 1)


def _describe_replay(run: pd.Series) -> str:
    """Return what ``afl-run --replay`` noted."""
    same = run.get(f"{_NOTED}same_bits")
    if same is None or same != same:
        return "not replayed; `afl-run --replay DIR` repeats it in the simulator"
    if same:
        counts = f"{run[f'{_NOTED}arrivals']:g} arrivals, {run[f'{_NOTED}points']:g} points"
        return f"the replay has the same bits (model, {counts}; uploads {run[f'{_NOTED}uploads']})"
    remark = run[f"{_NOTED}remark"]
    return f"the replay differs: {run[f'{_NOTED}difference']}" + (f" ({remark})" if remark else "")
