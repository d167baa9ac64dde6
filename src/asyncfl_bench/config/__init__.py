"""From the words of a command line to settings that are known to work; neither torch nor data are loaded for it."""

from .check import check_settings
from .choices import options
from .composition import compose
from .saved import identity_in
from .settings import (
    ABSENT,
    NOT_IDENTITY,
    OBSERVERS,
    ORIGINS,
    PARTS,
    Settings,
    fill_in_precision,
    identity_of_tree,
    results_version_of,
)

__all__ = [
    "ABSENT",
    "NOT_IDENTITY",
    "OBSERVERS",
    "ORIGINS",
    "PARTS",
    "Settings",
    "check_settings",
    "compose",
    "fill_in_precision",
    "identity_in",
    "identity_of_tree",
    "options",
    "results_version_of",
]
