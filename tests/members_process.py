"""Runs that share stacks, with graphs that are not there: python members_process.py FOLDER RUNS PROCESSES."""

import os
import signal
import sys

from fake_graph import FakeGraphs

from asyncfl_bench.config import compose
from asyncfl_bench.errors import EXIT_INTERRUPTED
from asyncfl_bench.experiment import build, machine

WORDS = ["scale=smoke", "progress=false", "n_clients=24", "client.batch_size=8", "concurrency=20", "threads=1"]
WORDS += ["schedule=random_idle", "heterogeneity=dirichlet", "budget.server_iterations=8", "model.hidden=[18]"]
WORDS += ["tracking=local", "checkpoint.every=1", "trace=true"]
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


def settings_of_members(folder, count=8):
    kinds = ["sequential" if words[0] == "algorithm=gas" else "batched" for words in MEMBERS[:count]]
    more = [[f"executor={kind}", f"output_dir={folder}"] for kind in kinds]
    return [compose([*WORDS, *words, *of]) for words, of in zip(MEMBERS, more, strict=False)]


def main(folder: str, runs: str, processes: str) -> None:
    from asyncfl_bench.cli import command
    from asyncfl_bench.multirun import pending
    from asyncfl_bench.multirun.jobs import Job
    from asyncfl_bench.multirun.members import run_members

    signal.signal(signal.SIGINT, command._handle_stop_signal)
    settings = settings_of_members(folder)
    pending.state.current = [Job([], one) for one in settings]
    try:
        for answer in run_members(settings, int(runs), int(processes)):
            print(answer["code"], answer["line"], flush=True)
    except KeyboardInterrupt:
        os._exit(EXIT_INTERRUPTED)


if __name__ in ("__main__", "__mp_main__"):  # the second one in processes that the launcher starts
    machine.NEEDS_GPU, graphs = {}, FakeGraphs()
    build.graphs_or_none = lambda device: graphs
if __name__ == "__main__":
    main(*sys.argv[1:])
