"""Base of the config group `diagnostics`: optional measurements of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ranges import CheckedSettings, Configured
from ..simulation.observer import Observer

if TYPE_CHECKING:
    from ..config import Settings
    from ..tracking.rundir import RunDirectory


@dataclass
class DiagnosticsConfig(CheckedSettings):
    """No settings."""


class Diagnostics(Configured, Observer):
    """Observes a run and adds metrics, without changing the run. The base class is the choice `none`.

    The settings are not part of a run's identity. A finished run that lacks the wanted metrics counts as unfinished.
    """

    config: DiagnosticsConfig

    @classmethod
    def check_run(cls, settings: Settings) -> None:
        """Raise ConfigError if a run of these settings cannot be measured. Called before anything is loaded."""

    def vectors(self, rule, n: int, concurrency: int) -> int:
        """Return the number of vectors of d floats that are kept."""
        return 0

    def start(self, *, rule, shadow, model_d, task, client, has_left) -> None:
        """Receive the parts of the run, before its first event.

        rule     the server rule, which must not be changed
        shadow   a second, unstarted server rule with the same class and settings
        model_d  (d,) global model, which the rule moves in place
        task     models.task.Task
        client   clients.local.LocalConfig, resolved
        has_left  has_left(client, iteration) is True if the client has dropped out
        """

    def open(self, directory: RunDirectory) -> None:
        """Open the tables of this diagnostic."""

    def summary(self) -> dict:
        """Return numbers of the whole run, for ``diagnosed`` in summary.json."""
        return {}


def has_diagnostics(measured: dict | None, wanted: dict) -> bool:
    """Return True if a run with the ``diagnostics`` section ``measured`` has the metrics of the section ``wanted``."""
    nothing = f"{Diagnostics.__module__}.{Diagnostics.__qualname__}"
    return wanted["_target_"] == nothing or wanted == measured
