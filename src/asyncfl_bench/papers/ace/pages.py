"""The pages of the ACE paper (arXiv:2511.19066)."""

from typing import Any

from ...analysis.published import PublishedNumbers
from ...reports.blocks import (
    Accuracies,
    Cost,
    Counts,
    Curves,
    HeatMaps,
    MeasureBySetting,
    Overall,
    Values,
    client_accuracy,
    error_parts,
    staleness,
)
from ...reports.pages.spec import AXES, LATE, Block, Measure, PageSpec, late_measures

_SKEW_BY_DELAY = ("heterogeneity.alpha", "delay")
_LAW = ("delay.clients", "tick_rounding")
_FAIR = (
    "all methods have the same arrivals and the same uploads. Their server steps are searched on validation samples."
)
_STEP = (
    "With one model a page has three of the paper's six columns. FastText is not pretrained. With c = 0.2 it stays at "
    "chance, so c is 50 (server step c √(n/T))."
)
_ADAPTERS = "At `medium` adapters of MiniLM-L6 are trained on the first 32 tokens of a post and tested on 2000 posts."
_STEPS_OF_BERT = ("algorithm.c", "client.lr")
_ACTIVE = Measure("active_clients")
_OTHER_AXES = late_measures("uploads", "virtual_time", "bytes")
_UPLOADS = _OTHER_AXES[0]
_ALONG_AXES: tuple[Block, ...] = (*map(Curves, AXES), Accuracies(AXES))
_CURVES: tuple[Block, ...] = (*_ALONG_AXES, Overall((LATE, *_OTHER_AXES), "ACE"), Cost("delay"), client_accuracy)
_SHARES: tuple[Block, ...] = (
    MeasureBySetting("availability.share", (LATE,)),
    MeasureBySetting("availability.share", _OTHER_AXES),
    Accuracies(AXES),
    Cost("availability.share"),
)


def _page(name: str, title: str, shows: str, cells: tuple[str, ...], blocks: tuple[Block, ...], **more) -> PageSpec:
    settings: dict[str, Any] = {"problems": ("cifar10 with resnet18",), "fair": _FAIR, "rankings": _OTHER_AXES} | more
    return PageSpec(f"ace/{name}", f"ACE paper, {title}", shows, cells, (*blocks, staleness), **settings)


def _text(name: str, reading: str, **more) -> PageSpec:
    return _page(
        name,
        "table a.2: accuracy on 20 Newsgroups",
        f"The paper prints accuracies of six methods with two text models at three skews, β = 5. Here {reading}",
        ("model", "heterogeneity.alpha"),
        _ALONG_AXES,
        order=("asgd", "delay_adaptive_asgd", "fedbuff", "ca2fl", "aced", "ace"),  # table a.2
        published=PublishedNumbers(
            "ace_table_a2",
            {"final": ("accuracy_percent", "two_standard_errors_percent")},
            instead={"model": {"fasttext": "distilbert", "softmax": "distilbert", "bert": "distilbert"}},
            stand_in="The published numbers beside are another model's: DistilBERT's, fine-tuned. FastText has read 20 "
            "Newsgroups alone; MiniLM's frozen features have a linear layer; MiniLM fine-tuned is a third of its size.",
        ),
        **({"problems": ("newsgroups20 with distilbert", "newsgroups20 with bert_base")} | more),
    )


