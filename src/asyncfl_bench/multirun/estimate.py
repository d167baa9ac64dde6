"""An estimate of a multirun before it starts: ``afl-run … --plan``."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from ..config import Settings
from ..errors import ConfigError
from ..tracking.progress import clock_text
from .history import GROUPS, FinishedRun, finished_in, runs_by_algorithm, similar_runs
from .jobs import Job
from .progress import count_runs, varied_keys


def describe_plan(
    jobs: Sequence[Job],
    kept: Mapping[str, Path],
    places: Iterable[str | Path] = (),
    workers: int = 1,
    measure: Callable[[Settings], float] | None = None,
    server_cost: Callable[[Settings], str | None] | None = None,
) -> str:
    """Return the plan as text: the numbers of all and of finished runs, and what the pending runs take.

    kept     see ``pending.places_of``; places: where other finished runs may be; workers: number of parallel runs
    measure  what gives a run's seconds by trying it, once for each kind; None: finished runs tell
    server_cost  what describes the cost of a server step or raises ConfigError; None: it is left out
    """
    from ..tracking.archive import describe_archive_folders  # brings NumPy

    known = [(job, job.settings) for job in jobs if job.settings is not None]
    found = [(settings, job.finished_result(kept)) for job, settings in known]
    done = [result for _, result in found if result is not None]
    pending = [settings for settings, result in found if result is None]
    packed = sum(result.directory.is_file() for result in done)
    lines = [f"{count_runs(len(jobs))}, {len(done)} of them finished ({packed} in archives), {len(pending)} pending"]
    names = sorted({settings.root.archive_dir for _, settings in known})
    lines += [f"{describe_archive_folders(name)}; --archive DIR names another folder" for name in names]
    lines += [f"  {axis}" for axis in _describe_axes(jobs)]
    if refused := [job for job in jobs if job.settings is None]:
        lines.append(f"{len(refused)} cannot run, the first: {' '.join(refused[0].overrides)}: {refused[0].error}")
    if not pending:
        return "\n".join(lines)
    estimates = estimate_runs(pending, places)
    workers = min(workers, len(pending))
    if measure is None:
        lines.append(describe_time([(seconds, of) for seconds, of in estimates if of], len(pending), workers))
    else:
        lines.append(describe_measured_time(pending, workers, measure))
    lines += _describe_server_costs(pending, server_cost) if server_cost is not None else []
    lines.append(_describe_disk([of for _, of in estimates], pending[0].directory))
    return "\n".join(lines)


def estimate_runs(
    pending: Sequence[Settings], places: Iterable[str | Path] = ()
) -> list[tuple[float, list[FinishedRun]]]:
    """Return of each run (estimated seconds, the finished runs used for it), see ``similar_runs``.

    places  where finished runs may be besides the runs' own folder and archives
    """
    from ..tracking.archive import archive_folders  # brings NumPy

    own = {settings.directory.parent for settings in pending}
    archives = [place for name in {one.root.archive_dir for one in pending} for place in archive_folders(name)]
    past = runs_by_algorithm(finished_in([*own, *places, *archives]))
    kinds = [tuple(settings.choices[group] for group in GROUPS[:2]) for settings in pending]
    return [similar_runs(settings, past.get(kind, [])) for settings, kind in zip(pending, kinds, strict=True)]


def _describe_axes(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield each axis with its values: ``seed: 0,1,2``."""
    keys = varied_keys(jobs)
    values: dict[str, dict[str, None]] = {}
    for job in jobs:
        for text in job.overrides:
            key, _, value = text.partition("=")
            values.setdefault(key, {})[value] = None
    yield from (f"{key}: {','.join(listed)}" for key, listed in values.items() if key in keys)


def describe_time(estimates: Sequence[tuple[float, list[FinishedRun]]], pending: int, workers: int) -> str:
    """Return the time that ``pending`` runs take as text. estimates: of those runs whose like is finished."""
    if not estimates:
        text = "time: unknown, no run of these algorithms on this data is finished"
        return f"{text}; --measure tries them; {count_runs(pending)}"
    seconds = [seconds for seconds, _ in estimates]
    packed = any(one.is_archived for _, of in estimates for one in of)
    where = ", some of them perhaps of another machine" if packed else ""
    unknown = pending - len(seconds)
    rest = f", without {count_runs(unknown)} whose like is not there; --measure tries them" if unknown else ""
    return f"{_describe_total(seconds, workers, pending)}, as finished runs alike took{where}{rest}"


def describe_measured_time(pending: Sequence[Settings], workers: int, measure: Callable[[Settings], float]) -> str:
    """Return the time that runs take as text, each kind tried once by ``measure``."""
    kinds = [tuple(settings.choices.get(group) for group in (*GROUPS, "delay")) for settings in pending]
    tried = {kind: measure(settings) for kind, settings in dict(zip(kinds, pending, strict=True)).items()}
    seconds = [tried[kind] for kind in kinds]
    trials = f"{len(tried)} short trial{'s' * (len(tried) != 1)} here"
    return f"{_describe_total(seconds, workers, len(pending))}, by {trials}"


def _describe_server_costs(pending: Sequence[Settings], server_cost: Callable[[Settings], str | None]) -> Iterator[str]:
    known: dict[str, str | None] = {}
    counts: Counter[str] = Counter()
    for settings in pending:
        kind = repr([settings.parts[group].config for group in ("algorithm", "model", "dataset")])
        if kind not in known:
            try:
                cost = server_cost(settings)
                known[kind] = cost and f"server: {cost}"
            except ConfigError as error:
                known[kind] = f"refused: {error}"
        counts.update([line] if (line := known[kind]) else [])
    yield from (f"{line} ({count_runs(count)})" for line, count in counts.items())


def _describe_total(seconds: Sequence[float], workers: int, pending: int) -> str:
    """Return the time of runs that take so long each: ``time: about 0:02:36 with 2 workers``."""
    total = max(sum(seconds) / workers, *seconds, 1)
    how = f" with {workers} workers" if workers > 1 else ", one run after another" if pending > 1 else ""
    return f"time: about {clock_text(total)}{how}"


def _describe_disk(likes: Sequence[list[FinishedRun]], place: Path) -> str:
    sizes = [fmean(sizes) for of in likes if (sizes := [one.size for one in of if not one.is_archived])]
    there = next(folder for folder in place.absolute().parents if folder.exists())
    free = shutil.disk_usage(there).free
    need = "unknown, no directory to go by"
    if sizes:
        need = f"about {_describe_size(fmean(sizes) * len(likes))}, as finished runs took"
    return f"disk: {need}; {_describe_size(free)} are free in {there}"


def _describe_size(count: float) -> str:
    unit, name = next((u, n) for u, n in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if count >= u or u == 2**10)
    return f"{count / unit:.1f} {name}"
