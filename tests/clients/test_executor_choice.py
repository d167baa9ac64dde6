"""Executors differ in speed alone: the same arrivals and mini-batches exactly, the same results to rounding."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from tiers import slow
from toy import assert_same_bits, final_model, finish_run, table_of

from asyncfl_bench.clients.choosing import executor_class
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.tracking.rundir import TRACE_TYPES

WORLDS = {
    "gradients": ["algorithm=ace", "model=mlp"],
    "local steps": ["algorithm=fedbuff", "client.local_steps=4", "client.momentum=0.9", "client.weight_decay=1e-3"],
    "adamw": ["algorithm=ca2fl", "client=adamw", "client.local_steps=3", "client.lr=0.001"],
    "convolutions": ["algorithm=asgd", "model=cnn", "delay=exponential"],
    "dropout": ["algorithm=aced", "availability=dropout", "availability.at_iteration=8", "delay=exponential"],
    "eight bits": ["algorithm=aced", "algorithm.cache.precision=int8", "algorithm.cache.place=disk"],
    "passes": [
        *("algorithm=fedprox", "algorithm.mu=0.3", "client.local_epochs=2", "client.momentum=0.5"),
        *("client.lr_decay=0.9", "availability=suspension", "availability.probability=0.3", "delay=uniform"),
    ],
    "sums": ["algorithm=feddyn", "client.local_steps=3", "availability=suspension", "client.lr_decay=0.8"],
    "adaptive": ["algorithm=asyncfeded", "client.local_epochs=2", "client.momentum=0.5", "delay=work_and_link"],
    "single steps": [  # long enough for clients of one batch to be at different pieces of their work
        *("algorithm=fedasync", "client.lr_decay=0.8", "delay=exponential", "availability=suspension"),
        "budget.server_iterations=80",
    ],
    "changes": ["algorithm=ace", "algorithm.rule=incremental", "schedule=random_idle", "concurrency=4"],
}


FAST = ("dropout", "gradients")


def outcome(executor, words, output="runs"):
    """(trace, flat final weights, result) of a run."""
    small = ("scale=smoke", "trace=true", "progress=false", "threads=2", "client.batch_size=20")
    result = finish_run(*small, f"executor={executor}", f"output_dir={output}/{executor}", *words)
    return table_of(result), final_model(result), result


@pytest.mark.parametrize("world", [*FAST, *slow(*(world for world in WORLDS if world not in FAST))])
def test_threads_give_the_bits_of_one_after_another_and_batches_the_same_to_rounding(world):
    trace, whole, result = outcome("sequential", WORLDS[world])
    assert_same_bits(outcome("threads", WORLDS[world])[2], result)
    batched_trace, other, batched = outcome("batched", WORLDS[world])
    exact = list(TRACE_TYPES)
    pd.testing.assert_frame_equal(trace[exact], batched_trace[exact], check_exact=True)
    pd.testing.assert_frame_equal(trace, batched_trace, rtol=1e-4)  # the rule's own facts follow from the vectors
    far = ((whole - other).abs() > 2e-5 + 2e-4 * other.abs()).float().mean()
    # AdamW divides by the gradient's own size, so that rounding turns a step around where it is nearly zero,
    # and a number on the border between two steps of 8 bits may be rounded to the other one
    few, apart = {"adamw": (1e-3, 5e-3), "eight bits": (1e-2, 1e-3)}.get(world, (0, 2e-5))
    assert far <= few
    torch.testing.assert_close(whole, other, rtol=2e-4, atol=apart)
    assert batched.summary["identity"] == result.summary["identity"]
    np.testing.assert_allclose(batched.metrics["train/loss"][1:], result.metrics["train/loss"][1:], rtol=1e-4)


@pytest.mark.slow
def test_ragged_and_empty_clients_are_no_matter(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 5)).astype(np.float32), rng.integers(0, 3, 90)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    words = ["dataset=arrays", f"dataset.path={tmp_path}/own.npz", "model=mlp", "n_clients=12"]
    words += ["heterogeneity.alpha=0.05", "heterogeneity.min_samples=0"]
    words += ["algorithm=fedbuff", "client.local_steps=3", "client.weight_decay=0.1"]
    trace, weights, _ = outcome("sequential", words)
    _, batched, _ = outcome("batched", words)
    assert trace.samples.min() == 0 and trace.samples.max() > 20
    torch.testing.assert_close(weights, batched, rtol=1e-4, atol=1e-6)


@pytest.mark.slow  # it compiles
def test_the_native_executor_has_the_same_arrivals_and_the_same_to_rounding():
    words = [*WORLDS["convolutions"], "client.upload=difference", "client.local_steps=3"]
    trace, weights, result = outcome("sequential", words)
    native_trace, native_weights, native = outcome("native", words)
    _, again, chosen = outcome("auto", words)
    exact = list(TRACE_TYPES)
    pd.testing.assert_frame_equal(trace[exact], native_trace[exact], check_exact=True)
    torch.testing.assert_close(weights, native_weights, rtol=2e-4, atol=2e-5)
    assert torch.equal(native_weights, again)
    assert native.summary["identity"] == result.summary["identity"]
    assert (native.summary["executor"], chosen.summary["executor"]) == ("native", "native")


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["batched", *slow("sequential", "threads")])
def test_the_same_settings_give_the_same_bits_twice(executor):
    assert_same_bits(*(outcome(executor, WORLDS["local steps"], output)[2] for output in ("one", "two")))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"perceptron": True}, "batched"),
        ({"perceptron": False}, "threads"),
        ({"perceptron": False, "cores": 1}, "sequential"),
        ({"perceptron": False, "device": "cuda"}, "batched"),
        ({"perceptron": False, "device": "cuda", "captures": True}, "batched"),
        ({"perceptron": False, "device": "cuda", "captures": True, "stacks": False}, "graph"),
        ({"perceptron": True, "device": "cuda", "captures": True}, "batched"),
        ({"perceptron": False, "device": "cuda", "captures": True, "has_statistics": True}, "sequential"),
        ({"perceptron": False, "has_statistics": True}, "sequential"),
        ({"perceptron": False, "stacks": False}, "threads"),
        ({"perceptron": False, "stacks": False, "cores": 1}, "sequential"),
        ({"perceptron": False, "stacks": False, "device": "cuda"}, "sequential"),
    ],
)
def test_auto_chooses_by_device_and_model(facts, expected):
    facts = {"device": "cpu", "cores": 2, "has_statistics": False} | facts
    assert executor_class("auto", **facts) == expected


@pytest.mark.slow
def test_a_recurrent_network_runs_in_threads_with_the_bits_of_one_after_another(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 80, (90, 80), dtype=np.uint8)
    np.savez(tmp_path / "shakespeare.npz", x=x, y=x[:, -1], client=np.repeat(np.arange(3), 30))
    words = ["dataset=shakespeare", "model=lstm", "model.hidden=8", "n_clients=3", f"data_dir={tmp_path}"]
    words += ["algorithm=fedbuff", "algorithm.buffer_size=2", "client.local_steps=2", "budget.server_iterations=4"]
    words += ["evaluation.validation_share=0.2"]
    trace, _, result = outcome("auto", words)
    assert result.summary["executor"] == "threads" and result.summary["data_source"] == "shakespeare.npz"
    assert_same_bits(result, outcome("sequential", words)[2])
    assert 3.5 < result.metrics["validation/loss"][0] < 5
    assert trace.groupby("client").samples.first().sum() == 65  # of 81 to train 16 are held back
    with pytest.raises(ConfigError, match="executor=batched"):
        outcome("batched", words)


@pytest.mark.slow
def test_a_network_of_words_runs_in_threads_with_the_bits_of_one_after_another(tmp_path):
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(300)])
    lines = [
        json.dumps({"split": split, "label": int(i % 2), "text": " ".join(rng.choice(words, rng.integers(1, 12)))})
        for split, count in (("train", 400), ("dev", 40))
        for i in range(count)
    ]
    (tmp_path / "sst2.jsonl").write_text("\n".join(lines))
    words = ["dataset=sst2", "model=fasttext", "model.buckets=500", f"data_dir={tmp_path}", "client.proximal=0.1"]
    words += ["algorithm=fedbuff", "client.local_epochs=2", "client.momentum=0.9", "client.weight_decay=0.01"]
    result = outcome("auto", words)[2]
    assert result.summary["executor"] == "threads" and result.summary["data_source"] == "sst2.jsonl"
    assert_same_bits(result, outcome("sequential", words)[2])
