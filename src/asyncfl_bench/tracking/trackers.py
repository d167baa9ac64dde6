"""Interface of trackers, which receive a run's numbers besides its directory.

A tracker never stops a run and never asks questions: an error becomes one line on stderr.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import first_line
from ..files import say


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run for its trackers.

    config      resolved config as nested plain containers
    name        readable name of the run
    identity    the same for a run and its resumed parts
    experiment  readable name of the settings without the seed
    directory   run directory, whose metrics.jsonl has the points before an interruption
    group       name by which the caller groups runs, or None
    """

    config: dict[str, Any]
    name: str
    identity: str
    experiment: str
    directory: Path
    group: str | None = None


@dataclass
class NoSettings:
    pass


class Tracker:
    """Interface of all trackers: ``start`` once, ``log`` for each point, ``finish`` at every kind of end.

    A method may raise any exception, which ``Trackers`` turns into one line.

    needs        (module, extra of this package that installs it); None without such a module
    wants_model  True if ``finish`` needs the final model in the run directory
    """

    Config: type[Any] = NoSettings
    needs: tuple[str, str] | None = None
    wants_model = False

    def __init__(self, config: Any):
        self.config = config

    def describe(self) -> str:
        """Return where the numbers go and how to change it, for the first line of a run; may be empty."""
        return ""

    def start(self, run: RunFacts) -> None:
        """Start or resume a run."""

    def log(self, row: dict[str, object]) -> None:
        """Receive a logged point: a full row of metrics.jsonl."""

    def finish(self, summary: dict[str, object], exit_code: int) -> None:
        """End the run with the content of summary.json. ``exit_code`` is 0 for success."""


class Trackers:
    """All trackers of a run by name. A tracker that fails gets no further calls, and a line reports it."""

    def __init__(self, trackers: Mapping[str, Tracker]):
        self._trackers = dict(trackers)

    @classmethod
    def from_settings(cls, parts: Mapping[str, Any]) -> Trackers:
        """Build the trackers of ``Settings.trackers``."""
        return cls({name: part.build() for name, part in parts.items()})

    @property
    def wants_model(self) -> bool:
        return any(tracker.wants_model for tracker in self._trackers.values())

    def describe(self) -> str:
        return "; ".join(filter(None, (tracker.describe() for tracker in self._trackers.values())))

    def start(self, run: RunFacts) -> None:
        self._call_each(lambda tracker: tracker.start(run))

    def log(self, row: dict[str, object]) -> None:
        self._call_each(lambda tracker: tracker.log(row))

    def finish(self, summary: dict[str, object], exit_code: int) -> None:
        self._call_each(lambda tracker: tracker.finish(summary, exit_code))

    def _call_each(self, call: Callable[[Tracker], None]) -> None:
        """Call each tracker, and remove those that raise."""
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:
                del self._trackers[name]
                say(f"tracking={name}: {first_line(error)}; it gets nothing more of this run, whose own files have all")
