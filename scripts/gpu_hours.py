"""Model the hours of the five papers' sweeps at full size on one GPU; prints CSV, the cheapest sweep first.

    python scripts/gpu_hours.py > scripts/gpu_hours.csv   every sweep (minutes)
    python scripts/gpu_hours.py ace/figure2               some

No run is started, and every speed is modelled (docs/explanation/performance.md): an upload takes the time of W1 in
a group, each further local step two launches of 20 us for a stack of 16, and both take their arithmetic at the speed
of W2 if that is longer. Uploads and local steps follow from the budget. A budget of time allows those of archived runs
of the rule in the same time, else those of clients with the mean durations of the delays. Losses and dropout are left
out. An evaluation takes 10 000 samples.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from asyncfl_bench.config import Settings, options
from asyncfl_bench.config.choices import variant
from asyncfl_bench.config.composition import Compositions, check_composed
from asyncfl_bench.data.base import Outline
from asyncfl_bench.errors import BenchError
from asyncfl_bench.models.layers import Size
from asyncfl_bench.multirun.axes import jobs_of, searched_grids
from asyncfl_bench.multirun.estimates import count_points, finished_in
from asyncfl_bench.randomness import Streams
from asyncfl_bench.tracking.archive import archive_folders
from asyncfl_bench.types import ClientTable, Footprint, Work

PAPERS = ("ace", "afbs", "asyncfeded", "fedecho", "gas")
UPLOADS_S, CUT_STEPS_S = 3700, 900  # of one process: W1 in a group; local steps of W7, whose network is cut
STEP = 2 * 20e-6 / 16  # seconds of a further local step
FLOP_S = {"fp32": 150 * 167e9, "tf32": 300 * 167e9}  # of W2, whose step is 167 GFLOP
GFLOP = {"softmax": 0.002 / 32, "mlp": 0.03 / 32, "lenet5": 0.2 / 50, "cnn": 1.8 / 50, "cnn_one_pool": 1.8 / 50}
GFLOP |= {"resnet8": 3.8 / 50, "lstm": 3.8 / 10, "alexnet": 13 / 32, "vgg16": 64 / 32, "resnet18": 167 / 50}
GFLOP |= {"vit_small": 184 / 50, "fasttext": 0, "bert": 65}  # of a sample; BERT-base reads 128 tokens
TF32 = {"ace/figure2"}  # as its archived runs
SAMPLES = 50_000  # to train, where a data set does not say
EVALUATED, START = 10_000, 1.0  # samples of an evaluation; seconds before the first upload
WORKS = 4  # pieces of work of a client whose mean duration counts


def full_sweeps() -> list[str]:
    """Return the sweeps of the papers that have a full size."""
    named = (name for name in options("sweep") if name.partition("/")[0] in PAPERS)
    return sorted(name for name in named if "refused" not in (variant("sweep_scale", f"{name}/full") or {}))


def runs_of(name: str, shared: Compositions) -> list[tuple[Settings, int]]:
    """Return a run of each kind of a sweep, and how many there are: runs of a kind differ by their seed."""
    more = [f"unlabelled.path={write_images()}"] if name.endswith("_synthetic") else []
    more += ["precision=tf32"] if name in TF32 else []
    union = [drawn for one in searched_grids([f"sweep={name}", "scale=full", *more], shared) for drawn in one.draw()]
    kinds = Counter(tuple(word for word in job if not word.startswith("seed=")) for job in jobs_of(union))
    found = []
    for words, count in kinds.items():
        try:
            run = shared.config(words)
            found.append((check_composed(run.tree, run.hydra, list(words)), count))
        except BenchError as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
    return found


def write_images() -> Path:
    """Return a file in the place of the images of a diffusion model."""
    path = Path(tempfile.gettempdir(), "afl-images.npy")
    np.save(path, np.zeros((2, 32, 32, 3), np.uint8))
    return path


def model_run(settings: Settings) -> tuple[float, float]:
    """Return (uploads, seconds) of a run."""
    limits, (steps, batch) = settings.budget.amounts, local_work(settings)
    if "virtual_time" in limits and (archived := archived_rates(settings)):
        count, steps = archived[0] * limits["virtual_time"], archived[1]
    else:
        each = {"uploads": 1.0, "server_iterations": per_iteration(settings)}
        each |= {"virtual_time": uploads_per_time(settings)} if "virtual_time" in limits else {}
        count = min(each[key] * amount for key, amount in limits.items() if key in each)
    used = {"uploads": count, "server_iterations": count / per_iteration(settings), **limits}
    flop, speed = 1e9 * GFLOP[settings.choices["model"]], FLOP_S[settings.root.precision]
    first, further = (max(least, flop * batch / speed) for least in (1 / UPLOADS_S, STEP))
    if settings.needs.cuts:
        first = further = max(1 / CUT_STEPS_S, flop * batch / speed)
    evaluation = EVALUATED * flop / 3 / speed
    return count, START + count * (first + (steps - 1) * further) + count_points(settings.tree, used) * evaluation


def outline_of(settings: Settings) -> Outline:
    """Return the facts of the run's data; made-up ones where the data set does not say."""
    source = settings.parts["dataset"].target(settings.parts["dataset"].config)
    return (source.outline() if hasattr(source, "outline") else None) or Outline((1, 28, 28), 10, SAMPLES)


