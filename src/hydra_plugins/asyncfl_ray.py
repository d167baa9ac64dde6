"""Ray's launcher, which lets active runs save themselves when the sweep is stopped: the plugin's own ends at once.

Hydra accepts plugins only from this package. Without the plugin this module defines nothing.
"""

import signal
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

with suppress(ImportError):
    import ray
    from hydra.core.singleton import Singleton
    from hydra.core.utils import JobReturn, configure_log, setup_globals
    from hydra_plugins.hydra_ray_launcher._launcher_util import launch_job_on_ray, start_ray
    from hydra_plugins.hydra_ray_launcher.ray_launcher import RayLauncher
    from omegaconf import open_dict

    class Ray(RayLauncher):
        """One task per run. A lost node or worker is raised when the other tasks have ended."""

        def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
            from asyncfl_bench.clients.on_ray import binding_to_loopback

            assert self.config is not None and self.hydra_context is not None
            setup_globals()
            configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
            Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
            handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            with binding_to_loopback() if self.ray_cfg.init.get("address") == "local" else nullcontext():
                start_ray(self.ray_cfg.init)
            for number, handler in handlers.items():  # Ray has put its own there, which ends this process at once
                signal.signal(number, handler)
            tasks = [self._begin(overrides, number) for number, overrides in enumerate(job_overrides, initial_job_idx)]
            try:
                ray.wait(tasks, num_returns=len(tasks), fetch_local=False)
                return [ray.get(task) for task in tasks]
            except KeyboardInterrupt:
                self._stop(tasks)
                raise

        def _begin(self, overrides: Sequence[str], number: int) -> Any:
            config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
            with open_dict(config):
                config.hydra.job.id, config.hydra.job.num = f"job_id_for_{number}", number
            state = Singleton.get_state()
            return launch_job_on_ray(self.hydra_context, self.ray_cfg.remote, config, self.task_function, state)

        def _stop(self, tasks: Sequence[Any]) -> None:
            """Drop waiting runs, and stop an active run, on any node, as by Ctrl-C."""
            from asyncfl_bench.multirun import launchers, pending

            for task in tasks:
                ray.cancel(task)
            launchers.wait_while(pending.has_active_runs)
