"""Where parts come from: this package, installed packages that offer theirs, and folders named by hand.

A source is a folder of yaml groups, like ``conf/`` here: ``algorithm/NAME.yaml``, ``delay/NAME.yaml``,
``sweep/NAME.yaml``, ``paper/NAME.yaml``, with that paper's pages, claims and published numbers in ``paper/NAME/``.
Nothing of a source is imported to look into it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..errors import PACKAGE, ConfigError, did_you_mean
from ..files import expand_home, say
from .overrides import parse_override

ENTRY_POINTS = "asyncfl_bench.parts"  # group of entry points whose values name packages with a folder conf/
BY_HAND = "--config-dir"
ConfigDirs = str | Path | Iterable[str | Path] | None


@dataclass(frozen=True)
class PartSource:
    """conf: the folder of groups; sweeps: that of the group `sweep`; papers: where a paper has its pages and claims."""

    label: str  # for people
    conf: Path
    sweeps: Path
    papers: Path

    def folder(self, group: str) -> Path:
        return self.sweeps if group == "sweep" else self.conf / group

    def choices(self, group: str) -> set[str]:
        """Return names such as ``ace/figure2`` for a yaml in a subfolder. What is below a choice (paper/ace/) belongs
        to it."""
        folder = self.folder(group)
        names = {str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml")}
        return {name for name in names if not any(str(above) in names for above in Path(name).parents)}


_by_hand: list[PartSource] = []


def config_directory() -> Path:
    """Return the folder of this package's groups: package data of a wheel, or the repository's ``conf/``."""
    packaged = Path(__file__).parents[1] / "conf"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "conf"


def bank_folder() -> Path:
    """Return the folder of the bank's tables: package data of an installed wheel, or in the checkout."""
    return config_directory().parent / "results" / "bank"


def checkout_directory() -> Path | None:
    """Return the checkout that an editable install runs from; None for an installed wheel."""
    above = config_directory().parent
    return None if above == Path(__file__).parents[1] else above


def part_sources() -> list[PartSource]:
    """Return all sources, this package's own first."""
    conf = config_directory()
    own = PartSource(PACKAGE, conf, conf.parent / "sweeps", Path(__file__).parents[1] / "papers")
    return [own, *_installed_sources(tuple(sys.path)), *_by_hand]


def named_folders() -> list[Path]:
    """Return the folders that ``--config-dir`` named."""
    return [source.conf for source in _by_hand]


def command_text(words: Iterable[str]) -> str:
    """Return the command ``afl-run`` with these words and the folders that ``--config-dir`` named, for a shell."""
    return shlex.join(["afl-run", *(word for folder in named_folders() for word in (BY_HAND, str(folder))), *words])


def page_name(profile: str, scale: str, length: str = "standard") -> str:
    """Return the name of a sweep's page and folder: ``published-small``, with ``-long`` for the greater length."""
    return "-".join([profile, scale, *([length] if length != "standard" else [])])


def report_command(sweep: str, profile: str, scale: str, length: str | None = "standard") -> str:
    """Return the command that writes a page."""
    long = "" if length in (None, "standard") else f" --length {length}"
    return f"afl-report {sweep} --profile {profile} --scale {scale}{long}"


def use_folders(folders: Iterable[str | Path]) -> None:
    """Use these folders as sources, instead of folders that were named before.

    Raises ConfigError for a folder that does not exist or has no folder of a group.
    """
    _by_hand[:] = [_source_in(folder) for folder in folders]


def take_folders(arguments: list[str]) -> list[str]:
    """Use the named folders of parts (``--config-dir DIR``, ``hydra.searchpath=[…]``); return the other arguments.

    Raises ConfigError, as ``use_folders``.
    """
    folders, rest, left = [], [], list(arguments)
    while left:
        one = left.pop(0)
        flag, given, folder = one.partition("=")
        if flag in (BY_HAND, "-cd"):
            if not given and (not left or left[0].startswith("-")):
                raise ConfigError(BY_HAND, None, "must name a folder: afl-run --config-dir DIR algorithm=mine")
            folders.append(folder if given else left.pop(0))
        elif flag == "hydra.searchpath":
            folders += _search_path_folders(parse_override(one).value)
        else:
            rest.append(one)
    use_folders(folders)
    return rest


