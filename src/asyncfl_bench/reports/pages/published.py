"""Numbers printed in papers, kept beside the code as CSV files (``reports/published/``)."""

from __future__ import annotations

import csv
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "published"


def published(name: str) -> list[dict[str, str]]:
    """The rows of ``<name>.csv``, for example ``ace_table_a2``; every row has a ``source``."""
    with (_FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
