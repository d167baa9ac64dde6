"""History of the measurements of ``benchmark.py``, and a page that shows slowdowns.

    python scripts/history.py results/speed     draw the page of a history again

``history.csv`` has a row for every row of every measurement; a ratio within one run says more than a time, so ratios
are drawn, one panel a workload and one line a machine.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import fill

import numpy as np
import pandas as pd

FILE = "history.csv"
WHERE = ("machine", "cores", "torch")


@dataclass
class Row:
    """unit: ``ratio`` to the bare loop (large is fast), ``growth`` of time per arrival or ``seconds`` (small is)."""

    name: str
    what: str
    unit: str
    value: float
    low: float
    high: float


def append(folder: Path, rows: list[Row], machine: str, cores: int, torch: str, date: str) -> None:
    """Add the rows of one measurement to the folder's history."""
    entry = pd.DataFrame([asdict(row) for row in rows])
    where = {"date": date, "revision": _revision(), "machine": machine, "cores": cores, "torch": torch}
    entry = entry.assign(**where)[[*where, *entry.columns]]
    path = folder / FILE
    history = pd.concat([pd.read_csv(path), entry]) if path.exists() else entry
    folder.mkdir(parents=True, exist_ok=True)
    history.to_csv(path, index=False, float_format="%.4g")


def slower(history: pd.DataFrame) -> pd.DataFrame:
    """Rows whose whole range in the last measurement is worse than the range of the one before on such a machine."""
    found = []
    for _, own in history.groupby(["name", *WHERE], sort=False):
        if len(own) > 1:
            before, last = own.iloc[-2], own.iloc[-1]
            if (last["high"] < before["low"]) if last["unit"] == "ratio" else (last["low"] > before["high"]):
                found.append({**last, "before": before["value"], "since": before["revision"]})
    return pd.DataFrame(found)


def draw(folder: Path) -> None:
    """``README.md`` and ``history.png`` beside the history."""
    from asyncfl_bench.reports.blocks.figures import Line, Panel, line_panels
    from asyncfl_bench.reports.pages.style import styles

    history = pd.read_csv(folder / FILE, dtype={"revision": str})
    entries = list(dict.fromkeys(zip(history["date"], history["revision"], strict=True)))
    machines = list(dict.fromkeys(history[list(WHERE)].itertuples(index=False, name=None)))
    labels = {where: f"{where[0]}, {where[1]} in use, torch {where[2]}" for where in machines}
    looks, panels = styles(labels.values()), []
    for name, own in history.groupby("name", sort=False):
        lines = []
        for where, of in own.groupby(list(WHERE), sort=False):
            x = np.array([entries.index(entry) for entry in zip(of["date"], of["revision"], strict=True)], dtype=float)
            numbers = (of[key].to_numpy() for key in ("value", "low", "high"))
            lines.append(Line(labels[where], looks[labels[where]], x, *numbers, points=True))
        title = fill(f"{name}: {own['what'].iloc[-1]}", 42)
        unit = {"ratio": "times PyTorch", "growth": "many / few", "seconds": "s"}[own["unit"].iloc[-1]]
        panels.append(Panel(title, lines, unit, names=[date[5:] for date, _ in entries]))
    figure = line_panels(panels, "", "", columns=3)
    for axes, panel in zip(figure.axes, panels, strict=False):
        axes.tick_params(axis="x", rotation=45)
        axes.set_ylim(0, 1.1 * max(float(line.high.max()) for line in panel.lines))
    figure.savefig(folder / "history.png", dpi=110, metadata={"Software": None})
    last = history.drop_duplicates(["name", *WHERE], keep="last")
    shown = last[["name", "what", "value", "low", "high", "unit", "date", "revision", *WHERE]]
    lines = [
        "# Speed over time",
        "",
        "`make bench` adds rows to [history.csv](history.csv): medians over repeats, with the lowest and the highest.",
        "",
        "- *ratio*: our client updates per second (W6, W7: local steps per second) divided by the steps per second of",
        "  a bare PyTorch loop ([details](../../docs/explanation/performance.md))",
        "- *growth*: time per arrival with many clients (the number in the name) divided by that with 100",
        "- *its memory alone*, *its work alone*: limits of W3, gradients with reading and writing of 1000 models, or",
        "  gradients and a run without them, on cores that never wait",
        "- n: clients, C: clients in flight (all if not given), M: uploads in a buffer",
        "",
        *[
            f"- **Slower**: {row['name']} ({row['what']}): {row['unit']} {row['value']:.4g}, with revision "
            f"{row['since']} {row['before']:.4g}"
            for _, row in slower(history).iterrows()
        ],
        "",
        "![ratios of every measurement, with their range](history.png)",
        "",
        "| " + " | ".join(shown.columns) + " |",
        "|" + " --- |" * len(shown.columns),
        *["| " + " | ".join(map(str, row)) + " |" for row in shown.itertuples(index=False, name=None)],
    ]
    text = "\n".join(lines).replace("\n\n\n", "\n\n")
    (folder / "README.md").write_text(text + "\n", encoding="utf-8")


def _revision() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    answer = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=Path(__file__).parent)
    return answer.stdout.strip() or "unknown"


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
