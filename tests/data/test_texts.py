"""Sets of texts, from plain files and from a download."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np

from asyncfl_bench.data.texts import FIRST_WORD, PADDING, UNKNOWN, Texts, TextsConfig
from asyncfl_bench.randomness import Streams


def texts(directory, name="sst2", judged_on="dev", **settings):
    return Texts(TextsConfig(name, judged_on, **settings)).load(directory, Streams(0), 1)


def write(directory, lines, name="sst2"):
    text = "".join(line if isinstance(line, str) else json.dumps(line) for line in lines for line in (line, "\n"))
    (directory / f"{name}.jsonl").write_text(text, encoding="utf-8")


def line(split, label, text):
    return {"split": split, "label": label, "text": text}


FILM = [
    line("train", 1, "A good film , a GOOD film"),
    line("train", 0, "bad , bad !!"),
    line("dev", 1, "good , good actors"),
    line("test", 0, "a bad one"),
]


def test_words_are_numbered_by_how_often_they_occur_in_the_texts_to_train(tmp_path):
    write(tmp_path, FILM)
    data = texts(tmp_path)
    # ",", "a", "bad", "film", "good" twice each, by their letters; "!!" once
    comma, a, bad, film, good, marks = range(FIRST_WORD, FIRST_WORD + 6)
    assert data.x_train.dtype == np.int32 and data.symbols == FIRST_WORD + 6 and data.padding == PADDING
    assert data.x_train.tolist() == [[a, good, film, comma, a, good, film], [bad, comma, bad, marks, *[PADDING] * 3]]
    assert data.x_test.tolist() == [[good, comma, good, UNKNOWN, *[PADDING] * 3]]
    assert data.y_train.tolist() == [1, 0] and data.y_test.tolist() == [1] and data.classes == 2
    assert data.x_other.tolist() == [[a, bad, UNKNOWN, *[PADDING] * 4]] and data.source == "sst2.jsonl"
    judged = texts(tmp_path, judged_on="test")
    assert judged.y_test.tolist() == [0] and judged.x_other.tolist() == data.x_test.tolist()


def test_texts_are_cut_and_the_number_of_known_words_is_limited(tmp_path):
    write(tmp_path, FILM)
    data = texts(tmp_path, length=2, words=2)
    assert data.symbols == FIRST_WORD + 2  # of the cut texts "a good" and "bad ,": "," and "a"
    assert data.x_train.tolist() == [[FIRST_WORD + 1, UNKNOWN], [UNKNOWN, FIRST_WORD]]


def test_a_run_may_judge_the_first_texts_of_the_test_set_only(tmp_path):
    write(tmp_path, FILM + FILM)
    whole, cut = texts(tmp_path), texts(tmp_path, test_samples=1)
    assert (len(whole.y_test), cut.y_test.tolist()) == (2, whole.y_test[:1].tolist())
    assert cut.x_test.tolist() == whole.x_test[:1].tolist() and cut.x_train.tolist() == whole.x_train.tolist()


def pairs(count):
    return [{"split": "train", "label": int(i % 3 > 0), "text1": f"word{i}", "text2": "Again"} for i in range(count)]


def test_pairs_are_one_text_with_a_sign_between_and_408_are_held_out_in_proportion(tmp_path):
    write(tmp_path, pairs(600), "mrpc")
    data = texts(tmp_path, "mrpc")
    assert data.shape == (3,) and set(data.x_train[:, 1]) == {2} and set(data.x_train[:, 2]) == {FIRST_WORD}
    assert len(data.y_train) == 192 and len(data.y_test) == 408 and data.y_test.sum() == 272
    assert set(data.x_test[:, 0]) == {UNKNOWN} and len(set(data.x_train[:, 0])) == 192  # no pair is on both sides
    assert data.x_other is None and data.source == "mrpc.jsonl, 408 of its training samples held out"
    assert texts(tmp_path, "mrpc").digest == data.digest
    more = {"split": "dev", "label": 1, "text1": "word1", "text2": "word2"}
    write(tmp_path, [*pairs(600), more], "mrpc")
    assert len(texts(tmp_path, "mrpc").y_test) == 1 and len(texts(tmp_path, "mrpc").y_train) == 600


def test_a_download_becomes_a_plain_file_that_is_read_from_then_on(tmp_path, monkeypatch):
    asked = []

    def load_dataset(*repository, cache_dir):
        asked.append(repository)
        rows = [{"sentence": "good film", "label": 1, "idx": 0}, {"sentence": "bad", "label": 0, "idx": 1}]
        return {"train": rows, "validation": rows[:1], "test": [{"sentence": "unknown", "label": -1, "idx": 0}]}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    data = texts(tmp_path, download=True)
    assert data.y_train.tolist() == [1, 0] and data.y_test.tolist() == [1] and data.x_other is None
    assert texts(tmp_path).digest == data.digest and asked == [("stanfordnlp/sst2",)]
    assert (tmp_path / "sst2.jsonl").read_text().splitlines()[0] == json.dumps(
        {"split": "train", "label": 1, "text": "good film"}
    )
