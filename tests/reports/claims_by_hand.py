"""A paper whose claims are written by hand, and pages that judged them."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncfl_bench.analysis import claims
from asyncfl_bench.analysis.claims import NAME, PageVerdicts, Verdict, to_json

CLAIMS = """\
name: Demo
readings:
  demo/figure1: a tick takes 11 to 37 uploads, the pseudo-code steps at each arrival
  demo/figure1_arrivals: a step at every arrival
claims:
  - &order
    id: faster
    item: figure 1
    passage: section 5
    sentence: ACE is faster than FedBuff
    sweeps: [demo/figure1, demo/figure1_arrivals]
    decide: {kind: order, measure: late, groups: [[ace], [fedbuff]]}
  - {<<: *order, id: equal-time, sentence: ACE ends higher in the same time, board: question}
  - {<<: *order, id: state, sentence: ACE keeps |B| vectors, board: construction}
  - {<<: *order, id: data, sentence: ACE ends highest, for_each: {paper: {demo/cifar: CIFAR, demo/mnist: MNIST}}}
  - {<<: *order, id: higher, sentence: ACE is more accurate than FedBuff, passage: abstract, abstract: true}
  - {id: bound, item: theorem 1, passage: section 4, sentence: ACE converges, blocked: runs do not decide a bound}
  - {id: cost, item: table 9, passage: section 6, sentence: ACE is cheaper, not_run: no sweep}
"""


@pytest.fixture
def demo(tmp_path, monkeypatch) -> Path:
    """The paper ``demo`` is the only one that has claims."""
    folder = tmp_path / "papers" / "demo"
    folder.mkdir(parents=True)
    (folder / "claims.yaml").write_text(CLAIMS)
    monkeypatch.setattr(claims, "paper_folders", lambda: {"demo": folder})
    return folder


def found(claim: str, verdict: str, reason: str = "", **more) -> Verdict:
    numbers = {"difference": 1.56, "low": -0.87, "high": 3.98, "p": 0.15, "seeds": 5, "total": 5, "unit": "points"}
    return Verdict(
        f"demo/{claim}", verdict, reason, **{"contrast": "ACE - FedBuff", "yardstick": "late"} | numbers | more
    )


def write_page(results: Path, name: str, *verdicts: Verdict, profile="published", scale="medium") -> str:
    """A page with ``claims.json``; returns its link."""
    folder = results / "demo" / name / f"{profile}-{scale}"
    folder.mkdir(parents=True)
    page = PageVerdicts(f"demo/{name}", profile, scale, "standard", verdicts)
    (folder / NAME).write_text(to_json(page))
    (folder / "README.md").write_text("# A page\n\n- runs by asyncfl_bench 0.1.0\n")
    return f"{folder.relative_to(results)}/README.md"


def write_pages(results: Path) -> Path:
    """Figure 1 at two scales, and another reading of it that has another verdict."""
    needs, alone = "needs about 8 seeds (2 of 3); at chance (1 of 3)", "needs more than 200 seeds"
    write_page(
        results,
        "figure1",
        found("faster", "fails", contrasts=3, agree=2, against=1),
        found("higher", "holds", seeds=3, total=3, indication="claim changed after these runs"),
        found("data-cifar", "inconclusive", needs, contrasts=3),
        found("data-mnist", "inconclusive", alone),
        found("state", "holds"),
        found("equal-time", "tie"),
    )
    write_page(results, "figure1", found("faster", "inconclusive", alone), scale="small")
    write_page(results, "figure1_arrivals", found("faster", "holds"))
    write_page(results, "figure1", found("faster", "holds"), scale="smoke")
    return results
