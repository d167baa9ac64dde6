"""``build_run``: loads the task, creates rule, executor and simulation from checked settings, and connects them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from threadpoolctl import threadpool_limits

from ..algorithms.base import ServerRule
from ..algorithms.common.split import SplitRule
from ..clients.choosing import executor_class, graphed_network, make_computer, native_network
from ..clients.executors import SequentialComputer
from ..clients.queue import Computer, WorkQueue
from ..clients.samples import Samples
from ..clients.split_work import SplitExecutor
from ..clients.versions import ClientVectors, build_memories
from ..config import Settings
from ..config.check import check_settings
from ..config.part_sources import named_folders, use_folders
from ..errors import BenchError, ConfigError, check, first_line, is_built_in
from ..files import say
from ..kernels.graphed import capture_checked, graphs_or_none
from ..live.choice import Flower, Simulated
from ..live.flower.transport import FlowerTransport, current_grid
from ..live.processes import Compute, LocalProcesses
from ..live.server import LiveServer
from ..live.threaded_transport import ThreadedTransport
from ..live.uploads import RecordedConfig, StoredUploads
from ..models.layers import Size
from ..randomness import Streams
from ..simulation.dispatches import Executor
from ..simulation.engine import Simulation
from ..simulation.recorded import check_same_sources
from ..storage import Storage
from . import machine, memory
from .checkpoint import stored_device
from .components import Components, Foundation, build_cut, build_run_task, choose_device, largest_batch
from .dry_run import NullComputer, NullServer, NullVariates, peak_vectors
from .result import data_files
from .state_check import add_probe
from .stopping import Stop

if TYPE_CHECKING:
    from ..diagnostics.base import Diagnostics


def build_run(settings: Settings, clients: Sequence[int] | None = None) -> Components:
    """Load the data and build everything a run consists of; write nothing.

    clients  those whose work alone this process computes; None: all, or none where live clients do

    Raises ConfigError or BenchError for data that cannot be had, parts that do not fit each other, and a run that
    needs more memory than there is.
    """
    base = _lay_foundation(settings, clients)
    rule = base.build_whole_rule()
    if isinstance(rule, SplitRule):
        rule.stop = base.stop.received
    # tests restore the classes of this package at every event
    if not all(is_built_in(settings.parts[group].target) for group in ("algorithm", "distillation")):
        rule = add_probe(rule, settings.choices["algorithm"], base.build_whole_rule, base.task.flat.initial_d)
    diagnostics = settings.parts["diagnostics"].build()
    model_d = base.task.flat.initial_d()
    executor: WorkQueue | SplitExecutor
    live = None
    if base.cut is not None:
        executor, vectors = _build_split_executor(base, rule)
    else:
        executor, vectors, live = _build_work_queue(base, rule, diagnostics, model_d)
    simulation = _build_simulation(base, rule, model_d, executor, live)
    availability = simulation.availability
    diagnostics.start(
        rule=rule,
        shadow=base.build_rule(),
        model_d=model_d,
        task=base.task,
        client=settings.parts["client"].config,
        has_left=lambda one, iteration: availability.has_left(one, iteration, simulation.counters.virtual_time),
    )
    observers = {name: part.build() for name, part in settings.observers.items()}
    simulation.observers += observers.values()
    return Components(
        **vars(base),
        model_d=model_d,
        rule=rule,
        executor=executor,
        needs=vectors.needs(settings.root.n_clients),
        simulation=simulation,
        diagnostics=diagnostics,
        observers=observers,
        files=data_files(settings),
        live=live,
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
    try:
        task.to(device)
    except RuntimeError as error:
        raise BenchError(f"the data set and the model do not fit on {device}: {first_line(error)[:200]}") from error
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
        threadpool_limits(1, user_api="blas")  # NumPy's threads are slower for small matrices
    machine.reset_peak_memory(device)
    storage = Storage(flat.lengths, streams.cache, settings.directory)
    return Foundation(settings, streams, storage, Stop(), task, chosen, cores, kind, cut, native, graphs)


def _build_split_executor(base: Foundation, rule: ServerRule) -> tuple[SplitExecutor, memory.Vectors]:
    """Build the executor of a cut model. Raises BenchError if the run does not fit into memory."""
    settings, task, cut = base.settings, base.task, base.cut
    assert isinstance(rule, SplitRule) and cut is not None
    local, batches = base.build_local()
    size = Size(task.flat.d, cut.d_client, cut.activation)
    batch = largest_batch(settings, task)
    averaged = settings.evaluation.average
    vectors = memory.count_vectors(settings.root, rule, size, len(task.flat.lengths), averaged=averaged, batch=batch)
    workers = 0 if base.executor_kind == "sequential" or base.cores == 1 else base.cores
    step = task.step_bytes(batch) * max(1, workers)
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
    client, graphs = settings.parts["client"].config, base.graphs
    computer = make_computer(
        base.executor_kind,
        task,
        local,
        batches,
        base.streams,
        cores=base.cores,
        network=graphed_network(task, graphs, client.batch_size) if base.executor_kind == "graph" else base.native,
        capture=None if graphs is None else partial(capture_checked, graphs),
        augment=client.augment,
        statistics_rate=settings.parts["model"].config.statistics_rate,
        reports=rule.needs.outputs,
    )
    vectors = _count_vectors(base, rule, computer, diagnostics)
    parts = computer.activations(largest_batch(settings, task)), task.evaluation_bytes()
    # graphs keep their memory, and other threads compute while the main one evaluates
    activations = sum(parts) if device != "cpu" or computer.prefetch_below else max(parts)
    vectors = replace(vectors, activations=activations)
    memory.refuse_if_too_large(vectors, n, device, settings.directory)
    place = vectors.cache.place if vectors.cache else "device"
    memories = build_memories(
        rule.needs.keeps, n, model_d, place, base.storage, server_d=lambda: rule.variate_d, lr=local.lr
    )
    shape_uc = (task.server.samples, task.server.classes) if rule.needs.outputs and task.server else None
    kept = memory.kept_bytes(settings.kept_uploads, flat.d, 0 if shape_uc is None else math.prod(shape_uc))
    memory.refuse_if_disk_too_small(kept, settings.directory)
    live = _build_live(base, computer, memories, shape_uc)
    source: Computer = computer
    if isinstance(recorded := settings.parts["live"].config, RecordedConfig):
        allowed = "joined by delay=recorded; afl-run --replay DIR sets both"
        check(settings.choices.get("delay") == "recorded", "live", "recorded", allowed)
        source = StoredUploads(str(recorded.path), computer, flat.d, shape_uc)
    if live is not None:
        return live.queue, vectors, live
    return WorkQueue(source, memories=memories, keeps_base=rule.needs.base), vectors, None


def _build_live(
    base: Foundation, computer: SequentialComputer, memories: ClientVectors | None, shape_uc: tuple[int, int] | None
) -> LiveServer | None:
    """Build the server of real clients, which are not started yet; None in a simulation. shape_uc: of outputs"""
    settings, flat = base.settings, base.task.flat
    config = settings.parts["live"].config
    if not config.takes_place:
        return None
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
    transport: ThreadedTransport
    if settings.parts["live"].target is Flower:
        run = {"tree": tree, "folders": [str(folder) for folder in named_folders()]}
        transport = FlowerTransport(config, current_grid(), run, **options)
    else:
        transport = LocalProcesses(config, Compute(build_computer, tree, named_folders(), config.nap), **options)
    return LiveServer(settings, transport, computer, memories, d=flat.d, shape_uc=shape_uc, stop=base.stop.received)


def build_computer(tree: dict, folders: Sequence[Path], clients: Sequence[int] | None = None) -> SequentialComputer:
    """Build the computer of the work of a run's clients, in a client process.

    tree  the run's resolved config;  folders  those that ``--config-dir`` named;  clients  of the process; None: all
    """
    use_folders(folders)
    executor = build_run(check_settings(tree), clients).executor
    assert isinstance(executor, WorkQueue) and isinstance(executor.computer, SequentialComputer)
    return executor.computer


def _count_vectors(
    base: Foundation, rule: ServerRule, computer: SequentialComputer, diagnostics: Diagnostics
) -> memory.Vectors:
    """Count the model vectors that the run will hold."""
    settings, task = base.settings, base.task
    flat, concurrency, n = task.flat, settings.root.concurrency, settings.root.n_clients
    assert concurrency is not None
    one_step = settings.parts["client"].config.workload.one_step and not rule.needs.chooses_k  # else K may grow
    in_flight = concurrency + (n if rule.needs.first_round else 0)
    guess = memory.count_vectors(
        settings.root,
        rule,
        Size(flat.d),
        len(flat.lengths),
        averaged=settings.evaluation.average,
        uploads=in_flight + 1 if computer.separate_uploads else 3 * computer.most_pieces,
        computing=computer.vectors(1 if one_step else 2) + diagnostics.vectors(rule, n, concurrency),
        outputs=task.server.samples * task.server.classes if task.server else 0,
    )
    if concurrency * flat.d * memory.FLOAT < memory.DRY_RUN_FROM:
        return guess
    # a run that is too large with one version of the model is not simulated first: that takes a minute where n is large
    least = replace(guess, versions=1, uploads=1)
    if memory.is_too_large(least.needs(n), str(task.device), settings.directory):
        return guess
    versions, uploads = peak_vectors(*build_dry_run(base, computer), n, concurrency)
    return replace(guess, versions=versions, uploads=uploads)


def build_dry_run(base: Foundation, computer: SequentialComputer) -> tuple[Simulation, WorkQueue]:
    """Build the simulation with a model of one parameter. Returns (simulation, executor)."""
    settings, streams, samples = base.settings, base.streams, base.task.server
    server = None if samples is None else NullServer(samples.samples)
    rule = settings.build_rule(Storage(rounding=streams.cache), streams, server)
    variates = NullVariates(1, torch.zeros(1)) if rule.needs.keeps == "variate" else None
    queue = WorkQueue(NullComputer(computer, server), memories=variates, keeps_base=rule.needs.base)
    return _build_simulation(base, rule, torch.zeros(1), queue), queue


def _build_simulation(
    base: Foundation, rule: ServerRule, model_d: torch.Tensor, executor: Executor, live: LiveServer | None = None
) -> Simulation:
    """Build the simulation from the run's clock, delays, availability, schedule and budget."""
    settings, task = base.settings, base.task
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
        streams=base.streams,
        footprint=(base.cut or task).footprint,
        server_rate=root.server_seconds_per_sample,
        timeline=timeline,
    )
    check_same_sources(delay, availability)
    return simulation
