"""FedEcho's rule, and its distillation after the steps of other rules."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from toy import assert_same_bits, finish_run, table_of

from asyncfl_bench import run
from asyncfl_bench.algorithms.asgd import Asgd
from asyncfl_bench.algorithms.base import StepConfig, equip
from asyncfl_bench.algorithms.common.trial import TrialServer
from asyncfl_bench.algorithms.distillation import Adam, Distillation, DistillationConfig, Teacher
from asyncfl_bench.algorithms.fedbuff import FedBuff
from asyncfl_bench.config import compose
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.randomness import Streams
from asyncfl_bench.storage import Storage
from asyncfl_bench.types import ClientTable, Upload

D = 4
SMALL = ["scale=smoke", "progress=false", "model=softmax", "trace=true"]
VISIBLE = ["distillation.rate=0.003", "distillation.batch_size=20"]


def distilled(rule=None, n=3, server=None, seed=0, **settings):
    """A rule that takes every upload as a step, followed by distillation; and its model."""
    rule = equip(rule or Asgd(StepConfig(eta=1.0)), Storage(), Streams(seed), server or TrialServer())
    rule = Distillation(DistillationConfig(**settings)).wrap_rule(rule, Streams(seed))
    model = torch.zeros(D, dtype=torch.float64)
    rule.start(model, ClientTable(np.ones(n, dtype=int)), "difference")
    return rule, model


def upload(client, vector=(0.0,) * D, outputs=None, version=0, staleness=0):
    vector_d = torch.tensor(vector, dtype=torch.float64)
    outputs = TrialServer().outputs(vector_d) if outputs is None else torch.tensor(outputs, dtype=torch.float64)
    return Upload(client, vector_d, version, staleness, 1, 1, outputs_uc=outputs)


def told(rule):
    return dict(zip(rule.decision_columns, rule.decisions()[0], strict=True))


# -- FedEcho is FedBuff with a part behind it ------------------------------------------------------------------------


def test_without_steps_of_distillation_fedecho_is_fedbuff_bit_for_bit():
    plain = run([*SMALL, "algorithm=fedbuff"])
    echo = run([*SMALL, "algorithm=fedecho", "distillation.steps=0"])
    assert_same_bits(plain, echo)
    assert not (echo.directory / "rule.parquet").exists()


@pytest.mark.slow
def test_fedecho_is_fedbuff_followed_by_distillation_and_meets_fedbuffs_arrivals():
    echo = run([*SMALL, *VISIBLE, "algorithm=fedecho"])
    parts = run([*SMALL, *VISIBLE, "algorithm=fedbuff", "distillation=fedecho"])
    assert_same_bits(echo, parts)
    plain = run([*SMALL, "algorithm=fedbuff", "unlabelled=held_back"])
    columns = ["time", "client", "staleness", "delay"]
    traces = [table_of(one)[columns] for one in (echo, plain)]
    pd.testing.assert_frame_equal(*traces, check_exact=True)
    assert echo.metrics["test/loss"].iloc[-1] != plain.metrics["test/loss"].iloc[-1]


@pytest.mark.parametrize(
    "algorithm", ["ace", *(pytest.param(one, marks=pytest.mark.slow) for one in ("ca2fl", "fedavg", "afbs"))]
)
def test_distillation_follows_the_steps_of_other_rules(algorithm):
    clusters = ["algorithm.clusters=2"] if algorithm == "afbs" else []
    result = finish_run(*SMALL, *VISIBLE, *clusters, f"algorithm={algorithm}", "distillation=fedecho")
    table = table_of(result, "rule")
    assert sorted(set(table["iteration"])) == list(range(1, 21))
    assert (table["distilled_step"] > 0).all() and (table["rule_step"] > 0).all()
    assert result.metrics["rule/alpha_mean"].iloc[1:].between(0.2, 0.8).all()
    assert ("cluster" in table) == (algorithm == "afbs")


def test_a_rule_keeps_what_it_is_with_distillation_behind_it():
    rule, _ = distilled(FedBuff(buffer_size=2))
    assert (rule.needs.outputs, rule.needs.linear, rule.needs.uploads_per_iteration(10)) == (True, False, 2)
    assert rule.upload_kinds == FedBuff.upload_kinds and rule.vectors(3) == 1 + 5
    with pytest.raises(AttributeError):
        rule.no_such_thing  # noqa: B018


# -- the teacher -----------------------------------------------------------------------------------------------------


def test_the_teacher_is_the_mean_of_the_newest_reports_of_those_who_reported():
    rng = np.random.default_rng(0)
    teacher, newest = Teacher(7, torch.zeros(3, 2)), {}
    for version, client in enumerate(rng.integers(0, 6, 500)):
        newest[int(client)] = torch.tensor(rng.normal(size=(3, 2)) * 10.0 ** rng.integers(-3, 3)).float()
        teacher.add_report(int(client), version, newest[int(client)])
    assert teacher.reports == len(newest) == 6
    expected = torch.stack([*newest.values()]).double().mean(dim=0)
    assert torch.equal(teacher.mean(), expected.float())
    before = teacher.mean()
    teacher.add_report(*next((client, 500, logits) for client, logits in newest.items()))
    assert torch.equal(teacher.mean(), before)


@pytest.mark.parametrize("huge", [1e30, float("inf"), float("nan")])
def test_a_report_that_is_replaced_leaves_nothing_behind(huge):
    teacher = Teacher(2, torch.zeros(1, 2))
    for client, value in ((0, 1.0), (1, huge), (1, 3.0)):
        teacher.add_report(client, 0, torch.full((1, 2), value))
    assert teacher.mean().tolist() == [[2.0, 2.0]]


def test_old_reports_may_be_left_out_of_the_teacher():
    rule, _ = distilled(max_age=1)
    certain = [[9.0, 0.0]] * 3
    rule.receive(upload(0, outputs=certain))
    assert told(rule)["reports"] == 1
    rule.receive(upload(1, version=1))
    assert told(rule)["reports"] == 2
    rule.receive(upload(2, version=1, staleness=1))
    assert told(rule)["reports"] == 2, "client 0's started from version 0, the step was from version 2"
    rule.receive(upload(0, version=0, staleness=3))
    assert told(rule)["reports"] == 0 and told(rule)["distilled_step"] == 0


# -- one round -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "alpha"),
    [([[1.0, 1.0]] * 3, 0.9), ([[80.0, 0.0]] * 3, 0.3), ([[0.0, math.log(3)]] * 3, 0.3 + 0.6 * 0.8112781)],
    ids=["undecided", "certain", "between"],
)
def test_the_weight_of_soft_targets_follows_the_teachers_entropy(outputs, alpha):
    rule, _ = distilled(alpha_min=0.3, alpha_max=0.9)
    rule.receive(upload(0, outputs=outputs))
    assert told(rule)["alpha"] == pytest.approx(alpha, rel=1e-6)


@pytest.mark.parametrize("kl_mean", ["batch", "elements"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_mini_batchs_step_follows_equation_3_by_automatic_differentiation(alpha, kl_mean):
    start = (0.3, -0.2, 0.5, 0.1)
    outputs = [[0.2, 0.9], [1.5, -1.0], [0.4, 0.3]]
    settings = {"alpha_min": alpha, "alpha_max": alpha, "kl_mean": kl_mean}
    rule, model = distilled(optimizer="sgd", rate=0.1, clip=None, batch_size=3, **settings)
    rule.receive(upload(0, start, outputs))
    w = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    log_q, y = TrialServer().outputs(w).log_softmax(1), torch.tensor(outputs, dtype=torch.float64)
    terms = torch.nn.functional.kl_div(log_q, y.softmax(1), reduction="none")
    kl = terms.sum() / 3 if kl_mean == "batch" else terms.mean()
    (gradient,) = torch.autograd.grad(alpha * kl + (1 - alpha) * torch.nn.functional.nll_loss(log_q, y.argmax(1)), w)
    torch.testing.assert_close(model, (w - 0.1 * gradient).detach(), rtol=1e-9, atol=1e-12)
    assert told(rule)["gradient_norm"] == pytest.approx(float(gradient.norm()))
    assert told(rule)["rule_step"] == pytest.approx(np.linalg.norm(start))


def test_adam_is_that_of_torch():
    generator = torch.Generator().manual_seed(0)
    own, other = torch.zeros(50), torch.zeros(50, requires_grad=True)
    adam, expected = Adam(own), torch.optim.Adam([other], lr=0.01)
    for _ in range(20):
        gradient = torch.randn(50, generator=generator)
        adam.step(own, gradient, 0.01)
        other.grad = gradient
        expected.step()
    torch.testing.assert_close(own, other.detach(), rtol=1e-6, atol=1e-8)


def test_a_student_that_is_its_own_teacher_stays_where_it_is_with_soft_targets_alone():
    rule, model = distilled(optimizer="sgd", rate=1.0, alpha_min=1.0, alpha_max=1.0)
    rule.receive(upload(0, (0.3, -0.2, 0.5, 0.1)))
    torch.testing.assert_close(model, torch.tensor((0.3, -0.2, 0.5, 0.1), dtype=torch.float64), rtol=0, atol=1e-12)


def test_gradients_are_cut_to_their_norm_and_no_limit_changes_nothing_else():
    start, steps = (0.3, -0.2, 0.5, 0.1), {}
    for clip in (0.01, 100.0, None):
        rule, _ = distilled(optimizer="sgd", rate=1.0, batch_size=3, clip=clip)
        rule.receive(upload(0, start, [[9.0, 0.0]] * 3))
        steps[clip] = told(rule)
    assert steps[0.01]["distilled_step"] == pytest.approx(0.01) and steps[0.01]["clipped_share"] == 1
    assert steps[100.0] == steps[None] and steps[None]["distilled_step"] == steps[None]["gradient_norm"] > 0.1


@pytest.mark.parametrize(("settings", "batches"), [({}, [2, 1]), ({"steps": 1}, [2]), ({"steps": 5}, [2, 1, 2, 1, 2])])
def test_mini_batches_are_shuffled_passes_over_the_samples(settings, batches):
    seen = []

    class Watched(TrialServer):
        def gradient(self, w_d, rows_b, target_bc, out_d):
            seen.append(rows_b.tolist())
            return super().gradient(w_d, rows_b, target_bc, out_d)

    rule, _ = distilled(server=Watched(), batch_size=2, **settings)
    for version in range(6):
        rule.receive(upload(0, version=version))
    rounds = [seen[i : i + len(batches)] for i in range(0, len(seen), len(batches))]
    assert len(rounds) == 6 and all([len(rows) for rows in own] == batches for own in rounds)
    assert all(sorted(own[0] + own[1]) == [0, 1, 2] for own in rounds if len(own) > 1)
    assert len({str(own) for own in rounds}) > 1
    assert rule.server_samples == pytest.approx(sum(batches) + 3 / 3)


# -- settings --------------------------------------------------------------------------------------------------------


def test_the_local_step_of_gradients_counts_where_models_report():
    words = ["algorithm=ace", "client.lr=0.3"]
    with pytest.raises(ConfigError, match="has no effect"):
        compose(words)
    assert compose([*words, "distillation=fedecho"]).parts["client"].config.upload == "gradient"
