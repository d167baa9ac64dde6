"""Runs of encoders in folders: pages know them by architecture and size and show each its published numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from asyncfl_bench.config import compose
from asyncfl_bench.config.settings import RESULTS_VERSION
from asyncfl_bench.multirun.axes import jobs_of, sweep_grids
from asyncfl_bench.multirun.decide import Looks
from asyncfl_bench.multirun.decide_words import Request
from asyncfl_bench.papers import paper_pages
from asyncfl_bench.reports.assembly import build_page
from asyncfl_bench.reports.pages.write import Table, flatten_parts
from asyncfl_bench.tracking.runs import load_runs

SHAPES = {"bert_base": ("bert", 12, 768), "distilbert": ("distilbert", 6, 768)}
PRINTED = {"bert_base": [68.7, 76.6, 78.2], "distilbert": [63.7, 71.4, 73.1]}  # ACE at alpha 0.1, 1 and 10
SWEEP = "ace/table_a2_bert"


def write_run(place: Path, encoder: Path, shape: tuple[str, int, int], accuracy: float, *words: str) -> None:
    """A finished run of the paper's own scale by hand, with the files of its encoder in ``encoder``."""
    encoder.mkdir(exist_ok=True)
    for name in ("config.json", "vocab.txt", "model.safetensors"):
        (encoder / name).write_text(json.dumps(shape))
    settings = compose([f"sweep={SWEEP}", "algorithm=ace", *words, f"model.path={encoder}"])
    folder = place / settings.name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings.tree))
    counters = {"uploads": 2000, "client_steps": 2000, "virtual_time": 100.0, "wall_time": 1.0}
    (folder / "metrics.jsonl").write_text(json.dumps({"iteration": 100, "test/accuracy": accuracy, **counters}) + "\n")
    facts = dict(zip(("model_type", "layers", "hidden_size"), shape, strict=True))
    summary = {"exit_status": "ok", "identity": settings.identity, "experiment": settings.experiment}
    summary |= {"results_version": RESULTS_VERSION, "wall_seconds": 1.0, "digests": settings.digests}
    summary |= {"final": {"test/accuracy": accuracy}, "task": {"encoder": facts, "test_samples": 7505, "classes": 20}}
    (folder / "summary.json").write_text(json.dumps(summary))


def test_an_encoder_is_named_after_its_architecture_and_size(tmp_path):
    shapes = [*SHAPES.values(), ("roberta", 24, 1024), ("bert", 6, 384)]
    for number, shape in enumerate(shapes):
        write_run(tmp_path / "runs", tmp_path / "encoder", shape, 0.5, f"seed={number}")
    models = load_runs(tmp_path / "runs").sort_values("seed")["model"]
    assert models.tolist() == ["bert_base", "distilbert", "roberta_24x1024", "bert"]  # the last one is MiniLM


@pytest.mark.slow
def test_each_encoder_has_its_own_published_numbers_when_its_folder_is_gone(tmp_path):
    for name, shape in SHAPES.items():
        for alpha, printed in zip((0.1, 1.0, 10.0), PRINTED[name], strict=True):
            for seed in (0, 1):
                words = (f"heterogeneity.alpha={alpha}", f"seed={seed}")
                write_run(tmp_path / "runs", tmp_path / name, shape, (printed + 1) / 100, *words)
        shutil.rmtree(tmp_path / name)
    page = build_page(paper_pages()[SWEEP], "published", "full", "standard", load_runs(tmp_path / "runs"))
    tables = {part.name: part.data for part in flatten_parts(page.parts) if isinstance(part, Table)}
    own = tables["published"][lambda table: table["series"] == "ACE"].set_index(["model", "heterogeneity.alpha"])
    for name, printed in PRINTED.items():
        assert own.loc[name, "final_published"].tolist() == printed
        assert own.loc[name, "final_difference"].round(6).tolist() == [1.0] * 3 and own.loc[name, "is_papers"].all()
    text = "\n".join(part for part in page.parts if isinstance(part, str))
    assert "another model's" not in text and str(tmp_path) not in text
    assert "model.path=DIR,DIR" in text, text


@pytest.mark.slow
def test_claims_about_an_encoder_in_a_folder_are_decided(tmp_path):
    rules = ["asgd", "delay_adaptive_asgd", "fedbuff", "ca2fl", "aced", "ace"]  # the order that the paper prints
    asked = [f"sweep={SWEEP}", f"model.path={tmp_path / 'encoder'}", "heterogeneity.alpha=0.1"]
    for words in jobs_of(sweep_grids(asked)):
        rule, seed = (next(word for word in words if word.startswith(key)) for key in ("algorithm=", "seed="))
        place = rules.index(rule.partition("=")[2])
        if seed in ("seed=0", "seed=1", "seed=2"):
            accuracy = 0.5 + place / 20 + int(seed[5:]) / 1000
            write_run(tmp_path / "runs", tmp_path / "encoder", SHAPES["distilbert"], accuracy, *words)
    unmade = Looks(Request(), [*asked, "output_dir=none"]).plan()
    assert "1 claim, 0 of them decided" in unmade and "look 1, 3 seeds: about 18 runs" in unmade
    of_fedecho = Looks(Request(), ["sweep=fedecho/table4", asked[1], "output_dir=none"]).plan()
    assert "1 claim, 0 of them decided" in of_fedecho and "look 1, 3 seeds: about 15 runs" in of_fedecho
    looks = Looks(Request(), asked)
    assert looks.plan() == "1 claim, 1 of them decided"
    (subject,) = looks.question.judge_subjects(3)
    assert subject.word == "ace/table-a2-order holds" and "model = distilbert" in subject.text
