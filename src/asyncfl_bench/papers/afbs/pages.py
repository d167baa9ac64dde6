"""The pages of AFBS (arXiv:2506.12754)."""

from functools import partial
from typing import Any

import pandas as pd

from ...analysis import names
from ...analysis.published import PublishedNumbers
from ...reports.blocks import Cost, Curves, KeptUploads, MetricsOfSeries, Values, client_accuracy
from ...reports.pages.spec import BEST, FINAL, LATE, TO_LEVEL, UPLOADS, Measure, PageSpec, late_measures

_K = "heterogeneity.groups"
(_LATE,) = late_measures("virtual_time")
_UPLINK, _DOWNLINK = (Measure(f"summary.used.{way}_bytes") for way in ("uplink", "downlink"))
_LEVELS = {
    "mnist": 90.0,
    "cifar10": 50.0,
    "cifar100": 15.0,
    "sst2": 57.0,
    "digits": 80.0,
}  # of table 4; the last is ours
_TARGETS = (
    "Table 4's targets are 90 % on MNIST, 50 % on CIFAR-10, 15 % on CIFAR-100 and 57 % on SST-2. Ours on digits is "
    "80 %."
)
_CASES = {1: "one client alone", 20: "90 % fresh", 180: "90 % outdated"}  # of figure 3, by concurrency
_NO_SPREAD = "One number a cell is published, without a spread; seeds are not stated."
_BESIDE = PublishedNumbers(
    "afbs_tables2_4",
    {"best": ("best_accuracy_percent", "spread"), "time_to_level": ("seconds_to_target", "spread")},
    note=f"{_NO_SPREAD} Ours are evaluated every 1800 s, theirs at every version.",
)

_STEPS = (
    *(f"AFBS, weight {weight}" for weight in ("freshest", "own", "none")),
    *(f"FedBuff, weight {weight}" for weight in ("freshest", "polynomial", "constant", "polynomial, η = 2")),
)
_DECAY = tuple(
    f"{method}{decay}"
    for method in ("AFBS, weight freshest", "FedBuff, weight polynomial", "CA2FL", "FedAsync", "FedFa")
    for decay in ("", ", no decay")
)


_page = partial(PageSpec, problems=("mnist with lenet5", "cifar10 with lenet5", "cifar100 with lenet5"))


def _page_with_targets(sweep: str, title: str, shows: str, *args, **more) -> PageSpec:
    """Specify a page of runs in virtual time, 20 days unless ``more`` has another limit."""
    settings: dict[str, Any] = {"limit": 1_728_000.0, "levels": _LEVELS, "primary": BEST, "rankings": (TO_LEVEL,)}
    return _page(sweep, title, f"{shows} {_TARGETS}", *args, **settings | more)


def _label_with_clusters(run: pd.Series) -> str:
    return "without clusters" if run["algorithm.clustering"] == "none" else "with clusters"


def _part(run: pd.Series) -> str:
    """Name a control: AFBS without some of its parts, or another rule with some of them."""
    words = [names.algorithm_label(run["algorithm"])]
    if run["algorithm"] in ("afbs", "fedbuff"):
        weight = "weight" if run["algorithm"] == "afbs" else "staleness_weight"
        words.append(f"weight {run[f'algorithm.{weight}']}")
    others = {
        "never by chance": ("algorithm.keep", "never"),
        "η = 2": ("algorithm.eta", 2),
        "uniform weights": ("algorithm.weights", "uniform"),
        "no decay": ("client.lr_decay", 1),
    }
    return ", ".join([*words, *(word for word, (key, value) in others.items() if run.get(key) == value)])


def _methods(sweep: str, title: str, shows: str, **more) -> PageSpec:
    """Specify the page of a part of tables 2 and 4."""
    blocks = (
        Curves("virtual_time", split="paper", columns=3),
        Values((BEST, FINAL, TO_LEVEL, UPLOADS, _UPLINK, _DOWNLINK)),
        Cost(_K, BEST),
        Curves("bytes", split="paper", columns=3),
        client_accuracy,
    )
    return _page_with_targets(sweep, title, shows, ("paper", _K), blocks, published=_BESIDE, **more)


