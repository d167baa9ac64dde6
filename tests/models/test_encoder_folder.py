"""Folders of an encoder that are refused before anything is loaded."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asyncfl_bench.config import compose
from asyncfl_bench.errors import ConfigError
from asyncfl_bench.experiment.preflight import Preflight
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


def put_header(ids: int, width: int) -> Callable[[Path], None]:
    """Weights of which the header says so much about the embeddings of words."""
    header = json.dumps({"bert.embeddings.word_embeddings.weight": {"dtype": "F32", "shape": [ids, width]}}).encode()
    return lambda folder: (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def change_config(**settings: object) -> Callable[[Path], None]:
    """A BERT of 16 numbers a token and 14 ids, with other settings."""
    shape = {"model_type": "bert", "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 14}
    return put("config.json", {key: value for key, value in (shape | settings).items() if value is not None})


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


WORDS = "\n".join("abcdefghijklmn")  # 14 ids
CLASSIFIER = {"architectures": ["BertForSequenceClassification"]}
UNFIT = {
    "no weights": (remove("model.safetensors"), "must have model.safetensors or pytorch_model.bin in it; allowed: a "),
    "no config": (remove("config.json"), "must have config.json in it; allowed: a folder with config.json, weights"),
    "no tokenizer": (remove("vocab.txt"), "must have tokenizer.json or vocab.txt in it; allowed: a folder with "),
    "another file": (put("config.json", [1]), "config.json cannot be read: no model_type; use the config.json that "),
    "no model": (change_config(model_type=None), "config.json cannot be read: no model_type; use the config.json"),
    "labels by name": (
        change_config(**CLASSIFIER, id2label={str(i): "x" for i in range(3)}),
        "config.json has 3 labels, the data set 2; remove the key architectures to train a new output layer",
    ),
    "labels by count": (change_config(**CLASSIFIER, num_labels=20), "config.json has 20 labels, the data set 2; "),
    "heads": (change_config(num_attention_heads=3), "config.json has hidden_size=16, no multiple of its 3 attention"),
    "heads of distilbert": (
        change_config(hidden_size=None, num_attention_heads=None, dim=16, n_heads=5),
        "config.json has hidden_size=16, no multiple of its 5",
    ),
    "no width": (change_config(hidden_size="16"), "config.json cannot be read: hidden_size=16; use a whole number"),
    "few ids": (change_config(vocab_size=13), "config.json has vocab_size=13, the tokenizer 14 ids; use the tokenizer"),
    "few ids for an added token": (
        put("tokenizer.json", {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 14}]}),
        "config.json has vocab_size=14, the tokenizer 15 ids; use the tokenizer of this encoder",
    ),
    "no ids": (put("tokenizer.json", {"model": {}}), "tokenizer.json cannot be read: no 'vocab'"),
    "other weights": (
        put_header(30522, 768),
        "config.json has vocab_size=14 and hidden_size=16, the weights 30522 and 768; use the files of one encoder",
    ),
    "no weights in the file": (
        put("model.safetensors", "version https://git-lfs"),
        "model.safetensors cannot be read: another format than safetensors",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_folder_that_does_not_fit_the_data_is_refused_without_torch(folder, tmp_path, name):
    """Both by the check before a run and by a plan, which use this one."""
    for change in (change_config(), put("vocab.txt", WORDS), put_header(14, 16)):
        change(folder)
    line = {"split": "train", "label": 1, "text": "good"}
    (tmp_path / "sst2.jsonl").write_text("\n".join(json.dumps(line | {"split": of}) for of in ("train", "dev")))
    words = ["dataset=sst2", "model=bert", f"model.path={folder}", f"data_dir={tmp_path}"]
    words += ["n_clients=1", "heterogeneity=iid"]
    Preflight().check(compose(words))
    change, message = UNFIT[name]
    change(folder)
    with pytest.raises(ConfigError) as caught:
        Preflight().check(compose(words))
    said = str(caught.value)
    assert said.startswith(f"model.path={folder}: ") and message in said and "\n" not in said


def test_a_plan_and_a_run_refuse_a_folder_of_another_number_of_labels_before_torch(folder, tmp_path, afl_run):
    for change in (change_config(**CLASSIFIER, num_labels=3), put("vocab.txt", WORDS), put_header(14, 16)):
        change(folder)
    line = {"split": "train", "label": 1, "text": "good"}
    (tmp_path / "sst2.jsonl").write_text("\n".join(json.dumps(line | {"split": of}) for of in ("train", "dev")))
    words = ["dataset=sst2", "model=bert", f"model.path={folder}", f"data_dir={tmp_path}"]
    words += ["n_clients=1", "heterogeneity=iid"]
    run, plan = afl_run(*words), afl_run(*words, "--plan")
    said = f"model.path={folder}: {folder}/config.json has 3 labels, the data set 2; "
    assert (run.returncode, plan.returncode) == (2, 2)
    assert run.stderr.startswith(f"afl-run: {said}") and run.stderr.count("\n") == 1
    assert f"refused: {said}" in plan.stdout
    many = afl_run(*words, "n_clients=2", "--plan")
    assert "refused: n_clients=2: must be at most 1, the training samples" in many.stdout


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
