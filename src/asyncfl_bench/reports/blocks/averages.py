"""The mean of the latest models beside the model itself, from runs made with ``evaluation.average=W``."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ...analysis.contrasts import Contrast
from ..pages.page import Page
from ..pages.spec import FINAL
from ..pages.write import Part, Table, format_number, mean_and_deviation
from .comparisons import decision_columns, interval_texts

_FINAL, _AVERAGED, _WINDOW = "summary.final.test/accuracy", "summary.average.test/accuracy", "summary.average.uploads"
_TEXT = (
    "Final test accuracy of the model, and of the mean of the models after the last {windows} uploads "
    "(`evaluation.average`) [%]. Leads are those of the method with the best final model over each other method "
    "[points]: of the models, and of the means. A lead that the means lack is noise of single models."
)


class Averages:
    """The block of averaged models; nothing if no run was made with ``evaluation.average``."""

    def __call__(self, page: Page) -> list[Part]:
        if _AVERAGED not in page.runs or page.runs[_AVERAGED].isna().all():
            return []
        runs = page.runs[page.runs[_AVERAGED].notna()]
        windows = " or ".join(str(int(window)) for window in sorted(runs[_WINDOW].unique()))
        return ["## With and without averaging", _TEXT.format(windows=windows), _table(page, runs)]


def _table(page: Page, runs: pd.DataFrame) -> Table:
    rows: list[dict[str, Any]] = []
    texts: list[dict[str, str]] = []
    for cell, of in runs.groupby("cell", sort=False):
        final, averaged = ({s: _by_seed(one, key) for s, one in of.groupby("series")} for key in (_FINAL, _AVERAGED))
        best = max(final, key=lambda series: final[series].mean())
        for series in (one for one in page.series if one in final):
            gain = page.decide(averaged[series] - final[series], FINAL)
            leads = [page.decide(kind[best] - kind[series], FINAL) for kind in (final, averaged)]
            rows.append(
                {"cell": cell, "series": series, "final": final[series].mean(), "averaged": averaged[series].mean()}
                | decision_columns(gain)
                | _lead_columns("lead", leads[0], series != best)
                | _lead_columns("averaged_lead", leads[1], series != best)
            )
            texts.append(
                {"cell": str(cell), "algorithm": series}
                | {"model": mean_and_deviation(final[series]), "mean": mean_and_deviation(averaged[series])}
                | {"gain": _interval(gain)}
                | {
                    name: "-" if series == best else _interval(lead)
                    for name, lead in zip(("lead of the best", "lead of its mean"), leads, strict=True)
                }
            )
    return Table("averages", pd.DataFrame(texts), page.with_keys(pd.DataFrame(rows)), 2)


def _lead_columns(name: str, lead: Contrast, there: bool) -> dict[str, Any]:
    """Return difference, low, high [points] and verdict of a lead, None where the method is the best itself."""
    numbers = decision_columns(lead)
    return {f"{name}_{key}": numbers[key] if there else None for key in ("difference", "low", "high", "verdict")}


def _by_seed(runs: pd.DataFrame, key: str) -> pd.Series:
    """Return seed -> accuracy [%]."""
    return 100 * runs.set_index("seed")[key].astype(float)


def _interval(contrast: Contrast) -> str:
    """``+1.2 [0.3, 2.1], better``"""
    numbers = decision_columns(contrast)
    (interval,) = interval_texts([numbers["low"]], [numbers["high"]])
    return f"{format_number(numbers['difference'], '+')} {interval}, {numbers['verdict']}"
