"""What a multirun would do, before it does it: ``afl-run … --plan``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from ..experiment import RunResult, finished
from .jobs import Job
from .lines import clock_text, varied

_GROUPS = ("algorithm", "dataset", "model")  # runs that have these in common take about as long


def outlook(jobs: Sequence[Job], archive: Mapping[str, Path]) -> str:
    """How many runs there are and which are finished, and what the pending ones take. archive: identity -> file."""
    known = [(job, job.settings) for job in jobs if job.settings is not None]
    found = [(settings, finished(settings, archive)) for _, settings in known]
    done = [(settings, result) for settings, result in found if result is not None]
    pending = [settings for settings, result in found if result is None]
    packed = sum(result.directory.is_file() for _, result in done)
    lines = [f"{len(jobs)} runs, {len(done)} of them finished ({packed} in archives), {len(pending)} pending"]
    lines += [f"  {axis}" for axis in _axes(jobs)]
    if refused := [job for job in jobs if job.settings is None]:
        lines.append(f"{len(refused)} cannot run, the first: {' '.join(refused[0].overrides)}: {refused[0].error}")
    if not pending:
        return "\n".join(lines)
    seconds: list[float] = []
    for settings in pending:
        same = [result for other, result in done if other.experiment == settings.experiment]
        alike = [result for other, result in done if all(other.choices[g] == settings.choices[g] for g in _GROUPS)]
        if like := same or alike:
            seconds.append(fmean(float(result.summary["wall_seconds"]) for result in like))
    lines.append(_time(seconds, len(pending), packed))
    lines.append(_disk([result for _, result in done], pending[0].directory, len(pending)))
    return "\n".join(lines)


def _axes(jobs: Sequence[Job]) -> Iterator[str]:
    """``seed: 0,1,2``"""
    keys = varied(jobs)
    values: dict[str, dict[str, None]] = {}
    for job in jobs:
        for text in job.overrides:
            key, _, value = text.partition("=")
            values.setdefault(key, {})[value] = None
    yield from (f"{key}: {','.join(listed)}" for key, listed in values.items() if key in keys)


def _time(seconds: Sequence[float], pending: int, packed: int) -> str:
    if not seconds:
        return f"time: unknown, no run of these algorithms on this data is finished; {pending} runs"
    where = ", some of them perhaps of another machine" if packed else ""
    rest = f", without {pending - len(seconds)} runs whose like is not there" if len(seconds) < pending else ""
    return f"time: about {clock_text(sum(seconds))}, one run after another, as finished runs alike took{where}{rest}"


def _disk(done: Sequence[RunResult], place: Path, pending: int) -> str:
    sizes = [sum(f.stat().st_size for f in one.directory.rglob("*")) for one in done if one.directory.is_dir()]
    there = next(folder for folder in place.absolute().parents if folder.exists())
    free = shutil.disk_usage(there).free
    need = (
        f"about {_size(fmean(sizes) * pending)}, as finished runs took" if sizes else "unknown, no directory to go by"
    )
    return f"disk: {need}; {_size(free)} are free in {there}"


def _size(count: float) -> str:
    unit, name = next((u, n) for u, n in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if count >= u or u == 2**10)
    return f"{count / unit:.1f} {name}"
