"""Does a device compute what the CPU computes? Every algorithm for some server iterations on both, side by side.

    python scripts/check_device.py cuda

The arrivals (client, time, staleness of every upload) must be equal; the models may differ by rounding. Prints a table
and ends with exit code 1 if an arrival differs, a run fails or a model is further off than TOLERANCE.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pandas as pd
import torch

from asyncfl_bench import run
from asyncfl_bench.config import options
from asyncfl_bench.tracking.trace import TRACE_TYPES

TOLERANCE = 1e-3  # largest difference of a weight over the largest weight
VARIANTS = {name: [f"algorithm={name}"] for name in options("algorithm") if name != "asyncfeded"} | {
    # with adaptive K the last digit of a norm may decide how long a client works, and so who arrives when
    "asyncfeded, constant K": ["algorithm=asyncfeded", "algorithm.kappa=0"],
    "fedprox, 2 epochs, rounds with losses": ["algorithm=fedprox", "client.local_epochs=2", "availability=suspension"],
    "ace, incremental": ["algorithm=ace", "algorithm.rule=incremental"],
    "ace, cache on the host": ["algorithm=ace", "algorithm.cache.place=host"],
    "ace, bf16 cache": ["algorithm=ace", "algorithm.cache.precision=bf16"],
    "afbs, 3 clusters": ["algorithm=afbs", "algorithm.clusters=3"],
    "fedecho, longer steps": ["algorithm=fedecho", "distillation.rate=0.001"],
    "fedbuff, 3 local steps, cnn": ["algorithm=fedbuff", "client.local_steps=3", "model=cnn"],
    "fedbuff, sequential": ["algorithm=fedbuff", "executor=sequential"],
}


def outcome(words: list[str], device: str, folder: Path) -> tuple[pd.DataFrame, torch.Tensor]:
    """(arrivals, all weights) of a run of 20 server iterations."""
    given = ["scale=smoke", "trace=true", "progress=false", f"device={device}", f"output_dir={folder / device}"]
    result = run([*given, *words])
    if not result.ok:
        raise RuntimeError(result.summary["error"])
    weights = torch.load(result.directory / "model_final.pt", weights_only=True, map_location="cpu")
    return pd.read_parquet(result.directory / "trace.parquet"), torch.cat([w.reshape(-1) for w in weights.values()])


def main(device: str) -> int:
    wrong = 0
    print("| run | uploads | arrivals | largest difference of a weight |\n| --- | ---: | --- | ---: |")
    for name, words in VARIANTS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                (arrivals, weights), (expected, reference) = (
                    outcome(words, place, Path(folder)) for place in (device, "cpu")
                )
            except Exception as error:
                print(f"| {name} | - | {type(error).__name__}: {str(error).splitlines()[0]} | - |", flush=True)
                wrong += 1
                continue
        facts = list(TRACE_TYPES)  # the rule's own columns differ by rounding
        same = arrivals[facts].equals(expected[facts])
        off = float((weights - reference).abs().max() / reference.abs().max())
        wrong += not same or not off <= TOLERANCE
        print(f"| {name} | {len(arrivals)} | {'equal' if same else 'DIFFERENT'} | {off:.1e} |", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "cuda"))
