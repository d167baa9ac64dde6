"""Comparisons of our own among all rules of the package."""

from ...reports.blocks import Accuracies, Averages, Curves, Overall, Staleness, Values
from ...reports.pages.spec import BEST, FINAL, UPLOADS, PageSpec, late_measures

(_PRIMARY,) = late_measures("uploads")

PAGES = (
    PageSpec(
        "rules/overview",
        "Every asynchronous rule in one environment",
        "All asynchronous rules with the same clients, samples, durations and uploads, under label skew α = 0.1 and "
        "mild and heavy delays in virtual time, where every upload arrives by itself.",
        ("delay",),
        (
            Curves("uploads"),
            Accuracies(("uploads", "virtual_time")),
            Values((FINAL, BEST, UPLOADS)),
            Overall((_PRIMARY,), "FedBuff"),
            Averages(),
            Staleness(),
        ),
        primary=_PRIMARY,
        tuned=("algorithm.c", "client.lr"),
        searched=True,
        fair="one step of each rule tuned on validation samples, as many values for each over about two powers of ten: "
        "the server step c * sqrt(n / T), or the clients' where models are mixed in or averaged.",
    ),
)
