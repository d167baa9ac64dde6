"""A page as files: README.md, a CSV for every table and a PNG for every figure; the same page gives the same bytes."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from ...errors import BenchError
from ...files import atomic_write, read_text, spreadsheet_cell, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 28  # of a table in README.md; the CSV file has all
_SUFFIXES = (".png", ".csv", ".pdf", ".svg", ".tex")
_ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_ESCAPES |= {character: "\\" + character for character in "&%$#_{}"}
_SYMBOLS = {"±": r"\pm", "≈": r"\approx", "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "ε": r"\epsilon"}
_SYMBOLS |= {"κ": r"\kappa", "λ": r"\lambda", "μ": r"\mu", "τ": r"\tau", "η": r"\eta", "σ": r"\sigma", "ζ": r"\zeta"}
_SYMBOLS |= {"−": "-", "≥": r"\geq", "≤": r"\leq", ">": ">", "<": "<", "∇": r"\nabla", "²": "^2"}
_BOLD = re.compile(r"\*\*(.+?)\*\*")  # of Markdown
_ESCAPES |= {character: f"${symbol}$" for character, symbol in _SYMBOLS.items()} | {"…": r"\ldots{}"}


@dataclass
class Table:
    """shown: text as readers see it, one column a header, or None; data: the same as numbers, for the CSV file.

    words  how many of the first columns are text; the others are aligned to the right
    units  header -> unit, which a browser page shows behind it; captions have it too
    rows   most rows in README.md
    Columns without any text but dashes are dropped from ``shown``.
    """

    name: str
    shown: pd.DataFrame | None
    data: pd.DataFrame
    words: int = 1
    units: Mapping[str, str] = field(default_factory=dict)
    rows: int = MOST_ROWS

    def __post_init__(self) -> None:
        if self.shown is not None and len(self.shown):
            has_text = [not set(map(str, column)) <= {"", "-"} for _, column in self.shown.items()]
            self.shown, self.words = self.shown.loc[:, has_text], sum(has_text[: self.words])


@dataclass
class Picture:
    """A figure, and a description in words that replace it."""

    name: str
    figure: Figure
    alt: str


def draw_picture(name: str, figure: Figure | None, alt: str) -> list[Picture]:
    """Return the picture as parts of a page: none where there is nothing to draw."""
    return [] if figure is None else [Picture(name, figure, alt)]


@dataclass
class More:
    """Sections that README.md only links and a browser page folds: title -> parts."""

    sections: dict[str, list[Part]]


Part = str | Table | Picture | More  # a str is a heading or a paragraph of Markdown


def flatten_parts(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts, those of folded sections in their place."""
    for part in parts:
        if isinstance(part, More):
            for section in part.sections.values():
                yield from section
        else:
            yield part


def write_parts(
    parts: Collection[Part], folder: Path, formats: Collection[str] = ("png",), figures: int | None = None
) -> Path:
    """Write ``README.md`` and its files into ``folder`` and return its path. Files of an earlier page there are
    removed; its forms are written again.

    formats  png, pdf and svg of figures, tex of tables; PNG is always written
    figures  how many figures are drawn, the first ones; None: all
    Raises BenchError when two parts have one file name.
    """
    flat = [*flatten_parts(parts)]
    names = Counter((type(part), part.name) for part in flat if isinstance(part, Table | Picture))
    if twice := [name for (_, name), count in names.items() if count > 1]:
        raise BenchError(f"{folder}: two parts of the page are called {twice[0]}; give one of its blocks another name")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "README.md"
    former = read_text(target, errors="replace") if target.exists() else ""
    earlier = re.findall(r"\]\(([^/()]+)\.(?:png|csv)\)", former)
    old = [path for name in earlier for suffix in _SUFFIXES if (path := folder / f"{name}{suffix}").exists()]
    formats = {*formats, *(path.suffix.removeprefix(".") for path in old)}
    for path in old:
        path.unlink(missing_ok=True)
    drawn = [part for part in flat if isinstance(part, Picture)][:figures]
    for table in [part for part in flat if isinstance(part, Table)]:
        csv = folder / f"{table.name}.csv"
        safe = table.data.rename(columns=spreadsheet_cell).apply(_without_formulas)
        write_text(csv, safe.to_csv(index=False, lineterminator="\n", float_format="%.10g"))
        if "tex" in formats and table.shown is not None:
            write_text(folder / f"{table.name}.tex", latex_table(table.shown, table.words))
    for picture in drawn:
        write_picture(picture, folder, formats)
    lines: list[str] = []
    for part in parts:
        if isinstance(part, Table):
            lines += _table_lines(part)
        elif isinstance(part, Picture):
            lines.append(f"![{part.alt}]({part.name}.png)" if part in drawn else f"`{part.name}`: {part.alt}")
        elif isinstance(part, More):
            lines.append("\n".join(_section_line(title, own, drawn) for title, own in part.sections.items()))
        elif part:
            lines.append(part.strip("\n"))
    write_text(target, "\n\n".join(map(_escape_html, lines)) + "\n")
    return target


def _without_formulas(column: pd.Series) -> pd.Series:
    """Return a column for a CSV file; its numbers stay as they are."""
    if column.dtype != object and not pd.api.types.is_string_dtype(column):
        return column
    return pd.Series([spreadsheet_cell(value) for value in column], column.index, object)


