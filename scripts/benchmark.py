"""Client updates per second of the simulator beside a bare PyTorch loop, measured in turn in one process.

    python scripts/benchmark.py                 all workloads, a Markdown table
    python scripts/benchmark.py W1 W3 growth    some of them
    python scripts/benchmark.py --device cuda --repeats 9 --out results.md   skips workloads of a CPU alone
    python scripts/benchmark.py --history results/speed     also add to a history and write its page

The bare loop does zero_grad, forward, backward and step with the same model and batch size on one prepared batch; it
pays for no data access, no client, no server. It runs with one thread and with all that the row has, and the faster one
counts. The simulator pays for everything but evaluation. Ratio: simulator / bare loop, the median over the repeats, so
above 1 the simulator is faster. Random images: speed does not depend on what is in them.

W6 and W7 are counted in local steps. W6: AsyncFedED on Synthetic(1,1), 80 to 6860 steps in a first piece of work, in
one thread. Its bare loop takes as many steps for the same clients on the same data, one shuffled pass after another.
words: of a network whose samples read few rows of a large embedding, local steps with these rows and with all of them.
W7: each step is a message with its answer, the server's own steps come on top; the bare loop trains the uncut model.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import history
import numpy as np
from history import Row

# name: (what, overrides, sample shape, training samples, uploads per repeat on a CPU and on a GPU)
COLOUR, GREY, SMALL_GREY = (32, 32, 3), (28, 28), (8, 8)
FEDBUFF = ["algorithm=fedbuff", "algorithm.buffer_size=10", "schedule=random_idle", "concurrency=20"]
MLP, RESNET = ["model=mlp", "n_clients=1000"], ["model=resnet18"]
SMALL, LARGE, TINY = (2000, 20_000), (8, 400), (5000, 50_000)
WORKLOADS = {
    "W1": ("LeNet5, batch 50, FedBuff M=10, C=20, n=100", ["model=lenet5", *FEDBUFF], COLOUR, 10_000, (200, 2000)),
    "W2": ("ResNet-18, batch 50, FedBuff M=10, C=20, n=100", [*RESNET, *FEDBUFF], COLOUR, 10_000, LARGE),
    "W3a": ("MLP 784-200-10, batch 32, ASGD, n=1000", [*MLP, "algorithm=asgd"], GREY, 40_000, SMALL),
    "W3f": ("MLP 784-200-10, batch 32, FedBuff M=10, n=1000", [*MLP, "algorithm=fedbuff"], GREY, 40_000, SMALL),
    "W4a": ("ResNet-18, batch 50, ACE direct, n=100", [*RESNET, "algorithm=ace"], COLOUR, 10_000, LARGE),
    "W4d": ("ResNet-18, batch 50, ACED, n=100", [*RESNET, "algorithm=aced"], COLOUR, 10_000, LARGE),
    "W5": (
        "softmax 784-10, batch 32, ASGD, n=10 000",
        ["model=softmax", "algorithm=asgd", "n_clients=10000"],
        GREY,
        60_000,
        TINY,
    ),
    "W7": (
        "LeNet5 cut behind its second pool, batch 50, GAS, C=10, n=100; local steps/s",
        ["model=lenet5", "algorithm=gas", "client.local_steps=10", "schedule=random_idle", "concurrency=10"],
        COLOUR,
        10_000,
        (40, 40),
    ),
}
for one in ("W1", "W3a", "W3f", "W7"):  # the same in one thread
    what, words, *rest = WORKLOADS[one]
    WORKLOADS[f"{one}-1"] = (f"{what}, one thread", [*words, "threads=1"], *rest)
STEPS = ("MLP 60-128-64-10, batch 32, AsyncFedED, 10 local epochs, n=10; local steps/s", (12_000, 12_000))


def made_up_images(shape: tuple[int, ...], samples: int, folder: Path) -> Path:
    path = folder / f"images-{'x'.join(map(str, shape))}-{samples}.npz"
    if not path.exists():
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (samples, *shape), dtype=np.uint8)
        y = rng.integers(0, 10, samples)
        np.savez(path, x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
    return path


def built_run(words: list[str], data: Path | None, device: str, batch: int):
    """Return the parts of a run that never ends by its budget. data: a file of images; None if ``words`` name a data
    set"""
    from asyncfl_bench.config import compose
    from asyncfl_bench.experiment.build import build_run

    settings = compose(
        [
            *(() if data is None else (f"dataset.path={data}", "dataset=arrays")),
            *("heterogeneity=iid", "delay=exponential", f"device={device}"),
            *("budget.server_iterations=1000000000", f"client.batch_size={batch}"),
            *(() if "algorithm=gas" in words else ("algorithm.eta=0.001",)),
            *words,
        ]
    )
    return build_run(settings)


def simulate(simulation, uploads: int, synchronize) -> float:
    """Return seconds per upload, with all work that began meanwhile."""
    target = simulation.counters.uploads + uploads
    started = time.perf_counter()
    while simulation.counters.uploads < target:
        simulation.step()
    simulation.executor.state_dict()  # waits for what other threads compute: else they continue in the next measurement
    synchronize()
    return (time.perf_counter() - started) / uploads


class BareLoop:
    def __init__(self, built, batch: int):
        import torch

        self.model = built.task.flat.clone_for_thread().module.to(built.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001)
        self.x, self.y = (t.clone() for t in built.task.batch(np.arange(batch)))

    def __call__(self, steps: int, synchronize) -> float:
        """Return seconds per step."""
        from torch.nn import functional as F

        started = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(self.x), self.y).backward()
            self.optimizer.step()
        synchronize()
        return (time.perf_counter() - started) / steps


def measure(name: str, device: str, repeats: int, folder: Path, executor: str) -> tuple[Row, str]:
    """Return one row of the table, and its Markdown."""
    import torch

    from asyncfl_bench.experiment import machine

    what, words, shape, samples, uploads = WORKLOADS[name]
    batch = 32 if shape == GREY else 50
    built = built_run([*words, f"executor={executor}"], made_up_images(shape, samples, folder), device, batch)
    on_gpu = built.device.startswith("cuda")
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    uploads = uploads[on_gpu]
    bare = BareLoop(built, batch)
    own_threads = torch.get_num_threads()
    simulate(built.simulation, max(1, uploads // 4) + (100 if built.rule.needs.first_round else 0), synchronize)
    ours, single, full, ratios = [], [], [], []
    local_steps = 10 if name.startswith("W7") else 1
    for _ in range(repeats):
        torch.set_num_threads(own_threads)
        ours.append(simulate(built.simulation, uploads, synchronize) / local_steps)
        steps = max(8, uploads * local_steps // 4)
        torch.set_num_threads(1)
        single.append(bare(steps, synchronize))
        torch.set_num_threads(machine.available_cores(None))
        full.append(bare(steps, synchronize))
        ratios.append(min(single[-1], full[-1]) / ours[-1])
    torch.set_num_threads(own_threads)
    built.executor.close()
    median = statistics.median
    threads = "" if on_gpu else f"{1 / median(single):.4g} / "
    row = spread(name, what, "ratio", ratios)
    return row, (
        f"| {name} | {what} | {built.executor_kind} | {1 / median(ours):.4g} | {threads}{1 / median(full):.4g} | "
        f"{shown(row)} | {machine.peak_memory(built.device) / 2**20:.0f} |"
    )


def spread(name: str, what: str, unit: str, values: list[float]) -> Row:
    return Row(name, what, unit, statistics.median(values), min(values), max(values))


def shown(row: Row) -> str:
    return f"**{row.value:.2f}** ({row.low:.2f} to {row.high:.2f})"


TEXT = {
    "words-1": (
        "FastText, 5 million parameters, batch 64, 5 local epochs, n=60; local steps/s of rows read and of all",
        ["client.local_epochs=5", "client.batch_size=64"],
        (3, 1),
    ),
    "words-2": (
        "the same with a single local step of AdamW",
        ["client=adamw", "client.batch_size=64"],
        (60, 20),
    ),
}


def made_up_texts(folder: Path) -> None:
    """Return as many texts as SST-2 has for training, of 1 to 18 words with natural frequencies."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(14_000)])
    share = 1 / np.arange(1, len(words) + 1)
    drawn = rng.choice(words, (67_349, 18), p=share / share.sum())
    with (folder / "sst2.jsonl").open("w", encoding="utf-8") as file:
        for number, (text, length) in enumerate(zip(drawn, rng.integers(1, 19, len(drawn)), strict=True)):
            line = {"split": "train" if number else "dev", "label": number % 2, "text": " ".join(text[:length])}
            file.write(json.dumps(line) + "\n")


