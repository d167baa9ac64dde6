"""Runs of one process that share stacks, with graphs that are not there: python members_process.py FOLDER MOST."""

import sys
from unittest.mock import patch

from fake_graph import FakeGraphs

from asyncfl_bench.config import compose
from asyncfl_bench.experiment import build, machine

WORDS = ["scale=smoke", "progress=false", "n_clients=24", "client.batch_size=8", "concurrency=20", "threads=1"]
WORDS += ["schedule=random_idle", "heterogeneity=dirichlet", "budget.server_iterations=12", "model.hidden=[18]"]
WORDS += ["tracking=local", "checkpoint.every=1"]
MEMBERS = [
    ["algorithm=fedbuff", "algorithm.buffer_size=3", "seed=0"],
    ["algorithm=fedbuff", "algorithm.buffer_size=3", "seed=1", "client.lr=0.3"],
    ["algorithm=ace", "seed=2"],
    ["algorithm=asgd", "seed=3", "delay=exp_beta30"],
    ["algorithm=asyncfeded", "seed=4"],
    ["algorithm=fedac", "seed=5"],
    ["algorithm=feddyn", "seed=6", "client.local_epochs=1"],
    ["algorithm=gas", "seed=7"],  # computes beside the others
]


def settings_of_members(folder):
    kinds = ["sequential" if words[0] == "algorithm=gas" else "batched" for words in MEMBERS]
    more = [[f"executor={kind}", f"output_dir={folder}"] for kind in kinds]
    return [compose([*WORDS, *words, *of]) for words, of in zip(MEMBERS, more, strict=True)]


def main(folder: str, most: str) -> None:
    from asyncfl_bench.multirun.members import run_members

    graphs = FakeGraphs()
    with patch.dict(machine.NEEDS_GPU, clear=True), patch.object(build, "graphs_or_none", lambda device: graphs):
        for answer in run_members(settings_of_members(folder), int(most)):
            print(answer["code"], answer["line"], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
