"""The task, the rule and the simulation of one run, built from checked settings."""

from __future__ import annotations

from dataclasses import asdict

from . import environment
from .config import Settings
from .errors import BenchError, ConfigError
from .randomness import Streams


class World:
    """The task, the rule and the simulation of one run."""

    def __init__(self, settings: Settings):
        from .clients.batches import Batches
        from .clients.choosing import executor_class, make_executor
        from .clients.versions import ClientMemories
        from .simulation.engine import Simulation
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
        )
        environment.set_threads(self.cores if flat.d >= environment.SMALL_MODEL else 1)
        environment.reset_peak_memory(self.device)
        self.model_d = self.task.flat.initial_d()
        self.rule = parts["algorithm"].build()
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
            statistics_rate=getattr(parts["model"].config, "statistics_rate", 1.0),
        )
        self.vectors = self._vectors(n, root.concurrency)
        self.memory_mib = self.vectors * flat.d * 4 / 2**20
        self._refuse_if_too_large(n, root.concurrency)
        if self.rule.sends_changes:
            self.executor.changes = ClientMemories(n, self.model_d)
        self.simulation = Simulation(
            rule=self.rule,
            model_d=self.model_d,
            clients=self.task.clients,
            upload_kind=client.upload,
            local_steps=client.local_steps,
            executor=self.executor,
            delay=parts["delay"].build(),
            availability=parts["availability"].build(),
            schedule=parts["schedule"].build(),
            clock=root.clock,
            concurrency=root.concurrency,
            budget=settings.budget,
            streams=streams,
        )
        self.diagnostics.start(
            shadow=parts["algorithm"].build(),
            model_d=self.model_d,
            task=self.task,
            client=client,
            gone=self.simulation.availability.gone,
        )

    def _vectors(self, n: int, concurrency: int) -> int:
        """The most vectors of d floats the run keeps: the rule's, the clients', the versions in flight, workspaces."""
        workspaces = 3 * self.executor.together if self.executor.together > 1 else 1
        measured = 1 + self.diagnostics.vectors(self.rule, n, concurrency)  # 1: the model as it was last logged
        changes = n if self.rule.sends_changes else 0
        return self.rule.vectors(n) + changes + min(concurrency, n) + workspaces + 3 + measured

    def _refuse_if_too_large(self, n: int, concurrency: int) -> None:
        free = environment.free_memory(self.device)
        each = self.task.flat.d * 4
        if free is None or self.vectors * each <= free:
            return
        fitting = max((m for m in range(1, n) if self._vectors(m, concurrency) * each <= free), default=0)
        advice = f"n_clients={fitting} would fit" if fitting else "a smaller model is needed"
        raise ConfigError(
            "n_clients",
            n,
            f"needs {self.vectors} vectors of {self.task.flat.d} floats, {self.memory_mib / 1024:.1f} GiB, and "
            f"{self.device} has {free / 2**30:.1f} GiB free; {advice}",
        )

    def describe(self, settings: Settings) -> str:
        """What this run is and what it will cost, in one line."""
        facts = self.task.describe()
        budget = ", ".join(f"{value:g} {key}" for key, value in asdict(settings.budget).items() if value is not None)
        threads = f", {self.cores} thread{'s' * (self.cores != 1)}" if self.device == "cpu" else ""
        choice = settings.choices.get
        return (
            f"{choice('algorithm')} on {choice('dataset')}: {facts['train_samples']} samples, "
            f"{settings.root.n_clients} clients, {choice('model')} of {self.task.flat.d} parameters; "
            f"until {budget} on the {settings.root.clock} clock; {self.device}{threads}, {self.executor_kind}, "
            f"model vectors up to {self.memory_mib:.0f} MiB"
        )
