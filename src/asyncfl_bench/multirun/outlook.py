"""What a multirun would do, before it does it: ``afl-run … --plan``."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from ..config import Settings
from ..errors import ConfigError
from .jobs import Job
from .lines import clock_text, runs, varied
from .past import GROUPS, Past, by_kind, finished_in, like


def outlook(
    jobs: Sequence[Job],
    kept: Mapping[str, Path],
    places: Iterable[str | Path] = (),
    workers: int = 1,
    measure: Callable[[Settings], float] | None = None,
    server_cost: Callable[[Settings], str | None] | None = None,
) -> str:
    """How many runs there are and which are finished, and what the pending ones take.

    kept     see ``pending.places_of``; places: where other finished runs may be; workers: runs under way at once
    measure  what gives a run's seconds by trying it, once for each kind; None: finished runs tell
    server_cost  what describes the cost of a server step or raises ConfigError; None: it is left out
    """
    known = [(job, job.settings) for job in jobs if job.settings is not None]
    found = [(settings, job.ended(kept)) for job, settings in known]
    done = [result for _, result in found if result is not None]
    pending = [settings for settings, result in found if result is None]
    packed = sum(result.directory.is_file() for result in done)
    lines = [f"{runs(len(jobs))}, {len(done)} of them finished ({packed} in archives), {len(pending)} pending"]
    lines += [f"  {axis}" for axis in _axes(jobs)]
    if refused := [job for job in jobs if job.settings is None]:
        lines.append(f"{len(refused)} cannot run, the first: {' '.join(refused[0].overrides)}: {refused[0].error}")
    if not pending:
        return "\n".join(lines)
    from ..tracking.archive import archive_folder  # brings NumPy

    own = {settings.directory.parent for _, settings in known}
    archives = {archive_folder(settings.root.archive_dir) for _, settings in known}
    past = by_kind(finished_in([*own, *places, *archives]))
    kinds = [tuple(settings.choices[group] for group in GROUPS[:2]) for settings in pending]
    estimates = [like(settings, past.get(kind, [])) for settings, kind in zip(pending, kinds, strict=True)]
    workers = min(workers, len(pending))
    if measure is None:
        lines.append(_time([(seconds, of) for seconds, of in estimates if of], len(pending), workers))
    else:
        lines.append(_measured(pending, workers, measure))
    lines += _server_costs(pending, server_cost) if server_cost is not None else []
    lines.append(_disk([of for _, of in estimates], pending[0].directory))
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


def _time(estimates: Sequence[tuple[float, list[Past]]], pending: int, workers: int) -> str:
    if not estimates:
        return (
            f"time: unknown, no run of these algorithms on this data is finished; --measure tries them; {runs(pending)}"
        )
    seconds = [seconds for seconds, _ in estimates]
    packed = any(one.packed for _, of in estimates for one in of)
    where = ", some of them perhaps of another machine" if packed else ""
    unknown = pending - len(seconds)
    rest = f", without {runs(unknown)} whose like is not there; --measure tries them" if unknown else ""
    total = max(sum(seconds) / workers, *seconds, 1)
    return f"time: about {clock_text(total)}{_how(workers, pending)}, as finished runs alike took{where}{rest}"


def _measured(pending: Sequence[Settings], workers: int, measure: Callable[[Settings], float]) -> str:
    kinds = [tuple(settings.choices.get(group) for group in (*GROUPS, "delay")) for settings in pending]
    tried = {kind: measure(settings) for kind, settings in dict(zip(kinds, pending, strict=True)).items()}
    seconds = [tried[kind] for kind in kinds]
    total = max(sum(seconds) / workers, *seconds, 1)
    trials = f"{len(tried)} short trial{'s' * (len(tried) != 1)} here"
    return f"time: about {clock_text(total)}{_how(workers, len(pending))}, by {trials}"


def _server_costs(pending: Sequence[Settings], server_cost: Callable[[Settings], str | None]) -> Iterator[str]:
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
    yield from (f"{line} ({runs(count)})" for line, count in counts.items())


def _how(workers: int, pending: int) -> str:
    return f" with {workers} workers" if workers > 1 else ", one run after another" if pending > 1 else ""


def _disk(likes: Sequence[list[Past]], place: Path) -> str:
    sizes = [fmean(sizes) for of in likes if (sizes := [one.size for one in of if not one.packed])]
    there = next(folder for folder in place.absolute().parents if folder.exists())
    free = shutil.disk_usage(there).free
    need = (
        f"about {_size(fmean(sizes) * len(likes))}, as finished runs took"
        if sizes
        else "unknown, no directory to go by"
    )
    return f"disk: {need}; {_size(free)} are free in {there}"


def _size(count: float) -> str:
    unit, name = next((u, n) for u, n in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if count >= u or u == 2**10)
    return f"{count / unit:.1f} {name}"
