"""The next character of a role's lines, from speeches, LEAF's json and a download."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np

from asyncfl_bench.data.pool import PoolConfig
from asyncfl_bench.data.shakespeare import ALPHABET, Shakespeare, encode_text
from asyncfl_bench.randomness import Streams

LONG = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the slings and arrows"


def shakespeare(directory, n_clients=1, **settings):
    return Shakespeare(PoolConfig(**{"download": True} | settings)).load(directory, Streams(0), n_clients)


def write_speeches(directory, *speeches):
    lines = [json.dumps({"play": play, "act": 1, "speaker": who, "text": text}) for play, who, text in speeches]
    (directory / "shakespeare-speeches.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def text_of(ids):
    return "".join(ALPHABET[i] for i in ids)


def test_the_alphabet_is_80_characters_in_the_order_of_their_codes():
    assert len(ALPHABET) == 80 and list(ALPHABET) == sorted(set(ALPHABET))
    assert encode_text("\n }").tolist() == [0, 1, 79] and text_of(encode_text(ALPHABET)) == ALPHABET


def test_characters_outside_the_alphabet_keep_the_length():
    assert text_of(encode_text("Renownèd Ç—æ*\t“no”…")) == "Renowned C     no ."
    assert len(encode_text("æ—…")) == 3


def test_every_place_with_80_characters_before_it_is_a_sample(tmp_path):
    write_speeches(
        tmp_path, ("Hamlet", "HAMLET", LONG[:60]), ("Hamlet", "GHOST", "Mark me."), ("Hamlet", "HAMLET", LONG[60:])
    )
    data = shakespeare(tmp_path, min_samples=2)
    said = LONG[:60] + " " + LONG[60:]
    windows = [text_of(x) for x in [*data.x_train, *data.x_test]]
    assert windows == [said[i : i + 80] for i in range(len(said) - 80)]
    assert text_of([*data.y_train, *data.y_test]) == said[80:]
    # 107 characters, so 27 samples: floor(0.9 * 27) to train and the last three to test
    assert len(said) == 107 and len(data.y_train) == 24 and len(data.y_test) == 3
    assert data.x_train.dtype == np.uint8 and data.shape == (80,) and data.classes == data.symbols == 80
    assert data.scale is None and data.source == "shakespeare-speeches.jsonl"


def test_a_role_is_one_speaker_of_one_play_and_short_ones_are_left_out(tmp_path):
    names = [("Hamlet", "FIRST LORD"), ("Macbeth", "FIRST LORD"), ("Macbeth", "MACBETH")]
    write_speeches(tmp_path, *[(*name, LONG) for name in names], ("Macbeth", "PORTER", "Knock, knock!"))
    data = shakespeare(tmp_path, 3)
    assert [len(own) for own in data.natural] == [23] * 3  # 106 characters, 26 samples


def test_speeches_lose_accents_and_line_breaks_and_spell_out_ligatures(tmp_path):
    write_speeches(tmp_path, ("P", "A", "Cæsar—renownèd\n\t  Œdipus… " + LONG))
    data = shakespeare(tmp_path)
    assert text_of(data.x_train[0]) == ("Caesar--renowned OEdipus... " + LONG)[:80]


def leaf(text):
    return {"x": [text[i : i + 80] for i in range(len(text) - 80)], "y": list(text[80:])}


def test_leafs_json_comes_before_speeches_and_an_archive_before_both(tmp_path):
    write_speeches(tmp_path, ("P", "A", "never read " + LONG))
    (tmp_path / "shakespeare").mkdir()
    users = {"HAMLET_ghost": leaf(LONG), "HAMLET_hamlet": leaf(LONG[::-1]), "SILENT": {"x": [], "y": []}}
    (tmp_path / "shakespeare/all_data.json").write_text(json.dumps({"user_data": users}))
    data = shakespeare(tmp_path, 2)
    first = text_of(data.x_train[data.natural[0][0]])
    assert {first, text_of(data.x_train[data.natural[1][0]])} == {LONG[:80], LONG[::-1][:80]}
    assert data.source == "json files of LEAF's"
    x = np.arange(40 * 80, dtype=np.uint8).reshape(40, 80) % 80
    np.savez(tmp_path / "shakespeare.npz", x=x, y=np.zeros(40, np.uint8), client=np.full(40, 7))
    own = shakespeare(tmp_path)
    np.testing.assert_array_equal(own.x_train, x[:36])
    assert own.source == "shakespeare.npz"


def test_a_download_brings_its_roles(tmp_path, monkeypatch):
    rows = [{"character_id": ["A", "B"] * 13, **{k: v[:26] for k, v in leaf(LONG).items()}}]
    module = SimpleNamespace(load_dataset=lambda *a, **k: SimpleNamespace(iter=lambda batch_size: rows))
    monkeypatch.setitem(sys.modules, "datasets", module)
    data = shakespeare(tmp_path, 2)
    assert [len(own) for own in data.natural] == [11, 11] and data.source == "flwrlabs/shakespeare"
    assert {text_of(data.x_train[0]), text_of(data.x_train[11])} == {LONG[:80], LONG[1:81]}
