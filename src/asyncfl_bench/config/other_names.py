"""Names that the field and other tools use, and what is typed here instead: the table other_names.yaml."""

from __future__ import annotations

import functools
from pathlib import Path

from ..files import read_yaml


@functools.cache
def other_names() -> dict[tuple[str, str], str]:
    """Return what is typed here by (``setting``, ``option`` or a group of choices, other name)."""
    table = read_yaml(Path(__file__).with_suffix(".yaml"))
    return {(kind, name): typed for kind, of in table.items() for typed, names in of.items() for name in names.split()}


def without_marks(name: str) -> str:
    """Return a name as other tools may write it: ``batchSize`` and ``batch-size`` for ``batch_size``."""
    return name.lower().replace("_", "").replace("-", "")


def describe_other_choice(group: str, choice: str, known: str) -> str:
    """Return what to type for a name that a group does not have. known: the message that lists its choices."""
    words = other_names().get((group, without_marks(choice)), "")
    if words == f"{group}=":
        return f"is not here. It {known[known.index('must') :]}"
    if words and f"'{words.removeprefix(f'{group}=')}'" not in known:  # else the message suggests that choice
        return f"is another name; write {words}"
    return known
