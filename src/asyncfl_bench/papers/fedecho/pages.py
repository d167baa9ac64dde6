"""The pages of FedEcho (arXiv:2511.19966)."""

from typing import Any

import pandas as pd

from ...analysis import names
from ...analysis.published import PublishedNumbers
from ...reports.blocks import Cost, Curves, Values, WallSeconds, client_accuracy, staleness, straggler_accuracy
from ...reports.pages.spec import BEST, FINAL, LATE, UPLOADS, Block, Measure, PageSpec, late_measures

_SKEW_BY_DELAY = ("delay", "heterogeneity.alpha")
_FINAL = {"final": ("final_accuracy_percent", "std_percent")}
(_LATE_IN_TIME,), (_LATE_BY_UPLOADS,) = late_measures("virtual_time"), late_measures("uploads")
_TIME = Measure("summary.used.virtual_time")
_ONE_CELL = "one cell, CIFAR-10 under large delay with Dirichlet 0.1"
_ARRAYS = "Published numbers of `arrays` are of images from a diffusion model."
_FAIR = (
    "the paper's own environment, whose arrivals all methods share; the local step, and the server step where several "
    "were run, tuned on validation samples."
)
_SECONDS = WallSeconds(
    "distillation",
    "The paper prints 2.2 to 3.5 s for 2000 samples and ResNet-18 on an NVIDIA A6000. The logits of uploads are not "
    "included.",
)
_NORM = "The network has group normalisation here; the paper says nothing of it, batch normalisation is likely."


def _page(name: str, title: str, shows: str, blocks: tuple[Block, ...], cells=_SKEW_BY_DELAY, **more) -> PageSpec:
    settings: dict[str, Any] = {"problems": ("cifar10 with resnet18",), "tuned": ("client.lr",)}
    settings |= {"fair": _FAIR, "rankings": (BEST,)} | more
    return PageSpec(f"fedecho/{name}", f"FedEcho, {title}", shows, cells, (*blocks, _SECONDS), **settings)


def _table(table: str, data: str, problem: str, name: str = "") -> PageSpec:
    same = [f"fedecho/{table}"] if name else []
    return _page(
        name or table,
        f"{table[:-1]} {table[-1]}: last accuracy of five methods on {data}",
        "The paper prints the last test accuracy for two delays and two skews. There FedEcho leads in every cell. Its "
        "distillation rate is η_d = 3e-6.",
        (
            Curves("iteration", split="delay"),
            Curves("virtual_time", split="delay"),
            Values((LATE, FINAL, BEST, UPLOADS)),
            Cost("delay", values=("fedecho_mild", "fedecho_large")),
            client_accuracy,
            straggler_accuracy,
            staleness,
        ),
        problems=(problem,),
        tuned=("client.lr", "algorithm.eta"),
        order=("fedbuff", "ca2fl", "fadas", "fedac", "fedecho"),  # tables 2 and 3, means over cells
        relabel=_rate_and_samples,
        published=PublishedNumbers(
            f"fedecho_{table}", _FINAL, variants=f"fedecho_{table}_other_samples", note=f"{_NORM} {_ARRAYS}"
        ),
        shares_runs_with=("fedecho/controls", "fedecho/composition", "fedecho/server_time", *same),
    )


def _ablation(name: str, title: str, shows: str, relabel) -> PageSpec:
    return _page(
        name,
        title,
        f"{shows} The paper does not name its cell; the runs have {_ONE_CELL}. The printed rate of distillation is "
        "3e-6, which hardly moves LeNet5.",
        (Curves("iteration"), Values((LATE, FINAL, BEST))),
        (*_SKEW_BY_DELAY, "distillation.rate"),
        readings=("distillation.rate",),
        relabel=relabel,
        published=PublishedNumbers(name.replace("table", "fedecho_table"), _FINAL, note=_NORM),
        shares_runs_with=("fedecho/table2", "fedecho/controls"),
    )


def _alpha(run: pd.Series) -> str:
    known = {(0.0, 0.0): "hard labels only", (1.0, 1.0): "soft labels only", (0.5, 0.5): "half and half"}
    ends = run["distillation.alpha_min"], run["distillation.alpha_max"]
    mix = known.get(ends, "by entropy" if ends == (0.2, 0.8) else f"α {ends[0]:g} to {ends[1]:g}")
    return f"{mix}, KL over classes too" if ends[1] and run["distillation.kl_mean"] == "elements" else mix


def _clip(run: pd.Series) -> str:
    nu = run["distillation.clip"]
    return "ν = ∞" if pd.isna(nu) or nu >= 1e9 else f"ν = {nu:g}"


def _rate_and_samples(run: pd.Series) -> str:
    """Return the distillation's rate and samples if they are not the printed rate and those of the other CIFAR."""
    words = [names.algorithm_label(run["algorithm"])]
    if run["algorithm"] == "fedecho":
        rate = run.get("distillation.rate", 3e-6)
        words += [names.setting_label("distillation.rate", f"{rate:g}")] if rate != 3e-6 else []
        words += [
            word for word in (run.get("unlabelled"), run.get("unlabelled.name")) if word in ("arrays", "noise", "stl10")
        ]
    return ", ".join(words)