def few_rows(name: str, repeats: int, folder: Path) -> tuple[Row, str]:
    """Measure local steps with the rows that a client's samples read, and with all rows, in one thread."""
    if not (folder / "sst2.jsonl").exists():
        made_up_texts(folder)
    what, words, uploads = TEXT[name]
    common = ["dataset=sst2", f"data_dir={folder}", "model=fasttext", "n_clients=60", "concurrency=12", "threads=1"]
    common += ["algorithm=fedbuff", "schedule=random_idle"]
    sparse, dense = (built_run([*common, *words], None, "cpu", 64) for _ in range(2))
    dense.task.flat.embedding = None
    speeds = []
    for repeat in range(repeats + 1):
        pair = []
        for built, count in zip((sparse, dense), uploads, strict=True):
            before = built.simulation.counters.client_steps
            seconds = simulate(built.simulation, count, lambda: None) * count
            pair.append((built.simulation.counters.client_steps - before) / seconds)
        if repeat:  # the first warms up
            speeds.append(pair)
    row = spread(name, what, "ratio", [few / every for few, every in speeds])
    few, every = (statistics.median(column) for column in zip(*speeds, strict=True))
    return row, f"| {name} | {what} | {few:.4g} | {every:.4g} | {shown(row)} |"


def train(built, module, work: list[tuple[int, int]], synchronize) -> float:
    """Return seconds per step of plain PyTorch for these clients and numbers of steps."""
    import torch
    from torch.nn import functional as F

    client = built.executor.computer.local.config
    x, y = built.task.batch(np.arange(built.task.describe()["train_samples"]))
    partition = [torch.from_numpy(indices).to(x.device) for indices in built.task.partition]
    started = time.perf_counter()
    for number, steps in work:
        optimizer = torch.optim.SGD(module.parameters(), lr=client.lr, momentum=client.momentum)
        own = partition[number]
        while steps > 0:
            batches = own[torch.randperm(len(own), device=x.device)].split(client.batch_size)[:steps]
            for batch in batches:
                optimizer.zero_grad()
                F.cross_entropy(module(x[batch]), y[batch]).backward()
                optimizer.step()
            steps -= len(batches)
    synchronize()
    return (time.perf_counter() - started) / sum(steps for _, steps in work)


