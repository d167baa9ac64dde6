"""Comparisons of our own among all rules of the package."""

from ...reports.blocks import Accuracies, Curves, Leaders, Overall, Reference, Staleness, Values
from ...reports.pages.spec import BEST, FINAL, UPLOADS, PageSpec, equal_budgets

PAGES = (
    PageSpec(
        "rules/overview",
        "Every asynchronous rule in one environment",
        "All asynchronous rules with the same clients, samples, durations and uploads, under label skew α = 0.1 and "
        "mild and heavy delays in virtual time, where every upload arrives by itself.",
        ("delay",),
        (
            Staleness(),
            Leaders(equal_budgets("uploads")),
            Overall(equal_budgets("uploads"), "FedBuff"),
            Reference("FedBuff", equal_budgets("uploads")),
            Curves("uploads"),
            Accuracies("uploads"),
            Accuracies("virtual_time"),
            Values((FINAL, BEST, UPLOADS)),
        ),
        tuned=("algorithm.c", "client.lr"),
        searched=True,
        fair="one step of each rule tuned on validation samples, as many values for each over about two powers of ten: "
        "the server step c * sqrt(n / T), or the clients' where models are mixed in or averaged.",
    ),
)
