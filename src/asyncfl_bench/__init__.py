"""asyncfl_bench: asynchronous federated learning, simulated exactly and compared honestly.

from asyncfl_bench import run
result = run(["algorithm=ace", "delay=exp_beta30"])
result.summary["final"]["test/accuracy"], result.metrics, result.directory

from asyncfl_bench import load_points, load_runs
runs = load_runs("runs")
points = load_points(runs)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import BenchError, ConfigError

if TYPE_CHECKING:
    from .experiment import RunResult
    from .tracking.runs import load_points, load_runs

__version__ = "0.1.0"
__all__ = ["BenchError", "ConfigError", "__version__", "load_points", "load_runs", "run"]


def __getattr__(name: str) -> object:
    """Frames of runs need pandas, which a run does not wait for."""
    if name in ("load_points", "load_runs"):
        from .tracking import runs

        return getattr(runs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def run(overrides: list[str] | tuple[str, ...] = (), *, group: str | None = None) -> RunResult:
    """One run from the same words the command line takes.

    overrides  ``["algorithm=ace", "seed=3"]``; ``progress=false`` keeps it quiet
    group      name under which a tracker groups several runs
    Raises ConfigError for settings that cannot work and BenchError for data that cannot be had; a run that fails
    later returns with ``result.ok`` False and the reason in ``result.summary["error"]``.
    """
    from .config import compose

    if isinstance(overrides, str):
        raise ConfigError("overrides", overrides, "must be a list of texts, for example ['algorithm=ace']")
    settings = compose(list(overrides or ()))
    from .experiment import execute

    return execute(settings, group)
