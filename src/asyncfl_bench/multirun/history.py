"""Finished runs in folders and archives. A plan estimates times and sizes from them."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ..config import Settings
from ..errors import BenchError
from ..files import parse_json, read_json, read_yaml

GROUPS = ("algorithm", "dataset", "model")  # runs that have these in common take about as long for an upload


@dataclass(frozen=True)
class FinishedRun:
    """A finished run. place: its directory or archive; config: text, for a run in an archive only."""

    place: Path
    summary: dict[str, Any]
    config: str = ""

    @property
    def is_archived(self) -> bool:
        """Return True if the run is in an archive."""
        return self.place.is_file()

    @functools.cached_property
    def choices(self) -> dict[str, Any]:
        try:
            tree = parse_json(self.config) if self.config else read_yaml(self.place / "config.yaml")
            return dict(tree["choices"])
        except (OSError, ValueError, LookupError, TypeError):
            return {}

    @functools.cached_property
    def seconds(self) -> float:
        return float(self.summary["wall_seconds"])

    def seconds_for(self, settings: Settings) -> float | None:
        """What a run with these settings may take: the same for each iteration, upload or unit of time, which under
        other delays is another. None: they have no budget in common."""
        used = self.summary["used"]
        limits = {name: limit for name, limit in settings.tree["budget"].items() if limit and used.get(name)}
        if self.choices.get("delay") != settings.choices["delay"]:
            limits.pop("virtual_time", None)
        return self.seconds * min(limit / used[name] for name, limit in limits.items()) if limits else None

    @functools.cached_property
    def size(self) -> int:
        """Bytes of its directory."""
        return sum(file.stat().st_size for file in self.place.rglob("*"))


def similar_runs(settings: Settings, past: Sequence[FinishedRun]) -> tuple[float, list[FinishedRun]]:
    """Return (estimated seconds, the runs used for the estimate); (0, []) if no run is similar.

    Runs of the same experiment count first. Otherwise runs with the same model count, scaled to the budget.
    Runs in directories are from this machine, so archives count only where no directory does.

    past  runs with the same algorithm and data set, from ``runs_by_algorithm``
    """
    experiment, model = settings.experiment, settings.choices["model"]
    found = [(one.seconds, one) for one in past if one.summary.get("experiment") == experiment]
    if not found:
        alike = [(one.seconds_for(settings), one) for one in past if one.choices.get("model") == model]
        found = [(seconds, one) for seconds, one in alike if seconds is not None]
    found = [(seconds, one) for seconds, one in found if not one.is_archived] or found
    return (fmean(seconds for seconds, _ in found) if found else 0.0), [one for _, one in found]


def runs_by_algorithm(past: Iterable[FinishedRun]) -> dict[tuple, list[FinishedRun]]:
    """Group runs by (algorithm, data set)."""
    found: dict[tuple, list[FinishedRun]] = {}
    for one in past:
        found.setdefault(tuple(one.summary.get(group) for group in GROUPS[:2]), []).append(one)
    return found


def finished_in(places: Iterable[str | Path], statuses: Container[str] = ("ok",)) -> list[FinishedRun]:
    """Every run at or below ``places`` that ended with one of ``statuses``; what cannot be read is none."""
    from ..tracking.archive import archived_summaries  # brings NumPy
    from ..tracking.records import find_runs

    directories, archives, _ = find_runs([place for place in map(Path, places) if place.is_dir()])
    found = []
    for directory in directories:
        try:
            found.append(FinishedRun(directory, read_json(directory / "summary.json")))
        except (OSError, ValueError):
            continue
    for archive in archives:
        try:
            found += [
                FinishedRun(archive, parse_json(summary), config) for summary, config in archived_summaries(archive)
            ]
        except (BenchError, ValueError):
            continue
    return [one for one in found if _has_ended(one.summary, statuses)]


def _has_ended(summary: Any, statuses: Container[str]) -> bool:
    return (
        isinstance(summary, dict)
        and summary.get("exit_status") in statuses
        and isinstance(summary.get("wall_seconds"), (int, float))
        and isinstance(summary.get("used"), dict)
        and all(isinstance(number, (int, float)) for number in summary["used"].values())
    )
