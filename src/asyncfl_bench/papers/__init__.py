"""The papers: a folder each, with its page specifications, published numbers and claims."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..reports.page import PageSpec


def pages() -> dict[str, PageSpec]:
    """Every page of every paper by the name of its sweep, in the papers' own order."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob("*/pages.py"))
    modules = [import_module(f".{name}.pages", __name__) for name in folders]
    return {spec.sweep: spec for module in modules for spec in module.PAGES}
