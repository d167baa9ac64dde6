"""History of the measurements of ``benchmark.py``, and a page that names slowdowns.

    python scripts/history.py results/speed     write the page of a history again

``history.csv`` has a row for every row of every measurement.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

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
    """Return rows whose range in the last measurement is worse than the whole range before, on one kind of machine."""
    found = []
    for _, own in history.groupby(["name", *WHERE], sort=False):
        if len(own) > 1:
            before, last = own.iloc[-2], own.iloc[-1]
            if (last["high"] < before["low"]) if last["unit"] == "ratio" else (last["low"] > before["high"]):
                found.append({**last, "before": before["value"], "since": before["revision"]})
    return pd.DataFrame(found)


def write_page(folder: Path) -> None:
    """Write ``README.md`` beside the history."""
    history = pd.read_csv(folder / FILE, dtype={"revision": str})
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
    write_page(Path(sys.argv[1]))
