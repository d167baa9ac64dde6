"""Whom the model serves: accuracy by each client's own labels, whatever computes the run and however it came about."""

import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from toy import assert_same_bits, final_model

from asyncfl_bench import load_clients, load_runs, run
from asyncfl_bench.analysis.measures import straggler_shares
from asyncfl_bench.config import compose
from asyncfl_bench.diagnostics.clients import client_accuracy_summary, expected_accuracy
from asyncfl_bench.experiment import finished_result
from asyncfl_bench.experiment.build import build_run
from asyncfl_bench.tracking.archive import archives_by_identity, pack_archive

WORDS = ["scale=smoke", "model=softmax", "algorithm=ace", "checkpoint.every=5", "progress=false"]
CLIENTS = "evaluation.clients=true"


def table(result) -> pd.DataFrame:
    return pd.read_parquet(result.directory / "clients.parquet")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A finished run that was measured, with its trace."""
    result = run([*WORDS, CLIENTS, "trace=true", f"output_dir={tmp_path_factory.mktemp('measured')}"])
    assert result.ok, result.summary["error"]
    return result


def test_a_client_may_expect_the_class_accuracies_in_the_shares_of_its_labels():
    labels_nc = np.array([[10, 0, 0], [1, 3, 0], [5, 0, 5], [0, 0, 7]])
    hits_c, tests_c = np.array([8, 5, 0]), np.array([10, 20, 0])  # 80 %, 25 %, and a class that is never tested
    expected = expected_accuracy(hits_c, tests_c, labels_nc)
    np.testing.assert_allclose(expected[:3], [0.8, (0.8 + 3 * 0.25) / 4, 0.8])
    assert math.isnan(expected[3])


def test_the_worst_tenth_and_the_outer_quarters_are_of_whole_clients():
    accuracy_n = np.linspace(0.05, 1.0, 20)
    delay_n, uploads_n = np.arange(20.0), np.arange(20)[::-1]
    found = client_accuracy_summary(accuracy_n, delay_n, uploads_n)
    assert found["mean_accuracy"] == pytest.approx(accuracy_n.mean())
    assert found["worst_tenth_accuracy"] == pytest.approx(accuracy_n[:2].mean())
    assert found["fast_quarter_accuracy"] == found["most_heard_quarter_accuracy"] == pytest.approx(0.15)
    assert found["slow_quarter_accuracy"] == found["least_heard_quarter_accuracy"] == pytest.approx(0.9)
    unknown = client_accuracy_summary(accuracy_n, np.where(delay_n < 10, delay_n, np.nan), np.full(20, 7))
    assert unknown["slow_quarter_accuracy"] == pytest.approx(accuracy_n[7:10].mean())
    assert math.isnan(unknown["least_heard_quarter_accuracy"])  # all were heard as often
    assert all(
        math.isnan(value) for value in client_accuracy_summary(np.full(3, np.nan), delay_n[:3], uploads_n[:3]).values()
    )


def test_what_stragglers_hold_and_how_accurate_the_model_is_on_it():
    labels_nc = np.zeros((20, 3), int)
    labels_nc[:, 0], labels_nc[::2, 1], labels_nc[:2, 2], labels_nc[2, 2] = 5, 3, 4, 2
    accuracy_c = np.array([0.9, 0.5, 0.2])
    clients = pd.DataFrame(labels_nc, columns=["label_0", "label_1", "label_2"])
    clients["accuracy"] = labels_nc @ accuracy_c / labels_nc.sum(axis=1)
    clients["mean_delay"] = [90.0, 80.0, *range(16), np.nan, np.nan]  # two were never heard
    found = straggler_shares(clients)
    assert found["share"] == pytest.approx(80) and found["class_accuracy"] == pytest.approx(20)
    assert found["accuracy"] == pytest.approx(100 * clients["accuracy"][:2].mean())
    assert math.isnan(straggler_shares(clients[:2])["class_accuracy"])  # two clients do not tell three classes


def test_the_table_follows_from_the_final_model_the_split_and_the_trace(measured):
    found, settings = table(measured), compose([*WORDS, CLIENTS])
    task = build_run(settings).task
    w_d = final_model(measured)
    x, y = task._judged["test"]
    with torch.no_grad():
        right = (task.flat.logits(w_d, task.as_float(x)).argmax(dim=1) == y).numpy()
    for client, samples in enumerate(task.partition):
        labels = task._y_train[samples].numpy()
        chance = [right[y.numpy() == label].mean() for label in labels]  # of each of its samples' labels
        row = found.iloc[client]
        assert row["accuracy"] == pytest.approx(np.mean(chance)) and row["samples"] == len(samples)
        assert [row[f"label_{label}"] for label in range(10)] == np.bincount(labels, minlength=10).tolist()
    trace = pd.read_parquet(measured.directory / "trace.parquet")
    assert found["uploads"].tolist() == trace["client"].value_counts().reindex(range(10), fill_value=0).tolist()
    last = measured.metrics.iloc[-1]
    told = measured.summary["clients"]
    assert {key: last[f"clients/{key}"] for key in told} == told
    assert told["mean_accuracy"] == pytest.approx(found["accuracy"].mean())
    assert told["worst_tenth_accuracy"] == found["accuracy"].min()  # of ten clients


def test_a_clients_mean_delay_is_that_of_its_work_and_not_of_the_first_round():
    words = ["delay=exponential", "delay.compute=1", "delay.clients=exponential", "delay.redraw=false", "trace=true"]
    result = run([*WORDS, CLIENTS, *words])
    trace = pd.read_parquet(result.directory / "trace.parquet")
    known = trace[trace["delay"] > 0].groupby("client")["delay"].first()  # the same for each piece of its work
    found = table(result).set_index("client")["mean_delay"]
    assert len(known) < 10 and found.notna().all()  # also of those whose first piece is still under way
    np.testing.assert_allclose(found[known.index], known)


def test_measuring_is_no_other_run_and_changes_no_bit(measured):
    plain = run([*WORDS, "trace=true"])
    assert plain.summary["identity"] == measured.summary["identity"] == compose([*WORDS]).identity
    assert_same_bits(plain, measured)
    assert "clients" not in plain.summary and not (plain.directory / "clients.parquet").exists()
    assert not [name for name in plain.metrics if name.startswith("clients/")]


@pytest.mark.parametrize("executor", ["sequential", "threads", "batched"])
def test_every_executor_gives_the_same_table(executor, measured):
    found, expected = table(run([*WORDS, CLIENTS, f"executor={executor}"])), table(measured)
    pd.testing.assert_frame_equal(found, expected, check_exact=False, rtol=0.02)
    for exact in ("uploads", "mean_delay", "samples"):
        assert found[exact].tolist() == expected[exact].tolist()


def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_table(measured, tmp_path):
    cut = Path(shutil.copytree(measured.directory, tmp_path / "cut" / measured.directory.name))
    for name in ("summary.json", "clients.parquet", "checkpoint.pt"):  # the one before, some iterations earlier
        (cut / name).unlink()
    result = run([*WORDS, CLIENTS, "trace=true", f"output_dir={cut.parent}"])
    assert result.summary["wall_seconds"] > 0 and table(result).equals(table(measured))
    assert result.summary["clients"] == measured.summary["clients"]


def test_a_finished_run_that_was_not_measured_is_from_its_checkpoint_or_anew(measured, capsys):
    finished_run = run(WORDS)
    lines = (finished_run.directory / "metrics.jsonl").read_text()
    assert finished_result(compose([*WORDS, CLIENTS])) is None
    measured_now = run([*WORDS, CLIENTS])
    assert table(measured_now).equals(table(measured)) and finished_result(compose([*WORDS, CLIENTS])) is not None
    assert (finished_run.directory / "metrics.jsonl").read_text() == lines  # nothing was computed again
    assert finished_result(compose(WORDS)) is not None
    (measured_now.directory / "clients.parquet").unlink()
    assert finished_result(compose([*WORDS, CLIENTS])) is None and finished_result(compose(WORDS)) is not None


def test_archives_carry_the_table_along(measured, tmp_path):
    other = run([*WORDS, "seed=1"])  # not measured
    archive = tmp_path / "kept" / "runs.parquet"
    assert pack_archive([measured.directory, other.directory], archive) == 2
    here, there = (load_clients(load_runs(*places)) for places in ([measured.directory], [archive]))
    pd.testing.assert_frame_equal(here.drop(columns="run"), there.drop(columns="run"))
    assert len(there) == 10 and list(there)[-1] == "label_9"
    asked = compose([*WORDS, CLIENTS])
    assert finished_result(asked, archives_by_identity(archive.parent)).directory == archive
    assert (
        finished_result(compose([*WORDS, CLIENTS, "seed=1", "output_dir=none"]), archives_by_identity(archive.parent))
        is None
    )


def test_a_damaged_table_is_named(measured, tmp_path):
    cut = Path(shutil.copytree(measured.directory, tmp_path / measured.directory.name))
    (cut / "clients.parquet").write_bytes(b"PAR1 and no more")
    found = load_runs(cut).iloc[0]
    assert found["status"] == "inconsistent" and found["note"].startswith("clients.parquet")


@pytest.mark.slow
def test_whose_uploads_a_selecting_rule_kept_is_counted_also_over_a_checkpoint(tmp_path):
    words = ["paper=afbs/cifar10", "scale=smoke", "model=softmax", "checkpoint.every=2", "progress=false", CLIENTS]
    words += ["trace=true", "heterogeneity.groups=3"]
    whole = run(words)
    decided = pd.read_parquet(whole.directory / "rule.parquet")
    kept = decided.groupby("client")["kept"].sum().reindex(range(30), fill_value=0)
    assert table(whole)["kept"].tolist() == kept.tolist() and 0 < kept.sum() < len(decided)
    cut = Path(shutil.copytree(whole.directory, tmp_path / "cut" / whole.directory.name))
    for name in ("summary.json", "clients.parquet", "checkpoint.pt"):
        (cut / name).unlink()
    assert table(run([*words, f"output_dir={cut.parent}"])).equals(table(whole))
    assert "kept" not in table(run([*words, "algorithm=fedbuff"]))
