"""What cannot go with algorithms whose clients hold a part of the model is refused when a run is composed."""

import numpy as np

from asyncfl_bench.config import compose


def test_ticks_become_seconds_and_null_becomes_the_models_own_cut():
    settings = compose(["algorithm=gas", "delay=exp_beta5", "model=lenet5", "dataset=cifar10", "concurrency=7"])
    assert settings.root.clock == "time" and settings.parts["model"].config.cut == 6
    same = compose(
        ["algorithm=gas", "delay=exp_beta5", "model=lenet5", "dataset=cifar10", "concurrency=7", "model.cut=6"]
    )
    assert settings.identity == same.identity
    rule = settings.parts["algorithm"].config
    assert (rule.activation_buffer, rule.model_buffer) == (7, 7)
    assert (rule.server_lr, rule.server_momentum) == (settings.parts["client"].config.lr, 0)


WIDE = [
    "algorithm=gas",
    "dataset=digits",
    "model=mlp",
    "n_clients=2",
    "heterogeneity=iid",
    "budget.server_iterations=1",
]


def test_a_cut_that_is_too_wide_for_full_covariances_is_refused_before_anything_is_trained(afl_run, tmp_path):
    answer = afl_run(*WIDE, "model.hidden=[4097]", "output_dir=runs")
    assert answer.returncode == 2 and answer.stdout == ""
    assert answer.stderr == (
        "afl-run: algorithm.covariance=full: must be diagonal with a cut of 4097 activations: full takes at most 4096, "
        "as it needs a 4097 x 4097 factorisation for each of 10 classes in a server step\n"
    )
    assert not list(tmp_path.rglob("metrics.jsonl"))
    diagonal = compose([*WIDE, "algorithm.covariance=diagonal"]).parts["algorithm"].config
    assert diagonal.describe_cut_cost(4097, 10) is None


def test_the_networks_of_gas_table_5_are_cut_behind_the_first_stage_or_block_with_variances_alone(afl_run, tmp_path):
    x, y = np.zeros((20, 32, 32, 3), np.uint8), np.arange(20) % 10
    np.savez(tmp_path / "images.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    words = [f"dataset.path={tmp_path}/images.npz", "heterogeneity=iid", "n_clients=2", "model=resnet18,vit_small"]
    answer = afl_run("--plan", "algorithm=gas", "dataset=arrays", *words)
    assert answer.returncode == 2
    refused = [line for line in answer.stdout.splitlines() if line.startswith("refused:")]
    for line, width in zip(refused, (64 * 32 * 32, 65 * 512), strict=True):
        assert f"algorithm.covariance=full: must be diagonal with a cut of {width} activations: full takes" in line
    assert afl_run("--plan", "algorithm=gas", "dataset=arrays", *words, "algorithm.covariance=diagonal").returncode == 0


def test_a_plan_shows_what_full_covariances_cost_and_what_is_refused(afl_run):
    answer = afl_run("--plan", *WIDE, "model.hidden=[400],[4096],[4097]", "seed=0,1")
    assert answer.returncode == 0
    first, second, refused = [line for line in answer.stdout.splitlines() if line.startswith(("server:", "refused:"))]
    assert first == (
        "server: algorithm.covariance=full needs a 400 x 400 factorisation for each of 10 classes in a server step: "
        "1.1e+08 multiply-adds, 7 MiB (2 runs)"
    )
    assert "1.1e+11 multiply-adds, 768 MiB (2 runs)" in second
    assert refused.startswith("refused: algorithm.covariance=full: must be diagonal") and refused.endswith("(2 runs)")
    assert "server:" not in afl_run("--plan", *WIDE, "algorithm.covariance=diagonal").stdout
