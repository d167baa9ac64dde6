"""An override of the command line, parsed once: ``delay.beta=10``, ``seed=0,1,2``, ``+hydra.job.env_set.X=1``."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError


@dataclass(frozen=True)
class Word:
    """One override.

    key      what it sets, without ``+``, ``~`` and ``@package``
    values   the values it lists, each as it would be written alone; none for a deletion
    several  it lists values for a multirun
    special  it adds or deletes a key or names a package, which only Hydra's own composition can do
    value    the single value, as Hydra understands it
    """

    text: str
    key: str
    values: tuple[str, ...]
    several: bool
    special: bool
    value: Any

    @property
    def first(self) -> str:
        """The same with its first value only."""
        return f"{self.text.partition('=')[0]}={self.values[0]}"


def quoted(key: str, text: str) -> str:
    """The word that gives ``key`` this very text, whatever signs are in it."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)  # backslashes count only before a quote, and at the end
    escaped += "\\" * (len(escaped) - len(escaped.rstrip("\\")))
    return f"{key}='{escaped}'"


@functools.lru_cache(maxsize=8192)
def word(text: str) -> Word:
    """``text`` parsed. Raises ConfigError."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if not isinstance(text, str):
        raise ConfigError("overrides", text, "must be text, for example 'algorithm=ace'")
    try:
        parsed = OverridesParser.create().parse_override(text)
        several = parsed.is_sweep_override()
        if parsed.is_delete():
            values = []
        elif several:
            values = [str(value) for value in parsed.sweep_string_iterator()]
        else:
            values = [str(parsed.get_value_element_as_str())]
    except HydraException:
        key, _, value = text.partition("=")
        raise ConfigError(key, value, "must be written key=value; quote text with spaces or special signs") from None
    special = parsed.is_add() or parsed.is_force_add() or parsed.is_delete() or parsed.package is not None
    single = None if several or parsed.is_delete() else parsed.value()
    return Word(text, parsed.key_or_group, tuple(values), several, special, single)
