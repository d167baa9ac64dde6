"""The pages of GAS (arXiv:2409.01251)."""

from functools import partial

import pandas as pd

from ...analysis import names
from ...analysis.published import PublishedNumbers
from ...reports.blocks import Curves, Values, client_accuracy, staleness
from ...reports.pages.spec import BEST, FINAL, LATE, UPLOADS, Measure, PageSpec, late_measures

_SPLIT = ("heterogeneity", "heterogeneity.shards_per_client", "heterogeneity.alpha")
_CINIC10 = "cinic10 with alexnet"
_PRINTED = {"late": ("final_accuracy_percent", "std_percent")}
_RELEASED = {"fedfa": "FedBuff as released", "mifa": "CA2FL as released"}
_UPLINK, _TIME = Measure("summary.used.uplink_bytes"), Measure("summary.used.virtual_time")
_LATE_IN_TIME, _LATE_BY_BYTES = late_measures("virtual_time", "bytes")
_FAIR = "the paper's own environment, whose arrivals methods of one kind share; the step tuned on validation samples."
_RULES = (
    "Printed as FedBuff and CA2FL is what the released code runs: the mean of the last local models, and a step "
    "with the mean of all clients' last differences (here without its late clients' start from the newest model). "
    "Whether the accuracy is the last one, the best or a mean of rounds is not stated: the mean of the last ten "
    "evaluations."
)


_page = partial(
    PageSpec,
    problems=("cifar10 with alexnet", "fashion_mnist with alexnet"),
    tuned=("client.lr",),
    fair=_FAIR,
    rankings=(BEST,),
)


def _published_table(table: int, note: str = _RULES) -> PublishedNumbers:
    return PublishedNumbers(f"gas_table{table}", _PRINTED, note=note)


def _rule(run: pd.Series) -> str:
    return _RELEASED.get(run["algorithm"], names.algorithm_label(run["algorithm"]))


def _part(run: pd.Series) -> str:
    """Name a control: GAS without a part or with another reading of it, another method with or without adjusted
    logits."""
    if run["algorithm"] != "gas":
        return _rule(run) + (", adjusted" if pd.notna(run.get("client.logit_adjustment")) else "")
    changes = {
        "none generated": not run["algorithm.generate"],
        "none adjusted": not run["algorithm.adjust"],
        "variances alone": run["algorithm.covariance"] == "diagonal",
        "filled to the largest class": run["algorithm.fill"] == "largest",
        "cut to a batch": run["algorithm.fill"] == "exact",
        "ridge kept": run["algorithm.ridge_at"] == "merge" and run["algorithm.ridge"] == 1e-5,
        "larger ridge kept": run["algorithm.ridge_at"] == "merge" and run["algorithm.ridge"] > 1e-5,
        "answers after the step": run["algorithm.answer"] == "after",
        "equal weights": run["algorithm.weight_exponent"] == 0,
    }
    return ", ".join(["GAS", *(word for word, holds in changes.items() if holds)])


