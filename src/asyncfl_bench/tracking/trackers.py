"""Where a run's numbers go besides its own directory. The directory is the truth; a tracker is one more sink.

A tracker never stops a run and never asks anything: what goes wrong becomes one line on stderr.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from ..errors import BenchError, check, check_choice
from ..files import say
from ..ranges import Checked, above
from .metrics import COUNTERS

MODES = ("online", "offline", "disabled")

# A connection that dies during a run would otherwise hold the process at its end for as long as it stays dead;
# what was not sent is on disk and `wandb sync` sends it.
_FINISH_TIMEOUT_SECONDS = 120


@dataclass
class LocalTrackerConfig:
    pass


class Tracker:
    """Interface of all trackers: ``start`` once, ``log`` per logged point, ``finish`` in a ``finally``."""

    Config: type[Any] = LocalTrackerConfig

    def __init__(self, config: object):
        self.config = config

    def start(
        self,
        config: dict,
        name: str,
        group: str | None,
        job_type: str,
        run_id: str,
        directory: str | Path | None = None,
    ) -> None:
        """Begins a run.

        config     the resolved config as nested plain containers
        name       the run's readable name
        group      the sweep it belongs to, or None
        job_type   the algorithm
        run_id     the run's identity; the same id continues the same run
        directory  the run directory
        """

    def log(self, row: dict[str, object]) -> None:
        """One logged point: a full row of metrics.jsonl."""

    def finish(self, summary: dict[str, object], exit_code: int) -> None:
        """Ends the run with the content of summary.json; ``exit_code`` 0 means it went well."""


class LocalTracker(Tracker):
    """Nothing beyond the run directory."""


@dataclass
class WandbTrackerConfig(Checked):
    project: str = "asyncfl_bench"
    entity: str | None = None
    mode: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    init_timeout_seconds: Annotated[float, above(0)] = 20.0
    dir: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(bool(self.project), "project", self.project, "a project name")
        if self.mode is not None:
            check_choice("mode", self.mode, MODES)


class WandbTracker(Tracker):
    """Weights & Biases (wandb >= 0.31). Online when logged in, offline when not or when the server does not answer.

    ``mode: null`` leaves the choice to WANDB_MODE and to the settings of ``wandb offline``; both lose to a set mode.
    Every logged point is one ``log`` call with the counters in it; the x axis is ``iteration`` and the other counters
    can be chosen in a chart. NaN and infinities reach W&B as they are.
    """

    Config = WandbTrackerConfig
    config: WandbTrackerConfig

    def __init__(self, config: WandbTrackerConfig):
        super().__init__(config)
        self._run: Any = None  # W&B's run while there is one
        self._warned = False

    def start(self, config, name, group, job_type, run_id, directory=None) -> None:
        try:
            import wandb
        except ImportError as error:
            raise BenchError("tracking=wandb needs the package wandb: install it, or use tracking=local") from error

        place = self.config.dir or directory
        self._warned = False
        arguments = {
            "project": self.config.project,
            "entity": self.config.entity,
            "dir": str(place) if place is not None else None,
            "id": run_id,
            "resume": "allow",
            "name": name,
            "group": self.config.group or group,
            "job_type": job_type,
            "tags": list(self.config.tags) or None,
            "config": config,
            "reinit": "finish_previous",  # else a run that nobody finished would be returned as this one
        }
        try:
            self._run = self._init(wandb, arguments, self.config.mode)
        except Exception as error:  # no key, no network, a refused name: all the same to the run
            self._fall_back(wandb, arguments, error)
        if self._run is not None:
            self._define_metrics()

    def log(self, row: dict[str, object]) -> None:
        if self._run is None:
            return
        try:
            self._run.log(dict(row))  # never step=: W&B drops rows whose step goes back, as a resumed run's do
        except Exception as error:
            self._warn(f"a point was not logged ({_first_line(error)}); the run goes on, metrics.jsonl has all points")

    def finish(self, summary: dict[str, object], exit_code: int) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        try:
            run.summary.update(dict(summary))
        except Exception as error:
            self._warn(f"the summary was not logged ({_first_line(error)})")
        finally:
            try:
                run.finish(exit_code=exit_code)
            except Exception as error:
                self._warn(f"the run was not closed ({_first_line(error)})")

    def _init(self, wandb, arguments: dict, mode: str | None):
        # A silent session has no prompt for a key: a missing one is an error, also on a terminal.
        wandb.setup(wandb.Settings(silent=True))
        # Fresh settings each time: a re-used object carries id, group and name into the next run.
        settings = wandb.Settings(
            console="off",
            silent=True,
            x_disable_stats=True,
            init_timeout=self.config.init_timeout_seconds,
            finish_timeout=_FINISH_TIMEOUT_SECONDS,
        )
        return wandb.init(**arguments, mode=mode, settings=settings)  # mode None: WANDB_MODE decides

    def _fall_back(self, wandb, arguments: dict, error: Exception) -> None:
        try:
            wandb.teardown()  # the failed start still holds the run's id in W&B's service process
            self._run = self._init(wandb, arguments, "offline")
        except Exception as second:
            self._run = None
            say(f"W&B gets nothing of this run ({_first_line(second)}); the run directory has everything")
            return
        where = Path(self._run.dir).parent
        no_key = "No API key" in str(error)
        reason = "not logged in to W&B" if no_key else f"W&B did not start ({_first_line(error)})"
        say(f"{reason}: this run is kept offline; to send it: wandb sync {where}")

    def _define_metrics(self) -> None:
        try:
            for counter in COUNTERS:
                self._run.define_metric(counter)
            self._run.define_metric("*", step_metric="iteration")
        except Exception as error:
            self._warn(f"the x axis was not set ({_first_line(error)})")

    def _warn(self, message: str) -> None:
        if not self._warned:  # one line: a dead connection fails at every point
            say(f"W&B: {message}")
            self._warned = True


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
