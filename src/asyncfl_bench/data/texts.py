"""Labelled texts, read from files with one json object for each line, as ids of their words.

Legend: N samples, L tokens of a sample.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np

from ..errors import check
from ..randomness import Streams
from ..ranges import CheckedSettings, absent, at_least, one_of
from ..types import Facts
from . import sources
from .base import Data, DataError, DataSet, MissingData, describe_search, read_json_lines
from .datasets import build_data
from .npz import file_version, load_cached, read_npz

PADDING, UNKNOWN, BETWEEN = 0, 1, 2  # special ids: behind a short text, for unknown words, between two texts
FIRST_WORD = 3
SIGN = "\n"  # between two texts; words do not contain white space
WORD = re.compile(r"\w+|[^\w\s]+")  # letters and digits, or a run of other signs
SPLITS = ("train", "dev", "test")


class TextFacts(NamedTuple):
    """Facts about a set of texts.

    files       possible file names in the data directory, the first one for a download
    fields      of a line with text
    judged_on   splits that may be the test set
    held_out    training samples that become the split `dev` in a file without one
    """

    files: tuple[str, ...]
    classes: int
    fields: tuple[str, ...] = ("text",)
    judged_on: tuple[str, ...] = ("dev", "test")
    held_out: int = 0


KNOWN = {
    "newsgroups20": TextFacts(("newsgroups20.jsonl", "20news-bydate.jsonl"), 20, judged_on=("test",)),
    "sst2": TextFacts(("sst2.jsonl",), 2),
    "mrpc": TextFacts(("mrpc.jsonl",), 2, fields=("text1", "text2"), held_out=408),  # as in GLUE
}
DRAW = 0  # seed of the samples held out, the same for every run


@dataclass
class TextsConfig(CheckedSettings):
    """
    name          of the set, read from <data_dir>/NAME.jsonl
    judged_on     the split that is the test set; newsgroups20 only has test. The remaining split is Data.x_other
    test_samples  only the first samples of the test set
    length        L, tokens of a text: longer texts are cut, shorter ones padded
    words         known words, the most frequent first; null: all in the training texts, or the model's own
    features      WORD of <data_dir>/NAME-WORD.npz, with an encoder's numbers for each text (scripts/embed_text.py);
                  null: ids
    download      true: download the file once if it is missing
    """

    name: Annotated[str, one_of(*KNOWN)] = "sst2"
    judged_on: Annotated[str, one_of("dev", "test")] = "test"
    test_samples: Annotated[int | None, at_least(1, null="for all"), absent(None)] = None
    length: Annotated[int | None, at_least(1, null="for the longest text to train")] = None
    words: Annotated[int | None, at_least(1, null="for all")] = None
    features: str | None = None
    download: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = KNOWN[self.name].judged_on
        check(self.judged_on in allowed, "judged_on", self.judged_on, f"{' or '.join(allowed)} for {self.name}")

    def idle(self, facts: Facts) -> dict[str, str]:
        if self.features is None:
            return {}
        decided = ("judged_on", "test_samples", "length", "words", "download")
        return dict.fromkeys(decided, "with features, whose file has decided it")


class Reader(Protocol):
    """The tokenizer of an encoder.

    key      identifies the tokenizer
    limit    most ids of a text that the encoder takes
    symbols  number of ids
    padding  the id behind shorter texts
    """

    key: str
    limit: int
    symbols: int
    padding: int

    def ids(self, samples: list[list[str]], length: int) -> list[list[int]]:
        """Return the ids of each sample, a text or a pair of texts, cut after ``length``."""


class OneId:
    """A reader with one id for each text, which replaces a model's tokenizer until that is needed."""

    key, limit, symbols, padding = "", 2**31, 1, 0

    def ids(self, samples: list[list[str]], length: int) -> list[list[int]]:
        return [[0]] * len(samples)


