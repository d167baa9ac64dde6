"""The parts of one run, built from checked settings and wired together here alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..algorithms.base import ServerRule, equip
from ..algorithms.common.split import SplitRule
from ..clients.batches import Batches
from ..clients.choosing import executor_class, graphed_network, make_computer, native_network
from ..clients.executors import SequentialComputer
from ..clients.local import LocalTraining
from ..clients.queue import Computer, WorkQueue
from ..clients.samples import Samples
from ..clients.split_work import SplitExecutor
from ..clients.versions import ClientVectors, build_memories
from ..config import Settings
from ..config.check import check_settings
from ..config.places import named_folders, use_folders
from ..errors import ConfigError, check, is_built_in
from ..files import say
from ..kernels.graphed import Graphs, capture_checked, graphs_or_none
from ..kernels.native import NativeNetwork
from ..live.choice import Flower, Simulated
from ..live.flower.transport import FlowerTransport, current_grid
from ..live.processes import Compute, LocalProcesses
from ..live.replies import Transport
from ..live.server import LiveServer
from ..live.uploads import RecordedConfig, StoredUploads
from ..models.layers import Size
from ..models.parts import Cut
from ..models.task import Task
from ..randomness import Streams
from ..simulation.engine import Simulation
from ..simulation.executor import Executor
from ..simulation.fleet import check_same_clients
from ..simulation.recorded import check_same_record
from ..storage import Storage
from . import machine, memory
from .checkpoint import stored_device
from .components import Components
from .device import Device, choose_device
from .dry_run import NullComputer, NullServer, NullVariates, peak_vectors
from .same_data import data_files
from .state_check import add_probe
from .stopping import Stop
from .tasks import build_cut, build_run_task, largest_batch, move_task

if TYPE_CHECKING:
    from ..diagnostics.base import Diagnostics


@dataclass(frozen=True)
class Foundation:
    """The task of a run, its device and its kind of executor: the other parts are built on these.

    stop    what asks the run to stop
    chosen  the device and why;  cores  CPU threads to use;  kind  of executor
    cut     the two parts of the model, for a rule that needs them;  native  a compiled kernel;  graphs  captured ones
    """

    settings: Settings
    streams: Streams
    storage: Storage
    stop: Stop
    task: Task
    chosen: Device
    cores: int
    kind: str
    cut: Cut | None
    native: NativeNetwork | None
    graphs: Graphs | None

    def build_rule(self) -> ServerRule:
        """Build the rule without its distillation."""
        rule = self.settings.parts["algorithm"].build()
        return equip(rule, self.storage, self.streams, self.task.server, self.cut)

    def build_whole_rule(self) -> ServerRule:
        return self.settings.parts["distillation"].build().wrap_rule(self.build_rule(), self.streams)

    def build_local(self) -> tuple[LocalTraining, Batches]:
        """Return the local training and its mini-batches."""
        client = self.settings.parts["client"]
        local = client.build(client.config.upload)
        local.stop = self.stop.received
        return local, Batches(self.task.partition, client.config.batch_size, self.streams)


def build_run(settings: Settings, clients: Sequence[int] | None = None) -> Components:
    """Load the data and build everything a run consists of; write nothing.

    clients  those whose work alone this process computes; None: all, or none where live clients do

    Raises ConfigError or BenchError for data that cannot be had, parts that do not fit each other, and a run that
    needs more memory than there is.
    """
    base = _lay_foundation(settings, clients)
    task, streams = base.task, base.streams
    rule = _build_stoppable_rule(base)
    diagnostics = settings.parts["diagnostics"].build()
    model_d = task.flat.initial_d()
    executor: WorkQueue | SplitExecutor
    live = None
    if base.cut is not None:
        executor, vectors = _build_split_executor(base, rule)
    else:
        executor, vectors, live = _build_work_queue(base, rule, diagnostics, model_d)
    simulation = _build_simulation(settings, rule, model_d, task, executor, streams, base.cut, live)
    availability = simulation.availability
    diagnostics.start(
        rule=rule,
        shadow=base.build_rule(),
        model_d=model_d,
        task=task,
        client=settings.parts["client"].config,
        has_left=lambda one, iteration: availability.has_left(one, iteration, simulation.counters.virtual_time),
    )
    observers = {name: part.build() for name, part in settings.observers.items()}
    simulation.observers += observers.values()
    return Components(
        base.chosen,
        base.cores,
        task,
        model_d,
        rule,
        executor,
        base.kind,
        vectors.needs(settings.root.n_clients),
        simulation,
        diagnostics,
        base.stop,
        observers,
        data_files(settings),
        live,
    )


def _lay_foundation(settings: Settings, clients: Sequence[int] | None) -> Foundation:
    """Load the task, move it to the chosen device, and choose how gradients are computed there."""
    root, streams = settings.root, Streams(settings.root.seed)
    task = build_run_task(settings, streams, clients)
    # a gradient takes twice the forward pass's arithmetic besides; each multiply-add is two operations
    chosen = choose_device(
        root, stored_device(settings), lambda: 6 * task.footprint.macs * largest_batch(settings, task)
    )
    device = chosen.name
    machine.refuse_unsupported(root, device)
    machine.make_deterministic(device, root.precision)
    move_task(task, device)
    flat, cores = task.flat, machine.available_cores(root.threads)
    cut = build_cut(settings, task)
    native = native_network(root.executor, device, task, cut)
    if native is not None:
        task.evaluate_with(native, cores)
    graphs = graphs_or_none(device)
    kind = executor_class(
        root.executor,
        device=device,
        cores=cores,
        perceptron=flat.perceptron is not None,
        has_statistics=flat.has_statistics,
        stacks=flat.stack is not None,
        native=native is not None,
        cut=cut is not None,
        captures=graphs is not None and settings.parts["model"].config.uncaptured is None,
    )
    torch.set_num_threads(cores if flat.d >= machine.SMALL_MODEL else 1)
    if kind == "batched":
        machine.limit_numpy_threads()
    machine.reset_peak_memory(device)
    storage = Storage(flat.lengths, streams.cache, settings.directory)
    return Foundation(settings, streams, storage, Stop(), task, chosen, cores, kind, cut, native, graphs)


def _build_stoppable_rule(base: Foundation) -> ServerRule:
    """Build the rule, which a stop signal interrupts; a user's rule with a check of its state."""
    settings, rule = base.settings, base.build_whole_rule()
    if isinstance(rule, SplitRule):
        rule.stop = base.stop.received
    # tests restore the classes of this package at every event
    if all(is_built_in(settings.parts[group].target) for group in ("algorithm", "distillation")):
        return rule
    return add_probe(rule, settings.choices["algorithm"], base.build_whole_rule, base.task.flat.initial_d)


