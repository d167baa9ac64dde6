"""Sections of papers and sweeps: settings for one profile, algorithm or scale."""

from functools import partial

import pytest

from asyncfl_bench.config import part_sources
from asyncfl_bench.config.choices import VARIANTS, composition, options, papers_with, variant
from asyncfl_bench.config.manual import describe_choices

ROOT = part_sources.config_directory().parent
GLOBAL = "# @package _global_\n# A paper\n"
BASE = """seed: 3
profiles:
  fair:
    n_clients: 20
    algorithms:
      asgd: {algorithm: {c: 3e-5}}
scales:
  smoke:
    instead: {model: softmax}
    concurrency: 3
"""


def write_papers(folder, **texts):
    for name, text in texts.items():
        (folder / "paper").mkdir(exist_ok=True)
        (folder / "paper" / f"{name}.yaml").write_text(GLOBAL + text)
    part_sources.use_folders([folder])


@pytest.fixture
def papers(tmp_path, forgotten_parts):
    """Writes papers of a folder named by hand: ``papers(one=TEXT)``."""
    return partial(write_papers, tmp_path)


def test_papers_and_sweeps_are_a_few_files():
    files = [path for folder in (ROOT / "conf/paper", ROOT / "sweeps") for path in folder.rglob("*.y*ml")]
    assert len(options("paper")) + len(options("sweep")) == len(files) <= 95


def test_sections_of_profile_algorithm_and_scale_are_composed_and_leave_no_trace(papers):
    papers(one=BASE)
    composed = composition(["paper=one", "profile=fair", "algorithm=asgd", "scale=smoke"]).config
    assert (composed.seed, composed.n_clients, composed.concurrency, composed.algorithm.c) == (3, 10, 3, 3e-5)
    assert composed.hydra.runtime.choices.model == "softmax" and not {"profiles", "scales"} & {*composed}
    assert variant("paper_profile", "one/fair") == {"n_clients": 20}  # scale=smoke has 10
    assert variant("paper_profile", "one/released") is None and "one" not in papers_with("released")


def test_an_included_paper_has_the_sections_that_a_paper_lacks(papers):
    own = (
        "defaults:\n  - one\nscales:\n  smoke: {concurrency: 4}\nprofiles:\n  fair:\n    algorithms: {ace: {seed: 5}}\n"
    )
    papers(one=BASE, two=own)
    assert variant("paper_scale", "two/smoke") == {"concurrency": 4}  # as a whole: not its `instead`
    assert variant("paper_profile", "two/fair") == {"n_clients": 20}
    assert variant("paper_algorithm", "two/fair/ace") == {"seed": 5}
    assert variant("paper_algorithm", "two/fair/asgd") == {"algorithm": {"c": 3e-5}}
    assert "It sets, with sections for profile=fair, scale=smoke:" in describe_choices(["paper=two"])


@pytest.mark.parametrize("entry", ["/paper/one", "/paper/one@_global_"])
def test_a_paper_may_be_included_by_its_absolute_name(entry, papers):
    papers(one=BASE, two=f"defaults:\n  - {entry}\n", three="defaults:\n  - /dataset/one\n")
    assert variant("paper_algorithm", "two/fair/asgd") == {"algorithm": {"c": 3e-5}}
    assert composition(["paper=two", "profile=fair", "algorithm=asgd"]).config.algorithm.c == 3e-5
    assert variant("paper_algorithm", "three/fair/asgd") is None


def test_a_changed_file_counts_at_once(papers):
    papers(one=BASE)
    assert variant("paper_scale", "one/smoke")["concurrency"] == 3
    papers(one=BASE.replace("concurrency: 3", "concurrency: 30"))
    assert variant("paper_scale", "one/smoke")["concurrency"] == 30


def test_each_kind_of_section_has_a_user():
    known = {group: options(VARIANTS[group][0]) for group in VARIANTS}
    words = {"profiles": options("profile"), "algorithms": options("algorithm"), "scales": options("scale")}

    def has(group, owner, sections, chosen=""):
        if not sections:
            return bool(variant(group, f"{owner}{chosen}"))
        return any(has(group, owner, sections[1:], f"{chosen}/{word}") for word in words[sections[0]])

    for group, owners in known.items():
        assert any(has(group, owner, VARIANTS[group][1:]) for owner in owners), group
