"""A page as one HTML file that needs no network. Needs the extra ``html``.

The file has the evaluations of all runs: ``page.js`` averages the chosen ones, and Vega draws them. Library and numbers
are compressed (gzip, base64), so that figure 2 with 100 runs and all metrics stays below 1 MB. The content policy of
the page forbids the browser to load anything.
"""

from __future__ import annotations

import base64
import gzip
import html
import io
import json
import re
import statistics
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from string import Template

import pandas as pd
from markdown_it import MarkdownIt

from ...analysis.claims import VERDICTS
from ...analysis.evaluations import final_values
from ...analysis.names import is_setting, metric_label
from ...errors import BenchError
from ...files import write_text
from ...tracking.runs import setting_text as as_text
from ..pages.page import Page
from ..pages.spec import AXES
from ..pages.write import More, Part, Picture, Table
from .chart import ChartData, chart_numbers

_VERDICTS = (*VERDICTS, "best", "better", "larger", "smaller")
_INDICATION = " (preliminary)"
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).disable("image")  # HTML in names of runs is text
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")  # of a number, not of a range or a name


def write_html(page: Page, target: Path, refresh: int | None = None) -> None:
    """Write the page as one HTML file. refresh: seconds after which an open page reloads itself.

    Raises BenchError if the extra is missing or the file is not writable.
    """
    parts = page.parts[1:]
    chart_at = next((i for i, part in enumerate(parts) if _is_curves(part) or isinstance(part, More)), None)
    drawn = [None if _is_curves(part) else part for part in parts]  # the chart replaces them
    write_document(page.spec.title, [*drawn, *_browser_parts(page)], chart_data(page), target, refresh, chart_at)


def _is_curves(part: Part) -> bool:
    return isinstance(part, Picture) and part.name.startswith("curves")


def chart_data(page: Page) -> ChartData:
    """Return the data of a page's chart. Panels are its cells; the cell of the paper has the published curves."""
    runs = page.runs
    labels = runs[["cell", "series", "seed"]].rename(columns={"cell": "panel"})
    points = page.points.drop(columns=["seed"], errors="ignore").merge(labels, left_on="run", right_index=True)
    frames = []
    for cell, keys in page.cells.iterrows():
        frames.append(points[points["panel"] == cell])
        if page.spec.published is not None and page.is_papers_experiment(str(cell)):
            for series, curve in page.spec.published.curves_of(page.spec.paper, keys).items():
                if series in page.styles:
                    there = {"panel": cell, "series": series, "virtual_time": curve["x"]}
                    frames.append(pd.DataFrame(there | {"test/accuracy": curve["y"] / 100}))
    differ = _settings_table(page).loc[:, lambda texts: texts.nunique() > 1]
    settings = {
        (str(cell), str(series)): {str(key): text for key, text in differ.loc[of.index[0]].items() if text != "-"}
        for (cell, series), of in runs.groupby(["cell", "series"])
    }
    first = page.series_in_figures if len(page.series_in_figures) < len(page.series) else ()
    axes = [getattr(block, "axis", "") for block in page.spec.blocks]
    axis = next((axis for axis in axes if axis in AXES), AXES[0])
    return ChartData(pd.concat(frames), page.styles, settings, axis, page.metric, first, page.units)


def _settings_table(page: Page) -> pd.DataFrame:
    """Return a row of texts for each run, a column for each setting."""
    keys = [key for key in map(str, page.runs) if is_setting(key) and key != "seed" and not key.endswith("_target_")]
    return page.runs[keys].map(as_text)


def _browser_parts(page: Page) -> list[Part]:
    """Return the tables of single runs, which only a browser can search and sort."""
    runs = page.runs
    label = f"final {metric_label(page.metric)}"
    every = runs[["cell", "series", "seed"]] if page.keys else runs[["series", "seed"]]
    every = every.join(final_values(page.points, page.metric).rename(label)).reset_index()
    every = every[[*every.columns[1:], "run"]]
    same = _settings_table(page).loc[:, lambda texts: texts.nunique() == 1].iloc[0].rename("value")
    shared = same[same != "-"].rename_axis("setting").reset_index()
    runs_table, settings = Table("runs", every, every), Table("settings", shared, shared)
    return ["## Every run", runs_table, "## What all runs share", settings]


def write_document(
    title: str,
    parts: Sequence[Part | None],
    shown: ChartData,
    target: Path,
    refresh: int | None = None,
    chart_at: int | None = None,
) -> None:
    """Write an HTML file with a chart, in the order of ``write_tables``."""
    library = _library()
    data = json.dumps(chart_numbers(shown) | {"refresh": refresh}, ensure_ascii=False, separators=(",", ":"))
    chart = Template(_read_asset("chart.html")).substitute(library=library, data=_compress(data))
    write_tables(title, parts, target, chart, "page.js", chart_at)


