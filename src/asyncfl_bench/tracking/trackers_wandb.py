"""Tracker for Weights & Biases (wandb >= 0.31), online or offline, with a timeout for every call."""

from __future__ import annotations

import math
import netrc
import os
import tempfile
import threading
import time
from collections.abc import Callable
from configparser import ConfigParser, Error
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from ..errors import BenchError, check, check_choice, first_line
from ..files import expand_home, say
from ..ranges import CheckedSettings, greater_than
from .rundir import CONFIG_NAME, COUNTERS, METRICS_NAME, MODEL_NAME, SUMMARY_NAME
from .trackers import RunFacts, Tracker

MODES = ("online", "offline", "disabled")
OWNER_NAME = "run_directory.txt"  # with the run directory, beside a W&B run in another folder; for --sync
_BEST = {"accuracy": "max", "loss": "min"}
_LONGEST_TAG, _LONGEST_GROUP, _LONGEST_PROJECT = 64, 128, 128  # W&B refuses a run with longer ones
_NOT_IN_PROJECT = "/\\#?%:"
_SERVICE_SECONDS = 30.0  # to start W&B's process
_MOMENT_SECONDS = 10.0  # for W&B's answer after its own timeout
_RETRY_SECONDS = 600.0  # after a start without an answer, in which runs of the process stay offline
_HOST = "https://api.wandb.ai"


@dataclass
class WandbTrackerConfig(CheckedSettings):
    """
    project               name of the W&B project
    entity                team or user; null: the account's default
    mode                  online | offline | disabled; null: WANDB_MODE, else online when logged in, else offline
    group                 W&B group; null: the same settings over seeds
    tags                  further tags of the run, beside its choices (algorithm=ace)
    artifact              true: upload config.yaml, summary.json, metrics.jsonl and the final model as an artifact
    system_charts         true: add charts of the machine's load
    init_timeout_seconds  seconds to wait for the server before the run is kept offline
    timeout_seconds       seconds to wait for W&B at any later moment, mostly at the end
    only_if_set_up        true: nothing without WANDB_API_KEY, WANDB_MODE or a login; tracking=auto sets it
    dir                   folder that gets wandb/; null: the run directory
    """

    project: str = "asyncfl_bench"
    entity: str | None = None
    mode: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    artifact: bool = False
    system_charts: bool = False
    init_timeout_seconds: Annotated[float, greater_than(0)] = 20.0
    timeout_seconds: Annotated[float, greater_than(0)] = 60.0
    only_if_set_up: bool = False
    dir: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        is_name = 0 < len(self.project) <= _LONGEST_PROJECT and not {*_NOT_IN_PROJECT} & {*self.project}
        check(is_name, "project", self.project, f"1 to {_LONGEST_PROJECT} characters without {_NOT_IN_PROJECT}")
        wrong = [tag for tag in self.tags if not 0 < len(tag) <= _LONGEST_TAG]
        check(not wrong, "tags", wrong, f"words of 1 to {_LONGEST_TAG} characters")
        if self.mode is not None:
            check_choice("mode", self.mode, MODES)
        if self.dir is not None:
            expand_home(self.dir, "dir")


