"""Folders of an encoder that are refused before anything is loaded."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asyncfl_bench.config import compose
from asyncfl_bench.experiment.preflight import Preflight
from asyncfl_bench.models.pretrained import BertConfig


@pytest.fixture
def folder(tmp_path) -> Path:
    return make_folder(tmp_path)


def make_folder(tmp_path: Path) -> Path:
    """With all files that a folder needs; no library has to read them."""
    place = tmp_path / "encoder"
    place.mkdir()
    (place / "config.json").write_text(json.dumps({"model_type": "bert", "num_hidden_layers": 2}))
    (place / "tokenizer_config.json").write_text("{}")
    for name in ("model.safetensors", "vocab.txt"):
        (place / name).write_bytes(b"")
    return place


@pytest.fixture
def deadline() -> Iterator[None]:
    """A test that hangs fails after five seconds."""

    def end(*_):
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def put(name: str, content: object) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def put_fifo(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).parent.mkdir(exist_ok=True)
        os.mkfifo(folder / name)

    return change


def put_link(name: str, target: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return change


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def refuse_folder(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = make_folder(tmp_path)
    assert BertConfig(path=str(folder)).content_digest() is not None
    change(folder)
    BertConfig(path=str(folder)).content_digest()


def refuse_for_data(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """The check before a run and a plan use this one, without torch."""
    folder = make_folder(tmp_path)
    line = {"split": "train", "label": 1, "text": "good"}
    (tmp_path / "sst2.jsonl").write_text("\n".join(json.dumps(line | {"split": of}) for of in ("train", "dev")))
    words = ["dataset=sst2", "model=bert", f"model.path={folder}", f"data_dir={tmp_path}"]
    words += ["n_clients=1", "heterogeneity=iid"]
    Preflight().check(compose(words))
    change(folder)
    Preflight().check(compose(words))


def test_a_refused_folder_ends_the_command_in_one_line_and_leaves_no_run(folder, deadline, afl_run):
    put_fifo("tokenizer.json")(folder)
    refused = afl_run("dataset=sst2", "model=bert", f"model.path={folder}", "hydra.run.dir=here")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert f"model.path={folder}: {folder}/tokenizer.json is not a regular file" in refused.stderr
    assert not Path("here").exists()


def test_links_to_files_folders_beside_them_and_harmless_settings_are_allowed(folder):
    put("more_config.json", {"label2id": {"player": 2000}, "attn_implementation": "sdpa"})(folder)
    plain = BertConfig(path=str(folder)).content_digest()
    (folder / "model.safetensors").rename(folder.parent / "blob")
    (folder / "model.safetensors").symlink_to(folder.parent / "blob")
    (folder / "1_Pooling").mkdir()
    (folder / "onnx.json").mkdir()
    assert BertConfig(path=str(folder)).content_digest() == plain
