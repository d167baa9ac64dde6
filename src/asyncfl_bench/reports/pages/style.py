"""Colour, marker and dash of each series, the same on all pages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...analysis.names import ordered_series


@dataclass(frozen=True)
class Style:
    """Told apart by marker and dash too, so that grey paper is enough. dashes: whatever matplotlib takes."""

    colour: str
    marker: str
    dashes: Any = "-"


_LONG = (0, (5, 1, 1, 1, 1, 1))
# Okabe and Ito's and Paul Tol's colours, for all kinds of colour vision; by name, as series are
_STYLES = {
    "ACE": Style("#0072B2", "o"),
    "ACED": Style("#D55E00", "s", "--"),
    "CA2FL": Style("#009E73", "^", "-."),
    "FedBuff": Style("#CC79A7", "D", _LONG),
    "AFBS": Style("#CC3311", "p", "--"),
    "FedEcho": Style("#4477AA", "*"),
    "FADAS": Style("#228833", "X"),
    "FedAC (reconstructed)": Style("#AA3377", "h", "-."),
    "delay-adaptive ASGD": Style("#E69F00", "v"),
    "vanilla ASGD": Style("#000000", "P", (0, (1, 1.5))),
    "FedAvg": Style("#332288", "o"),
    "FedProx": Style("#AA4499", "v", "--"),
    "FedAsync": Style("#44AA99", "s", "-."),
    "FedAsync+Constant": Style("#44AA99", "s", "-."),
    "FedAsync+Hinge": Style("#117733", "D", _LONG),
    "AsyncFedED": Style("#882255", "^"),
    "adaptive K": Style("#882255", "^"),
    "FedFa": Style("#EE6677", "<", "--"),
    "FedOpt": Style("#88CCEE", "P", "--"),
    "FedDyn": Style("#999933", "X", "-."),
    "GAS": Style("#EE7733", "o"),
    "MiniBatch-SFL": Style("#661100", "s", "--"),
    "S2FL": Style("#6699CC", "^", "-."),
    "with clusters": Style("#CC3311", "p", "--"),  # as AFBS, which it is
    "without clusters": Style("#0072B2", "^"),
}
_SPARE = ("#56B4E9", "#661100", "#6699CC", "#DDCC77", "#CC6677", "#BBBBBB")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
_DASHES = ("-", "--", "-.", _LONG, (0, (1, 1.5)))


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Return the style of every series of a page.

    An algorithm keeps its own wherever it is drawn; one without an entry gets a colour that follows from its name.
    Variants of the only algorithm, or more than there are dashes, have a scale from dark to light; others have their
    algorithm's colour with other markers and dashes.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    variants: dict[str, list[str]] = {}
    for label in ordered_series(labels):
        variants.setdefault(re.split(", | = | \\+ ", label)[0], []).append(label)
    found: dict[str, Style] = {}
    scales = 0
    for base, same in variants.items():
        if len(same) > 1 and (len(variants) == 1 or len(same) > len(_DASHES)):
            for index, label in enumerate(same):
                marker = _MARKERS[(index + 5 * scales) % len(_MARKERS)]  # two scales have the same colours
                colour = to_hex(colormaps["viridis"](0.85 * index / (len(same) - 1)))
                found[label] = Style(colour, marker, _DASHES[index % 3])
            scales += 1
            continue
        own = _STYLES.get(base) or _fallback(base, {style.colour for style in found.values()})
        others = [marker for marker in reversed(_MARKERS) if marker != own.marker]
        for index, label in enumerate(same):
            found[label] = Style(own.colour, others[index - 1], _DASHES[-index]) if index else own
    return found


def _fallback(base: str, taken: Iterable[str]) -> Style:
    """Return the look that follows from the name, with the next colour where another series of the page has it."""
    first, marker, dashes, *_ = hashlib.sha256(base.encode()).digest()
    colours = [_SPARE[(first + step) % len(_SPARE)] for step in range(len(_SPARE))]
    colour = next((one for one in colours if one not in taken), colours[0])
    return Style(colour, _MARKERS[marker % len(_MARKERS)], _DASHES[dashes % len(_DASHES)])
