"""Parts of tables a.1 and a.3 (counts and bytes) and a.2 (accuracies) of the ACE paper, measured beside printed."""

from __future__ import annotations

import math

from . import looks
from .comparing import comparison_parts
from .item import VERDICTS, Page, mean_text, number
from .published import published
from .scores import ranked
from .selection import cell_label
from .statistics import kendall_tau

_FLOAT_BYTES = 4
ALPHA = "heterogeneity.alpha"


def upload_parts(page: Page) -> list[str]:
    """Uploads per server iteration, counted, beside those of table a.1."""
    printed = {row["algorithm"]: row for row in published("ace_table_a1")}
    headers = ["algorithm", "cell", "M", "uploads", "server iterations", "uploads per iteration"]
    headers += ["without a first round of n", "published"]
    cells, ticks = [], False
    for (series, cell), runs in _in_order(page):
        for run in runs[:1]:  # a count, not a measurement: seeds share it
            used, n = run.summary.get("used", {}), run.settings.get("n_clients")
            uploads, iterations = used.get("uploads"), used.get("server_iterations")
            first_round = series.algorithm in ("ace", "aced") and isinstance(n, int) and iterations and iterations > 1
            ticks |= run.settings.get("clock") == "ticks"
            cells.append(
                [
                    series.label,
                    cell_label(page.evidence.cell_keys, cell),
                    run.value("algorithm.buffer_size"),
                    str(uploads),
                    str(iterations),
                    f"{uploads / iterations:.3f}" if iterations else "-",
                    f"{(uploads - n) / (iterations - 1):.3f}" if first_round else "-",
                    printed.get(series.algorithm, {}).get("uploads_per_server_iteration", "-"),
                ]
            )
    notes = [
        "ACE and ACED ask every client for one upload before their first step (n uploads for one iteration); the last "
        "column but one leaves this round out. Published: " + _sources(printed.values()) + "."
    ]
    if ticks:
        notes.append(
            "**On the clock of ticks ACE and ACED take one step per tick, with all uploads of that tick**: then one "
            "iteration uses several uploads. The paper's 1 is one step per arrival, the clock of time."
        )
    return ["## Uploads per server iteration", page.folder.table("uploads", headers, cells, 2), *notes]


def state_parts(page: Page) -> list[str]:
    """Bytes of state, measured, in units of d floats beside the orders of table a.3."""
    rows = published("ace_table_a3")
    headers = ["algorithm", "cell", "n", "M", "server bytes", "… in d floats", "client bytes, all", "… in d floats"]
    headers += ["published: server", "one client", "total"]
    cells, counted = [], False
    for (series, cell), runs in _in_order(page):
        for run in runs[:1]:
            measured, d = run.summary.get("state_bytes") or {}, run.summary.get("parameters")
            counted |= bool(measured)
            line = [series.label, cell_label(page.evidence.cell_keys, cell), run.value("n_clients")]
            line.append(run.value("algorithm.buffer_size"))
            for place in ("server", "clients"):
                size = measured.get(place)
                line.append("-" if size is None else str(size))
                line.append("-" if size is None or not d else f"{size / (_FLOAT_BYTES * d):.2f}")
            rule = run.value("algorithm.rule")
            printed = [r for r in rows if r["algorithm"] == series.algorithm and r["algorithm.rule"] in ("", rule)]
            found = printed[0] if printed else {}
            line += [found.get(key, "-") for key in ("server_state", "client_state", "total_state")]
            cells.append(line)
    parts = ["## State beyond the model", page.folder.table("state", headers, cells, 2)]
    parts.append(
        "One unit is a vector of d floats of four bytes, the size of the model. Published are orders of magnitude in "
        f"numbers ({_sources(rows)}), so there is no difference to take: n d stands for n units, 1 for none."
    )
    return parts if counted else [*parts, "**These runs did not count the bytes of their state (`state_bytes`).**"]


