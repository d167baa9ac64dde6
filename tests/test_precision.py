"""Runs of two precisions are different runs, and those of versions without the setting count as what they were."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from asyncfl_bench import load_runs, run
from asyncfl_bench.analysis.matching import group_runs
from asyncfl_bench.config import compose
from asyncfl_bench.config.settings import identity_of_tree
from asyncfl_bench.errors import ConfigError, InputError
from asyncfl_bench.experiment import finished_result, machine
from asyncfl_bench.multirun.jobs import plan
from asyncfl_bench.multirun.pending import finished_paths
from asyncfl_bench.tracking.archive import archived_summaries

RESULTS = Path(__file__).parents[1] / "results"
# what the ten runs of an H100 were called before the setting, and since
RENAMED = {
    "ace-cifar10-exp_beta30-seed0-11851e48": "85925989",
    "asgd-cifar10-exp_beta30-seed0-deccab50": "ffcacf5f",
    "asgd-cifar10-exp_beta30-seed1-37050626": "969ca4df",
    "asgd-cifar10-exp_beta30-seed2-054d0075": "6ab3a18d",
    "ca2fl-cifar10-exp_beta30-seed0-4d3fdfa9": "fc38d833",
    "ca2fl-cifar10-exp_beta30-seed1-d2d9b63f": "11284da2",
    "delay_adaptive_asgd-cifar10-exp_beta30-seed0-943d1fec": "3d13d335",
    "delay_adaptive_asgd-cifar10-exp_beta30-seed2-7886872c": "5d587f67",
    "fedbuff-cifar10-exp_beta30-seed0-3b285f8e": "c1a571c7",
    "fedbuff-cifar10-exp_beta30-seed1-f1a95053": "debecbab",
}
WORDS = ["scale=smoke", "model=softmax", "progress=false", "algorithm=asgd"]
H100 = "cuda (NVIDIA H100 80GB HBM3)"


def test_the_archived_runs_of_a_gpu_have_tf32_in_their_identity():
    found = {}
    files = sorted((RESULTS / "ace" / "archive").glob("*.parquet"))
    for summary_text, config_text in itertools.chain(*map(archived_summaries, files)):
        if '"cuda' in summary_text:
            config, summary = json.loads(config_text), json.loads(summary_text)
            assert config["precision"] == "tf32" and identity_of_tree(config) == summary["identity"]
            assert summary["experiment"] == identity_of_tree(config | {"seed": None})
            assert summary["name"].endswith(f"-seed{config['seed']}-{summary['identity']}")
            before = identity_of_tree({key: value for key, value in config.items() if key != "precision"})
            found[summary["name"].replace(summary["identity"], before)] = summary["identity"]
    assert found == RENAMED


def test_a_run_of_figure_2_in_tf32_is_one_of_them_and_one_in_fp32_keeps_its_name():
    words = ["sweep=ace/figure2", "scale=full", "algorithm=ace", "delay=exp_beta30", "heterogeneity.alpha=0.1"]
    assert compose(words).identity == "11851e48"
    assert compose([*words, "precision=tf32"]).identity == "85925989"


@pytest.mark.slow
def test_no_other_archived_run_has_another_identity():
    for archive in RESULTS.glob("*/archive/*.parquet"):
        for summary_text, config_text in archived_summaries(archive):
            config, summary = json.loads(config_text), json.loads(summary_text)
            if "cuda" not in str(summary.get("device")):
                tree = config | {"precision": "fp32", "absent": [*config.get("absent", ()), "precision"]}
                assert identity_of_tree(tree, summary.get("digests", {})) == summary["identity"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run([*WORDS, f"output_dir={tmp_path_factory.mktemp('finished')}"])


@pytest.fixture
def earlier(finished, monkeypatch):
    """``earlier(config, summary)``: the directory that an earlier version left, with these changes; summary None: it
    was killed."""

    def make(config=None, summary=()):
        place = Path(shutil.copytree(finished.directory, Path("runs") / finished.directory.name))
        tree = yaml.safe_load((place / "config.yaml").read_text()) | (config or {})
        del tree["precision"]
        tree["absent"].remove("precision")
        (place / "config.yaml").write_text(yaml.safe_dump(tree))
        if summary is None:
            (place / "summary.json").unlink()
        else:
            (place / "summary.json").write_text(json.dumps(finished.summary | dict(summary)))
        return place

    return make


def test_a_finished_run_of_a_gpu_counts_as_tf32_alone(earlier, afl_run):
    place = earlier(summary={"device": H100})
    tf32 = compose([*WORDS, "precision=tf32"])
    (row,) = load_runs("runs").to_dict("records")
    assert (row["status"], row["precision"], row["identity"]) == ("ok", "tf32", tf32.identity)
    assert row["name"] == tf32.name and row["experiment"] == row["summary.experiment"] == tf32.experiment
    assert finished_result(compose(WORDS)) is None
    assert finished_paths(plan([*WORDS, "precision=tf32"], None)) == {tf32.identity: place}
    before = {path: path.read_bytes() for path in place.iterdir()}
    done = afl_run(*WORDS)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "a run of an earlier version on a GPU, which counts as one with precision=tf32; rerun=true" in done.stderr
    assert {path: path.read_bytes() for path in place.iterdir()} == before
    assert run([*WORDS, "rerun=true"]).ok and load_runs("runs")["identity"].tolist() == [compose(WORDS).identity]


def test_a_finished_run_of_a_cpu_stays_finished(earlier):
    earlier()
    assert run(WORDS).summary["already_complete"]
    assert "precision" not in load_runs("runs") or load_runs("runs")["precision"].tolist() == [None]


@pytest.mark.parametrize(
    ("config", "summary", "has_gpu"),
    [
        ({}, None, True),
        ({"device": "cuda:1"}, None, False),
        ({}, {"exit_status": "interrupted", "device": H100}, False),
    ],
    ids=["killed where there is a GPU", "killed on a named GPU", "interrupted on a GPU"],
)
def test_an_unfinished_run_that_may_have_been_on_a_gpu_is_not_resumed(config, summary, has_gpu, earlier, monkeypatch):
    monkeypatch.setattr(machine, "has_gpu", lambda: has_gpu)
    place = earlier(config, summary)
    for words in (WORDS, [f"resume={place}", "device=cpu"]):
        with pytest.raises(
            InputError, match=r"earlier version, perhaps on a GPU in TF32; rerun=true replaces it"
        ) as one:
            run(words)
        assert one.value.exit_code == 2 and "\n" not in str(one.value)
    assert run([*WORDS, "rerun=true"]).ok


@pytest.mark.parametrize(
    ("config", "summary", "has_gpu"),
    [
        ({}, None, False),
        ({"device": "cpu"}, None, True),
        ({}, {"exit_status": "interrupted", "device": "cpu (x86_64, 2 cores)"}, True),
    ],
    ids=["killed without a GPU", "killed on a named CPU", "interrupted on a CPU"],
)
def test_an_unfinished_run_of_a_cpu_is_resumed(config, summary, has_gpu, earlier, monkeypatch, finished):
    monkeypatch.setattr(machine, "has_gpu", lambda: has_gpu)
    place = earlier(config, summary)
    with (place / "metrics.jsonl").open("a") as lines:
        lines.write('{"iteration": 99}\n')  # a run from the beginning would have no such line to cut off
    resumed = run([*WORDS, "device=cpu"])
    assert resumed.ok and resumed.summary["final"] == finished.summary["final"]
    assert yaml.safe_load((place / "config.yaml").read_text())["precision"] == "fp32"


def test_a_resumed_run_keeps_its_precision(finished):
    with pytest.raises(ConfigError, match="precision=tf32: cannot be changed by a resumed run"):
        run([f"resume={finished.directory}", "precision=tf32"])


def test_tf32_needs_a_gpu_that_has_it(monkeypatch, afl_run):
    said = "precision=tf32: needs a GPU, and the run is on a CPU; precision=fp32 works there"
    for words in (["device=cpu"], ["--plan"]):
        done = afl_run(*WORDS, "precision=tf32", *words)
        assert done.returncode == 2 and said in done.stdout + done.stderr
    root = compose([*WORDS, "precision=tf32", "device=cuda"]).root
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    for generation, allowed in ((7, False), (8, True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, major=generation: (major, 0))
        if allowed:
            machine.refuse_unsupported(root, "cuda")
            continue
        with pytest.raises(ConfigError, match=r"precision=tf32: is not computed by cuda \(Tesla V100\); use .*fp32"):
            machine.refuse_unsupported(root, "cuda")


def test_a_gpu_computes_convolutions_in_the_precision_and_other_products_in_fp32():
    with torch.backends.cudnn.flags():
        for precision in ("tf32", "fp32"):
            torch.backends.cuda.matmul.allow_tf32 = True
            machine.make_deterministic("cuda", precision)
            found = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
            assert found == (precision == "tf32", False)
        machine.make_deterministic("cpu")


@pytest.mark.parametrize("compare", ["algorithm", "precision"])
def test_no_cell_has_runs_of_two_precisions(compare, earlier):
    """Also where each algorithm has one, so that runs of an algorithm differ in nothing."""
    earlier(summary={"device": H100})
    run([*WORDS[:-1], "algorithm=ace"])
    runs = group_runs(load_runs("runs"), compare=["algorithm", compare]).runs
    found = {(row["algorithm"], row["cell"]) for row in runs.to_dict("records")}
    assert found == {("ace", ""), ("asgd", "TF32 precision")}
