"""The config group `live`: simulated clients, processes of this machine, or nodes of a Flower deployment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..errors import ConfigError, check
from ..ranges import CheckedSettings, Configured, absent, at_least, greater_than
from ..simulation.availability import Always
from ..simulation.delay import Delay
from ..simulation.recorded import NEVER, ArrivalRecord
from ..types import Work

if TYPE_CHECKING:
    from ..config import Settings

MOST_PROCESSES = 16  # the default, unless there are fewer clients
# settings of the schedule with which all clients may wait for one
WAITING = {"dispatch": ("per_round", "after_update"), "rest": ("until_update",)}
MEASURED = "measured"  # choice of delay and availability of a live run


class MeasuredDelay(Delay):
    """The duration of work is known only at its end."""

    def duration(self, work: Work) -> float:
        return NEVER


class MeasuredAvailability(Always):
    """A loss is known only at the end of work. record: of the run so far, set by its server"""

    record = ArrivalRecord()

    def has_left(self, client: int, iteration: int, time: float = 0.0) -> bool:
        return self.record.has_left(client, time)


@dataclass
class SimulatedConfig(CheckedSettings):
    """No settings."""

    keep_uploads = False  # no setting here
    computes = True  # this process computes the clients' work
    takes_place = False

    @property
    def counts_file(self) -> Path | None:
        """Return the file with the clients' label counts for a replay without their files; None without one."""
        return None


class Simulated(Configured):
    """Clients are simulated: nothing changes."""

    config: SimulatedConfig
    absent = True

    @classmethod
    def prepare(cls, settings: Settings) -> None:
        """Set other groups' settings as a live run requires, before they are resolved.

        Raises ConfigError for a setting that is not possible with it.
        """


@dataclass
class RealConfig(SimulatedConfig):
    """
    clients_wait   s to wait until all clients are connected
    answer_within  s; work that takes longer is lost and its process or worker restarts
    strikes        refused or lost uploads in a row after which a client gets no more work
    keep_uploads   true: keep each upload in the run's directory, 4 bytes a parameter, so that a replay needs no data of
                   clients
    """

    clients_wait: Annotated[float, greater_than(0)] = 120.0
    answer_within: Annotated[float | None, greater_than(0, null="to wait without end")] = None
    strikes: Annotated[int, at_least(1)] = 3
    keep_uploads: Annotated[bool, absent(False)] = False
    computes = False
    takes_place = True


class Real(Simulated):
    """Clients are processes that work in real seconds. advice: how to slow them down"""

    config: RealConfig
    absent, advice = False, ""

    @classmethod
    def prepare(cls, settings: Settings) -> None:
        live, root, needs = settings.parts["live"].config, settings.root, settings.needs
        name, here = settings.choices.get("algorithm"), f"live={settings.choices.get('live')}"
        if needs.undeployable is not None:
            raise ConfigError("algorithm", name, f"cannot run with {here}: {needs.undeployable}")
        schedule = vars(settings.parts["schedule"].config)
        waiting = [f"schedule.{key}={schedule[key]}" for key, values in WAITING.items() if schedule.get(key) in values]
        if (needs.may_wait or waiting) and live.answer_within is None:
            who = f"algorithm={name}" if needs.may_wait else waiting[0]
            allowed = f"a number of seconds with {who}, which may wait for one client without end"
            raise ConfigError("live.answer_within", None, f"must be {allowed}")
        check(root.clock != "ticks", "clock", root.clock, f"time or auto with {here}, in real seconds")
        allowed = f"sequential, threads, native or auto with {here}, where each upload is computed alone"
        check(root.executor not in ("batched", "graph", "ray"), "executor", root.executor, allowed)
        check(not root.device.startswith("cuda"), "device", root.device, f"cpu or auto with {here}")
        rate, allowed = root.server_seconds_per_sample, f"0 with {here}, whose server takes real time"
        check(not rate, "server_seconds_per_sample", rate, allowed)
        allowed = f"false with {here}, which cannot know the delays of clients in flight"
        check(not settings.evaluation.clients, "evaluation.clients", True, allowed)
        if objects := [group for group, choice in settings.choices.items() if choice == "own"]:
            allowed = f"named by a yaml file with {here}: another process cannot have the object"
            raise ConfigError(objects[0], "own", f"must be {allowed}")
        root.clock, root.device, root.trace = "time", "cpu", True
        root.executor = "sequential" if root.executor == "auto" else root.executor
        root.threads = root.threads or 1
        why = f"with {here}, which measures it{cls.advice}"
        for group, target in (("delay", MeasuredDelay), ("availability", MeasuredAvailability)):
            part = settings.parts[group]
            settings.idle |= {group: why} | {f"{group}.{key}": why for key in asdict(part.config)}
            part.target, part.config = target, target.Config()
            settings.choices[group] = MEASURED


@dataclass
class ProcessesConfig(RealConfig):
    """
    count  processes, at most n_clients; the clients of a process work one after another
    nap    s, mean of a random pause before each upload, for clients slower than this machine
    """

    count: Annotated[int | None, at_least(1, null="for one process a client, at most 16")] = None
    nap: Annotated[float, at_least(0)] = 0.0


class Processes(Real):
    """Clients are processes of this machine."""

    config: ProcessesConfig
    advice = "; live.nap slows clients down"

    @classmethod
    def prepare(cls, settings: Settings) -> None:
        live, n = settings.parts["live"].config, settings.root.n_clients
        allowed = f"at most the number of clients (n_clients={n})"
        check(live.count is None or live.count <= n, "live.count", live.count, allowed)
        live.count = live.count or min(n, MOST_PROCESSES)
        super().prepare(settings)


class Flower(Real):
    """Clients are on nodes of a Flower deployment."""
