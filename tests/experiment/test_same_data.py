"""A finished run of other data does not count as finished."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from raise_versions import rewrite_archive
from tiers import slow

from asyncfl_bench import run
from asyncfl_bench.config import compose, options
from asyncfl_bench.data.datasets import KNOWN
from asyncfl_bench.errors import BenchError, ConfigError
from asyncfl_bench.experiment import finished_result, refuse_other_data
from asyncfl_bench.tracking.archive import pack_archive

QUICK = ["algorithm=asgd", "algorithm.eta=0.1", "n_clients=3", "client.batch_size=2", "progress=false", "data_dir=d"]
QUICK += ["budget.uploads=2", "budget.server_iterations=null", "budget.virtual_time=null", "tracking=local"]
IDENTIFIED = {"arrays", "local"}  # the files decide the identity


def write_arrays(path, shape=(), dtype="u1", clients=False):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 60, (48, *shape)).astype(dtype), np.arange(48) % 2
    if clients:
        np.savez(path, x=x, y=y, client=np.arange(48) // 16)
    else:
        np.savez(path, x_train=x[:36], y_train=y[:36], x_test=x[36:], y_test=y[36:])


def write_lines(path, *fields):
    lines = [{"split": split, "label": i % 2} | dict.fromkeys(fields, f"word{i % 5} and word{i}")
             for split in ("train", "dev", "test") for i in range(20)]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_images(name):
    write_arrays(f"d/{name}.npz", KNOWN[name].image)
    return [f"dataset={name}", "heterogeneity=iid", "model=softmax"]


def write_data(dataset):
    """Write small files of a data set, and return the words that choose it."""
    Path("d").mkdir()
    name, _, kind = dataset.partition(" ")
    if name in KNOWN:
        words = write_images(name)
        if kind == "unlabelled":  # the file of another set is changed
            write_images("cifar100")
            return [*words, "unlabelled=images", "distillation=fedecho", "distillation.steps=1"]
        return words
    if kind == "features":
        write_arrays("d/sst2-own.npz", (6,), "f8")
        return ["dataset=sst2", "dataset.features=own", "heterogeneity=iid", "model=softmax"]
    if name in ("sst2", "newsgroups20", "mrpc"):
        write_lines(Path(f"d/{name}.jsonl"), *(["text1", "text2"] if name == "mrpc" else ["text"]))
        return [f"dataset={name}", "heterogeneity=iid", "model=fasttext", "model.embedding=2", "model.buckets=8"]
    if name == "femnist":
        write_arrays("d/femnist.npz", (28, 28), clients=True)
        return ["dataset=femnist", "model=softmax"]
    if name.startswith("shakespeare"):
        write_arrays("d/shakespeare.npz", (80,), clients=True)
        return [f"dataset={name}", "model=lstm", "model.hidden=2", "model.embedding=2", "dataset.min_samples=2"]
    if name == "arrays":
        write_arrays("d/own.npz", (6,), "f8")
        return ["dataset=arrays", "dataset.path=d/own.npz", "heterogeneity=iid", "model=softmax"]
    for file in ("0", "1", "2", "test"):
        np.savez(f"d/{file}.npz", x=np.random.default_rng(0).random((6, 4)), y=np.arange(6) % 2)
    return ["dataset=local", "dataset.folder=d", "dataset.classes=2", "model=softmax"]


def change_one_byte(path):
    """Change one number of a sample, or one letter of a text, in a file that stays readable and as large as it was."""
    if path.suffix == ".jsonl":
        path.write_text(path.read_text().replace("word1 ", "work1 ", 1))
        return
    arrays = dict(np.load(path))
    samples = arrays[next(name for name in ("x_train", "x") if name in arrays)]
    samples.view("u1").flat[0] ^= 1
    np.savez(path, **arrays)


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """No file of one test is a file of the other, whatever the clock."""
    monkeypatch.setattr("asyncfl_bench.files._RECENT", 2**62)


READ = {name for name in options("dataset") if name != "digits" and not name.startswith("synthetic")}
READ = READ - {"newsgroups20_minilm"} | {"sst2 features", "cifar10 unlabelled"}  # features of texts are one case
FAST = {"mnist", "femnist", "sst2", "sst2 features", "cifar10 unlabelled"}


@pytest.mark.parametrize("dataset", [*sorted(FAST), *slow(*sorted(READ - FAST))])
def test_one_changed_byte_of_a_file_is_not_taken_for_the_data_of_a_finished_run(dataset):
    words = [*QUICK, *write_data(dataset)]
    first = run(words)
    assert first.ok and "already_complete" not in first.summary
    assert run(words).summary["already_complete"]
    path = sorted(Path("d").glob("*.[nj]*"))[dataset == "cifar10 unlabelled"]
    before = path.read_bytes()
    change_one_byte(path)
    assert path.stat().st_size == len(before) and path.read_bytes() != before
    if dataset in IDENTIFIED:
        assert run(words).summary["identity"] != first.summary["identity"]
        return
    with pytest.raises(ConfigError, match=r"data_dir=d: d/.* has other data than the finished run .* had; rerun=true"):
        run(words)
    path.write_bytes(before[: len(before) // 2])
    with pytest.raises(BenchError, match=str(path)):
        run(words)
    path.unlink()
    assert run(words).summary["already_complete"], "without the file nothing can be compared"
    path.write_bytes(before)
    assert run(words).summary["already_complete"]
    change_one_byte(path)
    again = run([*words, "rerun=true"])
    assert again.ok and again.summary["data_files"] != first.summary["data_files"]
    assert run(words).summary["already_complete"]


@pytest.mark.parametrize("dataset", sorted(FAST))
def test_a_run_of_an_earlier_version_is_compared_by_the_digest_of_its_samples(dataset, monkeypatch):
    words = [*QUICK, *write_data(dataset), "evaluation.validation_share=0.25"]
    first, archive = run(words), Path("runs.parquet")
    pack_archive(["runs"], archive)
    rewrite_archive(archive, lambda one: replace(one, summary={**one.summary, "data_files": None}))
    settings = compose([*words, "output_dir=elsewhere"])
    result = finished_result(settings, {settings.identity: archive})
    refuse_other_data([(settings, result)])
    path = sorted(Path("d").glob("*.[nj]*"))[dataset == "cifar10 unlabelled"]
    before = path.read_bytes()
    change_one_byte(path)
    if dataset == "sst2 features":  # of floats that digest has the shape
        refuse_other_data([(settings, result)])
    else:
        with pytest.raises(
            ConfigError, match=rf"{first.summary['name']} in runs.parquet had; rerun=true runs it again$"
        ):
            refuse_other_data([(settings, result)])
    for other in Path("d").glob("*"):
        other.unlink()
    with monkeypatch.context() as without:
        without.setattr("asyncfl_bench.experiment.result.load_and_draw", None)
        refuse_other_data([(settings, result)])
    if dataset == "cifar10 unlabelled":
        path.write_bytes(before)  # the other file is missing still: what cannot be compared counts
        refuse_other_data([(settings, result)])


def test_the_same_samples_in_another_file_are_the_same_data():
    words = [*QUICK, *write_data("mnist")]
    run(words)
    np.savez_compressed("d/mnist.npz", **np.load("d/mnist.npz"))
    assert run(words).summary["already_complete"]


@pytest.mark.parametrize("words", [[], ["-m", "--plan"], *slow(["-m"], ["--plan"])])
def test_every_command_refuses_other_data_before_anything_starts(words, afl_run):
    common = [*QUICK, *write_data("mnist")]
    asked = [*common, "seed=3,4,5,6"] if "-m" in words else [*common, "seed=3"]
    if "-m" in words:
        assert afl_run("-m", *common, "seed=3,4").returncode == 0
    else:
        assert afl_run(*common, "seed=3").returncode == 0
    change_one_byte(Path("d/mnist.npz"))
    there = sorted(Path("runs").glob("*/*"))
    ended = afl_run(*words, *asked)
    assert ended.returncode == 2 and sorted(Path("runs").glob("*/*")) == there and "\nTraceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line]
    assert line.startswith("afl-run: data_dir=d: d/mnist.npz has other data than ")
    assert ("2 finished runs had, the first is runs/" if "-m" in words else "the finished run runs/") in line
    assert line.endswith(f"rerun=true runs {'them' if '-m' in words else 'it'} again, another output_dir keeps both")
    kept = afl_run(*words, *asked, "output_dir=other")
    assert kept.returncode == 0
    if not words:
        assert afl_run(*asked, "rerun=true").returncode == 0 and afl_run(*asked).returncode == 0


def test_a_run_does_not_resume_with_other_features():
    words = [*QUICK, *write_data("sst2 features")]
    first = run(words)
    (first.directory / "summary.json").unlink()  # as of a killed run
    assert "already_complete" not in run(words).summary
    (first.directory / "summary.json").unlink()
    change_one_byte(Path("d/sst2-own.npz"))
    with pytest.raises(BenchError, match="began with other samples than are there now"):
        run(words)


@pytest.mark.slow
def test_looks_do_not_mix_data(afl_run):
    write_data("mnist")
    words = ["-m", *QUICK[1:], "dataset=mnist", "heterogeneity=iid", "model=softmax", "algorithm=asgd,rescaled_asgd"]
    words += ["decide=true", "decide.tie=100"]
    assert afl_run(*words).returncode == 0
    change_one_byte(Path("d/mnist.npz"))
    for plan in ([], ["--plan"]):
        ended = afl_run(*words, *plan)
        assert ended.returncode == 2 and "d/mnist.npz has other data than " in ended.stderr


def test_a_digest_is_computed_once_for_a_file_and_again_when_it_has_changed(tmp_path, monkeypatch):
    from asyncfl_bench import files

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "_RECENT", 0)
    read = []
    monkeypatch.setattr(files, "sha256_of", lambda path: read.append(path) or f"{len(read)}")
    path = tmp_path / "file"
    path.write_bytes(b"one")
    assert [files.file_digest(path) for _ in range(3)] == ["1"] * 3
    monkeypatch.setattr(files, "_texts", {})  # as in another process
    assert files.file_digest(path) == "1" and len(read) == 1
    facts = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # who keeps the time of a file cannot keep this one
    assert files.file_digest(path) == "2"
    monkeypatch.setattr(files, "_texts", {})
    for damaged in (b"[1]", b"\xff", b"{"):
        (tmp_path / "cache/asyncfl_bench/digests.json").write_bytes(damaged)
        assert files.recall(f"{damaged}", lambda: "made") == "made"
