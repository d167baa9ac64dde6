"""Frozen features of a set of texts by a pretrained encoder, as a file for `dataset=arrays`.

    python scripts/embed_text.py sst2 --data-dir DATA
    afl-run dataset=arrays dataset.path=DATA/sst2-minilm.npz model=softmax

A text's features are the mean of the encoder's outputs over its tokens. Of a pair of texts, each read alone, they are
|u - v| and u * v. All are standardised by the training texts' mean and deviation. Interrupted, the same command
resumes. Needs the extra `text`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

from asyncfl_bench.data.texts import KNOWN, Texts, TextsConfig, pad_ids
from asyncfl_bench.errors import BenchError, ConfigError
from asyncfl_bench.files import atomic_write
from asyncfl_bench.models.pretrained import MINILM, Bert, BertConfig

BATCH = 64  # texts at once, the longest beside the longest: what is padded is not much


def embedded(bert: Bert, lines: list[str], length: int, kept: Path) -> np.ndarray:
    """Return (N, E) float32 features of each text; those in the file ``kept`` are not computed again."""
    reader = bert.reader()
    ids = reader.ids([[line] for line in lines], length)
    network = bert.build((length,), 2, 0, reader.symbols, reader.padding)
    order = np.argsort([-len(some) for some in ids], kind="stable")
    width = network.output.in_features
    if not kept.exists():
        fresh = kept.with_suffix(".new")
        np.lib.format.open_memmap(fresh, "w+", np.float32, (len(lines), width))[:] = np.nan
        os.replace(fresh, kept)  # a file of that name is whole: what is not a number in it is still to do
    x = np.lib.format.open_memmap(kept, "r+")
    pending = order[np.isnan(x[order]).any(axis=1)]
    began = said = time.perf_counter()
    for first in range(0, len(pending), BATCH):
        part = pending[first : first + BATCH]
        batch = pad_ids([ids[i] for i in part], reader.padding, len(ids[part[0]]))
        with torch.inference_mode():
            x[part] = network.features(torch.from_numpy(batch)).numpy()  # into the file: what is there is not lost
        if (now := time.perf_counter()) - said > 10 or first + BATCH >= len(pending):
            said = now
            print(f"{first + len(part)} of {len(pending)} texts, {now - began:.0f} s", file=sys.stderr)
    return np.array(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(KNOWN))
    parser.add_argument("--data-dir", type=Path, required=True, help="where the texts are, and the features will be")
    parser.add_argument("--encoder", default=MINILM, help="as model.path of model=bert")
    parser.add_argument("--length", type=int, default=256, help="tokens of a text that are read")
    parser.add_argument("--judged-on", choices=("dev", "test"), help="the split that is the test set")
    given = parser.parse_args()
    try:
        print(made(given.name, given.data_dir, given.encoder, given.length, given.judged_on))
    except BenchError as error:
        sys.exit(f"embed_text: {error}")
    except KeyboardInterrupt:
        print("embed_text: interrupted; run the same command again to resume", file=sys.stderr)
        sys.exit(130)


def made(name: str, data_dir: Path, encoder: str, length: int, judged_on: str | None) -> Path:
    """Write the file of features unless it exists, and return its path.

    Raises DataError, InputError, and ConfigError for a file with other features.
    """
    known = KNOWN[name]
    judged = judged_on or known.judged_on[0]
    out = data_dir / f"{name}-{Path(encoder).name}.npz"
    bert = Bert(BertConfig(path=encoder))
    reader = bert.reader()
    config = TextsConfig(name=name, judged_on=judged, length=length)
    chosen = Texts(config).with_reader(reader)
    samples, labels, _ = chosen.samples(chosen.file(data_dir))
    weights = BertConfig(path=reader.key).content_digest()
    facts = json.dumps([weights, length, judged, samples["train"], samples[judged]])
    made_of = hashlib.sha256(facts.encode()).hexdigest()[:16]
    if out.exists():
        if str(np.load(out).get("made_of")) == made_of:
            return out
        raise ConfigError("--encoder", encoder, f"{out} was made of other texts, weights, --length or split: remove it")
    arrays = {}
    for split, suffix in (("train", "train"), (judged, "test")):
        parts = samples[split]
        kept = [data_dir / f".{out.stem}-{made_of}-{split}-{field}.npy" for field in known.fields]
        both = [embedded(bert, [text[i] for text in parts], length, kept[i]) for i in range(len(known.fields))]
        x = both[0] if len(both) == 1 else np.hstack([abs(both[0] - both[1]), both[0] * both[1]])
        arrays |= {f"x_{suffix}": x, f"y_{suffix}": np.array(labels[split], dtype=np.int64)}
    mean, std = arrays["x_train"].mean(axis=0), arrays["x_train"].std(axis=0) + 1e-6
    for suffix in ("train", "test"):
        arrays[f"x_{suffix}"] = ((arrays[f"x_{suffix}"] - mean) / std).astype(np.float32)
    with atomic_write(out) as file:
        np.savez(file, **arrays, made_of=np.array(made_of))
    for path in data_dir.glob(f".{out.stem}-{made_of}-*.n*"):
        path.unlink()
    return out


if __name__ == "__main__":
    main()
