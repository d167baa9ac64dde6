"""Golden trajectories: 15 server iterations of every algorithm on a tiny task, kept as text in golden.json.

`make golden` writes the file anew; a commit that does says why the numbers may change. `golden.py RULE …` renews only
those of some rules.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

FILE = Path(__file__).with_name("golden.json")
WORDS = [
    "model=softmax",
    "n_clients=8",
    "budget.server_iterations=15",
    "evaluation.every=3",
    "threads=1",
    "device=cpu",
    "progress=false",
    "seed=5",
    "trace=true",
]


def trajectory(algorithm: str, delay: str) -> dict:
    """Arrivals exactly, test loss and the model's norm to 5 digits."""
    import pandas as pd
    import torch

    from asyncfl_bench import run
    from asyncfl_bench.algorithms.common.split import SplitRule
    from asyncfl_bench.config.choices import choice_file
    from asyncfl_bench.config.classes import part_class
    from asyncfl_bench.config.places import class_names

    with tempfile.TemporaryDirectory() as folder:
        words = [*WORDS, f"algorithm={algorithm}", f"delay={delay}", f"output_dir={folder}"]
        if algorithm == "asyncfeded":
            words.append("client.local_steps=4")  # so that K can fall
        if algorithm == "afbs":
            words.append("algorithm.clusters=2")
        rule = part_class(algorithm, class_names(choice_file("algorithm", algorithm))[0])
        if issubclass(rule, SplitRule):  # softmax has no layers for both sides
            words += ["model=mlp", "model.hidden=[12]", "client.local_steps=3"]
        if algorithm == "fedecho":
            words.append("distillation.rate=0.003")  # that of the paper is for a large network
        if algorithm in (
            "afbs",
            "area",
            "fadas",
            "fedac",
            "fedbuff",
            "ca2fl",
            "fedecho",
            "fedstale_async",
            "mifa",
            "port",
            "rennala",
        ):
            words.append("algorithm.buffer_size=4")
        result = run(words)
        trace = pd.read_parquet(result.directory / "trace.parquet")
        final = torch.load(result.directory / "model_final.pt", weights_only=True)
        return {
            "clients": trace["client"].tolist(),
            "staleness": trace["staleness"].tolist(),
            "loss": [float(f"{value:.5g}") for value in result.metrics["test/loss"]],
            "norm": float(f"{sum(t.double().square().sum() for t in final.values()) ** 0.5:.5g}"),
        }


def trajectories(algorithms: list[str]) -> dict:
    return {f"{name} {delay}": trajectory(name, delay) for name in algorithms for delay in ("exp_beta5", "exponential")}


if __name__ == "__main__":
    from asyncfl_bench.config import options

    kept = json.loads(FILE.read_text()) if sys.argv[1:] else {}
    found = kept | trajectories(sys.argv[1:] or options("algorithm"))
    rows = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(found.items())]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print(f"wrote {len(rows)} trajectories to {FILE}")