def many_steps(device: str, repeats: int) -> tuple[Row, str]:
    """Return W6's row of the table, and its Markdown."""
    import torch

    from asyncfl_bench.config import compose
    from asyncfl_bench.experiment import machine
    from asyncfl_bench.experiment.build import build_run
    from asyncfl_bench.simulation.observer import Observer

    words = ["paper=asyncfeded/synthetic", "budget.virtual_time=null", "budget.server_iterations=1000000000"]
    built = build_run(compose([*words, "threads=1", f"device={device}"]))
    on_gpu = built.device.startswith("cuda")
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    module = built.task.flat.clone_for_thread().module.to(built.device)
    work: list[tuple[int, int]] = []  # (client, local steps) of every upload

    class Delivered(Observer):
        def received(self, upload, changed) -> None:
            work.append((upload.client, upload.local_steps))

    built.simulation.observers.append(Delivered())
    what, steps = STEPS
    rows = []
    for repeat in range(repeats + 1):
        work.clear()
        started, done, own_threads = time.perf_counter(), 0, torch.get_num_threads()
        while done < steps[on_gpu]:
            built.simulation.step()
            done = sum(steps for _, steps in work)
        synchronize()
        ours, bare = (time.perf_counter() - started) / done, []
        for threads in (1, machine.available_cores(None)):
            torch.set_num_threads(threads)
            bare.append(train(built, module, work, synchronize))
        torch.set_num_threads(own_threads)
        if repeat:  # the first warms up
            rows.append((ours, *bare, min(bare) / ours))
    ours, single, full, _ = (statistics.median(column) for column in zip(*rows, strict=True))
    row = spread("W6", what, "ratio", [row[-1] for row in rows])
    threads = "" if on_gpu else f"{1 / single:.4g} / "
    return row, (
        f"| W6 | {what} | {built.executor_kind} | {1 / ours:.4g} | {threads}{1 / full:.4g} | "
        f"{shown(row)} | {machine.peak_memory(built.device) / 2**20:.0f} |"
    )


GROWTH = {
    "all": ("all clients in flight", ("ace", "aced", "ca2fl"), (100, 10_000), GREY, 60_000, 6, ()),
    "some": ("100 clients in flight", ("fedbuff", "ace"), (100, 100_000), SMALL_GREY, 200_000, 2, ("concurrency=100",)),
}


