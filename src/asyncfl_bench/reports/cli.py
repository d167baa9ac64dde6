"""afl-report: pages from runs. A paper's table or figure by its name, or any folder of runs or archive."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EXIT_INTERRUPTED, BenchError, ConfigError, did_you_mean, list_some
from ..files import expand_home, say, show
from .options import FIGURES, UsageError, build_parser, refuse_others

if TYPE_CHECKING:
    import pandas as pd

    from .pages.page import Page
    from .pages.spec import PageSpec

BANK = "bank"  # the page that compares all rules
_REFRESH_SECONDS = 5
_BROWSER_EXTRA = "it needs pip install 'asyncfl_bench[html]'"


def main(argv: list[str] | None = None) -> int:
    """Run the command. Return 0: done, 1: nothing to show or not writable, 2: wrong arguments or no runs."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without ± still gets its table
    words = sys.argv[1:] if argv is None else list(argv)
    given = build_parser().parse_args(words)
    given.has_browser = all(map(find_spec, ("altair", "vl_convert")))
    if (given.html or given.watch) and not given.has_browser:
        say(f"afl-report: page.html is left out: {_BROWSER_EXTRA}")
    given.command = shlex.join(["afl-report", *(one for one in words if one != "--watch")])
    try:
        _check_options(given)
        if given.pack is not None:
            from ..tracking.archive import NAME, pack_archive

            if given.pack.suffix != ".parquet" and given.pack.name != NAME:
                raise UsageError(f"--pack {given.pack}: must end in .parquet, or be a folder called {NAME}")

            show(f"{pack_archive(given.names, given.pack)} runs in {given.pack}")
            return 0
        if given.config_dir:
            from ..config import part_sources  # brings yaml: not for --help

            part_sources.use_folders(given.config_dir)
        if given.logbook:
            from ..tracking.archive import RESULTS, archive_folders
            from .logbook import write_logbook

            results = next(iter(archive_folders(given.archive or RESULTS)), Path(RESULTS))
            _show_written(write_logbook(given.names[0], results, given.out or results, given.html))
            return 0
        write = (
            _write_free_page
            if all(Path(name).exists() for name in given.names) and given.runs is None and given.archive is None
            else _write_bank
            if given.names == [BANK]
            else _write_pages
        )
        if not given.watch:
            return write(given)
        from .browser.watch import watch_folders

        def build() -> str:
            write(given)
            return "written"

        watched = given.names if write is _write_free_page else [given.runs or "runs"]
        return watch_folders(
            [Path(path) for path in watched], build, own=_output_folder(given, write is _write_free_page)
        )
    except BenchError as error:
        say(f"afl-report: {error}")
        return error.exit_code
    except BrokenPipeError:
        raise
    except OSError as error:
        say(f"afl-report: {error.filename}: {error.strerror}; to write elsewhere, choose another place with --out")
        return 1


def _check_options(given: argparse.Namespace) -> None:
    """Raise UsageError for options that exclude each other."""
    if given.logbook and len(given.names) > 1:
        names = " ".join(given.names)
        raise UsageError(f"--logbook {names}: one paper at a time, for example {given.names[0]}")
    if given.logbook:
        taken: tuple[str, ...] = ("out", "html", "archive", "config_dir")
        refuse_others(given, "--logbook", taken, "it takes --out, --html, --archive and --config-dir")
    if given.beside:
        taken = ("out", "metric", "format", "watch", "config_dir", "runs", "archive", "scale", "length")
        refuse_others(given, "--beside", taken, "it writes one figure; leave out --beside for a page")
    if given.pack is not None:
        refuse_others(given, "--pack", (), "pack first, then write pages by another command")


def entry() -> None:
    """Run the installed command."""
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except BaseException:
        if not stopped:  # a module that was loading may have made another error of it
            raise
        say("afl-report: stopped; run the same command again to write its pages")
        code = EXIT_INTERRUPTED
    raise SystemExit(code)


def _output_folder(given: argparse.Namespace, free: bool) -> Path:
    """Return the folder of ``--out``, else ``results``, or ``report`` beside the runs of a free page."""
    from ..tracking.archive import results_folder  # brings NumPy

    if given.out is not None or not free:
        return given.out or results_folder()
    first = Path(given.names[0])
    folder = (first if first.is_dir() else first.parent) / "report"
    if folder.is_symlink():
        raise BenchError(f"{folder}: is a link to another folder; choose a folder with --out")
    return folder