def local_work(settings: Settings) -> tuple[float, float]:
    """Return (local steps, samples of a mini-batch) of a piece of work of a client with the mean number of samples."""
    client, samples = settings.parts["client"].config, outline_of(settings).train_samples / settings.root.n_clients
    batch = samples if client.batch_size == "all" else min(client.batch_size, samples)
    steps = math.ceil(samples / batch) * client.local_epochs if client.local_epochs else client.local_steps
    return steps, batch


@cache
def archived_runs() -> dict[tuple[str, ...], list[tuple[float, float]]]:
    """Return (uploads per time, local steps per upload) of finished runs by paper, rule, data set and delays."""
    found = defaultdict(list)
    for one in finished_in(archive_folders("results")):
        used, choices = one.summary["used"], one.choices
        if used.get("client_steps") and used["virtual_time"] and used["uploads"]:
            found[kind_of(choices)].append(
                (used["uploads"] / used["virtual_time"], used["client_steps"] / used["uploads"])
            )
    return found


def kind_of(choices: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what runs of equal rates have in common."""
    groups = ("algorithm", "dataset", "model", "delay")
    return str(choices.get("sweep")).partition("/")[0], *(str(choices.get(group)) for group in groups)


def archived_rates(settings: Settings) -> tuple[float, float] | None:
    """Return the median of ``archived_runs`` like this run; None if there are none."""
    runs = archived_runs().get(kind_of(settings.choices))
    return tuple(np.median(runs, axis=0).tolist()) if runs else None


def per_iteration(settings: Settings) -> float:
    """Return the uploads of a server iteration."""
    by_tick = settings.needs.steps_on == "tick" and settings.root.clock == "ticks"
    return uploads_per_time(settings) if by_tick else settings.uploads_per_iteration


def uploads_per_time(settings: Settings) -> float:
    """Return the uploads of a unit of time, by the mean durations of the clients."""
    n, in_flight = settings.root.n_clients, settings.root.concurrency
    (steps, batch), outline = local_work(settings), outline_of(settings)
    size = settings.parts["model"].build().size(outline.shape, outline.classes) or Size(10**6, 10**6)
    macs = int(1e9 * GFLOP[settings.choices["model"]] / 6)
    delay, clients = settings.parts["delay"].build(), ClientTable(np.full(n, int(steps * batch)), np.ones((n, 10)))
    delay.start(clients, Streams(0), Footprint(size.d, size.d_client, macs, macs))
    work = partial(Work, sequence=0, count=0, iteration=0, local_steps=int(steps), samples=int(steps * batch))
    pieces = [[work(client, cycle=cycle) for cycle in range(WORKS)] for client in range(min(n, 200))]
    times = np.array([[delay.duration(one) for one in row] for row in pieces])
    if settings.root.clock == "ticks":
        times = np.maximum(1, np.ceil(times))
    mean_n = times.mean(axis=1)
    return float(in_flight * (np.mean(1 / mean_n) if in_flight == n else 1 / mean_n.mean()))


def main(names: list[str]) -> None:
    shared, rows = Compositions(), []
    for name in names or full_sweeps():
        runs = runs_of(name, shared)
        costs = [(count, *model_run(settings)) for settings, count in runs]
        uploads, seconds = (sum(count * row[place] for count, *row in costs) for place in (0, 1))
        rows.append((seconds / 3600, f"{name},{sum(count for _, count in runs)},{uploads:.0f},{seconds / 3600:.2f}"))
        print(rows[-1][1], file=sys.stderr, flush=True)
    print("sweep,runs,uploads,hours")
    print("\n".join(line for _, line in sorted(rows)))


if __name__ == "__main__":
    main(sys.argv[1:])