PAGES = (
    _methods(
        "afbs/table2",
        "AFBS, tables 2 and 4, figure 6: best accuracy and time to a target, 7 methods",
        "The paper prints the highest test accuracy within 20 virtual days and the time to a target, for three data "
        "sets. Clients form K groups. AFBS is ahead except on MNIST at K = 5. Figure 6 has the curves for K = 1.",
        shares_runs_with=("afbs/table3", "afbs/figure8", "afbs/ablation"),
    ),
    _methods(
        "afbs/table2_sst2",
        "AFBS, tables 2 and 4, figure 6 on SST2: best accuracy and time to a target, 7 methods",
        "The paper prints the highest accuracy on 872 sentences within 10 virtual days and the time to 57 % for "
        "clients that form K groups, and finds FedDyn ahead, then AFBS. Bigrams are hashed here; the framework that "
        "its authors built on has a row for each.",
        problems=("sst2 with fasttext",),
        shares_runs_with=("afbs/momentum",),
        limit=864_000.0,  # seconds: 10 days
    ),
    _methods(
        "afbs/table2_sst2_minilm",
        "AFBS, tables 2 and 4 on SST2, frozen features: best accuracy and time to a target, 7 methods",
        "The paper prints FastText's highest accuracy on 872 sentences within 10 virtual days and the time to 57 %. "
        "Here a linear layer learns from what MiniLM-L6, trained on other texts, says of each sentence.",
        problems=("sst2 with fasttext",),
        limit=864_000.0,  # seconds: 10 days
    ),
    _page_with_targets(
        "afbs/table3",
        "AFBS, table 3 and figure 7: selection with and without clusters of clients",
        "The paper prints the accuracy after 20 virtual days with selection inside clusters of clients and over the "
        "whole buffer, and draws the curves on CIFAR-10 and CIFAR-100.",
        ("paper", _K),
        (Curves("virtual_time", split="paper"), Values((FINAL, BEST, TO_LEVEL)), KeptUploads()),
        primary=_LATE,
        rankings=(BEST, TO_LEVEL),
        relabel=_label_with_clusters,
        published=PublishedNumbers("afbs_table3", {"final": ("final_accuracy_percent", "spread")}, note=_NO_SPREAD),
        shares_runs_with=("afbs/table2",),
    ),
    _page_with_targets(
        "afbs/figure8",
        "AFBS, figure 8: the size of the buffer",
        "The paper draws accuracy against time for several sizes of the buffer on CIFAR-10, of which it names 10 and "
        "50, and finds that 50 converges slowly and that else the size matters little.",
        (_K,),
        (Curves("virtual_time"), Values((FINAL, BEST, TO_LEVEL))),
        primary=_LATE,
        shares_runs_with=("afbs/table2",),
    ),
    _page_with_targets(
        "afbs/momentum",
        "AFBS, momentum in the clients' steps",
        "The paper states local steps of 0.01 by SGD and says nothing of momentum. With 0.9 a client's ten steps "
        "go about four times as far. Published are best accuracies within 20 days, SST-2 10, with one group.",
        ("paper", _K, "client.momentum"),
        (Curves("virtual_time", split="paper"), Values((BEST, FINAL, TO_LEVEL))),
        published=_BESIDE,
        shares_runs_with=("afbs/table2", "afbs/table2_sst2"),
        problems=("mnist with lenet5", "cifar10 with lenet5", "sst2 with fasttext"),
    ),
    _page_with_targets(
        "afbs/ablation",
        "AFBS, what it owes to its parts",
        "A flush of AFBS has one weight, that of its freshest upload, which makes its steps about twice FedBuff's; and "
        "a local step that shrinks with every server iteration is soon small for methods that step at every upload. "
        "The paper does not part these from its selection; here they are, on CIFAR-10 with one group.",
        (_K,),
        (
            Curves("virtual_time", only=_STEPS, name="steps", heading="## Selection and length of steps"),
            Curves("virtual_time", only=_DECAY, name="decay", heading="## With and without decay of the local step"),
            Values((BEST, FINAL, TO_LEVEL)),
        ),
        relabel=_part,
        shares_runs_with=("afbs/table2",),
    ),
    _page(
        "afbs/figure3",
        "AFBS, figure 3: fresh and outdated uploads, and one client alone",
        "The paper draws the accuracy of steps on 90 % fresh uploads, of steps on 90 % outdated ones, "
        "and of one client that trains alone, which ends above the second. Data, buffer and age are not stated; "
        "here a step has 10 uploads, and outdated ones are 20 versions old on average.",
        ("paper",),
        (Curves("iteration"), Values((LATE, FINAL, BEST, Measure("summary.arrivals.staleness_mean")))),
        relabel=lambda run: _CASES.get(run["concurrency"], "other"),
    ),
    _page(
        "afbs/figure4",
        "AFBS, figure 4: the labels that take part where latency grows with the label",
        "The paper draws the samples that took part in training: with clusters all ten labels, without clusters seven. "
        "Each client holds one label, and latency grows with its number. Data, sizes and law are not stated; here "
        "sizes are log-normal and latencies from 0 to 6000 s in the order of labels.",
        ("paper",),
        (KeptUploads(by_number=True), Values((Measure("kept_of_slow"), FINAL)), Curves("virtual_time")),
        primary=Measure("kept_of_slow"),
        relabel=_label_with_clusters,
    ),
    _page(
        "afbs/figure5",
        "AFBS, figure 5: how alike clients' models are",
        "The paper draws the cosine similarity of clients' models with the same and with different labels: where all "
        "clients update in each round the same labels are more alike, where fast ones update more often they may be "
        "less alike. Data, clients and speeds are not stated; here 20 clients form 2 groups, and half of the clients "
        "is 20 times as fast. One model is fresh and one outdated where their versions are apart, see "
        "diagnostics=similarity.",
        ("paper",),
        (
            MetricsOfSeries(
                {
                    "similarity/same": "same labels",
                    "similarity/different": "different labels",
                    "similarity/same_apart": "same labels, one fresh and one outdated",
                    "similarity/different_fresh": "different labels, both fresh",
                },
                "cosine similarity of models",
                "similarity",
                "## Similarity of clients' models",
            ),
            Values((Measure("similarity_gap"), Measure("similarity_gap_apart"), FINAL)),
        ),
        primary=None,
        relabel=lambda run: "synchronous" if run["algorithm"] == "fedavg" else "asynchronous",
    ),
    _page(
        "afbs/table5",
        "AFBS, table 5: wall time of a server step",
        "The paper prints the milliseconds that the server takes for a step and that it takes to fill the buffer. "
        "Here a step is all time inside the rule from one step to the next, the adding of uploads included; medians "
        "and quartiles over server iterations, then means over seeds.",
        ("paper",),
        (
            Values(
                (
                    *(Measure(f"server_step{end}_ms") for end in ("_low", "", "_high")),
                    *(Measure(f"buffer_fill{end}_ms") for end in ("_low", "", "_high")),
                    Measure("kept"),
                )
            ),
        ),
        primary=None,
        published=PublishedNumbers(
            "afbs_table5",
            {"server_step_ms": ("server_step_ms", "spread"), "buffer_fill_ms": ("buffer_fill_ms", "spread")},
            note=f"{_NO_SPREAD} Published on an RTX 4090; ours are of this machine's CPU.",
        ),
    ),
)
