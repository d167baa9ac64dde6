"""Shakespeare: the next character of a role's lines, where the roles are the clients.

Legend: N samples, L = 80 characters of context.
"""

from __future__ import annotations

import json
import reprlib
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np

from ..randomness import Streams
from .base import DATA_DIRECTORY, Data, DataError, DataSet, describe_unreadable_text
from .npz import build_cached
from .pool import PoolConfig, PoolPart, join_parts, read_pool, split_pool

CONTEXT = 80
# LEAF's 80 characters in the order of their codes; a character's place is its token id
ALPHABET = "\n !\"&'(),-." + digits + ":;>?" + ascii_uppercase + "[]" + ascii_lowercase + "}"
REPOSITORY = "flwrlabs/shakespeare"
SPEECHES = "shakespeare-speeches.jsonl"


class Shakespeare(DataSet):
    """The next of 80 characters from the 80 before it, (80,) uint8 token ids, with roles as clients
    (``heterogeneity=natural``). A client is a role of one play.

    Files    ``<data_dir>/shakespeare.npz`` (arrays as in ``pool``). Else it is made, once, of the first of these:
             LEAF's own json files below ``<data_dir>/shakespeare/``;
             ``<data_dir>/shakespeare-speeches.jsonl``, a line ``{"play": …, "speaker": …, "text": …}`` for each speech;
             a download of `flwrlabs/shakespeare`, which was made with LEAF's code. DataError when none works.
    Speeches are **not LEAF's data**: they are whatever edition the file holds, cut by our rules. A role's speeches are
             joined by spaces in the order of the file, white space becomes single spaces, and every place with 80
             characters before it is a sample, so a role of c characters has c - 80. ``Data.source`` tells them apart.
    Others   than LEAF's characters: letters lose their accents, the rest becomes a space. In speeches ligatures are
             spelled out, and dashes and dots in one character become -- and ... before.
    Clients  and the split: ``pool.split_pool``, in the order of the play: the test samples are what a role says last.
             No character to be predicted in the test set occurs in the training set, though the first 80 test samples
             of a role have some of that role's last training characters before them.
    Source   Caldas et al. 2018, arXiv:1812.01097: 4 226 158 samples of 1 129 roles.
    """

    Config = PoolConfig
    loads_once = True

    def load(self, data_dir: Path, streams: Streams, n_clients: int) -> Data:
        symbols = len(ALPHABET)
        pool = read_pool(self.file(Path(data_dir)), (CONTEXT,), values=symbols, classes=symbols)
        train, test, natural = split_pool(pool, self.config, streams, n_clients, shuffled=False)
        return Data(
            pool.x[train],
            pool.y[train],
            pool.x[test],
            pool.y[test],
            symbols,
            natural=natural,
            symbols=symbols,
            source=pool.source,
        )

    def file(self, data_dir: Path) -> Path:
        """Return ``shakespeare.npz``, made if need be. Raises DataError."""
        path, folder, speeches = data_dir / "shakespeare.npz", data_dir / "shakespeare", data_dir / SPEECHES
        if path.exists():
            return path
        looked = f"{path} (arrays x, y, client), {folder}/**/*.json (LEAF's own) and {speeches}"
        ways_out = f"Looked for {looked}. `dataset.download=true` downloads it. {DATA_DIRECTORY}"

        def make() -> dict[str, np.ndarray]:
            from . import sources  # here only: with the file there is no need of them

            if files := sources.leaf_files(folder):
                return join_parts(sources.leaf_parts(files, _from_strings), "json files of LEAF's", folder)
            if speeches.exists():
                told = f"{speeches} (a role needs more than {CONTEXT} characters)"
                return join_parts(speech_parts(speeches), SPEECHES, told)
            parts = sources.hub_parts(REPOSITORY, _from_hub, data_dir, ways_out, self.config.download)
            return join_parts(parts, REPOSITORY)

        return build_cached(path, make, ways_out)


def encode_text(text: str) -> np.ndarray:
    """Return (len(text),) uint8 token ids. Accents are removed, and other characters become a space."""
    if not text.isascii():
        text = "".join(map(_strip_accents, text))
    return _character_ids()[np.frombuffer(text.encode("ascii"), dtype=np.uint8)]


@cache
def _character_ids() -> np.ndarray:
    """Return (128,) the token id of every ASCII code."""
    ids = np.full(128, ALPHABET.index(" "), dtype=np.uint8)
    ids[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    return ids


@cache
def _strip_accents(character: str) -> str:
    base = unicodedata.normalize("NFKD", character)[0]
    return base if base.isascii() else " "


def speech_parts(path: Path) -> Iterator[PoolPart]:
    """A part for each role with more than 80 characters. DataError with the number of a line that is not a speech."""
    spelled = str.maketrans({"æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "—": "--", "…": "..."})
    spoken: dict[str, list[str]] = {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {describe_unreadable_text(error)}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            speech = json.loads(line)
            if not (isinstance(speech["play"], str) and isinstance(speech["speaker"], str)):
                raise TypeError("play and speaker must be text")
            role, text = f"{speech['play']}: {speech['speaker']}", speech["text"].translate(spelled)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            wanted = 'a json object with "play", "speaker" and "text"'
            raise DataError(f"{path}, line {number}: must be {wanted} ({error!r})") from error
        spoken.setdefault(role, []).append(text)
    for role, texts in spoken.items():
        token = encode_text(" ".join(" ".join(texts).split()))
        if len(token) > CONTEXT:
            target = token[CONTEXT:]
            yield [role] * len(target), np.lib.stride_tricks.sliding_window_view(token, CONTEXT)[:-1], target


def _from_strings(x: list, y: list) -> tuple[np.ndarray, np.ndarray]:
    for name, texts, length in (("x", x, CONTEXT), ("y", y, 1)):
        for text in texts:
            if not isinstance(text, str) or len(text) != length:
                found = f"a text of {len(text)}" if isinstance(text, str) else reprlib.repr(text)
                raise ValueError(f"{name} must be texts of {length} character{'s' * (length > 1)}, found {found}")
    return encode_text("".join(x)).reshape(-1, CONTEXT), encode_text("".join(y))


def _from_hub(columns: dict[str, Any]) -> PoolPart:
    return columns["character_id"], *_from_strings(columns["x"], columns["y"])