OURS = ("-m", "asyncfl_bench")


def growth(device: str, repeats: int, folder: Path) -> list[tuple[Row, str]]:
    """Time per arrival with few clients and with many, and the memory that a client takes."""
    rows = []
    for what, rules, sizes, shape, samples, batch, more in GROWTH.values():
        data = made_up_images(shape, samples, folder)
        for rule in rules:
            words = {n: ["model=softmax", f"algorithm={rule}", f"n_clients={n}", *more] for n in sizes}
            runs = {n: built_run(words[n], data, device, batch) for n in sizes}
            for n, built in runs.items():
                simulate(built.simulation, 3000 + (n if built.rule.needs.first_round else 0), lambda: None)
            pairs = [
                [simulate(built.simulation, 5000, lambda: None) for built in runs.values()] for _ in range(repeats)
            ]
            for built in runs.values():
                built.executor.close()
            row = spread(f"growth-{rule}-{sizes[1]}", f"{rule}, {what}", "growth", [many / few for few, many in pairs])
            few, many = (statistics.median(column) * 1e6 for column in zip(*pairs, strict=True))
            bytes_of = [peak_of_a_process(words[n], data, device, batch) for n in sizes]
            client = (bytes_of[1] - bytes_of[0]) / (sizes[1] - sizes[0]) / 1024
            rows.append((row, f"| {row.what} | {few:.0f} | {many:.0f} (n={sizes[1]}) | {shown(row)} | {client:.1f} |"))
    return rows


