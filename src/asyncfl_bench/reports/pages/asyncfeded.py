"""The pages of AsyncFedED (arXiv:2205.13797): which there are, and what each shows."""

from __future__ import annotations

from .epochs import epochs_parts
from .item import Item
from .printed import PROBLEMS
from .searching import search_parts
from .suspension import curve_parts, suspension_parts

_BY_P = ("paper", "availability.probability")
_REAL = tuple(problem for problems in PROBLEMS.values() for problem in problems)
_OPEN = (
    "What the paper leaves open is ours: layers, initial weights, batch size, the suspensions themselves; so numbers "
    "differ at any scale."
)
_FAIR = (
    "one machine for synchronous and asynchronous methods and one budget of time for all, the local step of each "
    "tuned on validation samples; other hyper-parameters are the published ones."
)
_FAIR_GRID = (
    "one machine for synchronous and asynchronous methods and one budget of time for all, the local step of every "
    "setting tuned on validation samples; what the page does not vary is as published."
)
_GRID = "The paper names the values it searched and the one it chose, per data set; it prints no accuracy for them."


def _item(name: str, title: str, shows: str, cell_keys: tuple[str, ...], build, lenders: tuple[str, ...] = ()) -> Item:
    lenders = tuple(f"asyncfeded/{lender}" for lender in lenders)
    title = f"AsyncFedED, {title}"
    fair = _FAIR if build in (curve_parts, suspension_parts) else _FAIR_GRID
    return Item(f"asyncfeded/{name}", title, shows, cell_keys, build, _REAL, lenders, "client.lr", fair)


ITEMS = (
    _item(
        "figure2",
        "figure 2: test accuracy in time, P = 0.1",
        "The paper draws test accuracy against time for five methods and three data sets, each client being suspended "
        f"with P = 0.1, and finds AsyncFedED remarkably faster than all others on all three. {_OPEN} Runs of figure 3 "
        "with P = 0.1 are these runs, and are used where they exist.",
        _BY_P,
        curve_parts,
        ("figure3",),
    ),
    _item(
        "figure3",
        "figures 3 and 5 to 14: best accuracy and speed against the probability of suspension",
        "The paper draws the best test accuracy within 300 s and the time to 90 % of it against P = 0 to 0.9, and the "
        "curves for every P in its appendix. It finds AsyncFedED ahead in both and stable in P, while FedAsync "
        f"declines drastically for large P. {_OPEN} Runs of figure 2 are those of P = 0.1, and are used where they "
        "exist.",
        _BY_P,
        suspension_parts,
        ("figure2",),
    ),
    _item(
        "figure3_redrawn",
        "figure 3 for other draws of Synthetic(1,1)",
        "Figure 3 as in the paper, but each seed has clients' data of its own instead of the one draw that the paper "
        "has in all its runs; their sizes are the paper's. It tells what of the paper's claims is the method and what "
        f"is the draw. {_OPEN} At smaller scales the data are digits, as everywhere.",
        _BY_P,
        suspension_parts,
    ),
    _item(
        "figure4",
        "figure 4: adaptive against constant K",
        "The paper draws AsyncFedED with adaptive K beside constant K of 5, 10, 15 and 20 local epochs. It does not "
        f"say for which P; P = 0.1 is our choice. {_OPEN}",
        ("paper",),
        epochs_parts,
    ),
    _item("table1", "table 1: the search for FedProx's μ", f"{_GRID} {_OPEN}", ("paper",), search_parts),
    _item("table2", "table 2: the search for FedAsync+Constant's α", f"{_GRID} {_OPEN}", ("paper",), search_parts),
    _item("table3", "table 3: the search for FedAsync+Hinge's a and b", f"{_GRID} {_OPEN}", ("paper",), search_parts),
    _item(
        "table4",
        "table 4: the search for AsyncFedED's λ/ε, λ, γ_bar and κ",
        f"{_GRID} {_OPEN}",
        ("paper",),
        search_parts,
    ),
)
