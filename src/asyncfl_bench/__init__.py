"""asyncfl_bench: asynchronous federated learning, simulated exactly and compared honestly.

from asyncfl_bench import run
result = run(algorithm="ace", delay="exp_beta30", seed=3)
result.summary["final"]["test/accuracy"], result.metrics, result.directory

from asyncfl_bench import load_bank, load_points, load_runs, sweep
results = sweep(algorithm=["ace", "fedbuff"], seed=range(3), scale="smoke")
runs = load_runs("runs")
points = load_points(runs)
judged = load_bank()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import BenchError, ConfigError

if TYPE_CHECKING:
    from .analysis.bank import load_bank
    from .api import run, sweep
    from .experiment import RunResult
    from .simulation.observer import Observer
    from .tracking.runs import load_clients, load_points, load_runs

__version__ = "0.1.0"
_FROM = {
    "Observer": "simulation.observer",
    "RunResult": "experiment",
    "load_bank": "analysis.bank",
    "load_clients": "tracking.runs",
    "load_points": "tracking.runs",
    "load_runs": "tracking.runs",
    "run": "api",
    "sweep": "api",
}
__all__ = [
    "BenchError",
    "ConfigError",
    "Observer",
    "RunResult",
    "__version__",
    "load_bank",
    "load_clients",
    "load_points",
    "load_runs",
    "run",
    "sweep",
]


def __getattr__(name: str) -> object:
    """Import a name at its first use: frames need pandas, and a run need not wait for it."""
    if name in _FROM:
        from importlib import import_module

        return getattr(import_module(f".{_FROM[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
