"""A network, an observer, diagnostics and a tracker. docs/howto/extend.md explains them."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from asyncfl_bench import Observer
from asyncfl_bench.diagnostics.base import Diagnostics
from asyncfl_bench.tracking.trackers import Tracker


class Net(nn.Module):
    """A module needs no base class. Its arguments are its settings."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10))

    def forward(self, x):
        return self.layers(x)


class Gap(Observer):
    """Measure the distance of the accuracy from a goal, and count lost uploads."""

    state_names = ("lost",)  # attributes that a checkpoint keeps
    better: ClassVar = {"mine/gap": "lower"}  # or "higher": pages then name the best method

    def __init__(self, goal: float = 1.0):
        self.goal, self.lost = goal, 0

    def discarded(self, work):
        self.lost += 1

    def measure(self, point):
        return {"mine/gap": self.goal - point["test/accuracy"], "mine/lost": self.lost}


class Norm(Diagnostics):
    """Measure the norm of the model."""

    def start(self, *, model_d, **others):
        self.model_d = model_d  # (d,), moved in place

    def measure(self, point):
        return {"mine/norm": float(self.model_d.norm())}


@dataclass
class LinesConfig:
    """
    name  file in the run directory
    """

    name: str = "lines.txt"


class Lines(Tracker):
    """Write a line of text for each evaluation."""

    Config = LinesConfig

    def start(self, run):
        self.path = run.directory / self.config.name

    def log(self, row):
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{row['iteration']} {row['mine/gap']:.3f}\n")
