"""Where a run's numbers go besides its own directory. The directory is the truth; a tracker is one more sink.

A tracker never stops a run and never asks anything: what goes wrong becomes one line on stderr.
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
    """What a tracker gets about the run that begins.

    config      the resolved config as nested plain containers
    name        the run's readable name
    identity    the same identity is the same run, also when it resumes after an interruption
    experiment  readable name of the same settings over seeds
    directory   the run directory; metrics.jsonl in it has the points logged before an interruption
    group       a name given by the caller to group runs by, or None
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
    """Interface of all trackers: ``start`` once, ``log`` per logged point, ``finish`` at the end, however it came.

    May raise whatever it likes: ``Trackers`` turns it into one line.

    needs        (module, extra of this package that installs it); None: nothing beyond this package's own
    wants_model  whether the final model is to be in the run directory when ``finish`` is called
    """

    Config: type[Any] = NoSettings
    needs: tuple[str, str] | None = None
    wants_model = False

    def __init__(self, config: Any):
        self.config = config

    def describe(self) -> str:
        """Return where the numbers go and how to change it, for the first line of a run; empty: nothing to say."""
        return ""

    def start(self, run: RunFacts) -> None:
        """Begin a run, or resumes one."""

    def log(self, row: dict[str, object]) -> None:
        """One logged point: a full row of metrics.jsonl."""

    def finish(self, summary: dict[str, object], exit_code: int) -> None:
        """End the run with the content of summary.json; ``exit_code`` 0 means it went well."""


class Trackers:
    """All trackers of a run, by their names. One that fails is left out from then on, which is said once."""

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
        """Call each tracker; one that raises is left out from then on, and a line says so."""
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:
                del self._trackers[name]
                say(f"tracking={name}: {first_line(error)}; it gets nothing more of this run, whose own files have all")
