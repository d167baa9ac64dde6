"""From the words of a command line to settings that are known to work; neither torch nor data are loaded for it."""

from .check import check_settings
from .choices import config_directory, options
from .composition import compose
from .settings import NOT_IDENTITY, ORIGINS, PARTS, RESULTS_VERSION, Settings, identity_of_tree

__all__ = [
    "NOT_IDENTITY",
    "ORIGINS",
    "PARTS",
    "RESULTS_VERSION",
    "Settings",
    "check_settings",
    "compose",
    "config_directory",
    "identity_of_tree",
    "options",
]
