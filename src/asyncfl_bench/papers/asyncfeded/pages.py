"""The pages of AsyncFedED (arXiv:2205.13797)."""

from functools import partial

from ...analysis.published import PublishedNumbers
from ...reports.blocks import Cost, Curves, HeatMaps, MeasureBySetting, SearchTable, Values
from ...reports.pages.spec import BEST, TO_90, TO_TARGET, UPLOADS, Block, Measure, PageSpec

_P = "availability.probability"
_GRID = (
    "The paper names the values it searched and the one it chose; it prints no accuracy. P, the probability of a "
    "suspension, is 0.1, our choice."
)
_RAW_RUNS = PublishedNumbers(
    "asyncfeded_figure3",
    {
        "best": ("best_accuracy_percent", "best_accuracy_percent_std"),
        "time_to_90": ("seconds_to_90_percent_of_best", "seconds_to_90_percent_of_best_std"),
        "uploads": ("uploads", "uploads_std"),
    },
    curves="asyncfeded_figure2",
    startup="asyncfeded_startup",
    note="Published times are without the start of processes (5.8 to 12.2 s). Published uploads are those of 300 s "
    "with that start in them, ours of 300 s without: 2 to 4 % of the time.",
)
_TIMES = (TO_90, TO_TARGET)
_SUSPENDED: tuple[Block, ...] = (
    MeasureBySetting(_P, (BEST, TO_90)),
    Cost(_P, BEST),
    Values((BEST, *_TIMES, UPLOADS)),
    Curves("virtual_time", split=_P, columns=3, heading="## Curves for every P (figures 5 to 14)"),
)


_page = partial(
    PageSpec,
    problems=("synthetic_1_1 with mlp", "femnist with cnn_one_pool", "shakespeare_sized with lstm"),
    stand_ins=("shakespeare-speeches.jsonl",),  # an edition of the user's, not LEAF's data
    tuned=("client.lr",),
    fair="one machine for synchronous and asynchronous methods and one budget of time for all, the local step tuned on "
    "validation samples.",
    limit=300.0,
    primary=BEST,
    rankings=_TIMES,
)


def _search(number: int, searched: str, *names: str, form: str = "") -> PageSpec:
    keys = tuple(f"algorithm.{name}" for name in names)
    maps = (HeatMaps(*keys, BEST),) if len(keys) == 2 else ()
    blocks = (SearchTable(f"asyncfeded_table{number}", keys), *maps)
    sweep, title = f"asyncfeded/table{number}", f"AsyncFedED, table {number}: the search for {searched}"
    others = (sweep, "asyncfeded/figure2") if form else ()
    return _page(sweep + form, title, _GRID, ("paper",), blocks, primary=None, shares_runs_with=others)


_STEERING = ("lam_over_eps", "lam", "gamma_bar", "kappa")
PAGES = (
    _page(
        "asyncfeded/figure2",
        "AsyncFedED, figure 2: test accuracy in time, P = 0.1",
        "The paper draws test accuracy against time for five methods and three data sets, each client being suspended "
        "with P = 0.1, and finds AsyncFedED remarkably faster than all others on all three.",
        ("paper", _P),
        (Curves("virtual_time", columns=3), Values((BEST, *_TIMES, UPLOADS))),
        published=_RAW_RUNS,
        shares_runs_with=("asyncfeded/figure3",),
    ),
    _page(
        "asyncfeded/figure3",
        "AsyncFedED, figures 3 and 5 to 14: best accuracy and speed against the probability of suspension",
        "P is the probability that a client is suspended. The paper draws best accuracy within 300 s, and the time to "
        "90 % of it, against P. AsyncFedED leads in both and is stable in P. FedAsync falls drastically for large P.",
        ("paper", _P),
        _SUSPENDED,
        published=_RAW_RUNS,
        shares_runs_with=("asyncfeded/figure2",),
    ),
    _page(
        "asyncfeded/figure3_redrawn",
        "AsyncFedED, figure 3 for other draws of Synthetic(1,1)",
        "Figure 3, but each seed has different clients' data instead of the one draw of all the paper's runs.",
        ("paper", _P),
        _SUSPENDED,
        published=_RAW_RUNS,
    ),
    _page(
        "asyncfeded/figure4",
        "AsyncFedED, figure 4: adaptive against constant K",
        "The paper draws AsyncFedED with adaptive K beside constant K of 5, 10, 15 and 20 local epochs. P, the "
        "probability of a suspension, is 0.1, our choice. Unsteadiness is the mean change between evaluations.",
        ("paper",),
        (
            Curves("virtual_time", columns=3),
            Values((BEST, *_TIMES, UPLOADS)),
            *(
                Curves("virtual_time", metric, ("adaptive K",), columns=3, heading=f"## {text} of adaptive K")
                for metric, text in (("rule/mean_k", "K"), ("rule/gamma_mean", "γ"), ("rule/eta_g_mean", "η_g"))
            ),
        ),
        # kappa 0 keeps K; any other kappa, of which each data set has its own, adapts it
        relabel=lambda run: "adaptive K" if run["algorithm.kappa"] else f"K = {run['client.local_epochs']}",
        rankings=(*_TIMES, Measure("unsteadiness")),
    ),
    _search(1, "FedProx's μ", "mu"),
    _search(2, "FedAsync+Constant's α", "alpha"),
    _search(3, "FedAsync+Hinge's a and b", "hinge_a", "hinge_b"),
    _search(4, "AsyncFedED's λ/ε, λ, γ_bar and κ", *_STEERING),
    _search(4, "AsyncFedED's λ/ε, λ, γ_bar and κ, one at a time", *_STEERING, form="_one_factor"),
)
