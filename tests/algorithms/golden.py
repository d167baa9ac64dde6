"""Golden trajectories: 15 server iterations of every algorithm on a tiny task.

golden.json has their numbers to five digits, and digests.json digests of every bit. Digests are computed in a process
whose matrix products have the same bits on all CPUs that its library knows. `make golden` writes both files; a commit
that does says why the numbers may change. `golden.py RULE …` renews only some rules, and no digest if those of
digests.json are of another maker's CPU or another version of torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

FILE = Path(__file__).with_name("golden.json")
DIGESTS = Path(__file__).with_name("digests.json")
SAME_BITS = {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}
SAME_BITS |= {"OPENBLAS_CORETYPE": "Haswell"}  # of NumPy, whose products a small perceptron uses
DELAYS = ("exp_beta5", "exponential")
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
    _, losses, trace, final = run_rule(algorithm, delay)
    return {
        "clients": trace["client"].tolist(),
        "staleness": trace["staleness"].tolist(),
        "loss": [float(f"{value:.5g}") for value in losses],
        "norm": float(f"{sum(t.double().square().sum() for t in final.values()) ** 0.5:.5g}"),
    }


def run_rule(algorithm: str, delay: str) -> tuple:
    """Return (results version, test losses, trace, final parameters) of a run."""
    import pandas as pd
    import torch

    from asyncfl_bench import run
    from asyncfl_bench.algorithms.common.split import SplitRule
    from asyncfl_bench.config.choices import choice_file
    from asyncfl_bench.config.classes import part_class
    from asyncfl_bench.config.part_sources import class_names

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
        if "buffer_size" in {field.name for field in fields(rule.Config)}:
            words.append("algorithm.buffer_size=4")
        result = run(words)
        trace = pd.read_parquet(result.directory / "trace.parquet")
        final = torch.load(result.directory / "model_final.pt", weights_only=True)
        return result.summary["results_version"], result.metrics["test/loss"], trace, final


def describe_bits(names: list[str]) -> dict:
    """Return the maker of the CPU, torch's version, and the results version and digest of each of the rules."""
    import torch

    from asyncfl_bench.experiment.machine import cpu_facts

    rules = {}
    for name in names:
        bits = hashlib.sha256()
        for delay in DELAYS:
            version, losses, trace, final = run_rule(name, delay)
            bits.update(trace[["client", "staleness"]].to_numpy("int64").tobytes())
            bits.update(losses.to_numpy("float64").tobytes())
            for values in final.values():
                bits.update(values.numpy().tobytes())
        rules[name] = f"{version}:{bits.hexdigest()[:16]}"
    return {"maker": cpu_facts()["maker"], "torch": torch.__version__.partition("+")[0], "rules": rules}


def compute_bits(names: list[str]) -> dict:
    """Return ``describe_bits`` of another process, whose libraries choose their code as ``SAME_BITS`` says."""
    command = [sys.executable, __file__, "--bits", *names]
    ended = subprocess.run(command, env=os.environ | SAME_BITS, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def unversioned_rules(kept: dict, found: dict) -> list[str]:
    """Return the rules whose bits differ under the same results version."""
    versions = [{name: rule.partition(":")[0] for name, rule in bits["rules"].items()} for bits in (kept, found)]
    return [
        name
        for name, rule in found["rules"].items()
        if kept["rules"].get(name, rule) != rule and versions[0][name] == versions[1][name]
    ]


def is_comparable(kept: dict, found: dict) -> bool:
    return all(kept[key] == found[key] for key in ("maker", "torch"))


if __name__ == "__main__":
    from asyncfl_bench.config import options

    if sys.argv[1:2] == ["--bits"]:
        print(json.dumps(describe_bits(sys.argv[2:])))
        sys.exit()
    names = sys.argv[1:] or options("algorithm")
    old, new = json.loads(DIGESTS.read_text()), compute_bits(names)
    if is_comparable(old, new) and (changed := unversioned_rules(old, new)):
        sys.exit(f"{', '.join(changed)}: the bits changed, so raise the results version (RULE_VERSIONS) first")
    if is_comparable(old, new) or not sys.argv[1:]:
        others = old["rules"] if sys.argv[1:] else {}
        DIGESTS.write_text(json.dumps(new | {"rules": others | new["rules"]}, indent=1) + "\n")
    kept = json.loads(FILE.read_text()) if sys.argv[1:] else {}
    found = kept | {f"{name} {delay}": trajectory(name, delay) for name in names for delay in DELAYS}
    rows = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(found.items())]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print(f"wrote {len(rows)} trajectories to {FILE}")