def _build_split_executor(base: Foundation, rule: ServerRule) -> tuple[SplitExecutor, memory.Vectors]:
    """Build the executor of a cut model. Raises BenchError if the run does not fit into memory."""
    settings, task, cut = base.settings, base.task, base.cut
    assert isinstance(rule, SplitRule) and cut is not None
    local, batches = base.build_local()
    size = Size(task.flat.d, cut.d_client, cut.activation)
    most = int(task.clients.samples_n.max())
    vectors = memory.count_cut_vectors(settings, rule, size, most, len(task.flat.lengths))
    workers = 0 if base.kind == "sequential" or base.cores == 1 else base.cores
    step = task.step_bytes(largest_batch(settings, task)) * max(1, workers)
    vectors = replace(vectors, activations=max(step, task.evaluation_bytes()))
    memory.refuse_if_too_large(vectors, settings.root.n_clients, base.chosen.name, settings.directory)
    augment = base.streams.augment if settings.parts["client"].config.augment else None
    samples = Samples(task, batches, augment, host_labels=True)
    return SplitExecutor(cut.client, cut.d_client, local, samples, workers), vectors


def _build_work_queue(
    base: Foundation, rule: ServerRule, diagnostics: Diagnostics, model_d: torch.Tensor
) -> tuple[WorkQueue, memory.Vectors, LiveServer | None]:
    """Build the queue of clients' work, and the server of a live run; None in a simulation.

    Raises BenchError if the run does not fit into memory or on disk, ConfigError for parts that do not fit together.
    """
    settings, task, device = base.settings, base.task, base.chosen.name
    n, flat = settings.root.n_clients, task.flat
    local, batches = base.build_local()
    computer = _build_computer(base, local, batches, rule.needs.outputs)
    vectors = _count_vectors(settings, task, rule, computer, diagnostics, base.streams)
    parts = computer.activations(largest_batch(settings, task)), task.evaluation_bytes()
    # graphs keep their memory, and other threads compute while the main one evaluates
    together = sum(parts) if device != "cpu" or computer.ahead else max(parts)
    vectors = replace(vectors, activations=together)
    memory.refuse_if_too_large(vectors, n, device, settings.directory)
    place = vectors.cache.place if vectors.cache else "device"
    memories = build_memories(
        rule.needs.keeps, n, model_d, place, base.storage, server_d=lambda: rule.variate_d, lr=local.lr
    )
    shape_uc = (task.server.samples, task.server.classes) if rule.needs.outputs and task.server else None
    memory.refuse_if_disk_too_small(settings, flat.d, 0 if shape_uc is None else math.prod(shape_uc))
    live = _build_live(settings, task, computer, memories, shape_uc, base.stop.received)
    source: Computer = computer
    if isinstance(kept := settings.parts["live"].config, RecordedConfig):
        allowed = "joined by delay=recorded; afl-run --replay DIR sets both"
        check(settings.choices.get("delay") == "recorded", "live", "recorded", allowed)
        source = StoredUploads(str(kept.path), computer, flat.d, shape_uc)
    if live is not None:
        return live.queue, vectors, live
    return WorkQueue(source, memories=memories, keeps_base=rule.needs.base), vectors, None