def module_folders() -> list[Path]:
    """Return the folders whose modules a yaml may name: the current directory, each folder that ``--config-dir`` named,
    and the folder that holds it."""
    return list(dict.fromkeys([Path.cwd(), *(one for conf in named_folders() for one in (conf, conf.parent))]))


def allow_local_modules() -> None:
    """Append ``module_folders`` to sys.path, so that installed modules come first."""
    for folder in map(str, module_folders()):
        if folder not in sys.path and not (folder == os.getcwd() and "" in sys.path):
            sys.path.append(folder)


@contextmanager
def using_folders(folders: ConfigDirs) -> Iterator[None]:
    """Use these folders as sources while the block is open; None: those that are used already.

    Raises ConfigError, as ``use_folders``.
    """
    before = list(_by_hand)
    try:
        if folders is not None:
            use_folders([folders] if isinstance(folders, (str, Path)) else folders)
        yield
    finally:
        _by_hand[:] = before


def class_names(path: Path) -> list[str]:
    """Return the names of the classes that a yaml file has as ``_target_``."""
    text = re.sub(r"(^|\s)#.*", "", path.read_text(encoding="utf-8", errors="replace"))
    return re.findall(r"\b_target_[\"']?:\s*[\"']?([^\s\"',}]+)", text)


def paper_folders() -> dict[str, Path]:
    """Return the folder of each paper's pages, claims and published numbers, in every source."""
    found: dict[str, Path] = {}
    for source in part_sources():
        for path in sorted(source.papers.glob("*/pages.py")) + sorted(source.papers.glob("*/claims.yaml")):
            found.setdefault(path.parent.name, path.parent)
    return dict(sorted(found.items()))


def _source_in(given: str | Path) -> PartSource:
    """Return the source of a folder. Raises ConfigError if it does not exist or has no folder of a group."""
    folder = expand_home(given, BY_HAND).absolute()
    if not folder.is_dir():
        raise ConfigError(BY_HAND, given, "must be an existing folder of groups, for example with algorithm/NAME.yaml")
    groups = {path.name for path in config_directory().iterdir() if path.is_dir()} | {"sweep"}
    below = sorted(path.name for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.yaml")))
    if not groups & set(below):
        near = next((text for name in below if (text := did_you_mean(name, groups))), "")
        held = f"there {'is' if len(below) == 1 else 'are'} {', '.join(below)}{near}" if below else "there is none"
        raise ConfigError(BY_HAND, given, f"must hold folders named after groups, with a yaml a choice; {held}")
    return PartSource(str(given), folder, folder / "sweep", folder / "paper")


def _search_path_folders(value: object) -> list[str]:
    """Return the folders of ``hydra.searchpath=[file:///PATH,pkg://PACKAGE.FOLDER]``. Raises ConfigError."""
    found = []
    for text in value if isinstance(value, list) else [value]:
        scheme, _, rest = str(text).rpartition("://")
        if scheme not in ("", "file", "pkg"):
            raise ConfigError("hydra.searchpath", text, "must be file://FOLDER or pkg://PACKAGE.FOLDER")
        found.append(str(_package_folder(rest) or rest) if scheme == "pkg" else rest)
    return found


def _package_folder(package: str) -> Path | None:
    """Return the folder of a package, without importing it; None if there is no such package."""
    try:
        spec = importlib.util.find_spec(package)
    except Exception:  # of a dotted name the parents are imported
        return None
    return next(map(Path, spec.submodule_search_locations or []), None) if spec else None


@functools.lru_cache(maxsize=8)
def _offering_packages(path: tuple[str, ...]) -> list[str]:
    """Return the names of installed packages that offer parts. path: sys.path, where they are found."""
    return [entry.value for entry in metadata.entry_points(group=ENTRY_POINTS)]


@functools.lru_cache(maxsize=8)
def _installed_sources(path: tuple[str, ...]) -> list[PartSource]:
    """Return the sources of installed packages. path: sys.path, which decides which packages are found."""
    found = []
    for package in _offering_packages(path):
        folder = _package_folder(package)
        if folder is None or not (folder / "conf").is_dir():
            said = f"the installed package {package} offers parts, but has no folder conf/; left out"
            say(f"{PACKAGE}: {said}")
        else:
            conf = folder / "conf"
            found.append(PartSource(package, conf, conf / "sweep", conf / "paper"))
    return found
