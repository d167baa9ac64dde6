"""The pages of the ACE paper (arXiv:2511.19066): which there are, and what each shows."""

from __future__ import annotations

from ..mse import write_page_parts
from .caching import precision_parts
from .comparing import comparison_parts
from .heterogeneity import delay_part, heat_map_parts
from .item import Item, Page
from .sharing import dropout_parts, threshold_parts
from .tables import accuracy_parts, state_parts, upload_parts

_SKEW_BY_DELAY = ("heterogeneity.alpha", "delay")
_NO_NUMBERS = "The paper draws this without printing numbers, so there is nothing to take a difference with."


def _curve_parts(page: Page) -> list[str]:
    return [*comparison_parts(page), delay_part(page)]


def _mse_parts(page: Page) -> list[str]:
    """The parts that the diagnostics of the mean squared error write about their own runs."""
    return write_page_parts([run for runs in page.evidence.runs.values() for run in runs], page.folder.path)


ITEMS = (
    Item(
        "ace/table1",
        "ACE paper, table 1: noise, bias and delay in the error of a step",
        "The paper marks in words which term of the mean squared error each method suffers; here the terms are "
        "measured. There are no published numbers.",
        _SKEW_BY_DELAY,
        _mse_parts,
    ),
    Item(
        "ace/figure2",
        "ACE paper, figure 2: accuracy curves, two skews by two delays",
        f"The paper draws test accuracy over 500 server iterations on CIFAR-10. {_NO_NUMBERS}",
        _SKEW_BY_DELAY,
        _curve_parts,
    ),
    Item(
        "ace/figure2_time_clock",
        "ACE paper, figure 2 read differently: delays in virtual time",
        "The paper does not give the unit of its delays. In figure2 they are ticks of the server, which takes one step "
        "for all uploads of a tick; here they are virtual time and every arrival is a step, as the pseudo-code reads. "
        f"Everything else is as in figure2. {_NO_NUMBERS}",
        _SKEW_BY_DELAY,
        _curve_parts,
    ),
    Item(
        "ace/figure2_unit_step",
        "ACE paper, figure 2 with a local step of 1",
        "The paper prints a local step of 0.05 for FedBuff and CA2FL. With one local step per upload that only makes "
        "their steps 20 times smaller than those of the methods that send gradients; here it is 1, everything else is "
        f"as in figure2. {_NO_NUMBERS}",
        _SKEW_BY_DELAY,
        _curve_parts,
    ),
    Item(
        "ace/figure3a",
        "ACE paper, figure 3a: final accuracy when clients stop",
        "The paper stops 0 to 70 % of the clients for good at half of the 500 server iterations (CIFAR-10, α = 0.3, "
        f"β = 5). {_NO_NUMBERS}",
        ("availability.share",),
        dropout_parts,
    ),
    Item(
        "ace/figure3b",
        "ACE paper, figure 3b: ACED's threshold when clients stop",
        "The paper varies tau_algo, the iterations a silent client stays active, and finds accuracy flat from 10 to "
        f"50. {_NO_NUMBERS}",
        ("availability.share",),
        threshold_parts,
    ),
    Item(
        "ace/figure_a1",
        "ACE paper, figure a.1: the curves of figure 2 to 1000 iterations",
        f"Figure 2 extended, with bands over seeds. {_NO_NUMBERS}",
        _SKEW_BY_DELAY,
        _curve_parts,
    ),
    Item(
        "ace/figure_a2",
        "ACE paper, figure a.2: final accuracy, four skews by four delays",
        f"The paper shows heat maps of final accuracy on CIFAR-100. {_NO_NUMBERS}",
        _SKEW_BY_DELAY,
        heat_map_parts,
        ("cifar100 with resnet18",),
    ),
    Item(
        "ace/figure_a3",
        "ACE paper, figure a.3: caches of 8 bits beside full precision",
        f"The paper calls ACE and ACED with 8-bit caches comparable to full precision (CIFAR-10). {_NO_NUMBERS}",
        _SKEW_BY_DELAY,
        precision_parts,
    ),
    Item(
        "ace/table_a1",
        "ACE paper, table a.1: uploads per server iteration",
        "The paper lists how many uploads each method needs for one change of the global model; here they are counted.",
        (*_SKEW_BY_DELAY, "clock"),
        upload_parts,
    ),
    Item(
        "ace/table_a2",
        "ACE paper, table a.2: accuracy on 20 Newsgroups",
        "The paper prints accuracies of six methods with two text models at three skews, β = 5.",
        ("model", "heterogeneity.alpha"),
        accuracy_parts,
        ("20newsgroups with distilbert", "20newsgroups with bert_base"),
    ),
    Item(
        "ace/table_a3",
        "ACE paper, table a.3: state on server and clients",
        "The paper prints orders of magnitude of what each method stores beyond the model; here bytes are measured.",
        _SKEW_BY_DELAY,
        state_parts,
    ),
)
