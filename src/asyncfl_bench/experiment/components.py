"""``Foundation`` and ``Components``, which hold a built run, and the choice of its task, device and cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..algorithms.base import ServerRule, equip
from ..algorithms.common.split import SplitConfig
from ..clients.samples import Batches
from ..config.settings import DEFAULT_STEPS, RootConfig, Settings
from ..data.base import PrivateConfig
from ..data.local import Local
from ..errors import BenchError, ConfigError, first_line, list_some, naming_group
from ..files import say
from ..models.parts import Cut
from ..models.task import Task, build_task
from ..randomness import Streams
from ..storage import Storage, bytes_of
from . import machine, memory
from .preflight import refuse_empty_clients

if TYPE_CHECKING:
    import torch

    from ..clients.local import LocalTraining
    from ..clients.queue import WorkQueue
    from ..clients.split_work import SplitExecutor
    from ..diagnostics.base import Diagnostics
    from ..kernels.graphed import Graphs
    from ..kernels.native import NativeNetwork
    from ..live.server import LiveServer
    from ..simulation.engine import Simulation
    from ..simulation.observer import Observer
    from .stopping import Stop

GPU_FLOP = 1e9  # of a mini-batch step; from here on a GPU is worth its launches (docs/explanation/performance.md)
CPU_EXECUTORS = ("native", "threads", "ray")


@dataclass
class Foundation:
    """The task of a run, its device and its kind of executor: the other parts are built on these.

    stop    the signals that stop the run
    chosen  the device and why;  cores  CPU threads to use;  executor_kind  as of ``clients.choosing``
    cut     the two parts of the model, for a rule that needs them;  native  a compiled kernel;  graphs  captured ones
    """

    settings: Settings
    streams: Streams
    storage: Storage
    stop: Stop
    task: Task
    chosen: Device
    cores: int
    executor_kind: str
    cut: Cut | None
    native: NativeNetwork | None
    graphs: Graphs | None

    def build_rule(self) -> ServerRule:
        """Build the rule without its distillation."""
        rule = self.settings.parts["algorithm"].build()
        return equip(rule, self.storage, self.streams, self.task.server, self.cut)

    def build_whole_rule(self) -> ServerRule:
        return self.settings.build_rule(self.storage, self.streams, self.task.server, self.cut)

    def build_local(self) -> tuple[LocalTraining, Batches]:
        """Return the local training and its mini-batches."""
        client = self.settings.parts["client"]
        local = client.build(client.config.upload)
        local.stop = self.stop.received
        return local, Batches(self.task.partition, client.config.batch_size, self.streams)


@dataclass
class Components(Foundation):
    """The parts of one run.

    model_d    (d,) global model, moved in place by the rule
    needs      estimated bytes of the model vectors
    observers  of the group ``observers``, by the name of the choice
    files      SHA-256 of the files of the data directory that were read, by group
    live       the server of real clients; None in a simulation
    """

    model_d: torch.Tensor
    rule: ServerRule
    executor: WorkQueue | SplitExecutor
    needs: memory.MemoryNeeds
    simulation: Simulation
    diagnostics: Diagnostics
    observers: dict[str, Observer]
    files: dict[str, str]
    live: LiveServer | None = None

    @property
    def device(self) -> str:
        """The torch device."""
        return self.chosen.name

    def state_dict(self) -> dict:
        """Return the state that the run's further numbers depend on."""
        parts = {name: getattr(self, name).state_dict() for name in ("simulation", "rule", "executor")}
        return parts | {"model_d": self.model_d}

    def load_state_dict(self, state: dict) -> None:
        """Restore freshly built parts from the state."""
        self.model_d.copy_(state["model_d"])
        self.simulation.load_state_dict(state["simulation"])
        self.rule.load_state_dict(state["rule"])
        computed = [work for work in self.simulation.in_flight.values() if not work.lost]  # the executor's share
        self.executor.load_state_dict(state["executor"], self.model_d, computed)

    def state_bytes(self) -> dict[str, int]:
        """Return the bytes of tensors that rule and clients keep between uploads, without workspaces."""
        memories = self.executor.memories
        clients = 0 if memories is None else bytes_of(memories.state_dict())
        return {"server": bytes_of(self.rule.state_dict()), "clients": clients}

    def describe(self) -> str:
        """Return what this run is and what it will cost, in one line."""
        settings = self.settings
        budget = ", ".join(f"{value:g} {key}" for key, value in asdict(settings.budget).items() if value is not None)
        threads = f", {self.cores} thread{'s' * (self.cores != 1)}" if self.device == "cpu" else ""
        sizes = {"on the host": self.needs.host, "on disk": self.needs.disk}
        elsewhere = "".join(f", {size / 2**20:.0f} of them {where}" for where, size in sizes.items() if size)
        held = self.needs.activations / 2**20
        activations = f", activations up to {held:.0f} MiB" if held >= 1 else ""
        choice = settings.choices.get
        steps = f"; {DEFAULT_STEPS}" if settings.default_steps else ""
        facts, empty, own = self.task.describe(), list(map(str, self.task.untrained)), self.task.left_out_clients
        without = f" ({len(empty)} without training samples: {list_some(empty)})" if empty else ""
        split = f" (the {own} of the data are left out by heterogeneity={choice('heterogeneity')})" if own else ""
        samples = f"{facts['train_samples']} samples of {facts['classes']} classes{without}"
        return (
            f"{choice('algorithm')} on {choice('dataset')}: {samples}, {settings.root.n_clients} clients{split}, "
            f"{choice('model')} of "
            f"{self.task.flat.d} parameters; "
            f"until {budget} on the {settings.root.clock} clock; {self.device}{threads} ({self.chosen.reason}), "
            f"{self.executor_kind}, "
            f"model vectors up to {self.needs.vectors / 2**20:.0f} MiB{elsewhere}{activations}{steps}"
        )


