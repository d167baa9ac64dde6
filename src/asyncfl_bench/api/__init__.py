"""What ``import asyncfl_bench`` offers to Python: runs and sweeps, by words or with objects."""

from .calls import run, sweep

__all__ = ["run", "sweep"]
