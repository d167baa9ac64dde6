"""joblib's launcher; only the launcher stops its workers.

If a signal ends a worker while it loads modules, joblib kills all workers, also one that is saving a run.
Hydra accepts plugins only from this package. Without the plugin this module defines nothing.
"""

import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from typing import Any

with suppress(ImportError):
    from hydra.core.utils import JobReturn
    from hydra_plugins.hydra_joblib_launcher.joblib_launcher import JoblibLauncher

    class Cores(JoblibLauncher):
        """One job per core."""

        def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
            from joblib import register_parallel_backend
            from joblib._parallel_backends import LokyBackend

            from asyncfl_bench.multirun.launchers import ignoring_terminal_signals

            class ShieldedBackend(LokyBackend):
                """Starts its workers, and the thread that starts workers, shielded from signals."""

                def submit(self, func: Callable[[], Any], callback: Callable[[Any], None] | None = None) -> Any:
                    with ignoring_terminal_signals(signal.SIGTERM):
                        return super().submit(func, callback)

            resource_tracker.ensure_running()  # else started with the first worker, whose signals it unblocks
            register_parallel_backend("loky", ShieldedBackend)
            return super().launch(job_overrides, initial_job_idx)