PAGES = (
    _page(
        "table1",
        "table 1: noise, bias and delay in the error of a step",
        "The paper marks in words which term of the mean squared error a method suffers; here they are measured.",
        _SKEW_BY_DELAY,
        (error_parts,),
        primary=None,
    ),
    _page(
        "figure2",
        "figure 2: accuracy curves, two skews by two delays",
        "The paper draws test accuracy over 500 server iterations on CIFAR-10 and prints no numbers. In profile "
        "`published` ACE makes an iteration with all uploads of a tick, 11 to 37, and vanilla ASGD has one client in "
        "flight, so β does not change it. In `fair` each upload is an iteration, as in line 8 of the pseudo-code, and "
        "all clients are in flight.",
        _SKEW_BY_DELAY,
        _CURVES,
    ),
    _page(
        "figure2_delay_laws",
        "figure 2 under several laws of the delays",
        'The paper says "exponential, mean β" and no more. That clients have different speeds z_i ~ Exp(1) is our '
        "reading, clients alike (z_i = 1) are the literal one. Work takes 1 + Exp(β z_i) ticks: rounded down that is "
        "Exp(β z_i) which waits for the server's next turn, rounded up a whole tick of computing comes on top.",
        (*_SKEW_BY_DELAY, *_LAW),
        (Curves("iteration", split="delay", columns=3), Accuracies(AXES), client_accuracy),
        readings=_LAW,
    ),
    _page(
        "figure2_resnet8",
        "figure 2 with ResNet-8, one cell",
        "The paper has ResNet-18, whose runs need a GPU. ResNet-8 has the same blocks and 44 times fewer operations.",
        _SKEW_BY_DELAY,
        _CURVES,
    ),
    _page(
        "figure2_time_clock",
        "figure 2 with delays in virtual time",
        "The paper does not give the unit of its delays: in figure2 they are ticks of the server, here virtual time, "
        "and every arrival is a step as the pseudo-code reads.",
        _SKEW_BY_DELAY,
        _CURVES,
    ),
    _page(
        "figure2_unit_step",
        "figure 2 with a local step of 1",
        "The paper prints a local step of 0.05 for FedBuff and CA2FL, which makes their steps 20 times smaller than "
        "those of methods that send gradients; here it is 1.",
        _SKEW_BY_DELAY,
        _CURVES,
    ),
    _page(
        "figure3a",
        "figure 3a: final accuracy when clients stop",
        "The paper stops 0 to 70 % of the clients for good at half of the 500 server iterations (CIFAR-10, α = 0.3, "
        "β = 5) and prints no numbers; at a budget that a method reaches before the stop, its number says nothing.",
        ("availability.share",),
        _SHARES,
        order=("asgd", "ca2fl", "ace", "aced"),  # the caption of figure 3a
    ),
    _page(
        "figure3b",
        "figure 3b: ACED's threshold when clients stop",
        "The paper varies tau_algo, how long a silent client stays active, and finds accuracy flat from 10 to 50.",
        ("availability.share",),
        (HeatMaps("algorithm.tau_algo", "availability.share"), *_SHARES),
    ),
    _page(
        "participation",
        "appendix D.4.2: clients in ACED's mean",
        "The paper says that a threshold τ_algo of twice the mean delay keeps nearly all clients in the mean, n_t ≈ n, "
        "and prints no numbers. On the clock of ticks an iteration takes several uploads. On the clock of time each "
        "arrival is an iteration. n_t depends only on clock and delays, so all scales use digits. β is the mean delay "
        "[ticks or s], τ_algo has server iterations.",
        ("clock", "delay", "algorithm.tau_algo"),
        (MeasureBySetting("algorithm.tau_algo", (_ACTIVE,)), Values((_ACTIVE, LATE))),
        primary=None,
    ),
    _page(
        "dropout_bias",
        "appendix D.4.1: the bias of clients that stopped",
        "The paper says that last gradients of clients that stopped leave a bias in ACE's mean that does not vanish, "
        "and that ACED removes it. Stopped: squared norm of their part of that bias, last gradients less those at w_t "
        "over n; ACED has dropped it once its threshold has passed. Means are over the steps after the stop.",
        ("availability.share",),
        (error_parts,),
        problems=("cifar10 with resnet18",),
        primary=None,
    ),
    PageSpec(
        "ace/noise_and_skew",
        "Where a memory of every client pays",
        "A question of this project. ACE's cache removes the error of random participation, ζ² of the label skew, and "
        "keeps each sample's noise σ² for several steps. For a quadratic, small steps, alike clients and exponential "
        "delays the squared error of ASGD is (1 + ζ²/σ²) / 2 times ACE's (`examples/memory.py`). All rules have all "
        "clients in flight, the same uploads and a searched step.",
        ("delay", "client.batch_size", "heterogeneity.alpha"),
        (HeatMaps("client.batch_size", "heterogeneity.alpha", _UPLOADS), Accuracies(("uploads",)), staleness),
        primary=_UPLOADS,
        searched=True,
        fair="The server step c √(n/T) of each rule is searched on validation samples: six values over 2.5 powers of "
        "ten.",
    ),
    _page(
        "figure_a1",
        "figure a.1: the curves of figure 2 to 1000 iterations",
        "The paper extends figure 2, with bands over seeds, and prints no numbers.",
        _SKEW_BY_DELAY,
        _CURVES,
    ),
    _page(
        "figure_a2",
        "figure a.2: final accuracy, four skews by four delays",
        "The paper shows heat maps of final accuracy on CIFAR-100 without numbers.",
        _SKEW_BY_DELAY,
        (HeatMaps(*_SKEW_BY_DELAY), Accuracies(AXES), Overall((LATE, *_OTHER_AXES), "ACE"), Cost("delay")),
        problems=("cifar100 with resnet18",),
    ),
    _page(
        "figure_a3",
        "figure a.3: caches of 8 bits beside full precision",
        "The paper calls ACE and ACED with 8-bit caches comparable to full precision (CIFAR-10) without numbers.",
        ("algorithm", "algorithm.tau_algo"),
        (
            *_ALONG_AXES,
            Counts(
                "bytes",
                {"server bytes": "summary.state_bytes.server", "client bytes, all": "summary.state_bytes.clients"},
            ),
        ),
        relabel=lambda run: f"cache = {run['algorithm.cache.precision']}",
    ),
    _page(
        "table_a1",
        "table a.1: uploads per server iteration",
        "The paper lists how many uploads each method needs for one change of the global model; a first round of all "
        "clients, which ACE and ACED ask for, is left out of the counts.",
        (*_SKEW_BY_DELAY, "clock"),
        (
            Counts(
                "uploads",
                {
                    "M": "algorithm.buffer_size",
                    "uploads": "summary.used.uploads",
                    "server iterations": "summary.used.server_iterations",
                    "uploads per iteration": "uploads_per_iteration",
                },
                "ace_table_a1",
                {"published": "uploads_per_server_iteration"},
            ),
        ),
        primary=None,
    ),
    _text("table_a2", f"100 clients train for 500 server iterations, as the text has it. {_STEP}"),
    _text("table_a2_minilm", "100 clients train for 500 server iterations, on frozen features of MiniLM-L6."),
    _text(
        "table_a2_minilm_printed",
        "20 clients train for 100 server iterations, as table a.6 prints, on frozen features of MiniLM-L6.",
    ),
    _text(
        "table_a2_bert",
        f"20 clients fine-tune DistilBERT and BERT-base for 100 server iterations, as table a.6 prints. {_ADAPTERS}",
        tuned=_STEPS_OF_BERT,
    ),
    _text(
        "table_a2_adamw",
        "20 clients train for 100 server iterations, as table a.6 prints. All methods send AdamW steps. In "
        f"table_a2_bert FedBuff and CA2FL alone do. {_ADAPTERS}",
        tuned=_STEPS_OF_BERT,
    ),
    _text(
        "table_a2_printed",
        f"20 clients train for 100 server iterations, as table a.6 prints. {_STEP}",
    ),
    _page(
        "table_a3",
        "table a.3: state on server and clients",
        "The paper prints orders of magnitude of what each method stores beyond the model; here bytes are measured, "
        "also in vectors of d floats.",
        _SKEW_BY_DELAY,
        (
            Counts(
                "state",
                {
                    "n": "n_clients",
                    "M": "algorithm.buffer_size",
                    "server bytes": "summary.state_bytes.server",
                    "in vectors": "server_vectors",
                    "client bytes, all": "summary.state_bytes.clients",
                    "in vectors ": "client_vectors",
                },
                "ace_table_a3",
                {"published: server": "server_state", "one client": "client_state", "total": "total_state"},
            ),
        ),
        primary=None,
        shares_runs_with=("ace/table_a1",),
    ),
)
