"""Check that a device repeats its bits and agrees with the CPU, for every rule and kind of network.

    python scripts/check_device.py [cuda|cpu] [NAME…]

Each run is made twice on the device, whose bits must be equal, and once on the CPU: the arrivals (client, time,
staleness of every upload) must be equal, the models may differ by rounding. GAS and an int8 cache draw on the device,
so their numbers differ from the CPU's. An operation without a deterministic kernel is named. Prints a table. Ends with
exit code 1 if bits or arrivals differ, if a run fails, or if a model differs by more than TOLERANCE or DRAWS. NAME:
only runs whose name contains it. Data are made up, so nothing is needed besides the package.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from asyncfl_bench import run
from asyncfl_bench.config import options
from asyncfl_bench.tracking.rundir import TRACE_TYPES

TOLERANCE = 1e-3  # largest difference of a weight over the largest weight
# the same where a run draws on the device: GAS generates activations, int8 rounds at random by a step of 1/127
DRAWS = {"algorithm=gas": 0.1, "algorithm.cache.precision=int8": 0.02}
IMAGES = ["dataset=arrays", "dataset.path=images.npz", "n_clients=2", "heterogeneity=iid", "budget.server_iterations=2"]
CUT = ["client.local_steps=2", *IMAGES]
TEXTS = ["dataset=sst2", "data_dir=.", "n_clients=3", "heterogeneity=iid", "budget.server_iterations=4"]
ROLES = ["dataset=shakespeare", "heterogeneity=natural", "dataset.min_samples=2", "dataset.max_samples=60", *TEXTS[1:3]]
ROLES += TEXTS[4:]
VARIANTS = {name: [f"algorithm={name}"] for name in options("algorithm") if name != "asyncfeded"} | {
    # with adaptive K the last digit of a norm may decide how long a client works, and so who arrives when
    "asyncfeded, constant K": ["algorithm=asyncfeded", "algorithm.kappa=0"],
    "fedprox, 2 epochs, rounds with losses": ["algorithm=fedprox", "client.local_epochs=2", "availability=suspension"],
    "ace, incremental": ["algorithm=ace", "algorithm.rule=incremental"],
    "ace, cache on the host": ["algorithm=ace", "algorithm.cache.place=host"],
    "ace, bf16 cache": ["algorithm=ace", "algorithm.cache.precision=bf16"],
    "ace, int8 cache": ["algorithm=ace", "algorithm.cache.precision=int8"],
    "aced, int8 cache": ["algorithm=aced", "algorithm.cache.precision=int8"],
    "afbs, 3 clusters": ["algorithm=afbs", "algorithm.clusters=3"],
    "fedecho, longer steps": ["algorithm=fedecho", "distillation.rate=0.001"],
    "fedbuff, 3 local steps, cnn": ["algorithm=fedbuff", "client.local_steps=3", "model=cnn"],
    "fedbuff, sequential": ["algorithm=fedbuff", "executor=sequential"],
    "ace, diagnostics mse": ["algorithm=ace", "diagnostics=mse", "diagnostics.every=5", "model=softmax"],
    "gas, nothing generated": ["algorithm=gas", "algorithm.generate=false"],
    "gas, diagnostics dissimilarity": ["algorithm=gas", "diagnostics=dissimilarity", "diagnostics.samples=60"],
    "ace, resnet18": ["algorithm=ace", "model=resnet18", *IMAGES],
    "fedavg, resnet18, batch norm": ["algorithm=fedavg", "model=resnet18", "model.norm=batch", *IMAGES],
    "ace, vit_small": ["algorithm=ace", "model=vit_small", *IMAGES],
    "gas, vit_small": ["algorithm=gas", "algorithm.covariance=diagonal", "model=vit_small", *CUT],
    "gas, vgg16": ["algorithm=gas", "algorithm.covariance=diagonal", "model=vgg16", *CUT],
    "asyncfeded, lstm": ["algorithm=asyncfeded", "algorithm.kappa=0", "model=lstm", "model.hidden=32", *ROLES],
    "fedbuff, fasttext": ["algorithm=fedbuff", "algorithm.buffer_size=2", "model=fasttext", "model.buckets=64", *TEXTS],
    "fedavg, bert": ["algorithm=fedavg", "client=adamw", "model=bert", "model.path=encoder", *TEXTS],
    "ace, bert, adapters": ["algorithm=ace", "model=bert", "model.path=encoder", "model.lora_rank=2", *TEXTS],
}


def write_data() -> None:
    """Write what VARIANTS ask for, into the folder the script is in: images, texts, and an encoder of two layers."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    rng, words = np.random.default_rng(0), [f"word{number}" for number in range(40)]
    x, y = rng.integers(0, 256, (60, 32, 32, 3), np.uint8), np.arange(60) % 10
    np.savez("images.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    with open("sst2.jsonl", "w", encoding="utf-8") as file:
        for number in range(80):
            text = " ".join(rng.choice(words, 12))
            split = "train" if number < 60 else "dev"
            file.write(json.dumps({"split": split, "label": number % 2, "text": text}) + "\n")
    with open("shakespeare-speeches.jsonl", "w", encoding="utf-8") as file:
        for speaker in "ABC":
            text = " ".join(rng.choice(words, 60))
            file.write(json.dumps({"play": "P", "speaker": speaker, "text": text}) + "\n")
    Path("encoder").mkdir()
    Path("encoder/vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]), encoding="utf-8"
    )
    BertTokenizerFast("encoder/vocab.txt", model_max_length=16).save_pretrained("encoder")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(words) + 5, max_position_embeddings=16, **sizes)).save_pretrained("encoder")