def _write_free_page(given: argparse.Namespace) -> int:
    """Write the page of any runs and print its table. Returns the exit code."""
    from ..analysis.decisions import decision_of
    from .assembly import own_page  # these bring pandas and matplotlib: not for --help
    from .blocks import TimelineFigure
    from .pages.write import Table, markdown_table

    if given.profile or given.beside or given.scale or given.length:
        raise UsageError(f"{given.names[0]}: --profile, --beside, --scale, --length go with a page; write --where")
    if unset := [text for text in given.where if "=" not in text]:
        raise UsageError(f"--where {unset[0]}: KEY=VALUE, for example heterogeneity.alpha=0.1")
    where = dict(text.partition("=")[::2] for text in given.where)
    key, count = Counter(text.partition("=")[0] for text in given.where).most_common(1)[0] if where else ("", 1)
    if count > 1:
        raise UsageError(f"--where {' '.join(given.where)}: gives {key} twice; name one value, or use --panels {key}")
    if given.window and not given.window[0] < given.window[1]:
        raise UsageError(f"--window {' '.join(f'{end:g}' for end in given.window)}: FROM must be below TO")
    timeline = TimelineFigure(given.window) if given.timeline or given.window else None
    out = _output_folder(given, True)
    runs = _load_runs(given.names, names_single=False)  # a page of nothing else ends with that reason
    page = own_page(
        runs,
        ", ".join(given.names),
        given.panels,
        given.compare,
        where,
        given.axis,
        given.metric,
        given.command,
        decision_of(given.names, runs["experiment"].dropna()),
        timeline,
    )
    written = _write_parts(page, out, given)
    _say_left_out(page, written[0])
    for part in page.parts:
        if isinstance(part, Table) and part.shown is not None:
            show(markdown_table(part.shown, part.words), end="\n\n")
    _show_written(written)
    return 0


def _load_runs(paths: Sequence[str | Path], names_single: bool = True) -> pd.DataFrame:
    """Return the runs at or below ``paths``; a line names each run that cannot be read.

    names_single  also where it is the only run found
    """
    from ..tracking.runs import load_runs
    from .pages.provenance import AGAIN

    runs = load_runs(*paths)
    if len(runs) == 1 and not names_single:
        return runs
    for run, note in runs.loc[runs["status"] == "unreadable", "note"].items():
        say(f"afl-report: left out, {str(run).removesuffix('::')}: {note}; {AGAIN}")
    return runs


def _write_pages(given: argparse.Namespace) -> int:
    """Write every page asked for that has runs; a page that fails stops no other. Returns the exit code."""
    from ..analysis.evaluations import ACCURACY
    from ..config import options
    from ..config.part_sources import page_name
    from ..tracking.archive import RESULTS, archive_folders, describe_archive_folders
    from .assembly import NoRuns, build_page
    from .beside import write_beside
    from .board import write_board

    specs = _find_specs(given.names)
    if given.panels or given.where or given.compare != ["algorithm"] or given.axis or given.timeline or given.window:
        raise UsageError(f"{given.names[0]}: a page has its own panels, lines and axes; choose them for own runs")
    out, folder = _output_folder(given, False), expand_home(given.runs or "runs", "--runs")
    wanted = {key: getattr(given, key) for key in ("profile", "scale", "length") if getattr(given, key)}
    for key, value in [*wanted.items(), *(("profile", profile) for profile in given.beside)]:
        if value not in (known := options(key)):
            raise UsageError(f"--{key} {value}: must be one of {', '.join(known)}")
    archive = given.archive or Path(RESULTS)
    for option, path, content in (("runs", folder, "runs"), ("archive", archive, "archives of runs (*.parquet)")):
        if getattr(given, option) is not None and not expand_home(path, f"--{option}").is_dir():
            raise UsageError(f"--{option} {path}: no such folder; name one with {content}")
    searched = f"{folder}: no runs of {specs[0].sweep} (also searched: {describe_archive_folders(archive)})"
    none = UsageError(f"{searched}; to make them: {_commands_of_runs(specs[0].sweep, wanted, given.beside)}")
    paths = [path for path in (folder, *archive_folders(archive)) if path.is_dir()]
    try:
        runs = _load_runs(paths) if paths else None
    except BenchError:
        runs = None
    if runs is None:
        raise none
    code, written = 0, 0
    try:
        if given.beside:
            return write_beside(specs, runs, out, given)
    except NoRuns:
        raise none from None
    asked = [(spec, *choice) for spec in specs for choice in _combinations(runs, spec, wanted)]
    for number, (spec, profile, scale, length) in enumerate(asked, start=1):
        name = page_name(profile, scale, length)
        say(f"[{number}/{len(asked)}] {spec.sweep}, {name}")
        try:
            page = build_page(spec, profile, scale, length, runs, given.metric)
            if page.is_borrowed and not wanted.keys() >= {"profile", "scale"}:
                lacking = f"{len(page.placed.missing)} of {page.placed.expected} runs missing"
                say(f"left out: {lacking}, none made for this page; --profile {profile} --scale {scale} writes it")
                continue
            _show_written(_write_page(page, out, name, given))
            written += 1
        except NoRuns:  # other sweeps' runs, of which this one shares none
            continue
        except BenchError as error:
            say(f"afl-report: {spec.sweep}, {name}: {error}")
            code = max(code, error.exit_code if isinstance(error, ConfigError) else 1)
    if not written and not code:
        raise none
    if written and given.metric == ACCURACY:
        write_board(out)
    return code