@dataclass(frozen=True)
class Device:
    """Name for torch, and the reason for the choice."""

    name: str
    reason: str


def choose_device(root: RootConfig, began: str | None, count_flop: Callable[[], float]) -> Device:
    """Return the device of a run. A resumed run stays on its first device, or a line gives the reason why not.

    began       the device in the checkpoint that the run resumes from; None without one
    count_flop  counts the arithmetic of a mini-batch step, if the choice depends on it
    Raises ConfigError for a device that does not exist.
    """
    chosen = _choose(root, began, count_flop)
    if began is not None and began.partition(":")[0] != chosen.name.partition(":")[0]:
        say(f"this run began on {began} and resumes on {chosen.name}, with other last digits: {chosen.reason}")
    return chosen


def _choose(root: RootConfig, began: str | None, count_flop: Callable[[], float]) -> Device:
    if root.device != "auto":
        return Device(machine.select_device(root.device), f"device={root.device}")
    if machine.known_device("auto") == "cpu" or (gpu := machine.select_device("auto")) == "cpu":
        return Device("cpu", "no usable GPU")
    if began is not None:
        try:
            return Device(machine.select_device(began), "where it began")
        except ConfigError:  # another number of GPUs
            return Device(gpu, f"no {began} here")
    for name, (value, _) in machine.NEEDS_GPU.items():
        if getattr(root, name) == value:
            return Device(gpu, f"{name}={value}")
    if root.executor in CPU_EXECUTORS:
        return Device("cpu", f"executor={root.executor}")
    flop = count_flop()
    reason = f"{flop / 1e9:.3f} GFLOP a mini-batch; a GPU from {GPU_FLOP / 1e9:g}"
    return Device(gpu if flop >= GPU_FLOP else "cpu", reason)


def build_run_task(settings: Settings, streams: Streams, clients: Sequence[int] | None) -> Task:
    """Build the task, on the CPU. clients: see ``build.build_run``. Raises ConfigError or BenchError."""
    parts = settings.parts
    dataset = parts["dataset"].build()
    if isinstance(parts["dataset"].config, PrivateConfig) and (
        clients is not None or not parts["live"].config.computes
    ):
        dataset = Local(dataset.config, clients or (), parts["live"].config.counts_file)
    try:
        return build_task(
            dataset,
            parts["heterogeneity"].build(),
            parts["model"].build(),
            n_clients=settings.root.n_clients,
            data_dir=settings.data_dir,
            streams=streams,
            device="cpu",
            augment=parts["client"].config.augment,
            validation_share=settings.evaluation.validation_share,
            unlabelled=parts["unlabelled"].build(),
        )
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError when memory cannot be had
        raise BenchError(f"the data set and the model could not be built: {first_line(error)[:200]}") from error


def build_cut(settings: Settings, task: Task) -> Cut | None:
    """Split the model into two parts for rules that need it; None for other rules.

    Raises ConfigError for clients without samples, and for a cut that is too wide for the rule.
    """
    if not settings.needs.cuts:
        return None
    refuse_empty_clients(settings.choices["algorithm"], task.clients)
    cut = Cut(task.flat, settings.parts["model"].config.cut, task.shape, task.classes)
    config = settings.parts["algorithm"].config
    if isinstance(config, SplitConfig):
        with naming_group("algorithm"):
            config.describe_cut_cost(cut.footprint.activation, task.classes)
    return cut


def largest_batch(settings: Settings, task: Task) -> int:
    """Return the number of samples of the largest mini-batch."""
    return memory.largest_batch(settings.parts["client"].config.batch_size, int(task.clients.samples_n.max()))
