"""Folders of an encoder that are refused before anything is loaded."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asyncfl_bench.errors import ConfigError
from asyncfl_bench.models.pretrained import BertConfig


@pytest.fixture
def folder(tmp_path) -> Path:
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


REFUSED = {
    "a fifo of weights": (put_fifo("model.safetensors"), "model.safetensors is not a regular file"),
    "a fifo that only the library reads": (put_fifo("chat_template.jinja"), "chat_template.jinja is not a regular"),
    "a fifo of templates": (put_fifo("additional_chat_templates/a.jinja"), "templates/a.jinja is not a regular file"),
    "a dangling link": (put_link("vocab.txt", "nowhere"), "vocab.txt is not a regular file"),
    "a link to itself": (put_link("merges.txt", "merges.txt"), "merges.txt is not a regular file"),
    "a device": (put_link("special_tokens_map.json", "/dev/zero"), "special_tokens_map.json is not a regular file"),
    "many layers": (put("config.json", {"num_hidden_layers": 200_000}), "config.json has num_hidden_layers=200000"),
    "many layers by another name": (put("config.json", {"n_layers": 1e300}), r"config.json has n_layers=1e\+300"),
    "many layers inside": (put("config.json", {"text_config": {"num_layers": 1001}}), "json has num_layers=1001"),
    "a configuration for a version": (put("config.4.0.0.json", {"n_layer": 1001}), "4.0.0.json has n_layer=1001"),
    "code of the model": (put("config.json", {"auto_map": {}}), r"config.json names code to run \(auto_map\)"),
    "code of the tokenizer": (put("tokenizer_config.json", {"auto_map": ["a.B"]}), "tokenizer_config.json names code"),
    "code of the hub": (put("config.json", {"attn_implementation": "a/b"}), r"names code to run \(attn_impl"),
    "an adapter": (put("adapter_config.json", {"peft_type": "LORA"}), "adapter_config.json would freeze the encoder"),
    "no json": (put("config.json", "{"), "config.json cannot be read: Expecting"),
    "deep json": (put("config.json", "[" * 100_000), "config.json cannot be read: nested more than 20 deep"),
    "no text": (lambda folder: (folder / "config.json").write_bytes(b"\xff"), "config.json cannot be read: 'utf-8'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_that_cannot_be_used_is_refused_with_the_name_of_the_file(folder, deadline, name):
    assert BertConfig(path=str(folder)).content_digest() is not None
    change, message = REFUSED[name]
    change(folder)
    with pytest.raises(ConfigError, match=message) as caught:
        BertConfig(path=str(folder)).content_digest()
    assert str(caught.value).startswith(f"path={folder}: {folder}/") and "\n" not in str(caught.value)


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
