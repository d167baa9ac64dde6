"""The folder of one page: every table as Markdown, CSV and LaTeX, every figure as PNG and, where small, SVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..render import latex, markdown
from .drawing import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


class PageFolder:
    """Collects what a page is made of. Only what was written by this page of an earlier time is replaced."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        for old in path.iterdir():  # a figure that is no longer made must not stay beside the page
            if old.suffix in (".png", ".svg", ".csv", ".tex"):
                old.unlink()

    def table(
        self, name: str, headers: list[str], cells: list[list[str]], words: int = 1, data: list[dict] | None = None
    ) -> str:
        """Writes ``<name>.tex`` and ``<name>.csv`` (``data``, or the cells themselves) and returns Markdown."""
        import pandas as pd

        frame = pd.DataFrame(cells, columns=headers) if data is None else pd.DataFrame(data)  # headers may repeat
        link = self._csv(name, frame)
        (self.path / f"{name}.tex").write_text(latex(headers, cells, words), encoding="utf-8")
        return f"{markdown(headers, cells, words)}\n{link} · [LaTeX]({name}.tex)\n"

    def rows(self, name: str, data: list[dict]) -> str:
        """Writes ``<name>.csv``, one line for each of ``data``, and returns the link to it."""
        import pandas as pd

        return self._csv(name, pd.DataFrame(data))

    def _csv(self, name: str, frame: DataFrame) -> str:
        frame.to_csv(self.path / f"{name}.csv", index=False, lineterminator="\n", float_format="%.10g")
        return f"[CSV]({name}.csv)"

    def figure(self, name: str, figure: Figure, alt: str, vector: bool = False) -> str:
        """Writes the figure and returns the Markdown that shows it."""
        png = save(figure, self.path / name, vector)
        link = f" ([SVG]({name}.svg))" if (self.path / f"{name}.svg").exists() else ""
        return f"![{alt}]({png})\n\n{alt}{link}\n"

    def page(self, parts: list[str]) -> None:
        text = "\n\n".join(part.strip("\n") for part in parts if part) + "\n"
        (self.path / "README.md").write_text(text, encoding="utf-8")
