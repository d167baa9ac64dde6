"""From the words of a command line to settings that are known to work; neither torch nor data are loaded for it."""

from .choices import options
from .composition import compose
from .settings import Settings

__all__ = ["Settings", "compose", "options"]
