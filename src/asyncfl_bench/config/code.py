"""Digests of a user's code: the modules of the classes that a run names, and the user's modules that these import."""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import PACKAGE, is_user_file

UNKNOWN = "unknown"  # the digest of a run of an earlier version
_OTHERS = (PACKAGE, "torch", "torchvision")  # packages whose versions a summary has


def is_own_class(name: str) -> bool:
    """Return True for the dotted name of a class that is neither of this package nor of torch's."""
    return name.partition(".")[0] not in _OTHERS


def digest_modules(targets: Iterable[Any]) -> dict[str, str]:
    """Return module -> SHA-256 of its file, of users' classes and of the user's modules that these import at their top.

    A file is read when a class of it is first named. One that cannot be read is left out, as in a notebook.
    """
    found: dict[str, str] = {}
    left = [target.__module__ for target in targets if is_own_class(target.__module__)]
    while left:
        name = left.pop(0)
        if name not in found and (module := sys.modules.get(name)) is not None:
            digest, imported = _read_module(module)
            found |= {name: digest} if digest else {}
            left += imported
    return found


def digest_code(modules: Mapping[str, str]) -> str:
    """Return 8 hex digits for the digests of modules; an empty text for none."""
    return hashlib.sha256(repr(sorted(modules.items())).encode()).hexdigest()[:8] if modules else ""


@functools.cache
def _read_module(module: ModuleType) -> tuple[str, list[str]]:
    """Return the SHA-256 of a module's file and the names of the user's modules that it imports at its top."""
    try:
        content = Path(str(module.__file__)).read_bytes()
        found = [name.split(".") for name in _imported_names(ast.parse(content).body, module)]
    except (OSError, SyntaxError, ValueError):  # a compiled module has no source
        return "", []
    names = {".".join(parts[: count + 1]) for parts in found for count in range(len(parts))}  # with their packages
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in sorted(names)}
    return hashlib.sha256(content).hexdigest(), [name for name, file in files.items() if file and is_user_file(file)]


def _imported_names(body: Iterable[ast.AST], module: ModuleType) -> Iterator[str]:
    """Yield the dotted names that statements import, without those inside functions."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = str(module.__package__).split(".")
            parents = above[: len(above) - node.level + 1] if node.level else []
            source = ".".join([*parents, *filter(None, [node.module])])
            yield from (f"{source}.{alias.name}" for alias in node.names)  # a module, or a name in ``source``
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _imported_names(ast.iter_child_nodes(node), module)
