"""The options of afl-report, and which of them exclude each other. Nothing here loads pandas: ``--help`` is fast."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ..errors import BenchError, ConfigError

FORMATS = ("png", "pdf", "svg", "tex")
AXES = ("iteration", "uploads", "virtual_time", "bytes")
FIGURES = 2  # of a paper's page, unless all are asked for: pages are committed
_DESCRIPTION = """Writes a page: README.md with tables and figures, and a CSV of every table; its runs go to the
archive of its paper. NAME is a page (ace/figure2), all pages of a paper (ace), 'all', 'bank' (judged runs of all
rules), or folders of runs and archives (*.parquet) of your own, of which those that differ in more than their seed are
never averaged: what differs becomes a line or a panel."""


class UsageError(BenchError):
    """Options that cannot be used as given."""

    exit_code = ConfigError.exit_code


class _Parser(argparse.ArgumentParser):
    """A parser whose refusals are one line, as those of other options."""

    def error(self, message: str) -> NoReturn:
        said = f"{self.prog}: {message.removeprefix('argument ')}; {self.prog} --help lists the options"
        self.exit(UsageError.exit_code, f"{said}\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = _Parser("afl-report", description=_DESCRIPTION)
    parser.add_argument(
        "names", metavar="NAME", nargs="+", help="a page, a paper, all, bank, or folders and archives of runs"
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="where to write (default: results; own runs: DIR/report)"
    )
    parser.add_argument("--metric", default="test/accuracy", help="what is shown (default: test/accuracy)")
    parser.add_argument(
        "--format", choices=FORMATS, nargs="+", default=["png"], help="more forms of figures and tables"
    )
    parser.add_argument(
        "--all-figures", action="store_true", help=f"draw all figures of a paper's page, not the first {FIGURES}"
    )
    parser.add_argument("--html", action="store_true", help="also HTML, to explore in a browser or to print")
    parser.add_argument(
        "--logbook", action="store_true", help="only the replication report of the paper NAME, from its pages"
    )
    parser.add_argument("--watch", action="store_true", help="write again whenever runs change, until Ctrl-C")
    parser.add_argument("--pack", metavar="FILE", type=Path, help="only add the finished runs of NAME to this archive")
    parser.add_argument(
        "--config-dir", metavar="DIR", action="append", default=[], help="a folder of parts and papers of your own"
    )
    pages = parser.add_argument_group("pages of papers")
    pages.add_argument("--runs", metavar="DIR", type=Path, help="where the runs are (default: runs)")
    pages.add_argument(
        "--archive",
        metavar="DIR",
        type=Path,
        help="where archives of runs are (default: results, here or in the checkout)",
    )
    pages.add_argument("--profile", help="only this profile")
    pages.add_argument("--scale", help="only this scale")
    pages.add_argument("--length", help="only this length, for example long")
    pages.add_argument("--beside", metavar="PROFILE", nargs="+", default=[], help="only a figure of these profiles")
    own = parser.add_argument_group("runs of your own")
    own.add_argument("--panels", metavar="KEY", nargs="+", default=[], help="settings that make the panels and columns")
    own.add_argument("--compare", metavar="KEY", nargs="+", default=["algorithm"], help="settings that make the lines")
    own.add_argument("--where", metavar="KEY=VALUE", nargs="+", default=[], help="only runs with these settings")
    own.add_argument("--timeline", action="store_true", help="also draw when clients work, of runs with trace=true")
    own.add_argument("--window", metavar=("FROM", "TO"), type=float, nargs=2, help="virtual time that --timeline shows")
    own.add_argument(
        "--axis",
        choices=AXES,
        nargs="+",
        default=[],
        help="what runs have spent (default: what most runs' budgets limit)",
    )
    return parser


def refuse_others(given: argparse.Namespace, option: str, taken: Sequence[str], instead: str) -> None:
    """Raise UsageError for options that would have no effect.

    option   the flag or name that excludes them
    taken    names of the options that it uses; instead: what to type, for the message
    """
    defaults = vars(build_parser().parse_args(["all"]))
    others = [
        key
        for key, value in defaults.items()
        if key not in ("names", option.lstrip("-")) and getattr(given, key) != value
    ]
    if wrong := [f"--{key.replace('_', '-')}" for key in others if key not in taken]:
        raise UsageError(f"{option}: cannot be used together with {', '.join(wrong)}; {instead}")