def _table_lines(table: Table) -> Iterator[str]:
    """Yield the first rows of a table and the link to all of it."""
    link = f"[{table.name}.csv]({table.name}.csv)"
    if table.shown is not None:
        yield markdown_table(table.shown[: table.rows], table.words)
        link = f"{len(table.shown) - table.rows} more in {link}" if len(table.shown) > table.rows else link
    yield link


def _section_line(title: str, parts: Iterable[Part], drawn: Collection[Picture]) -> str:
    """Return one line about a folded section: its tables as links, its figures as links or by name."""
    links = [f"[{part.name}.csv]({part.name}.csv)" for part in parts if isinstance(part, Table)]
    pictures = [part for part in parts if isinstance(part, Picture)]
    links += [f"![{part.alt}]({part.name}.png)" if part in drawn else f"`{part.name}`" for part in pictures]
    missing = sum(part not in drawn for part in pictures)
    undrawn = f" (figure{'s' * (missing > 1)} of `afl-report --all-figures`)" if missing else ""
    return f"- {title}: {', '.join(links)}{undrawn}"


def _escape_html(text: str) -> str:
    """Return Markdown whose names of runs cannot be read as HTML; the commands at its start stay as they are typed."""
    commands, fence, rest = text.partition("\n```\n") if text.startswith("```") else ("", "", text)
    return commands + fence + re.sub(r"<(?=[A-Za-z/!?])", "&lt;", rest)


def write_picture(picture: Picture, folder: Path, formats: Collection[str] = ()) -> Path:
    """Write the figure as PNG, and as svg and pdf if ``formats`` has them: no date, no version and fixed ids.

    Returns the path of the PNG.
    """
    import matplotlib
    from PIL import Image

    figure, path, raw = picture.figure, folder / f"{picture.name}.png", io.BytesIO()
    no_origin = {
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    with matplotlib.rc_context({"svg.hashsalt": picture.name, "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(raw, format="png", metadata={"Software": None})
        raw.seek(0)
        # 256 colours are plenty for lines and bands, and a third of the bytes
        small = Image.open(raw).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        with atomic_write(path) as file:
            small.save(file, "PNG", optimize=True)
        figure.set_layout_engine("none")  # what was laid out for the PNG stays where it is
        for form, metadata in no_origin.items():
            if form in formats:
                with atomic_write(path.with_suffix(f".{form}")) as file:
                    figure.savefig(file, format=form, metadata=metadata)
    return path


def markdown_table(shown: pd.DataFrame, words: int = 1) -> str:
    """Return a Markdown table whose columns are padded, so that it also reads well unrendered."""
    cells = _markdown_cells(shown)
    widths = [max(3, *(len(line[i]) for line in cells)) for i in range(shown.shape[1])]

    def line(texts: list[str]) -> str:
        pairs = enumerate(zip(texts, widths, strict=True))
        return f"| {' | '.join(t.ljust(width) if i < words else t.rjust(width) for i, (t, width) in pairs)} |"

    rule = [("-" * width if i < words else "-" * (width - 1) + ":") for i, width in enumerate(widths)]
    return "\n".join([line(cells[0]), f"| {' | '.join(rule)} |", *map(line, cells[1:])])


def markdown_text(parts: Iterable[Part]) -> str:
    """Return headings, paragraphs and tables without padding as one text."""
    texts = [plain_table(part.shown) if isinstance(part, Table) and part.shown is not None else part for part in parts]
    return "\n\n".join(map(str, texts)) + "\n"


def plain_table(shown: pd.DataFrame) -> str:
    """Return a Markdown table without padding; columns of numbers are aligned to the right."""
    kinds = [{type(one) for one in shown.iloc[:, index] if one != ""} for index in range(shown.shape[1])]
    rule = ["---:" if kind and kind <= {int, float} else "---" for kind in kinds]
    first, *others = _markdown_cells(shown)
    return "\n".join("| " + " | ".join(line) + " |" for line in (first, rule, *others))


def _markdown_cells(shown: pd.DataFrame) -> list[list[str]]:
    return [[str(text).replace("|", "\\|") for text in line] for line in [shown.columns, *shown.to_numpy()]]


def latex_table(shown: pd.DataFrame, words: int = 1) -> str:
    """Return a tabular environment (package booktabs)."""
    cells = [
        " & ".join(_BOLD.sub(r"\\textbf{\1}", "".join(_ESCAPES.get(c, c) for c in str(text))) for text in line) + r" \\"
        for line in [shown.columns, *shown.to_numpy()]
    ]
    columns = "l" * words + "r" * (shown.shape[1] - words)
    lines = [r"\begin{tabular}{" + columns + "}", r"\toprule", cells[0], r"\midrule", *cells[1:], r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


def format_number(value: float, sign: str = "", decimals: int = 2) -> str:
    """Return the number as text: ``-`` for NaN, never a negative zero; ``sign="+"`` writes the plus."""
    return "-" if value != value else f"{round(value, decimals) + 0.0:{sign}.{decimals}f}"


def mean_and_deviation(values: Iterable[float], decimals: int = 2) -> str:
    """Mean ± sample standard deviation over seeds; the mean alone of one. With seeds that have no value (a target never
    reached) the mean of the others and how many they are; ``never`` where none has one."""
    series = pd.Series(list(values), dtype=float)
    known = series.dropna()
    if known.empty:
        return "never" if len(series) else "-"
    spread = f" ± {known.std(ddof=1):.{decimals}f}" if len(known) > 1 else ""
    few = f" ({len(known)} of {len(series)})" if len(known) < len(series) else ""
    return format_number(float(known.mean()), "", decimals) + spread + few
