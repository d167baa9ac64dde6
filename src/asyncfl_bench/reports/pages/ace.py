"""The pages of the ACE paper (arXiv:2511.19066): which there are, and what each shows."""

from __future__ import annotations

from .comparing import comparison_parts
from .item import Item

_SKEW_BY_DELAY = ("heterogeneity.alpha", "delay")
_NO_NUMBERS = "The paper publishes curves or colours only: there are no numbers to take a difference with."

ITEMS = (
    Item(
        "ace/figure2",
        "ACE paper, figure 2: accuracy curves, two skews by two delays",
        f"The paper draws test accuracy over 500 server iterations on CIFAR-10. {_NO_NUMBERS}",
        _SKEW_BY_DELAY,
        comparison_parts,
    ),
    Item(
        "ace/figure_a1",
        "ACE paper, figure a.1: the curves of figure 2 to 1000 iterations",
        f"Figure 2 extended, with bands over seeds. {_NO_NUMBERS}",
        _SKEW_BY_DELAY,
        comparison_parts,
    ),
)