def write_tables(
    title: str,
    parts: Sequence[Part | None],
    target: Path,
    chart: str = "",
    script: str = "",
    chart_at: int | None = None,
) -> None:
    """Write an HTML file: title, parts before the first heading, parts before ``chart_at``, ``chart``, other parts.

    chart   HTML
    script  file beside this module that runs after the one that sorts tables
    Raises BenchError if the file is not writable.
    """
    first = next((i for i, part in enumerate(parts) if not isinstance(part, str) or part.startswith("## ")), len(parts))
    text = Template(_read_asset("page.html")).substitute(
        title=html.escape(title),
        sentences="\n".join(map(_part_html, parts[:first])),
        first="\n".join(map(_part_html, parts[first:chart_at])) if chart_at else "",
        chart=chart,
        parts="\n".join(map(_part_html, parts[max(first, chart_at or 0) :])),
        style=_read_asset("page.css"),
        script="\n".join(map(_read_asset, filter(None, ("tables.js", script)))),
    )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, text)
    except OSError as error:
        raise BenchError(f"cannot write {target}: {error.strerror}; choose another place with --out") from error


def _part_html(part: Part | None) -> str:
    if part is None:
        return ""
    if isinstance(part, More):
        sections = (
            (title, [_part_html(one) for one in own if not _is_curves(one)]) for title, own in part.sections.items()
        )
        return "\n".join(
            f"<details><summary>{html.escape(title)}</summary>\n{text}\n</details>"
            for title, texts in sections
            if (text := "\n".join(filter(None, texts)))
        )
    if isinstance(part, Table):
        shown = part.data if part.shown is None else part.shown
        headers = {name: f"{name} [{unit}]" for name, unit in part.units.items() if unit}
        return _table_html(part.name, shown.rename(columns=headers))
    if isinstance(part, Picture):
        import matplotlib

        raw = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": part.name, "svg.fonttype": "none"}):
            part.figure.savefig(raw, format="svg", metadata={"Date": None, "Creator": None})
        source = base64.b64encode(raw.getvalue()).decode()
        return f'<img alt="{html.escape(part.alt)}" src="data:image/svg+xml;base64,{source}">'
    return _MARKDOWN.render(part)


def _table_html(name: str, frame: pd.DataFrame) -> str:
    """Return a sortable table. Numbers of a column have the same decimals."""
    columns = [_cells(frame.iloc[:, index]) for index in range(frame.shape[1])]
    columns = [
        ([_MINUS.sub("−", text) for text in texts] if kind == "number" else texts, kind) for texts, kind in columns
    ]
    kinds = [f" class={kind}" if kind else "" for _, kind in columns]
    head = "".join(
        f'<th scope=col aria-sort=none{kind}><button type="button">{html.escape(str(header))}</button></th>'
        for header, kind in zip(frame.columns, kinds, strict=True)
    )
    body = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{_cell_html(text)}</td>" for text, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in zip(*(texts for texts, _ in columns), strict=True)
    )
    name = html.escape(name)
    label = name.replace("_", " ")
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="Table {label}"><table id="table-{name}">'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
        f'<button type="button" data-table="{name}" aria-label="Table {label} as CSV">CSV</button></figure>'
    )


def _cells(column: pd.Series) -> tuple[list[str], str]:
    """Return the texts of a column, and its kind: ``number`` (sorted and aligned), ``long`` (broken into lines)."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        known = column.dropna().astype(float)
        whole, most = (known == known.round()).all(), known.abs().max()
        digits = 0 if whole or most >= 10_000 else 2 if most >= 1 else 4
        return ["-" if pd.isna(value) else f"{value:.{digits}f}" for value in column], "number"
    texts = ["-" if value is None or value != value else str(value) for value in column]
    told = [re.sub(r"\]\(.*?\)", "", text) for text in texts if text not in ("", "-", "–")]  # links by their words
    if told and (statistics.median(map(len, told)) > 24 or max(map(len, told)) > 60):
        return texts, "long"
    starts = sum(bool(re.match(r"[\[+\-−~*≥≤<>≈ ]*\d", text)) for text in told)
    return texts, "number" if 2 * starts >= len(told) else ""


def _cell_html(text: str) -> str:
    bare = text.strip("*")
    word = bare.removesuffix(_INDICATION)
    kind = f"{word.replace(' ', '-')}{' indication' if word != bare else ''}"
    return f'<span class="verdict {kind}">{bare}</span>' if word in _VERDICTS else _MARKDOWN.renderInline(text)


def _compress(text: str) -> str:
    """Return the text gzipped, in base64."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _read_asset(name: str) -> str:
    """Return the text of a file beside this module."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed, compressed. Takes one or two seconds, once in a process."""
    try:
        import altair
        import vl_convert
    except ImportError as error:
        raise BenchError("HTML pages need Altair: pip install 'asyncfl_bench[html]'") from error
    version = ".".join(altair.VEGALITE_VERSION.split(".")[:2])
    return _compress(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))