PAGES = (
    _page(
        "gas/table1",
        "GAS, table 1: accuracy of four methods",
        "The paper prints the test accuracy after 2000 server iterations (Fashion-MNIST: 1000) under two splits of the "
        "labels; GAS leads in every cell.",
        ("paper", *_SPLIT),
        (
            Curves("iteration", split="paper"),
            Curves("virtual_time", split="paper"),
            Curves("bytes", split="paper"),
            Values((LATE, FINAL, BEST, UPLOADS, _UPLINK)),
            client_accuracy,
            staleness,
        ),
        order=("fedbuff", "fedavg", "ca2fl", "gas"),  # table 1, means over cells
        relabel=_rule,
        published=_published_table(1),
        shares_runs_with=("gas/figure3", "gas/controls"),
        problems=("cifar10 with alexnet", _CINIC10, "fashion_mnist with alexnet"),
    ),
    _page(
        "gas/table2",
        "GAS, table 2: local iterations",
        "The paper prints the accuracy after 1000 server iterations for E local iterations: GAS is best with 20 and "
        "ahead up to 35, CA2FL gains with E. Its data set, not named, is likely CINIC-10.",
        ("paper", *_SPLIT, "client.local_steps"),
        (
            Curves("iteration", split="client.local_steps"),
            Curves("virtual_time", split="client.local_steps"),
            Values((LATE, FINAL, BEST, _TIME, _UPLINK)),
        ),
        rankings=(_LATE_IN_TIME, _LATE_BY_BYTES),
        order=("fedbuff", "ca2fl", "gas"),  # table 2, means over cells
        relabel=_rule,
        published=_published_table(2),
        shares_runs_with=("gas/table1",),
        problems=(_CINIC10,),
    ),
    _page(
        "gas/table3",
        "GAS, table 3: more clients",
        "The paper prints the accuracy with 50 and 100 clients, of which 10 are at work; GAS leads in every cell.",
        ("paper", "n_clients", *_SPLIT),
        (Curves("iteration", split="n_clients"), Values((LATE, FINAL, BEST)), client_accuracy),
        order=("fedbuff", "fedavg", "ca2fl", "gas"),  # table 3, means over cells
        relabel=_rule,
        published=_published_table(3, f"{_RULES} One run a cell is published, without a spread."),
        problems=("cifar10 with alexnet", _CINIC10),
    ),
    _page(
        "gas/table4",
        "GAS, table 4: where the model is cut",
        "The paper prints GAS's accuracy for four cuts of two networks, with three shards a client: the deeper the cut "
        "the lower, but for the last two of VGG-16.",
        ("model",),
        (Curves("iteration", split="model"), Values((LATE, FINAL, BEST, _UPLINK))),
        problems=("cifar10 with alexnet", "cifar10 with vgg16"),
        relabel=lambda run: f"cut after {run['model.cut']:g}",
        published=_published_table(4, "VGG-16 has group normalisation here, theirs batch normalisation and dropout."),
    ),
    _page(
        "gas/table5",
        "GAS, table 5: two more networks",
        "The paper prints the accuracy with ViT-small and ResNet-18, cut behind the first block or stage; GAS leads in "
        "every cell, by most with two shards a client.",
        ("model", *_SPLIT),
        (Curves("iteration", split="model"), Values((LATE, FINAL, BEST, _UPLINK)), client_accuracy),
        problems=("cifar10 with vit_small", "cifar10 with resnet18"),
        order=("fedbuff", "fedavg", "ca2fl", "gas"),  # table 5, means over cells
        relabel=_rule,
        published=_published_table(
            5,
            f"{_RULES} ResNet-18 has group normalisation here, and ViT-small SGD without dropout, theirs Adam with it.",
        ),
    ),
    _page(
        "gas/figure2",
        "GAS, figure 2: with and without generated activations",
        "The paper draws the accuracy on Fashion-MNIST with 10 clients, of which 3 are at work: generated activations "
        "come faster and further, and the server's gradients are nearer to those of the test set. That distance is not "
        "defined in its text; here it is the authors' code's: of the rows that the server's part last stepped on, "
        "after that step, squared, over the number of parameter tensors.",
        _SPLIT[:2],
        (
            Curves("iteration"),
            Curves("iteration", metric="dissimilarity/squared", heading="## Gradient dissimilarity"),
            Curves("iteration", metric="dissimilarity/cosine", heading="## Cosine of the gradients"),
            Values((LATE, FINAL, BEST, Measure("dissimilarity"))),
            client_accuracy,
        ),
        problems=("fashion_mnist with alexnet",),
        relabel=lambda run: "generated activations" if run["algorithm.generate"] else "none generated",
    ),
    _page(
        "gas/figure3",
        "GAS, figure 3: accuracy against time beside synchronous split learning",
        "The paper draws the accuracy against time with two shards a client; GAS is ahead of MiniBatch-SFL and S2FL, "
        "whose clients wait for each other at every mini-batch.",
        ("paper", *_SPLIT[:2]),
        (Curves("virtual_time", split="paper"), Curves("bytes", split="paper"), Values((LATE, FINAL, BEST, _TIME))),
        primary=_LATE_IN_TIME,
        rankings=(LATE,),
        shares_runs_with=("gas/table1",),
        problems=("cifar10 with alexnet", _CINIC10),
    ),
    _page(
        "gas/figure4",
        "GAS, figure 4: accuracy against time for 20 and 50 local iterations",
        "The paper draws the accuracy against time with Dirichlet shares of α = 0.1. With E = 20 GAS is ahead of "
        "FedBuff and CA2FL. With E = 50 it sends more than they do. The data set is that of table 2.",
        ("paper", *_SPLIT, "client.local_steps"),
        (
            Curves("virtual_time", split="client.local_steps"),
            Curves("bytes", split="client.local_steps"),
            Values((LATE, FINAL, BEST, _TIME, _UPLINK)),
        ),
        primary=_LATE_IN_TIME,
        rankings=(LATE, _LATE_BY_BYTES),
        relabel=_rule,
        published=_published_table(2),
        shares_runs_with=("gas/table2",),
        problems=(_CINIC10,),
    ),
    _page(
        "gas/controls",
        "GAS, what it owes to its parts",
        "GAS generates activations and adjusts logits; the paper shows the one without the other on one data set only. "
        "Here are both, what paper and released code do differently, and clients that are all equally fast. Not in the "
        "paper.",
        (*_SPLIT[:2], "delay"),
        (Curves("iteration"), Values((LATE, FINAL, BEST)), client_accuracy),
        relabel=_part,
        shares_runs_with=("gas/table1",),
    ),
    _page(
        "gas/logit_adjustment",
        "GAS, logit adjustment for all",
        "GAS adjusts the logits of its clients' loss by their label shares (equation 6), the methods beside it do not. "
        "Here FedAvg, FedBuff and CA2FL adjust them, too (`client.logit_adjustment=1`), beside GAS with and without "
        "generated activations. Not in the paper.",
        _SPLIT[:2],
        (Curves("iteration"), Values((LATE, FINAL, BEST)), client_accuracy),
        relabel=_part,
        shares_runs_with=("gas/table1", "gas/controls"),
    ),
    _page(
        "gas/equal",
        "GAS at equal time and at equal bytes, the server's computing takes time",
        "The paper draws accuracy over time: GAS with FedBuff and CA2FL, on other data with MiniBatch-SFL and S2FL. "
        "Its server computes in no time, as here in rows without a server time. All methods have equal virtual time. "
        "While a server of split learning computes, other messages wait. A client of split learning sends "
        "activations E times, gets their gradients, and sends its part of the model. Other clients send the whole "
        "model. The paper does not count these costs.",
        (*_SPLIT[:2], "client.local_steps"),
        (
            Curves("virtual_time", split="client.local_steps"),
            Curves("bytes", split="client.local_steps"),
            Values((LATE, FINAL, BEST, Measure("summary.used.server_iterations"), _UPLINK)),
            staleness,
        ),
        primary=_LATE_IN_TIME,
        rankings=(_LATE_BY_BYTES,),
        relabel=names.label_with_server_time,
    ),
)