def _build_computer(base: Foundation, local: LocalTraining, batches: Batches, reports: bool) -> SequentialComputer:
    """Build the computer of uploads. reports: with the model's outputs on the server's samples"""
    settings, task, graphs = base.settings, base.task, base.graphs
    client = settings.parts["client"].config
    return make_computer(
        base.kind,
        task,
        local,
        batches,
        base.streams,
        cores=base.cores,
        network=graphed_network(task, graphs, client.batch_size) if base.kind == "graph" else base.native,
        capture=None if graphs is None else partial(capture_checked, graphs),
        augment=client.augment,
        statistics_rate=settings.parts["model"].config.statistics_rate,
        reports=reports,
    )


def _build_live(
    settings: Settings,
    task: Task,
    computer: SequentialComputer,
    memories: ClientVectors | None,
    shape_uc: tuple[int, int] | None,
    stop: list[int],
) -> LiveServer | None:
    """Build what serves real clients, which are not started yet; None in a simulation. shape_uc: of outputs"""
    config = settings.parts["live"].config
    if not config.takes_place:
        return None
    flat = task.flat
    if flat.has_statistics:
        allowed = f"one without batch normalisation with live={settings.choices.get('live')}"
        raise ConfigError("model", settings.choices.get("model"), f"must be {allowed}")
    tree = settings.tree | {"live": {"_target_": f"{Simulated.__module__}.{Simulated.__qualname__}"}}
    largest = 2**16 + 8 * (flat.d + (0 if shape_uc is None else shape_uc[0] * shape_uc[1]))
    options: dict[str, Any] = {
        "n_clients": settings.root.n_clients,
        "identity": settings.identity,
        "largest": largest,
        "report": say if settings.root.progress else lambda text: None,
    }
    transport: Transport
    if settings.parts["live"].target is Flower:
        run = {"tree": tree, "folders": [str(folder) for folder in named_folders()]}
        transport = FlowerTransport(config, current_grid(), run, **options)
    else:
        transport = LocalProcesses(config, Compute(build_computer, tree, named_folders(), config.nap), **options)
    return LiveServer(settings, transport, computer, memories, d=flat.d, shape_uc=shape_uc, stop=stop)


