"""The papers: a folder each, with its page specifications, published numbers and claims.

A paper of one's own has them in ``paper/PAPER/`` of its source (config/part_sources.py).
"""

from __future__ import annotations

import sys
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ..config.part_sources import allow_local_modules, paper_folders
from ..errors import BenchError, describe_error

if TYPE_CHECKING:
    from ..reports.pages.spec import PageSpec


def paper_pages() -> dict[str, PageSpec]:
    """Return every page of every paper by the name of its sweep, in the papers' own order."""
    modules = [_load_module(folder) for folder in paper_folders().values() if (folder / "pages.py").exists()]
    return {spec.sweep: spec for module in modules for spec in module.PAGES}


def _load_module(folder: Path) -> ModuleType:
    """Return the module ``pages.py`` of a paper's folder. Raises BenchError when it cannot be imported."""
    if folder.parent == Path(__file__).parent:
        return import_module(f".{folder.name}.pages", __name__)
    name = f"{__name__}.of_others.{folder.name}"
    spec = util.spec_from_file_location(name, folder / "pages.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    allow_local_modules()
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BenchError(f"{folder / 'pages.py'}: {describe_error(error)}") from error
    return module
