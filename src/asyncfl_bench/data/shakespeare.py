"""Shakespeare: the next character of a role's lines, with roles as clients.

Legend: N samples, L = 80 characters of context.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np

from .base import read_json_lines
from .pool import PooledData, join_parts
from .sources import PoolPart

CONTEXT = 80
# LEAF's 80 characters in the order of their codes; the token id of a character is its position
ALPHABET = "\n !\"&'(),-." + digits + ":;>?" + ascii_uppercase + "[]" + ascii_lowercase + "}"
TOKEN_IDS = np.full(128, ALPHABET.index(" "), dtype=np.uint8)  # of each ASCII code
TOKEN_IDS[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))


class Shakespeare(PooledData):
    """The next of 80 characters from the 80 before it, (80,) uint8 token ids, with roles as clients
    (``heterogeneity=natural``). A client is a role of one play.

    Files    ``<data_dir>/shakespeare.npz`` (arrays as in ``pool``). A missing file is made once, from the first of:
             LEAF's json files below ``<data_dir>/shakespeare/``;
             ``<data_dir>/shakespeare-speeches.jsonl``, a line ``{"play": …, "speaker": …, "text": …}`` for each speech;
             a download of `flwrlabs/shakespeare`, which was made with LEAF's code. Raises DataError if none works.
    Speeches are **not LEAF's data**: they are the edition in the file, cut by our rules. A role's speeches are joined
             by spaces in the order of the file, and white space becomes single spaces. Every position with 80
             characters before it is a sample, so a role of c characters has c - 80. ``Data.source`` names the origin.
    Other    characters than LEAF's: letters lose their accents, all others become a space. In speeches ligatures are
             first spelled out, and dashes and dots of one character become -- and ... .
    Split    ``pool.split_pool`` in the order of the play, so the test samples are a role's last lines. No predicted
             character of the test set is in the training set. The first 80 test samples of a role have some of its
             last training characters as context.
    Source   Caldas et al. 2018, arXiv:1812.01097: 4 226 158 samples of 1 129 roles.
    """

    name, repository, shape, classes = "shakespeare", "flwrlabs/shakespeare", (CONTEXT,), len(ALPHABET)
    symbols = values = len(ALPHABET)

    @staticmethod
    def convert_leaf(x: list, y: list) -> tuple[np.ndarray, np.ndarray]:
        for name, texts, length in (("x", x, CONTEXT), ("y", y, 1)):
            if any(not isinstance(text, str) or len(text) != length for text in texts):
                raise ValueError(f"{name} must be texts of {length} character{'s' * (length > 1)}")
        return encode_text("".join(x)).reshape(-1, CONTEXT), encode_text("".join(y))

    @staticmethod
    def convert_hub(columns: dict[str, Any]) -> PoolPart:
        return columns["character_id"], *Shakespeare.convert_leaf(columns["x"], columns["y"])

    def other_files(self, data_dir: Path) -> list[Path]:
        return [data_dir / "shakespeare-speeches.jsonl"]

    def read_other(self, path: Path) -> dict[str, np.ndarray]:
        return join_parts(speech_parts(path), path.name, f"{path} (a role needs more than {CONTEXT} characters)")


def encode_text(text: str) -> np.ndarray:
    """Return (len(text),) uint8 token ids. Accents are removed, and other characters become a space."""
    if not text.isascii():
        text = "".join(map(_strip_accents, text))
    return TOKEN_IDS[np.frombuffer(text.encode("ascii"), dtype=np.uint8)]


@cache
def _strip_accents(character: str) -> str:
    base = unicodedata.normalize("NFKD", character)[0]
    return base if base.isascii() else " "


def speech_parts(path: Path) -> Iterator[PoolPart]:
    """Yield a part for each role with more than 80 characters. Raises DataError with the number of a wrong line."""
    spelled = str.maketrans({"æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "—": "--", "…": "..."})

    def convert(speech: dict[str, str]) -> tuple[str, str]:
        if not (isinstance(speech["play"], str) and isinstance(speech["speaker"], str)):
            raise TypeError
        return f"{speech['play']}: {speech['speaker']}", speech["text"].translate(spelled)

    spoken: dict[str, list[str]] = {}
    for role, text in read_json_lines(path, '"play", "speaker" and "text"', convert):
        spoken.setdefault(role, []).append(text)
    for role, texts in spoken.items():
        token = encode_text(" ".join(" ".join(texts).split()))
        if len(token) > CONTEXT:
            target = token[CONTEXT:]
            yield [role] * len(target), np.lib.stride_tricks.sliding_window_view(token, CONTEXT)[:-1], target
