"""The one place that imports torchvision, which is needed for downloads and ResNets only."""

from __future__ import annotations

from types import ModuleType

from ..errors import InputError, first_line


def torchvision(purpose: str) -> ModuleType:
    """The module; InputError saying what to install when it is missing or does not fit the installed torch."""
    try:
        import torchvision as module
    except (ImportError, RuntimeError) as error:  # RuntimeError: its operators were built for another torch
        raise InputError(
            f"{purpose} needs torchvision, which cannot be imported ({first_line(error)}). Install torch and "
            "torchvision together from one index so that the two builds match (pip install torch torchvision); "
            "`dataset=digits model=mlp` runs without it."
        ) from error
    return module