def accuracy_parts(page: Page) -> list[str]:
    """Accuracies beside those of table a.2: with differences only where data and model are the paper's."""
    rows = published("ace_table_a2")
    known = {_plain(row["dataset"]) for row in rows}, {_plain(row["model"]) for row in rows}
    runs = [run for group in page.evidence.runs.values() for run in group]
    real = not page.changed and all(
        _plain(run.choices.get("dataset", "")).startswith(tuple(known[0]))
        and _plain(run.choices.get("model", "")) in known[1]
        for run in runs
    )
    parts = ["## Measured and published", _sources(rows) + ": test accuracy [%], ± two standard errors of 5 runs."]
    if not real:
        parts.append(
            "**These runs are a stand-in: other data, another model or other settings than the paper's. Their "
            "accuracies cannot be compared with the published ones, so there is no difference; only the order of the "
            "algorithms is.**"
        )
        return [*parts, _orders(page, rows), _printed(page, rows), *comparison_parts(page)]
    return [*parts, _differences(page, rows), *comparison_parts(page)]


def _differences(page: Page, rows: list[dict[str, str]]) -> str:
    headers = ["model", "α", "algorithm", "measured ± 2 standard errors", "seeds", "published", "difference", "verdict"]
    cells = []
    for (series, cell), runs in _in_order(page):
        where = dict(zip(page.evidence.cell_keys, cell, strict=True))
        mean, std, seeds = page.final(series, cell)
        for row in rows:
            same = row["algorithm"] == series.algorithm and float(row[ALPHA]) == float(where[ALPHA])
            if not same or _plain(row["model"]) != _plain(runs[0].choices["model"]):
                continue
            two_se = 2 * std / math.sqrt(seeds) if seeds > 1 else math.nan
            difference = mean - float(row["accuracy_percent"])
            error = math.hypot(two_se, float(row["two_standard_errors_percent"]))
            verdict = VERDICTS["unknown" if math.isnan(error) else "noise" if abs(difference) < error else "larger"]
            printed = f"{row['accuracy_percent']} ± {row['two_standard_errors_percent']}"
            line = [row["model"], where[ALPHA], series.label, mean_text(mean, two_se), str(seeds)]
            cells.append([*line, printed, number(difference, "+"), verdict])
    return page.folder.table("published_difference", headers, cells, 3)


def _orders(page: Page, rows: list[dict[str, str]]) -> str:
    """Kendall's tau between the measured means and those of each published column with the same skew."""
    headers = ["cell", "published column", "order measured, best first", "Kendall tau"]
    cells = []
    for cell in page.evidence.cells:
        alpha = float(dict(zip(page.evidence.cell_keys, cell, strict=True))[ALPHA])
        means = {s: mean for s in page.evidence.series if not math.isnan(mean := page.final(s, cell)[0])}
        order = " > ".join(series.label for series in ranked(means))
        for model in dict.fromkeys(row["model"] for row in rows):
            column = {
                row["algorithm"]: float(row["accuracy_percent"])
                for row in rows
                if row["model"] == model and float(row[ALPHA]) == alpha
            }
            both = [series for series in means if series.algorithm in column]
            tau = kendall_tau([means[s] for s in both], [column[s.algorithm] for s in both])
            cells.append([cell_label(page.evidence.cell_keys, cell), f"{model}, α = {alpha:g}", order, number(tau)])
    return page.folder.table("orders", headers, cells, 3)


def _printed(page: Page, rows: list[dict[str, str]]) -> str:
    """The published table alone: it must not stand in one table with a stand-in's numbers."""
    columns = list(dict.fromkeys((row["model"], row[ALPHA]) for row in rows))
    headers = ["published", *(f"{model}, α = {alpha}" for model, alpha in columns)]
    cells = []
    for algorithm in reversed(dict.fromkeys(row["algorithm"] for row in rows)):
        of = {(row["model"], row[ALPHA]): row for row in rows if row["algorithm"] == algorithm}
        shown = [f"{of[c]['accuracy_percent']} ± {of[c]['two_standard_errors_percent']}" for c in columns]
        cells.append([looks.name(algorithm), *shown])
    return page.folder.table("published", headers, cells)


def _in_order(page: Page) -> list:
    evidence = page.evidence
    return [
        ((series, cell), evidence.runs[series, cell])
        for cell in evidence.cells
        for series in evidence.series
        if (series, cell) in evidence.runs
    ]


def _sources(rows) -> str:
    return "; ".join(sorted({row["source"] for row in rows}))


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