class Texts(DataSet):
    """20 Newsgroups, SST-2 or MRPC as (N, L) int32 ids of words, with id 0 behind texts shorter than L.

    Files   ``<data_dir>/<name>.jsonl``, a line ``{"split": "train", "label": 3, "text": "…"}`` for each text. MRPC has
            `text1` and `text2`, read as one text with a special id between them. With ``download`` a missing file is
            made once from a public copy. Raises DataError with file, line and problem.
    Words   runs of letters and digits, or of other signs, in lower case. The words of the training texts (cut to L)
            have the ids from 3, the most frequent first, equally frequent words in alphabetical order. All others are
            id 1. A model with a tokenizer (model=bert) uses its ids, and texts up to its limit.
    Splits  `train` for training, ``judged_on`` for tests. If a file of MRPC lacks `dev`, a fixed draw holds out 408 of
            its training pairs; GLUE's list differs.
    Posts   of 20 Newsgroups are read whole: their headers, signatures and quotes reveal much of the class.
    """

    config: TextsConfig
    loads_once = True

    def __init__(self, config: TextsConfig, reader: Reader | None = None):
        self.config, self._reader = config, reader

    def with_reader(self, reader: Reader) -> Texts:
        """Return the texts with the reader's ids. Raises ConfigError for settings of words and for long texts."""
        check(self.config.words is None, "words", self.config.words, "null: this model comes with its own words")
        check(self.config.features is None, "features", self.config.features, "null: this model reads the texts")
        length = self.config.length
        check((length or 1) <= reader.limit, "length", length, f"null or at most {reader.limit}, the model's limit")
        return Texts(self.config, reader)

    def load(self, data_dir: Path, streams: Streams, n_clients: int) -> Data:
        path = self.file(Path(data_dir))
        if self.config.features is not None:
            return load_cached(file_version(path), lambda: build_data(path, read_npz(path), path.name))
        key = self._reader and self._reader.key
        return load_cached((file_version(path), self.config, key), lambda: self._read(path))

    def samples(self, path: Path) -> tuple[dict[str, list[list[str]]], dict[str, list[int]], str]:
        """Return the texts and the labels of each split, and their source.

        Raises DataError for a file that cannot be read, ConfigError for too many test samples.
        """
        known, source = KNOWN[self.config.name], path.name
        lines = list(read_texts(path, known))
        if known.held_out and all(split != "dev" for split, *_ in lines):
            lines = _hold_out(lines, path, known.held_out)
            source = f"{path.name}, {known.held_out} of its training samples held out"
        samples = {split: [parts for own, _, parts in lines if own == split] for split in SPLITS}
        labels = {split: [label for own, label, _ in lines if own == split] for split in SPLITS}
        needed = ("train", self.config.judged_on)
        for split in needed:
            if not labels[split]:
                found = f"found {', '.join(split for split in SPLITS if labels[split]) or 'no lines'}"
                raise DataError(f'{path}: no line has "split": "{split}"; must have {" and ".join(needed)}, {found}')
        count, judged = self.config.test_samples, self.config.judged_on
        most = len(labels[judged])
        allowed = f"null or an integer from 1 to {most}, the samples of the split {judged} in {path}"
        check(count is None or count <= most, "test_samples", count, allowed)
        samples[judged], labels[judged] = samples[judged][:count], labels[judged][:count]
        return samples, labels, source

    def _read(self, path: Path) -> Data:
        samples, labels, source = self.samples(path)
        judged = self.config.judged_on
        length, reader = self.config.length, self._reader
        if reader is None:
            words = {
                split: [list(islice(_split_words(parts), length)) for parts in some] for split, some in samples.items()
            }
            known = _word_ids(words["train"], self.config.words)
            symbols, padding = 1 + max(known.values()), PADDING
            ids = {
                split: [[known.get(word, UNKNOWN) for word in text] for text in some] for split, some in words.items()
            }
        else:
            symbols, padding = reader.symbols, reader.padding
            ids = {split: reader.ids(some, length or reader.limit) for split, some in samples.items()}
        longest = length or max(map(len, ids["train"]))
        x = {split: pad_ids(some, padding, longest) for split, some in ids.items()}
        y = {split: np.array(some, dtype=np.int64) for split, some in labels.items()}
        other = x["dev" if judged == "test" else "test"]
        return Data(
            *(x["train"], y["train"], x[judged], y[judged], KNOWN[self.config.name].classes),
            symbols=symbols,
            padding=padding,
            source=source,
            x_other=other if len(other) else None,
        )

    def file(self, data_dir: Path) -> Path:
        """Return the file of the texts or features. Raises DataError if it is missing and may not be downloaded."""
        if self.config.features is not None:
            path = data_dir / f"{self.config.name}-{self.config.features}.npz"
            if path.exists():
                return path
            made = f"`python scripts/embed_text.py {self.config.name} --data-dir {data_dir}` of the repository makes"
            raise MissingData(f"{path} is missing: {made} features of MiniLM-L6; dataset.features=null reads the texts")
        paths = [data_dir / file for file in KNOWN[self.config.name].files]
        if (found := next(filter(Path.exists, paths), None)) is not None:
            return found
        line = {"split": "train", "label": 0} | dict.fromkeys(KNOWN[self.config.name].fields, "…")
        *others, last = paths
        ways_out = describe_search(*others, f"{last} (lines {json.dumps(line, ensure_ascii=False)})")
        if not self.config.download:
            raise MissingData(f"{self.config.name} is missing. {ways_out}")
        return sources.downloaded_texts(self.config.name, paths[0], ways_out)


