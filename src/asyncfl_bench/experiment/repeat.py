"""An archived run once more: the same settings on this machine, and whether that gives the same numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..config import fill_in_precision
from ..config.composition import repeated_settings
from ..config.overrides import flat_items
from ..config.saved import check_saved
from ..config.settings import Settings
from ..errors import ConfigError, did_you_mean
from ..files import expand_home
from ..tracking.archive import pack_archive, read_archive
from ..tracking.records import MEASURED, NUMBERS, Record
from .machine import describe_machine
from .replay import OWN_TIME
from .result import RunResult

FLAG = "--repeat"


def find_archived_run(archive: str | Path, identity: str) -> Record:
    """Return a run of an archive. Raises InputError for a file that is none, ConfigError for a run that it lacks or
    that contradicts itself."""
    records = {str(record.identity): record for record in read_archive(expand_home(archive, FLAG))}
    if identity not in records:
        known = f"must be the identity of a run in {archive}{did_you_mean(identity, records)}"
        raise ConfigError(FLAG, identity, f"{known}; afl-run --list {archive} lists them")
    if (record := records[identity]).status not in MEASURED:
        raise ConfigError(FLAG, identity, f"cannot be compared: {record.note}")
    return record


def settings_to_repeat(record: Record, archive: str | Path, overrides: Iterable[str] = ()) -> Settings:
    """Return the settings of an archived run, with the device, threads and executor that it had.

    overrides  of settings outside its identity, such as data_dir
    Raises ConfigError for a run that this version cannot repeat.
    """
    summary = record.summary
    tree, choices = check_saved(copy.deepcopy(fill_in_precision(record.config, summary)), archive, FLAG)
    executors = str(summary.get("executor", "auto")).split(" then ")
    computed: dict[str, Any] = {"device": "cuda" if str(summary.get("device")).startswith("cuda") else "cpu"}
    computed |= {"threads": summary.get("threads"), "executor": executors[0] if len(executors) == 1 else "auto"}
    fixed = {"progress": True, "rerun": False, "trace": False, "resume": None}
    settings = repeated_settings(tree | computed | fixed, choices, str(record.identity), overrides)
    if settings.parts["live"].config.takes_place:
        raise ConfigError(FLAG, record.identity, "was a live run; afl-run --replay DIR simulates it from its directory")
    return settings


@dataclass(frozen=True)
class Repetition:
    """What a repeated run gave. points: evaluations; difference: the first one, in words; empty if there is none."""

    points: int
    difference: str
    machines: str

    def __str__(self) -> str:
        if not self.difference:
            return f"same numbers: {self.points} points"
        return f"first difference: {self.difference}\n{self.machines}"


def compare_repetition(archived: Record, result: RunResult) -> Repetition:
    """Compare an archived run with its repetition, in the precision that archives keep."""
    machines = f"archived: {describe_machine(archived.summary)}\nrepeated: {describe_machine(result.summary)}"
    points = len(next(iter(archived.points.values()), ()))
    status = result.summary["exit_status"]
    if status != archived.status:
        ended = f"{status}: {result.summary['error']}" if result.summary.get("error") else status
        return Repetition(points, f"{archived.status} archived, {ended}", machines)
    with TemporaryDirectory() as folder:
        pack_archive([result.directory], packed := Path(folder) / "repeated.parquet")
        (repeated,) = read_archive(packed)
    difference = (
        _first_difference("point", archived.points, repeated.points)
        or _first_difference("client", archived.clients, repeated.clients)
        or _first_number(archived.summary, repeated.summary)
    )
    digests = [record.summary.get("data_digest") for record in (archived, repeated)]
    if difference and digests[0] != digests[1]:
        difference += " (the data differ)"
    return Repetition(points, difference, machines)


def _first_difference(what: str, archived: Mapping[str, np.ndarray], repeated: Mapping[str, np.ndarray]) -> str:
    """Return the first row in which a column of the archived table differs, and what differs; empty if none does."""
    found: list[tuple[int, str]] = []
    for name, values in archived.items():
        others = repeated.get(name)
        if name == OWN_TIME:
            continue
        if others is None or len(others) != len(values):
            return f"{name} has {len(values)} {what}s archived, {0 if others is None else len(others)} repeated"
        same = (values == others) | (np.isnan(values) & np.isnan(others))
        found += [(int(np.argmin(same)), name)] * (not same.all())
    if not found:
        return ""
    row, name = min(found, key=lambda one: one[0])
    return f"{what} {row + 1}, {name}: {archived[name][row]} archived, {repeated[name][row]} repeated"


def _first_number(archived: Mapping[str, Any], repeated: Mapping[str, Any]) -> str:
    """Return the first number of the summary that differs; empty if none does. Entries of other versions may lack."""
    sections = [{key: one.get(key) or {} for key in NUMBERS} for one in (archived, repeated)]
    before, after = (dict(flat_items(one)) for one in sections)
    for name, value in before.items():
        if name in after and after[name] != value:
            return f"{name}: {value} archived, {after[name]} repeated"
    return ""
