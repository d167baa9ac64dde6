"""What a run may be asked to measure besides what it always tells: the config group `diagnostics`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ranges import CheckedSettings
from ..simulation.observer import Observer

if TYPE_CHECKING:
    from ..config import Settings
    from ..tracking.rundir import RunDirectory


@dataclass
class DiagnosticsConfig(CheckedSettings):
    """No settings."""


class Diagnostics(Observer):
    """Watches a run and adds to its metrics; changes no bit of it. This one, `none`, adds nothing.

    Its settings are no part of a run's identity; a finished run without what is now asked for counts as unfinished.
    """

    Config = DiagnosticsConfig

    def __init__(self, config: DiagnosticsConfig):
        self.config = config

    @classmethod
    def check_run(cls, settings: Settings) -> None:
        """Raise ConfigError when a run of these settings cannot be measured; called before anything is loaded."""

    def vectors(self, rule, n: int, concurrency: int) -> int:
        """Vectors of d floats it keeps."""
        return 0

    def start(self, *, rule, shadow, model_d, task, client, has_left) -> None:
        """Get to know the run, before its first event.

        rule     the run's server rule, to look at
        shadow   a second server rule of the run's own kind and settings, not started
        model_d  (d,) the global model; the rule moves it in place
        task     models.task.Task
        client   clients.local.LocalConfig, resolved
        has_left  has_left(client, iteration): whether that client has dropped out
        """

    def open(self, directory: RunDirectory) -> None:
        """Open its own files."""

    def summary(self) -> dict:
        """What it says of the whole run, in ``diagnosed`` of summary.json."""
        return {}


def has_diagnostics(measured: dict | None, wanted: dict) -> bool:
    """Return True if the ``diagnostics`` section ``measured`` of a run has all that the section ``wanted`` asks
    for."""
    nothing = f"{Diagnostics.__module__}.{Diagnostics.__qualname__}"
    return wanted["_target_"] == nothing or wanted == measured
