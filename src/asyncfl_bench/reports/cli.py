"""afl-report: run directories in; one table and one figure out, or the pages of a paper's tables and figures."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BenchError, ConfigError

if TYPE_CHECKING:
    from .table import Report

_DESCRIPTION = (
    "Compares runs. Reads every run directory at or below DIR, prints one table (mean ± sample standard deviation over "
    "seeds) and writes table.csv, table.md, table.tex and curve.png. Runs with different settings are never averaged: "
    "a setting that differs between runs of one algorithm becomes a column. With the name of a sweep (ace/figure2), "
    "of a paper (ace) or 'all' instead of DIR it writes pages: README.md with figures and tables, one folder for every "
    "profile and scale with runs."
)


def main(argv: list[str] | None = None) -> int:
    """The command. 0: done, 1: nothing to compare or not writable, 2: wrong arguments or no runs found."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without ± still gets its table
    parser = argparse.ArgumentParser("afl-report", description=_DESCRIPTION)
    parser.add_argument("names", metavar="DIR", nargs="+", help="a run directory, a folder of them, or a sweep's name")
    axes = ("iteration", "uploads", "virtual_time")
    parser.add_argument("--x", choices=axes, default="iteration", help="what the figure's x axis counts")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="where to write (default: report/ in the first DIR; pages: results)"
    )
    parser.add_argument("--by", metavar="KEY", nargs="+", default=[], help="config keys that shall be columns anyway")
    pages = parser.add_argument_group("for pages")
    pages.add_argument("--runs", metavar="DIR", type=Path, help="where the sweeps' runs lie (default: runs)")
    pages.add_argument("--profile", help="only the runs of this profile")
    pages.add_argument("--scale", help="only the runs of this scale")
    pages.add_argument("--horizon", help="only the runs of this horizon, for example long")
    given = parser.parse_args(argv)
    wanted = {key: value for key in ("profile", "scale", "horizon") if (value := getattr(given, key)) is not None}
    try:
        if all(Path(name).is_dir() for name in given.names) and given.runs is None and not wanted:
            _say_if_also_a_page(given.names)
        else:
            from .pages.command import items_of, write_pages

            if (items := items_of(given.names)) is not None:
                if given.by:
                    raise ConfigError("--by", " ".join(given.by), "pages have columns of their own")
                return write_pages(items, given.runs or Path("runs"), given.out or Path("results"), wanted)
            if given.runs is not None or wanted:
                raise _UsageError(f"{given.names[0]}: --runs, --profile, --scale and --horizon go with a sweep's name")
        directories = [Path(name) for name in given.names]
        return _report(directories, given.x, given.out or directories[0] / "report", given.by)
    except BenchError as error:
        print(f"afl-report: {error}", file=sys.stderr)
        return error.exit_code


def _report(directories: list[Path], x: str, out: Path, by: list[str]) -> int:
    from .load import load_runs  # these bring pandas and matplotlib: not for --help

    try:
        runs = load_runs(directories)
    except BenchError as error:
        raise _UsageError(str(error)) from error

    from .curves import draw_curves
    from .render import latex, markdown
    from .table import make_report, numeric_table, text_table

    report = make_report(runs, by)
    if not report.rows:
        print(f"no run ended well, so there is no table\n\n{_left_out_text(report)}")
        return 1
    headers, cells = text_table(report)
    words = 1 + len(report.keys)
    notes = _left_out_text(report)
    print(f"{markdown(headers, cells, words)}\n{notes}", end="")
    try:
        out.mkdir(parents=True, exist_ok=True)
        numeric_table(report).to_csv(out / "table.csv", index=False)
        table = markdown(headers, cells, words)
        (out / "table.md").write_text(f"{table}\n{notes}" if notes else table, encoding="utf-8")
        (out / "table.tex").write_text(latex(headers, cells, words), encoding="utf-8")
        written = ["table.csv", "table.md", "table.tex"]
        if draw_curves(report, x, out / "curve.png"):
            written.append("curve.png")
        else:
            print("no figure: no run has test/accuracy in its metrics.jsonl")
    except OSError as error:
        raise BenchError(f"cannot write to {out}: {error.strerror}; choose another place with --out") from error
    print(f"written to {out}: {', '.join(written)}")
    return 0


def _say_if_also_a_page(names: list[str]) -> None:
    from .pages.command import sweeps_named

    for name in names:
        if sweeps_named(name):
            said = f"{name} is a folder here, so the runs in it are compared; for the page add --runs runs"
            print(said, file=sys.stderr)


def entry() -> None:
    """The installed command."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    raise SystemExit(code)


class _UsageError(BenchError):
    exit_code = ConfigError.exit_code


def _left_out_text(report: Report) -> str:
    """What the table does not show, ready to print: empty, or lines that end with an empty one."""
    lines = []
    if report.unshown:
        lines += [f"algorithms also differ from each other in: {', '.join(report.unshown)} (columns with --by)", ""]
    if report.left_out:
        counts = Counter(reason for _, reason in report.left_out)
        lines.append("not averaged: " + ", ".join(f"{count} {reason}" for reason, count in counts.items()))
        for run, reason in report.left_out:
            lines.append(f"- {reason}: {run.path}" + (f" ({run.note})" if run.note else ""))
        lines.append("")
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    entry()
