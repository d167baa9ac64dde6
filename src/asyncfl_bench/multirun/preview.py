"""What a multirun would run: its jobs, those that are finished, and the cost of the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..experiment.preflight import Preflight
from .estimate import RunCost, RunTimer, estimate_cost
from .jobs import Job, describe_planning
from .pending import find_finished
from .progress import count_runs, varied_keys
from .room import find_room


@dataclass
class Preview:
    """jobs: each with its state (finished, archived, pending or refused) and the directory or archive of its run."""

    jobs: list[tuple[Job, str, Path | None]]
    cost: RunCost

    def count(self, *states: str) -> int:
        """Return how many jobs have one of these states."""
        return sum(state in states for _, state, _ in self.jobs)

    def __str__(self) -> str:
        from ..tracking.archive import describe_archive_folders  # brings NumPy

        jobs = [job for job, _, _ in self.jobs]
        done, packed = self.count("finished", "archived"), self.count("archived")
        pending = sum(job.settings is not None for job in jobs) - done
        lines = [f"{count_runs(len(jobs))}, {done} of them finished ({packed} in archives), {pending} pending"]
        names = sorted({job.settings.root.archive_dir for job in jobs if job.settings is not None})
        lines += [f"{describe_archive_folders(name)}; --archive DIR names another folder" for name in names]
        lines += [f"  {axis}" for axis in _describe_axes(jobs)]
        lines += describe_planning(jobs)
        if refused := [job for job in jobs if job.settings is None]:
            lines.append(f"{len(refused)} cannot run, the first: {' '.join(refused[0].overrides)}: {refused[0].error}")
        return "\n".join([*lines, *self.cost.lines])


def preview_jobs(
    jobs: Sequence[Job],
    kept: Mapping[str, Path],
    places: Iterable[str | Path] = (),
    workers: int = 1,
    measure: RunTimer | None = None,
    preflight: Preflight | None = None,
    launcher: Mapping[str, Any] | None = None,
) -> Preview:
    """Return what jobs would run.

    kept  see ``pending.places_of``;  launcher  settings of ``hydra/launcher=gpu``, if it runs them
    The others are those of ``estimate_cost``.
    """
    known = [job for job in jobs if job.settings is not None]
    results = dict(zip(map(id, known), find_finished(known, kept), strict=True))
    pending = [job.settings for job in known if job.settings is not None and results[id(job)] is None]
    room = find_room(launcher, pending) if launcher is not None and pending else None
    cost = estimate_cost(pending, places, room.count if room else workers, measure, preflight)
    cost.notes += [room.reason] if room else []
    rows: list[tuple[Job, str, Path | None]] = []
    for job in jobs:
        if (result := results.get(id(job))) is not None:
            rows.append((job, "archived" if result.directory.is_file() else "finished", result.directory))
        elif job.settings is None or job.settings.identity in cost.refused:
            rows.append((job, "refused", None))
        else:
            rows.append((job, "pending", None))
    return Preview(rows, cost)


def _describe_axes(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield each axis with its values: ``seed: 0,1,2``."""
    keys = varied_keys(jobs)
    values: dict[str, dict[str, None]] = {}
    for job in jobs:
        for text in job.overrides:
            key, _, value = text.partition("=")
            values.setdefault(key, {})[value] = None
    yield from (f"{key}: {','.join(listed)}" for key, listed in values.items() if key in keys)