class WandbTracker(Tracker):
    """Online after a login; offline without a login or if the server does not answer.

    ``mode: null`` leaves the choice to WANDB_MODE and the settings of ``wandb offline``.
    With ``only_if_set_up`` nothing is started and ``wandb`` is not imported if the user has not set W&B up.
    Each logged point is one ``log`` call with the counters. The x axis is ``iteration``; a chart can use the other
    counters. NaN and infinities are sent unchanged.
    """

    Config = WandbTrackerConfig
    config: WandbTrackerConfig
    _last_failure = -math.inf  # of all trackers of this process, on a monotonic clock [s]

    def __init__(self, config: WandbTrackerConfig):
        super().__init__(config)
        self.wants_model = config.artifact
        self._run: Any = None  # W&B's run while there is one
        self.gave_up = False  # W&B did not answer in time: its run lacks points
        self._warned = False

    def describe(self) -> str:
        mode = self.config.mode or configured_mode()
        if self.config.only_if_set_up and mode in (None, "disabled"):
            how = "WANDB_MODE=online" if mode else "wandb login"
            return f"numbers stay local ({how} sends them to W&B)"
        if mode in (None, "offline"):
            return "W&B's copy is kept offline (afl-run --sync sends it)"
        goes = f"numbers go to W&B project {self.config.project} (tracking=local keeps them local)"
        return "W&B is disabled" if mode == "disabled" else goes

    def start(self, run: RunFacts) -> None:
        if self.config.only_if_set_up and (self.config.mode or configured_mode()) in (None, "disabled"):
            return
        import wandb

        self._facts, self.gave_up, self._warned = run, False, False
        choices = run.config.get("choices", {})
        tags = [f"{group}={choice}"[:_LONGEST_TAG] for group, choice in choices.items() if choice not in (None, "none")]
        arguments: dict[str, Any] = {
            "project": self.config.project,
            "entity": self.config.entity,
            "dir": self._choose_folder(run.directory),
            "name": run.name,
            "group": (self.config.group or run.group or run.experiment)[:_LONGEST_GROUP],
            "job_type": choices.get("algorithm"),
            "tags": [*self.config.tags, *tags] or None,
            "config": run.config,
            "reinit": "finish_previous",  # else W&B would return an unfinished run
        }
        if "WANDB_SWEEP_ID" not in os.environ:  # else W&B's agent has chosen the id
            arguments |= {"id": run.identity, "resume": "allow"}
        seconds = _SERVICE_SECONDS + 2 * self.config.init_timeout_seconds
        if self._call_with_timeout(seconds, lambda: self._open_run(wandb, arguments)) and self._run is not None:
            self._call_with_timeout(self.config.timeout_seconds, self._define_metrics)

    def log(self, row: dict[str, object]) -> None:
        if self._run is None:
            return
        try:
            # never step=: W&B drops rows whose step goes back, as a resumed run's do
            self._call_with_timeout(self.config.timeout_seconds, lambda: self._run.log(dict(row)))
        except Exception as error:
            self._warn(f"a point was not logged ({first_line(error)}); the run continues, metrics.jsonl has all points")

    def finish(self, summary: dict[str, object], exit_code: int) -> None:
        if self._run is not None:
            self._call_with_timeout(
                self.config.timeout_seconds + _MOMENT_SECONDS, lambda: self._close_run(self._run, summary, exit_code)
            )
        self._run = None

    # -- slow calls --------------------------------------------------------------------------------------------------

    def _open_run(self, wandb: Any, arguments: dict[str, Any]) -> None:
        """Start W&B's run online, or offline if that fails."""
        try:
            if time.monotonic() < WandbTracker._last_failure + _RETRY_SECONDS and self.config.mode is None:
                raise BenchError("no answer to an earlier run")
            run = self._init_run(wandb, arguments, self.config.mode)
            self._run = None if self.gave_up else run
            return
        except Exception as error:  # no key, no network or a refused name
            first = error
        no_key = "No API key" in str(first)
        if not (no_key or isinstance(first, BenchError)):
            WandbTracker._last_failure = time.monotonic()
        if self.gave_up:
            return
        try:
            with suppress(SystemExit):  # as W&B ends a program whose service did not end well
                wandb.teardown()  # the failed start still holds the run's id in W&B's service process
            run = self._init_run(wandb, arguments, "offline")
        except Exception as second:
            say(f"W&B gets nothing of this run ({_describe_error(second)}); the run directory has everything")
            return
        if self.gave_up:
            return
        self._run = run
        reason = "not logged in to W&B" if no_key else f"W&B did not start ({_describe_error(first)})"
        say(f"{reason}: this run is kept offline; to send it: afl-run --sync {arguments['dir']}")

    def _init_run(self, wandb: Any, arguments: dict[str, Any], mode: str | None) -> Any:
        """Return W&B's run, started with fresh settings."""
        # A silent session has no prompt for a key: a missing one is an error, also on a terminal.
        wandb.setup(wandb.Settings(silent=True))
        # Fresh settings each time: a reused object carries id, group and name into the next run.
        settings = wandb.Settings(
            console="off",
            silent=True,
            x_disable_stats=not self.config.system_charts,
            init_timeout=self.config.init_timeout_seconds,
            finish_timeout=self.config.timeout_seconds,  # what was not sent is on disk, for afl-run --sync
        )
        run = wandb.init(**arguments, mode=mode, settings=settings)  # mode None: WANDB_MODE decides
        if arguments["dir"] != str(self._facts.directory):
            with suppress(OSError):
                Path(run.dir).with_name(OWNER_NAME).write_text(str(self._facts.directory.absolute()), encoding="utf-8")
        return run

    def _define_metrics(self) -> None:
        try:
            for counter in COUNTERS:
                self._run.define_metric(counter)
            self._run.define_metric("*", step_metric="iteration")
            for measure, best in _BEST.items():
                for name in (f"test/{measure}", f"validation/{measure}"):
                    self._run.define_metric(name, step_metric="iteration", summary=f"{best},last")
        except Exception as error:
            self._warn(f"the x axis was not set ({first_line(error)})")

    def _close_run(self, run: Any, summary: dict[str, object], exit_code: int) -> None:
        """Log the summary and finish W&B's run."""
        try:
            final = summary.get("final") or {}
            objective = self._facts.config.get("objective")
            run.summary.update(dict(summary) | {"objective": final.get(objective)})  # type: ignore[attr-defined]
            if self.config.artifact:
                import wandb

                artifact = wandb.Artifact(f"run-{self._facts.identity}", type="run")
                for name in (CONFIG_NAME, SUMMARY_NAME, METRICS_NAME, MODEL_NAME):
                    path = self._facts.directory / name
                    if path.exists() and (name != MODEL_NAME or exit_code == 0):
                        artifact.add_file(str(path), name)
                run.log_artifact(artifact)
        except Exception as error:
            self._warn(f"the summary was not logged ({first_line(error)})")
        finally:
            try:
                run.finish(exit_code=exit_code)
            except Exception as error:
                self._warn(f"the run was not closed ({first_line(error)})")

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _call_with_timeout(self, seconds: float, call: Callable[[], object]) -> bool:
        """Return True if ``call`` returned within ``seconds``, else give W&B up for this run.

        Raises the exception of ``call``.
        """
        outcome: list[Exception | None] = []

        def work() -> None:
            try:
                call()
                outcome.append(None)
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=work, name="wandb-call", daemon=True)
        thread.start()
        thread.join(seconds)
        if not outcome:
            self._run, self.gave_up, self._warned = None, True, True
            WandbTracker._last_failure = time.monotonic()
            say(f"W&B has not answered for {seconds:g} s and gets nothing more; the run's own files are complete")
            _end_service()
            return False
        if (error := outcome[0]) is not None:
            raise error
        return True

    def _choose_folder(self, directory: Path) -> str:
        """Return the folder for W&B's files, which must be writable: W&B would silently use a temporary folder."""
        if self.config.dir is None:
            if (directory / "wandb").is_symlink():
                raise BenchError(f"{directory / 'wandb'}: is a link to another folder; remove it")
            return str(directory)
        folder = expand_home(self.config.dir, "dir")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return str(folder)
        except OSError as error:
            say(f"tracking.wandb.dir={folder}: {error.strerror}; what W&B writes is in {directory}")
            return str(directory)

    def _warn(self, message: str) -> None:
        if not self._warned:  # one line: a dead connection fails at every point
            say(f"W&B: {message}")
            self._warned = True


