"""What all figures share: a figure without a window system, a line's look, and files with the same bytes every time.

Legend: s seeds, g points of a grid.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .looks import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SVG_BYTES = 150_000  # a bigger one is left out: the page folder is kept in git


@dataclass(frozen=True)
class Line:
    """A line of a legend: the same label and look in every panel."""

    label: str
    look: Look


def new_figure(width: float, height: float) -> Figure:
    """Size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)  # none of pyplot's global state
    return figure


def tidy(axes: Axes) -> None:
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def stretched(low: float, high: float, least: float = 5.0) -> tuple[float, float]:
    """Limits at least ``least`` points apart around the same middle: an axis must not make much of noise."""
    middle, half = (low + high) / 2, max(high - low, least) / 2
    return float(middle - half), float(middle + half)


def shared_legend(figure: Figure, lines: list[Line], columns: int = 3) -> None:
    """Below the panels, where it covers no line."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=line.look.colour, linestyle=line.look.dashes, marker=line.look.marker, markersize=5)
        for line in lines
    ]
    labels = [line.label for line in lines]
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, handlelength=3.5
    )


def save(figure: Figure, path: Path, vector: bool = False) -> str:
    """Writes ``<path>.png``, with ``vector`` also ``<path>.svg`` if that is small; returns the PNG's name.

    No date, no version, fixed ids: the same runs give the same bytes.
    """
    import matplotlib
    from PIL import Image

    raw = io.BytesIO()
    figure.savefig(raw, format="png", metadata={"Software": None})
    raw.seek(0)
    # 256 colours are plenty for lines and bands, and a third of the bytes
    Image.open(raw).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path.with_suffix(".png"), optimize=True)
    if vector:
        figure.set_layout_engine("none")  # what was laid out for the PNG stays where it is
        svg = path.with_suffix(".svg")
        with matplotlib.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none"}):
            figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        if svg.stat().st_size > _SVG_BYTES:
            svg.unlink()
    return path.with_suffix(".png").name