def outcome(words: list[str], device: str, folder: Path) -> tuple[pd.DataFrame, torch.Tensor, pd.DataFrame]:
    """Return (arrivals, all weights, evaluations without wall time) of a run of some server iterations."""
    given = ["scale=smoke", "trace=true", "progress=false", "evaluation.every=2"]
    result = run([*given, f"device={device}", f"output_dir={folder}", *words])
    if not result.ok:
        raise RuntimeError(result.summary["error"])
    weights = torch.load(result.directory / "model_final.pt", weights_only=True, map_location="cpu")
    arrivals = pd.read_parquet(result.directory / "trace.parquet")
    return arrivals, torch.cat([w.reshape(-1) for w in weights.values()]), result.metrics.drop(columns="wall_time")


def allowed(words: list[str]) -> float:
    """Return the largest difference that is allowed between a run on the device and on the CPU, see TOLERANCE."""
    draws = [largest for word, largest in DRAWS.items() if word in words and "algorithm.generate=false" not in words]
    return max(draws, default=TOLERANCE)


def compare(words: list[str], device: str) -> tuple[list[str], bool]:
    """Return the cells of a row behind the name, and whether all is as it should be."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (arrivals, weights, points), again = (outcome(words, device, Path(folder, name)) for name in ("one", "two"))
        expected, reference, _ = (arrivals, weights, points) if device == "cpu" else outcome(words, "cpu", Path(folder))
    repeats = arrivals.equals(again[0]) and torch.equal(weights, again[1]) and points.equals(again[2])
    texts = [re.match(r"(\S+) does not have a deterministic", str(one.message)) for one in caught]
    lacking = ", ".join(sorted({text[1] for text in texts if text}))
    facts = list(TRACE_TYPES)  # the rule's own columns differ by rounding
    same = arrivals[facts].equals(expected[facts])
    off = float((weights - reference).abs().max() / reference.abs().max())
    bits = "equal" if repeats else f"no deterministic kernel: {lacking}" if lacking else "DIFFERENT"
    cells = [str(len(arrivals)), bits, "equal" if same else "DIFFERENT", f"{off:.1e}"]
    return cells, bits != "DIFFERENT" and same and off <= allowed(words)


def main(device: str, names: list[str]) -> int:
    chosen = {name: words for name, words in VARIANTS.items() if not names or any(part in name for part in names)}
    wrong = 0
    print("| run | uploads | bits, twice | arrivals | largest difference of a weight |")
    print("| --- | ---: | --- | --- | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_data()
        for name, words in chosen.items():
            try:
                cells, ok = compare(words, device)
            except Exception as error:
                cells, ok = ["-", f"{type(error).__name__}: {str(error).splitlines()[0]}", "-", "-"], False
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
            wrong += not ok
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "cuda", sys.argv[2:]))