def _control(run: pd.Series) -> str:
    """Name a control: FedEcho with another part, or FedBuff with FedEcho's local step."""
    words = [names.algorithm_label(run["algorithm"])]
    if run["algorithm"] == "fedbuff":
        words.append(f"η_l = {run['client.lr']:g}")
    distils = run["algorithm"] == "fedecho"
    others = {
        "without distillation": distils and run.get("distillation.steps") == 0,
        "without stragglers": distils and pd.notna(run.get("distillation.max_age")),
        names.setting_label("distillation.rate", f"{run.get('distillation.rate', 0):g}"): distils
        and run.get("distillation.rate", 3e-6) != 3e-6,
        "noise": run.get("unlabelled") == "noise",
        # of digits FedEcho's own samples are held back
        "held back": run.get("unlabelled") == "held_back" and not (distils and run["dataset"] == "digits"),
    }
    return ", ".join([*words, *(word for word, holds in others.items() if holds)])


def _composed(run: pd.Series) -> str:
    words = names.algorithm_label(run["algorithm"])
    if run.get("distillation") != "fedecho":
        return words
    words += " + distillation" * (run["algorithm"] != "fedecho")
    return f"{words} from noise" if run.get("unlabelled") == "noise" else words


def _pairs(name: str, here: str) -> PageSpec:
    return _page(
        name,
        "table 4: last accuracy of five methods on MRPC",
        f"The paper prints the accuracy of BERT-base on GLUE's 408 pairs to validate. Here {here}",
        (Curves("iteration"), Values((LATE, FINAL, BEST, UPLOADS)), staleness),
        ("delay",),
        problems=("mrpc with bert_base",),
        published=PublishedNumbers(
            "fedecho_table4",
            _FINAL,
            note="" if name == "table4_minilm" else "Other pairs were held out.",
            stand_in="Published numbers are of BERT-base, another model, on other pairs.",
        ),
    )


PAGES = (
    _table("table2", "CIFAR-10", "cifar10 with resnet18"),
    _table("table3", "CIFAR-100", "cifar100 with resnet18"),
    _table("table2", "CIFAR-10, the server with synthetic images, too", "cifar10 with resnet18", "table2_synthetic"),
    _table("table3", "CIFAR-100, the server with synthetic images, too", "cifar100 with resnet18", "table3_synthetic"),
    _pairs(
        "table4",
        "`full` fine-tunes BERT-base. "
        "FastText is judged on as many pairs, held out by a draw of our own, 276 of them alike: a mean over words "
        "cannot compare two sentences, and 67.6 % is what the majority gets. The printed local steps are for "
        "fine-tuning.",
    ),
    _pairs(
        "table4_minilm",
        "a linear layer is judged on as many pairs, held out by a draw of our own, 276 of them alike (67.6 %). It "
        "learns from frozen features of MiniLM-L6, which was trained for the similarity of sentences.",
    ),
    _ablation(
        "table6",
        "table 6: how many samples the server has",
        "The paper finds that more samples for distillation give a higher last accuracy. On digits the clients lose "
        "the samples that the server gets, which is another question.",
        lambda run: f"u = {run['unlabelled.samples']:g}",
    ),
    _ablation(
        "table7",
        "table 7: hard and soft labels",
        "The paper finds hard labels alone worst, and a mix by the teacher's entropy best. It does not say whether KL "
        "is averaged over samples, as it is printed, or over their classes too, as PyTorch's kl_div does.",
        _alpha,
    ),
    _ablation(
        "table11",
        "table 11: cutting gradients of the distillation",
        "The paper finds gradients cut to a norm of 5 best, with 1 and without cutting slightly less.",
        _clip,
    ),
    _page(
        "controls",
        "where the gain is from",
        "FedEcho's local step is three times FedBuff's, and it trains on images besides. Here are FedBuff with that "
        "step, FedEcho with noise for images, with the clients' own, and with a teacher that forgets stragglers: "
        "reports from models more than 50 server iterations back. γ says how far classes follow the clients' sizes, "
        f"which the paper does not print; without it they do not. Of {_ONE_CELL}; the paper has none of this.",
        (Curves("iteration"), Values((LATE, FINAL, BEST)), client_accuracy, straggler_accuracy, staleness),
        ("delay.gamma",),
        relabel=_control,
        shares_runs_with=("fedecho/table2",),
    ),
    _page(
        "composition",
        "distillation behind other rules",
        f"Distillation after the steps of other rules, each with and without it. Of {_ONE_CELL}; not in the paper.",
        (Curves("uploads"), Values((LATE, FINAL, BEST, UPLOADS)), client_accuracy, straggler_accuracy),
        primary=_LATE_BY_UPLOADS,
        relabel=_composed,
        shares_runs_with=("fedecho/table2",),
    ),
    _page(
        "server_time",
        "the server's time charged",
        "The paper charges nothing for distillation, 2.2 to 3.5 s a round on its machine (2000 samples, 0.0014 s each) "
        "where a round lasts 5.2 s. With what five clients' models say about them, a third of a sample each, it is "
        "7.5 s: its server would be the bottleneck. Here a server that distils uses no other upload meanwhile, at that "
        "price and at ten times it. "
        f"Of {_ONE_CELL}; not in the paper. At medium FedEcho distils at ten times the printed rate, which hardly "
        "moves LeNet5.",
        (Curves("virtual_time"), Values((LATE, FINAL, BEST, _TIME)), staleness),
        primary=_LATE_IN_TIME,
        relabel=names.label_with_server_time,
        shares_runs_with=("fedecho/table2",),
    ),
)
