"""Which device a run is on, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..files import say
from . import machine

if TYPE_CHECKING:
    from ..config.settings import RootConfig

GPU_FLOP = 1e9  # of a mini-batch step; from here on a GPU is worth its launches (docs/explanation/performance.md)
CPU_EXECUTORS = ("native", "threads", "ray")


@dataclass(frozen=True)
class Device:
    """Name for torch, and the reason for the choice."""

    name: str
    reason: str


def choose_device(root: RootConfig, began: str | None, count_flop: Callable[[], float]) -> Device:
    """Return the device of a run. A run that resumes stays where it began, or one line says why it cannot.

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
