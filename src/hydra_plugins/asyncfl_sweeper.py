"""Hydra's sweeper with unions of grids; it skips finished runs. Hydra chooses the launcher.

Hydra accepts plugins only from this package.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf


@dataclass
class PendingRunsConf:
    """params: key -> comma-separated values, all combined.  grids: several such, each combined with params.
    search: trials, shard and seed, where values are ranges; declared: these are those that the rules' yaml declare.
    stages: what follows a search (asyncfl_bench.multirun.stages); null: nothing.
    stop_at_failure: no further run is launched after a failed one."""

    _target_: str = "hydra_plugins.asyncfl_sweeper.PendingRuns"
    max_batch_size: int | None = None
    params: dict[str, str] = field(default_factory=dict)
    grids: list[Any] = field(default_factory=list)
    search: dict[str, Any] = field(
        default_factory=lambda: {"trials": None, "shard": "1/1", "seed": 0, "declared": False}
    )
    stages: Any = None
    stop_at_failure: bool = False


ConfigStore.instance().store(group="hydra/sweeper", name="pending_runs", node=PendingRunsConf, provider="asyncfl_bench")


class PendingRuns(BasicSweeper):
    """Launches the runs of a sweep that are pending, in one batch (or batches of ``max_batch_size``)."""

    def __init__(self, max_batch_size: int | None, params: dict[str, str], stop_at_failure: bool, **of_plan: Any):
        super().__init__(max_batch_size=max_batch_size, params=dict(params))
        self._stop_at_failure = stop_at_failure

    def sweep(self, arguments: list[str]) -> Any:
        from asyncfl_bench.errors import BenchError
        from asyncfl_bench.multirun.launchers import workers_of
        from asyncfl_bench.multirun.pending import run_pending, state

        assert self.config is not None
        path = Path(self.config.hydra.sweep.dir) / "multirun.yaml"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            OmegaConf.save(self.config, path)
        except OSError as error:  # Hydra would show a stack trace
            state.problem = BenchError(f"{error.filename or path}: {error.strerror}")
            return None
        # one after another anyway, so hand the jobs over singly: a batch keeps every job's config to its end
        singly = 1 if isinstance(self.launcher, BasicLauncher) else None
        size, workers = self.max_batch_size or singly, workers_of(self.config.hydra)
        return run_pending(self._launch, size, workers, self._stop_at_failure)

    def _launch(self, batch: Sequence[Sequence[str]], first: int) -> Sequence[Any]:
        from asyncfl_bench.config.choices import substituted_choices

        assert self.launcher is not None and self.config is not None
        # Hydra composes each job by its words alone: a setting of a part that `instead` chooses is unknown without it
        common: Any = OmegaConf.to_container(self.config.hydra.overrides.hydra)
        whole = [[*substituted_choices([*common, *words]), *words] for words in batch]
        return self.launcher.launch(whole, initial_job_idx=first)
