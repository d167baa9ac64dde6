"""Caches by precision and place in whole runs: settings, numbers, what is left behind."""

import pytest
import torch
from toy import final_model, finish_run

from asyncfl_bench import run
from asyncfl_bench.config import compose

WORDS = ["scale=smoke", "progress=false", "threads=1", "trace=true"]
D = 64 * 200 + 200 + 200 * 10 + 10


def weights(*words, output="runs"):
    result = finish_run(*WORDS, f"output_dir={output}", *words)
    return final_model(result), result


@pytest.mark.parametrize("algorithm", ["ace", "aced", "ca2fl"])
def test_the_place_is_no_part_of_a_runs_identity_and_the_precision_is(algorithm):
    plain, disk, int8 = (
        compose([f"algorithm={algorithm}", *words]).identity
        for words in ([], ["algorithm.cache.place=disk"], ["algorithm.cache.precision=int8"])
    )
    assert plain == disk != int8


@pytest.mark.parametrize("words", [["algorithm=ace", "algorithm.rule=incremental"], ["algorithm=aced"]])
def test_a_run_on_disk_ends_in_the_same_bits_and_leaves_no_file(words):
    device, _ = weights(*words)
    disk, result = weights(*words, "algorithm.cache.place=disk", output="disk")
    assert torch.equal(device, disk)
    names = {path.name for path in result.directory.iterdir()}
    kept = {"config.yaml", "metrics.jsonl", "summary.json", "checkpoint.pt", "trace.parquet", "partition.npz"}
    assert names == kept | {"model_initial.pt", "model_final.pt"}


@pytest.mark.slow
def test_eight_bits_change_little_and_threads_nothing():
    plain, _ = weights("algorithm=ace", "executor=sequential")
    int8 = ["algorithm=ace", "algorithm.cache.precision=int8"]
    one, _ = weights(*int8, "executor=sequential", output="one")
    two, _ = weights(*int8, "executor=threads", "threads=2", output="two")
    assert torch.equal(one, two)
    assert 0 < (one - plain).norm() < 0.05 * plain.norm()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_run_whose_uploads_are_no_longer_finite_is_marked_as_diverged(precision):
    words = [f"algorithm.cache.precision={precision}", "client.lr=1e38", "model=softmax"]
    result = run([*WORDS, "algorithm=ca2fl", *words])
    assert result.summary["exit_status"] == "diverged", result.summary["error"]


@pytest.mark.parametrize(
    ("words", "server", "clients"),
    [
        (["algorithm=ace"], 10 * 4 * D + 8 * D, 0),
        (["algorithm=ace", "algorithm.cache.precision=bf16"], 10 * 2 * D + 8 * D, 0),
        (["algorithm=ace", "algorithm.cache.precision=int8"], 10 * (D + 4 * 4) + 8 * D, 0),
        (["algorithm=ace", "algorithm.rule=incremental"], 8 * D, 10 * 4 * D),
        (["algorithm=ca2fl"], 10 * 4 * D + 8 * D + 2 * 4 * D, 0),
        (["algorithm=fedbuff"], 4 * D, 0),
        (["algorithm=asgd"], 0, 0),
    ],
)
def test_the_summary_tells_the_bytes_of_server_and_clients(words, server, clients):
    result = run([*WORDS, "model.hidden=[200]", *words])
    assert result.summary["state_bytes"] == {"server": server, "clients": clients}