def peak_of_a_process(words: list[str], data: Path, device: str, batch: int) -> int:
    """Return the peak bytes of a separate process in this run's first 1000 arrivals."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_peak, words, data, device, batch).result()


def _peak(words: list[str], data: Path, device: str, batch: int) -> int:
    from asyncfl_bench.experiment import machine

    built = built_run(words, data, device, batch)
    simulate(built.simulation, 1000, lambda: None)
    built.executor.close()
    return machine.peak_memory(built.device)


class NoGradients:
    """In the place of a network: what a run costs but for them."""

    has_statistics, reads_in_place = False, True

    def __init__(self, loss):
        self.gradient = lambda *_: loss


def bound(device: str, repeats: int, folder: Path) -> list[tuple[Row, str]]:
    """Measure what W3 needs at least, beside the bare step.

    memory  an upload is only the kernel's gradient at one of 1000 models, a copy of the new model into its row and the
            model's change, all in parallel
    work    such gradients and a run without gradients, on cores that never wait
    """
    import torch

    words, shape, samples = WORKLOADS["W3a-1"][1:4]
    built = built_run([*words, "executor=native"], made_up_images(shape, samples, folder), "cpu", 32)
    bare, network = BareLoop(built, 32), built.task.try_compile()
    rows_nd = built.model_d.repeat(1000, 1)
    order = np.random.default_rng(0).permutation(1000)
    built.executor.computer._network = NoGradients(torch.zeros(()))
    simulate(built.simulation, 1500, lambda: None)

    def uploads(rows: np.ndarray, changes: bool) -> None:
        model_d, out_d = built.model_d.clone(), torch.empty_like(built.model_d)
        for row in rows:
            network.gradient(rows_nd[row], bare.x.view(32, -1), bare.y, out_d)
            if changes:
                model_d.add_(out_d, alpha=-0.001)
                rows_nd[row].copy_(model_d)

    rows = []
    torch.set_num_threads(1)
    for threads in (1, 2):
        ratios: dict[str, list[float]] = {"memory": [], "work": []}
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in range(repeats + 1):
                for what, own in ratios.items():
                    started = time.perf_counter()
                    list(pool.map(uploads, np.array_split(order, threads), [what == "memory"] * threads))
                    ours = (time.perf_counter() - started) / len(order)
                    if what == "work":
                        ours += simulate(built.simulation, 1000, lambda: None) / threads
                    own.append(bare(500, lambda: None) / ours)
        for what, own in ratios.items():
            row = spread(f"W3-{what}-{threads}", f"W3, its {what} alone, threads: {threads}", "ratio", own[1:])
            rows.append((row, f"| {row.what} | {shown(row)} |"))
    built.executor.close()
    return rows


EIGHT = ["algorithm=fedbuff", "budget.server_iterations=2000", "rerun=true", "progress=false", "tracking=local"]
COMPANY = """
import sys
from asyncfl_bench.config import compose
from asyncfl_bench.multirun.members import run_members
run_members([compose([*sys.argv[1:], f"seed={seed}", "threads=1"]) for seed in range(8)], 8)
"""


def start_up(repeats: int, folder: Path) -> list[tuple[Row, str]]:
    """Measure wall seconds of whole commands in new processes."""
    commands = {
        "torch": ("python -c 'import torch'", ["-c", "import torch"]),
        "help": ("afl-run --help", [*OURS, "--help"]),
        "start": (
            "afl-run, digits, one iteration",
            [*OURS, "budget.server_iterations=1", "rerun=true", "progress=false"],
        ),
        "plan": (
            "afl-run sweep=ace/figure2 scale=small --plan",
            [*OURS, "sweep=ace/figure2", "scale=small", "--plan"],
        ),
        "cores": ("eight runs on digits, one per core", [*OURS, "-m", "hydra/launcher=cores", "seed=range(8)", *EIGHT]),
        "company": ("the same in company, in one process", ["-c", COMPANY, *EIGHT]),
    }
    rows = []
    for name, (what, words) in commands.items():
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            subprocess.run([sys.executable, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - started)
        row = spread(name, what, "seconds", seconds)
        rows.append((row, f"| {what} | {shown(row)} |"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", help=f"of {', '.join(WORKLOADS)}, W6, words, bound, growth, startup; default: all"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--executor", default="auto", help="of the rows W1 to W5 and W7, to compare two")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the tables there")
    parser.add_argument("--history", type=Path, help="also add to the history in this folder and write its page")
    given = parser.parse_args()
    known = dict.fromkeys([*WORKLOADS, "W6", *TEXT, "bound", "growth", "startup"])
    if unknown := [name for name in given.names if name not in known and not any(k.startswith(name) for k in known)]:
        parser.error(f"unknown: {', '.join(unknown)}")
    names = [k for k in known if not given.names or any(k.startswith(name) for name in given.names)]

    import torch

    from asyncfl_bench.experiment import machine

    lines: list[str] = []
    rows: list[Row] = []

    def measured(row: Row, line: str) -> None:
        rows.append(row)
        say(line)

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if given.out:
            given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")

    device = machine.select_device(given.device)
    if device.startswith("cuda"):
        asked, names = names, [one for one in names if one == "W6" or (one in WORKLOADS and one[-2:] != "-1")]
        if not names:
            parser.error(f"{', '.join(asked)}: measured on a CPU alone; leave out --device {device}")
    date = time.strftime("%Y-%m-%d %H:%M")
    say(f"{date}, {machine.device_name(device)}, {machine.available_cores(None)} CPU cores used, "
        f"torch {torch.__version__}, medians of {given.repeats} repeats\n")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        chosen = [name for name in names if name in WORKLOADS or name == "W6"]
        if chosen:
            say("| | workload | executor | simulator, updates/s | bare, 1 thread / all, steps/s | ratio | peak MiB |")
            say("| --- | --- | --- | ---: | ---: | ---: | ---: |")
        for name in chosen:
            if name == "W6":
                measured(*many_steps(device, given.repeats))
            else:
                measured(*measure(name, device, given.repeats, Path(folder), given.executor))
        if texts := [name for name in names if name in TEXT]:
            say("\n| | workload | rows read, steps/s | all rows, steps/s | ratio |")
            say("| --- | --- | ---: | ---: | ---: |")
            for name in texts:
                measured(*few_rows(name, given.repeats, Path(folder)))
        if "bound" in names and device == "cpu":
            say("\n| what bounds it | ratio |\n| --- | ---: |")
            for row, line in bound(device, given.repeats, Path(folder)):
                measured(row, line)
        if "growth" in names:
            say("\n| rule | us per arrival, n=100 | with many | ratio | KiB per client |")
            say("| --- | ---: | ---: | ---: | ---: |")
            for row, line in growth(device, given.repeats, Path(folder)):
                measured(row, line)
        if "startup" in names:
            say("\n| command | seconds |\n| --- | ---: |")
            for row, line in start_up(given.repeats, Path(folder)):
                measured(row, line)
    if given.history:
        cores = machine.available_cores(None)
        history.append(given.history, rows, machine.device_name(device), cores, torch.__version__, date)
        history.write_page(given.history)


if __name__ == "__main__":
    main()