def read_texts(path: Path, known: TextFacts) -> Iterator[tuple[str, int, list[str]]]:
    """Yield (split, label, text of each field) of each line. Raises DataError with the number of a malformed line."""

    def convert(line: dict[str, Any]) -> tuple[str, int, list[str]]:
        split, label, parts = line["split"], line["label"], [line[field] for field in known.fields]
        ok = split in SPLITS and type(label) is int and 0 <= label < known.classes and all(map(str.strip, parts))
        if not ok:
            raise ValueError
        return split, label, parts

    wanted = f'"split" ({", ".join(SPLITS)}), "label" (an integer, 0 to {known.classes - 1}) and '
    wanted += " and ".join(f'"{field}"' for field in known.fields) + " (text that is not empty)"
    return read_json_lines(path, wanted, convert)


def _split_words(parts: list[str]) -> Iterator[str]:
    for number, part in enumerate(parts):
        if number:
            yield SIGN
        for found in WORD.finditer(part.lower()):
            yield found.group()


def _word_ids(train: list[list[str]], most: int | None) -> dict[str, int]:
    """Return word -> id for the known words and the sign between two texts."""
    counts = Counter(word for words in train for word in words)
    counts.pop(SIGN, None)
    ordered = sorted(counts, key=lambda word: (-counts[word], word))[:most]
    return {SIGN: BETWEEN} | {word: number for number, word in enumerate(ordered, start=FIRST_WORD)}


def pad_ids(samples: list[list[int]], padding: int, length: int) -> np.ndarray:
    """Return (N, L) int32: the first L ids of each sample, followed by ``padding``."""
    x = np.full((len(samples), length), padding, dtype=np.int32)
    for row, ids in zip(x, samples, strict=True):
        row[: len(ids)] = ids[:length]
    return x


def _hold_out(lines: list[tuple[str, int, list[str]]], path: Path, count: int) -> list[tuple[str, int, list[str]]]:
    """Return the lines with ``count`` of the split `train` in `dev`, with all classes in proportion."""
    train = [number for number, (split, *_) in enumerate(lines) if split == "train"]
    y = np.array([lines[number][1] for number in train], dtype=np.int64)
    if len(y) <= count:
        raise DataError(f"{path}: more than {count} lines to train are needed where none is dev, found {len(y)}")
    order = np.random.default_rng(DRAW).permutation(len(y))
    # sorted by the relative position within the class: the first samples have all classes in proportion
    position = np.zeros(len(y))
    for label in np.unique(y):
        own = order[y[order] == label]
        position[own] = (np.arange(len(own)) + 0.5) / len(own)
    held = {train[i] for i in np.argsort(position, kind="stable")[:count]}
    return [("dev" if number in held else line[0], line[1], line[2]) for number, line in enumerate(lines)]