def _describe_error(error: Exception) -> str:
    """Return the first line of an error, or the first wrong setting in W&B's list."""
    if not callable(found := getattr(error, "errors", None)):
        return first_line(error)
    one = found()[0]
    setting = f"{'.'.join(map(str, one['loc']))}={one['input']}"
    return f"setting {setting} of a variable WANDB_... or a file of W&B: {first_line(one['msg'])}"


def _end_service() -> None:
    """Kill W&B's process that does not answer, because the library would wait for it again at exit.

    There is no public function for this. If it fails, the exit waits as long as W&B's library does.
    """
    from wandb.sdk import wandb_setup

    with suppress(Exception):
        connection = wandb_setup.singleton()._connection
        if connection is not None and connection._proc is not None:  # else it belongs to another process
            connection._proc._process.kill()

    def tear_down() -> None:
        import wandb

        with suppress(Exception, SystemExit):
            wandb.teardown()  # the next run of this process starts a new service

    thread = threading.Thread(target=tear_down, name="wandb-teardown", daemon=True)
    thread.start()
    thread.join(10.0)


def configured_mode() -> str | None:
    """Return the mode of ``WANDB_MODE``, else that of ``wandb offline`` or ``wandb disabled``, else ``online`` with a
    key; None if W&B is not set up.

    A key is in ``WANDB_API_KEY``, the netrc file or W&B's settings file (``wandb login``).
    """
    home = Path(os.environ.get("WANDB_CONFIG_DIR") or os.path.expanduser("~/.config/wandb"))
    parser = ConfigParser(interpolation=None)
    with suppress(Error, OSError, UnicodeDecodeError):  # of two files the later one has precedence
        parser.read([home / "settings", Path(os.environ.get("WANDB_DIR") or ".") / "wandb" / "settings"])
    settings = dict(parser["default"]) if parser.has_section("default") else {}
    if mode := os.environ.get("WANDB_MODE") or settings.get("mode"):
        return {"dryrun": "offline", "run": "online"}.get(mode, mode)
    host = os.environ.get("WANDB_BASE_URL") or settings.get("base_url") or _HOST
    has_key = os.environ.get("WANDB_API_KEY") or settings.get("api_key") or _has_login(urlsplit(host).netloc)
    return "online" if has_key else None


def _has_login(host: str) -> bool:
    given = os.environ.get("NETRC")
    for file in [given] if given else ["~/.netrc", "~/_netrc"]:
        with suppress(netrc.NetrcParseError, OSError, UnicodeDecodeError):
            if netrc.netrc(os.path.expanduser(file)).authenticators(host):
                return True
    return False