def build_computer(tree: dict, folders: Sequence[Path], clients: Sequence[int] | None = None) -> SequentialComputer:
    """Build what computes the work of a run's clients, in a process of theirs.

    tree  the run's resolved config;  folders  those that ``--config-dir`` named;  clients  of the process; None: all
    """
    use_folders(folders)
    executor = build_run(check_settings(copy.deepcopy(tree), dict(tree["choices"])), clients).executor
    assert isinstance(executor, WorkQueue) and isinstance(executor.computer, SequentialComputer)
    return executor.computer


def _count_vectors(
    settings: Settings,
    task: Task,
    rule: ServerRule,
    computer: SequentialComputer,
    diagnostics: Diagnostics,
    streams: Streams,
) -> memory.Vectors:
    """Count the model vectors that the run will hold."""
    flat, concurrency, n = task.flat, settings.root.concurrency, settings.root.n_clients
    assert concurrency is not None
    one_step = settings.parts["client"].config.workload.one_step and not rule.needs.chooses_k  # else K may grow
    in_flight = concurrency + (n if rule.needs.first_round else 0)
    guess = memory.count_vectors(
        settings,
        rule,
        flat.d,
        len(flat.lengths),
        uploads=in_flight + 1 if computer.apart else 3 * computer.most_pieces,
        computing=computer.vectors(1 if one_step else 2) + diagnostics.vectors(rule, n, concurrency),
        outputs=task.server.samples * task.server.classes if task.server else 0,
    )
    if concurrency * flat.d * memory.FLOAT < memory.DRY_RUN_FROM:
        return guess
    # a run that is too large with one version of the model is not simulated first: that takes a minute where n is large
    least = replace(guess, versions=1, uploads=1)
    if memory.is_too_large(least.needs(n), str(task.device), settings.directory):
        return guess
    versions, uploads = peak_vectors(*build_dry_run(settings, task, computer, streams), n, concurrency)
    return replace(guess, versions=versions, uploads=uploads)


def build_dry_run(
    settings: Settings, task: Task, computer: SequentialComputer, streams: Streams
) -> tuple[Simulation, WorkQueue]:
    """Build the simulation with a model of one parameter. Returns (simulation, executor)."""
    server = None if task.server is None else NullServer(task.server.samples)
    rule = equip(settings.parts["algorithm"].build(), Storage(rounding=streams.cache), streams, server)
    rule = settings.parts["distillation"].build().wrap_rule(rule, streams)
    variates = NullVariates() if rule.needs.keeps == "variate" else None
    queue = WorkQueue(NullComputer(computer, server), memories=variates, keeps_base=rule.needs.base)
    return _build_simulation(settings, rule, torch.zeros(1), task, queue, streams), queue


def _build_simulation(
    settings: Settings,
    rule: ServerRule,
    model_d: torch.Tensor,
    task: Task,
    executor: Executor,
    streams: Streams,
    cut: Cut | None = None,
    live: LiveServer | None = None,
) -> Simulation:
    """Build the simulation from the run's clock, delays, availability, schedule and budget."""
    root, parts = settings.root, settings.parts
    assert root.concurrency is not None
    client, delay, availability = parts["client"].config, parts["delay"].build(), parts["availability"].build()
    if live is None:
        timeline = availability.build_timeline(executor.discard, settings.budget.virtual_time)
    else:
        timeline, availability.record = live.build_timeline(), live.record
    simulation = Simulation(
        rule=rule,
        model_d=model_d,
        clients=task.clients,
        upload_kind=client.upload,
        workload=client.workload,
        executor=executor,
        delay=delay,
        availability=availability,
        schedule=parts["schedule"].build(),
        clock=root.clock,
        tick_rounding=root.tick_rounding,
        concurrency=root.concurrency,
        budget=settings.budget,
        streams=streams,
        footprint=task.footprint if cut is None else cut.footprint,
        server_rate=root.server_seconds_per_sample,
        timeline=timeline,
    )
    check_same_clients(delay, availability)
    check_same_record(delay, availability)
    return simulation