def _commands_of_runs(sweep: str, wanted: dict[str, str], beside: list[str]) -> str:
    """Return the commands that make the runs of a sweep's page, or of each profile in ``beside``."""
    chosen = {"profile": "published", "scale": "full" if beside else "small"} | wanted
    made = [chosen | {"profile": profile} for profile in beside] or [chosen]
    return " and ".join(" ".join(["afl-run", f"sweep={sweep}", *map("=".join, one.items())]) for one in made)


def _write_bank(given: argparse.Namespace) -> int:
    """Write the tables and the page of the bank from its archive. Returns the exit code."""
    from ..analysis.bank import load_bank, write_tables
    from ..tracking.archive import NAME, RESULTS, archive_folders, describe_archive_folders
    from .bank_page import write_bank_page
    from .board import write_board

    refuse_others(given, BANK, ("out", "archive"), "it takes --out and --archive")
    archives = [path for folder in archive_folders(given.archive or RESULTS) if (path := folder / BANK / NAME).is_dir()]
    if not archives:
        searched = describe_archive_folders(given.archive or RESULTS)
        raise UsageError(f"{BANK}: no archive of its runs ({searched}); asyncfl_bench.load_bank() has the judged runs")
    folder = _output_folder(given, False) / BANK
    _show_written(write_tables(_load_runs(archives[:1]), folder))
    _show_written(write_bank_page(load_bank(folder), folder))
    if (folder.parent / "README.md").exists():
        write_board(folder.parent)  # its rules have accuracies of the bank
    return 0


def _write_page(page: Page, out: Path, name: str, given: argparse.Namespace) -> list[Path]:
    """Write a paper's page; at scale small only its section of the overview, unless the page itself is asked for."""
    from ..analysis.claims import NAME, write_verdicts
    from .board import SCALE, write_overview

    folder, in_overview = out / page.spec.sweep / name, page.scale == SCALE and page.is_judged
    if in_overview:
        written = [write_overview(page, out / page.spec.paper / SCALE)]
    if not in_overview or page.spec.sweep in given.names:
        figures = None if given.all_figures or page.scale == SCALE else FIGURES
        written = _write_parts(page, folder, given, figures)
    if page.is_judged and not in_overview:
        write_verdicts(folder / NAME, page.verdicts if page.judged else None)
    page.pack_runs(out)
    _say_left_out(page, written[0])
    return written


def _write_parts(page: Page, folder: Path, given: argparse.Namespace, figures: int | None = None) -> list[Path]:
    """Write README.md, its tables and figures, and the browser page if it is asked for or there. Returns the paths of
    README.md and of a browser page that was written."""
    from .pages.provenance import refuse_foreign
    from .pages.write import write_parts

    refuse_foreign(folder / "README.md")
    target = write_parts(page.parts, folder, given.format, figures)
    browser_page = folder / "page.html"
    if browser_page.exists() and not given.has_browser:
        say(f"afl-report: {browser_page} keeps its earlier numbers: {_BROWSER_EXTRA}")
    elif given.has_browser and (given.html or given.watch or browser_page.exists()):  # an earlier one has other numbers
        from .browser.html import write_html

        write_html(page, browser_page, _REFRESH_SECONDS if given.watch else None)
        return [target, browser_page]
    return [target]


def _show_written(pages: list[Path]) -> None:
    for page in pages:
        show(f"written: {page}")


def _say_left_out(page: Page, target: Path) -> None:
    reasons = page.placed.left_out["reason"].value_counts().sort_index()
    counts = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    for note in [*page.notes, *([f"left out: {counts} (named in {target})"] if counts else [])]:
        say(f"afl-report: {note}")


def _find_specs(names: Sequence[str]) -> list[PageSpec]:
    """Return the pages that names of sweeps, papers or ``all`` mean."""
    from ..papers import paper_pages

    known = paper_pages()
    found: dict[str, PageSpec] = {}
    for name in names:
        specs = {sweep: spec for sweep, spec in known.items() if name in (sweep, spec.paper, "all")}
        found |= specs
        if specs:
            continue
        if name == BANK:
            raise UsageError(f"{name}: is written alone, by afl-report {name}; leave the other names out")
        if Path(name).exists():
            raise UsageError(f"{name}: own runs cannot be asked for together with pages, nor with --runs or --archive")
        near = did_you_mean(name, [*known])
        pages = list_some(known, "afl-report --help")
        raise UsageError(f"{name}: neither runs nor a page{near}; pages: {pages}")
    return list(found.values())


def _combinations(runs: pd.DataFrame, spec: PageSpec, wanted: dict[str, str]) -> list[tuple[str, str, str]]:
    """Profile, scale and length of all runs of the sweep, and of those that share runs with it."""
    same = runs[runs["sweep"].isin((spec.sweep, *spec.shares_runs_with))] if "sweep" in runs else runs[:0]
    chosen = same.reindex(columns=["profile", "scale", "length"]).astype(object).fillna("standard")
    for key, value in wanted.items():
        chosen = chosen[chosen[key] == value]
    return sorted(chosen.drop_duplicates().itertuples(index=False, name=None))


if __name__ == "__main__":
    entry()
