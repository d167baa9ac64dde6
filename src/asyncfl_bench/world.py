"""The task, the rule and the simulation of one run, built from checked settings."""

from __future__ import annotations

from dataclasses import asdict

from . import environment, memory
from .config import Settings
from .errors import BenchError
from .randomness import Streams
from .storage import Storage, bytes_of


class World:
    """The task, the rule and the simulation of one run."""

    def __init__(self, settings: Settings):
        from .algorithms.base import equip
        from .algorithms.caches import CacheConfig
        from .clients.batches import Batches
        from .clients.choosing import executor_class, make_executor
        from .clients.versions import ClientMemories, ClientSums
        from .simulating import make_simulation
        from .tasks.task import build_task

        root, parts = settings.root, settings.parts
        assert root.concurrency is not None
        self.device = environment.device(root.device)
        environment.make_deterministic(self.device)
        streams = Streams(root.seed)
        client = parts["client"].config
        try:
            self.task = build_task(
                parts["dataset"].build(),
                parts["heterogeneity"].build(),
                parts["model"].build(),
                n_clients=root.n_clients,
                data_dir=settings.data_dir,
                streams=streams,
                device=self.device,
                augment=client.augment,
                validation_share=settings.evaluation.validation_share,
            )
        except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError when memory cannot be had
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise BenchError(f"the data set and the model could not be built: {reason[:200]}") from error
        self.cores = environment.cores(root.threads)
        flat = self.task.flat
        self.executor_kind = executor_class(
            root.executor,
            device=self.device,
            cores=self.cores,
            perceptron=flat.perceptron is not None,
            has_statistics=flat.has_statistics,
            recurrent=flat.recurrent,
        )
        environment.set_threads(self.cores if flat.d >= environment.SMALL_MODEL else 1)
        if self.executor_kind == "batched":
            environment.one_thread_in_numpy()
        environment.reset_peak_memory(self.device)
        self.model_d = self.task.flat.initial_d()
        storage = Storage(flat.lengths, streams.cache, settings.directory)
        self.rule = equip(parts["algorithm"].build(), storage, streams)
        self.diagnostics = parts["diagnostics"].build()
        n = root.n_clients
        self.executor = make_executor(
            self.executor_kind,
            self.task,
            parts["client"].build(client.upload),
            Batches(self.task.partition, client.batch_size, streams),
            streams,
            device=self.device,
            cores=self.cores,
            augment=client.augment,
            keeps_base=self.rule.needs_base,
            statistics_rate=getattr(parts["model"].config, "statistics_rate", 1.0),
        )
        cache: CacheConfig | None = getattr(parts["algorithm"].config, "cache", None)
        chosen = cache is not None
        if cache is None and self.rule.clients_keep:
            cache = CacheConfig()  # the clients'
        versions, uploads = memory.most_in_use(settings, self.task.clients, streams, self.executor, flat.d)
        measuring = self.diagnostics.vectors(self.rule, n, root.concurrency)
        one_step = client.one_step and not hasattr(parts["algorithm"].config, "k_initial")  # else K may grow
        vectors = memory.Vectors(
            d=flat.d,
            tensors=len(flat.lengths),
            rule=self.rule.vectors(n),
            cache=cache,
            on_clients=self.rule.clients_keep is not None,
            chosen=chosen,
            versions=versions,
            # the model, as it is, as it was at first and as it was last logged
            computing=uploads + self.executor.vectors(1 if one_step else 2) + 3 + measuring,
        )
        memory.refuse_if_too_large(vectors, n, self.device, settings.directory)
        self.needs = vectors.needs(n)
        if self.rule.clients_keep and cache is not None:
            kept = {"previous": ClientMemories, "sum": ClientSums}[self.rule.clients_keep]
            self.executor.memories = kept(n, self.model_d, cache.place, storage)
        self.simulation = make_simulation(
            settings,
            rule=self.rule,
            model_d=self.model_d,
            clients=self.task.clients,
            executor=self.executor,
            streams=streams,
        )
        self.diagnostics.start(
            shadow=equip(parts["algorithm"].build(), storage, streams),
            model_d=self.model_d,
            task=self.task,
            client=client,
            has_left=self._has_left,
        )

    def _has_left(self, client: int, iteration: int) -> bool:
        """Whether the client no longer takes part, now that so many server iterations are done."""
        simulation = self.simulation
        return simulation.availability.has_left(client, iteration, simulation.counters.virtual_time)

    def state_bytes(self) -> dict[str, int]:
        """Bytes of the tensors that the rule and the clients keep from one upload to the next, workspaces left out."""
        memories = self.executor.memories
        clients = 0 if memories is None else bytes_of(memories.state_dict())
        return {"server": bytes_of(self.rule.state_dict()), "clients": clients}

    def describe(self, settings: Settings) -> str:
        """What this run is and what it will cost, in one line."""
        facts = self.task.describe()
        budget = ", ".join(f"{value:g} {key}" for key, value in asdict(settings.budget).items() if value is not None)
        threads = f", {self.cores} thread{'s' * (self.cores != 1)}" if self.device == "cpu" else ""
        away = {"on the host": self.needs.host, "on disk": self.needs.disk}
        elsewhere = "".join(f", {size / 2**20:.0f} of them {where}" for where, size in away.items() if size)
        choice = settings.choices.get
        return (
            f"{choice('algorithm')} on {choice('dataset')}: {facts['train_samples']} samples, "
            f"{settings.root.n_clients} clients, {choice('model')} of {self.task.flat.d} parameters; "
            f"until {budget} on the {settings.root.clock} clock; {self.device}{threads}, {self.executor_kind}, "
            f"model vectors up to {self.needs.total / 2**20:.0f} MiB{elsewhere}"
        )
