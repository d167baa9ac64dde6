"""Measure on a GPU what no CPU can show, in ten minutes: bits, speed beside the floor, group, waits and memory.

    python scripts/prove_gpu.py gpu.md                        a page, written as it goes
    python scripts/prove_gpu.py try.md --device cpu --quick   every line once, with graphs that are not there

A section that fails says so and the next one runs. The exit code is 1 if one failed or bits differ. Images are made
up. Times are medians.
The floor of a gradient is the larger of its arithmetic over the speed of a product and of its least traffic (samples,
weights, gradient and upload) over the speed of a copy, both as measured here in fp32.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import benchmark
import torch
from torch.profiler import ProfilerActivity, profile

from asyncfl_bench.clients.run_group import RunGroup
from asyncfl_bench.clients.stacked import ROWS, rows_of_stack
from asyncfl_bench.config import compose
from asyncfl_bench.experiment import build, machine
from asyncfl_bench.kernels.graphed import GraphedNetwork, Graphs, capture_checked
from asyncfl_bench.models.costs import footprint
from asyncfl_bench.models.flat import FlatModel

IMAGE, CLASSES = (3, 32, 32), 10
STACKED = {"lenet5": 50, "cnn": 50, "alexnet": 32}  # mini-batches
GRAPHED = {"resnet8": 50, "resnet18": 50, "vgg16": 32, "vit_small": 32}
# the new executor of each workload; the old one is sequential
RUNS = {"W1": "batched", "W2": "graph", "W3a": "batched", "W3f": "batched"}
RUNS |= {"W4a": "graph", "W5": "batched", "W7": "auto"}
QUICK = ("lenet5", "resnet8", "W1", "W2", "W3f", "W7")  # cases that take every line
COMPANIES = [(1, 1), (1, 4), (1, 16), (1, 48), (4, 16), (8, 16)]  # processes, runs of W1 in each
EVENTS = ("cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaStreamSynchronize")


class Proof:
    """The page and what its sections share. flop_s, bytes_s: of a product and a copy, measured by the first section

    It is sent to other processes, so it holds no open file.
    """

    def __init__(self, page: Path, device: str, quick: bool, minutes: float) -> None:
        self.device, self.quick, self.cuda = device, quick, device.startswith("cuda")
        self.end, self.page = time.monotonic() + 60 * minutes, page
        self.folder, self.failed = Path(tempfile.mkdtemp()), False
        self.flop_s = self.bytes_s = float("nan")
        self.synchronize: Callable[[], None] = torch.cuda.synchronize if self.cuda else torch.cpu.synchronize

    @property
    def graphs(self) -> Graphs:
        """What captures on the device."""
        graphs = build.graphs_or_none(self.device)
        assert graphs is not None
        return graphs

    def say(self, line: str) -> None:
        print(line, flush=True)
        with self.page.open("a", encoding="utf-8") as page:
            page.write(line + "\n")

    def head(self, *names: str) -> None:
        self.row(*names)
        self.row("---", *["---:"] * (len(names) - 1))

    def row(self, *cells: object) -> None:
        self.failed |= any(cell is False for cell in cells)  # bits that differ
        self.say(f"| {' | '.join(map(str, cells))} |")

    def run(self, section: Callable[[Proof], None]) -> None:
        self.say(f"\n## {section.__name__.replace('_', ' ')}\n")
        began = time.monotonic()
        if began > self.end:
            self.say("left out: no time")
            return
        try:
            section(self)
        except Exception as error:
            self.failed = True
            self.say(f"\nFAILED: {type(error).__name__}: {str(error)[:300]}")
            traceback.print_exc()
        self.say(f"\n{time.monotonic() - began:.0f} s")

    def cases(self, every: dict) -> list[tuple]:
        """Return names and values, of a quick proof the first ones of each kind."""
        return [(name, value) for name, value in every.items() if not self.quick or name in QUICK]

    def time(self, call: Callable[[], object]) -> float:
        """Return the median microseconds of a call, the device's work included."""
        call()
        self.synchronize()
        began = time.perf_counter()
        call()
        self.synchronize()
        seconds = 0.002 if self.quick else 0.06
        times, count = [], max(1, min(1000, int(seconds / max(1e-6, time.perf_counter() - began))))
        for _ in range(2 if self.quick else 5):
            began = time.perf_counter()
            for _ in range(count):
                call()
            self.synchronize()
            times.append(1e6 * (time.perf_counter() - began) / count)
        return statistics.median(times)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self.device)

    def network(self, name: str) -> FlatModel:
        model = compose([f"model={name}", "scale=smoke"]).parts["model"].build()
        return FlatModel(model.build(IMAGE, CLASSES, 0)).to(self.device)

    def built_run(self, name: str, executor: str, more: Sequence[str] = ()):
        _, words, shape, samples, _ = benchmark.WORKLOADS[name]
        batch = 32 if shape == benchmark.GREY else 50
        if self.quick:
            words, batch = [word.replace("resnet18", "resnet8") for word in words], 4
        data = benchmark.made_up_images(shape, min(samples, 2000) if self.quick else samples, self.folder)
        return benchmark.built_run([*words, f"executor={executor}", *more], data, self.device, batch), batch


def speed_of_the_machine(proof: Proof) -> None:
    """Measure launches, copies, a read, and the speed of a large copy and a large product."""
    machine.make_deterministic(proof.device)
    proof.say(f"torch {torch.__version__}, {machine.device_name(proof.device)}, load {os.getloadavg()[0]:.1f}\n")
    few, host = torch.zeros(1000, device=proof.device), torch.arange(50)
    pinned = host.pin_memory() if proof.cuda else host
    proof.head("what", "us")
    for name, call in {
        "a launch": lambda: few.add_(1),
        "a view": lambda: few[:10],
        "empty memory": lambda: torch.empty(1000, device=proof.device),
        "a copy of 50 numbers that waits": lambda: host.to(proof.device, copy=True),
        "the same, pinned": lambda: pinned.to(proof.device, non_blocking=True, copy=True),
        "a read": lambda: few[0].item(),
    }.items():
        proof.row(name, f"{proof.time(call):.1f}")
    large = torch.zeros(2**16 if proof.quick else 2**28, device=proof.device)
    proof.bytes_s = 2e6 * large.nbytes / proof.time(partial(torch.empty_like(large).copy_, large))
    proof.say(f"\n{proof.bytes_s / 1e12:.3f} TB/s of a copy")
    side = 256 if proof.quick else 8192
    matrix = proof.random(side, side)
    for tf32 in (True, False):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        proof.flop_s = 2e6 * side**3 / proof.time(lambda: matrix @ matrix)
        proof.say(f"{proof.flop_s / 1e12:.2f} TFLOP/s of a product in {'TF32' if tf32 else 'fp32'}")


def stacks_of_models(proof: Proof) -> None:
    """Compare gradients of a stack with single ones: twice, among other rows, in other rows, and as a graph.

    The rows follow each other, as in a run, or begin at multiples of 64 bytes: else a CPU sums in another order.
    """
    machine.make_deterministic(proof.device)
    bits = "twice", "among others", "in other rows", "the same, at 64 bytes"
    proof.head("network", "beside one model", *bits, "eager us", "graph us", "us a model")
    for name, size in proof.cases(STACKED):
        b = 4 if proof.quick else size
        rows, flat = rows_of_stack(b), proof.network(name)
        assert flat.stack is not None
        w_rd = flat.initial_d() + 0.02 * proof.random(rows, flat.d)
        x, y = proof.random(rows, b, *IMAGE), (torch.arange(rows * b, device=proof.device) % CLASSES).view(rows, b)
        out_rd, again_rd = torch.empty_like(w_rd), torch.empty_like(w_rd)
        weight_rb = torch.full((rows, b), 1 / b, device=proof.device)
        bound = flat.stack.bind(rows, b, IMAGE, w_rd)
        compute = partial(flat.stack.gradient, w_rd, x, y, weight_rb, out_rd, bound=bound)
        compute()
        expected_rd, single_d = out_rd.clone(), torch.empty(flat.d, device=proof.device)
        flat.gradient(w_rd[0].clone(), x[0], y[0], single_d)
        off = float((single_d - out_rd[0]).abs().max() / single_d.abs().max())
        compute()
        same = torch.equal(out_rd, expected_rd)
        flat.stack.gradient(torch.cat([w_rd[:1], w_rd[1:] * 0.5]), x, y, weight_rb, again_rd)
        apart = torch.equal(again_rd[0], expected_rd[0])
        moved = has_equal_rows(proof, flat, w_rd, x, y) if proof.cuda else "not on a CPU"
        aligned = has_equal_rows(proof, flat, at_64_bytes(w_rd), x, y)
        eager = proof.time(compute)
        replay = proof.time(capture_checked(proof.graphs, compute, [w_rd, x, out_rd]).replay)
        times = f"{eager:.0f}", f"{replay:.0f}", f"{replay / rows:.1f}"
        proof.row(name, f"{off:.1e}", same, apart, moved, aligned, *times)


def at_64_bytes(rows_rd: torch.Tensor) -> torch.Tensor:
    """Return the rows in memory where each begins at a multiple of 64 bytes."""
    r, d = rows_rd.shape
    return rows_rd.new_zeros((r, -(-d // 16) * 16))[:, :d].copy_(rows_rd)


def has_equal_rows(proof: Proof, flat: FlatModel, w_rd: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return True if the gradient of a model has the same bits in every row of a stack laid out as ``w_rd``."""
    assert flat.stack is not None
    order, weight_rb = torch.arange(len(w_rd), device=proof.device), torch.full(y.shape, 1 / y.shape[1]).to(y.device)
    found = []
    for shift in range(2 if proof.quick else len(order)):
        moved = order.roll(shift)
        into_rd, out_rd = (torch.empty_strided(w_rd.shape, w_rd.stride(), device=w_rd.device) for _ in range(2))
        into_rd.copy_(w_rd[moved])
        flat.stack.gradient(into_rd, x[moved], y[moved], weight_rb, out_rd)
        found.append(out_rd.roll(-shift, 0))
    return all(torch.equal(one, found[0]) for one in found)


def gradients_as_graphs(proof: Proof) -> None:
    """Compare gradients of large networks, operator by operator and as a graph."""
    proof.head("network", "precision", "bits", "eager us", "graph us", "floor us", "MiB")
    for name, full in proof.cases(GRAPHED):
        size = 2 if proof.quick else full
        for precision in ("fp32", "tf32") if proof.cuda else ("fp32",):
            machine.make_deterministic(proof.device, precision)
            machine.reset_peak_memory(proof.device)
            flat, notes = proof.network(name), []
            x, y = proof.random(size, *IMAGE), torch.arange(size, device=proof.device) % CLASSES
            w_d, out_d, found_d = (flat.initial_d() for _ in range(3))
            eager = proof.time(partial(flat.gradient, w_d, x, y, out_d))
            network = GraphedNetwork(flat.clone_for_thread(), proof.graphs, size, notes.append)
            graph = proof.time(partial(network.gradient, w_d, x, y, found_d))
            network.gradient(w_d, x, y, found_d)
            off = float((found_d - out_d).abs().max() / out_d.abs().max())
            bits = notes[0] if notes else "as eager" if torch.equal(found_d, out_d) else f"off by {off:.0e}"
            floor = 1e6 * floor_seconds(proof, count_macs(flat), flat.d, size, x[0].numel())
            mib = machine.peak_memory(proof.device) / 2**20
            proof.row(name, precision, bits, f"{eager:.0f}", f"{graph:.0f}", f"{floor:.0f}", f"{mib:.0f}")
    machine.make_deterministic(proof.device)


def count_macs(flat: FlatModel) -> int:
    """Return the multiply-adds of a forward pass of one image."""
    return footprint(flat.module, torch.zeros(1, *IMAGE, device=next(flat.module.parameters()).device)).macs


def floor_seconds(proof: Proof, macs: int, d: int, b: int, numbers: int) -> float:
    """Return the least seconds of a gradient of b samples of that many numbers."""
    return max(6 * macs * b / proof.flop_s, 4 * (4 * d + b * numbers) / proof.bytes_s)


def runs_of_the_engine(proof: Proof) -> None:
    """Measure updates per second (W7: local steps) one by one and in stacks, and compare the bits of two runs."""
    proof.head("workload", "sequential", "new", "executor", "floor", "new / floor", "bits twice")
    for name, executor in proof.cases(RUNS):
        rates, models = [], []
        for kind in ("sequential", executor, executor):
            built, batch = proof.built_run(name, kind)
            counters, simulation = built.simulation.counters, built.simulation
            warm = (built.task.clients.n if built.rule.needs.first_round else 0) + (4 if proof.quick else 60)
            benchmark.simulate(simulation, warm, proof.synchronize)
            seconds = benchmark.simulate(simulation, 2 if proof.quick else 200, proof.synchronize)
            steps = counters.messages / counters.uploads if built.rule.needs.cuts else 1
            rates.append(steps / seconds)
            models.append(built.model_d.clone())
            macs, d, kind = built.task.footprint.macs, built.task.flat.d, built.executor_kind
            floor = 1 / floor_seconds(proof, macs, d, batch, int(torch.tensor(built.task.shape).prod()))
            built.executor.close()
        same = torch.equal(*models[1:])
        proof.row(name, f"{rates[0]:.0f}", f"{rates[1]:.0f}", kind, f"{floor:.0f}", f"{rates[1] / floor:.3f}", same)


def group_of_runs(proof: Proof) -> None:
    """Measure updates per second of runs in a group, in one process and in several, and compare their bits with single
    runs.

    The first and the last run of each process are repeated alone. On a CPU the network is another one, whose rows of a
    stack begin at multiples of 64 bytes.
    """
    proof.head("processes", "runs in each", "updates/s", "pieces a wave", "bits beside alone")
    context: Any = multiprocessing.get_context("spawn" if proof.cuda else "fork")  # CUDA does not survive a fork
    for processes, runs in [(2, 2)] if proof.quick else COMPANIES:
        ready, results = context.Barrier(processes), context.SimpleQueue()
        parts = [range(runs * place, runs * (place + 1)) for place in range(processes)]
        started = [context.Process(target=run_group, args=(proof, part, ready, results)) for part in parts]
        for process in started:
            process.start()
        found = [results.get() for _ in started]
        for process in started:
            process.join()
        if problems := [one for one in found if isinstance(one, str)]:
            raise RuntimeError(problems[0])
        uploads, begun, ended, pieces, same = zip(*found, strict=True)
        rate = sum(uploads) / (max(ended) - min(begun))
        proof.row(processes, runs, f"{rate:.0f}", f"{statistics.mean(pieces):.1f}", all(same))


def run_group(proof: Proof, seeds: Sequence[int], ready: Any, results: Any) -> None:
    """Measure a process of a group. results: gets what ``measure_group`` returns, or a problem in a line"""
    try:
        results.put(measure_group(proof, seeds, ready.wait))
    except Exception as error:
        ready.abort()
        results.put(f"{type(error).__name__}: {str(error)[:200]}")


def measure_group(
    proof: Proof, seeds: Sequence[int], wait: Callable[[], object]
) -> tuple[int, float, float, float, bool]:
    """Return the uploads of runs that differ by their seeds, their begin and end, the pieces of work in a wave, and
    whether the runs have the bits that they have alone. wait: for other processes"""
    machine.make_deterministic(proof.device)
    name, more = ("W1", []) if proof.cuda else ("W3f", ["model.hidden=[18]", "n_clients=20"])
    counts, group = (4, 2) if proof.quick else (60, 200), RunGroup(ROWS)

    def build_run(seed: int):
        return proof.built_run(name, RUNS[name], [f"seed={seed}", *more])[0]

    def run_member(run: Any, count: int) -> None:
        with group.joining(run.executor):
            benchmark.simulate(run.simulation, count, proof.synchronize)

    members = [build_run(seed) for seed in seeds]
    with ThreadPoolExecutor(len(members)) as pool:
        list(pool.map(run_member, members, [counts[0]] * len(members)))
        wait()
        begun = time.time()
        list(pool.map(run_member, members, [counts[1]] * len(members)))
        ended = time.time()
    pieces, same = group.rows / group.waves, True
    for place in {0, len(seeds) - 1}:
        alone = build_run(seeds[place])
        for count in counts:
            benchmark.simulate(alone.simulation, count, proof.synchronize)
        same &= torch.equal(alone.model_d, members[place].model_d)
    return len(members) * counts[1], begun, ended, pieces, same


def cost_of_an_arrival(proof: Proof) -> None:
    """Measure operators, launches and copies of an upload, and where the host waits for the device."""
    proof.head("workload", "operators", *EVENTS, "waits by place")
    count = 2 if proof.quick else 60
    for name in ("W1",) if proof.quick else ("W1", "W3f", "W4a"):
        built, _ = proof.built_run(name, RUNS[name])
        benchmark.simulate(built.simulation, count, proof.synchronize)
        kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * proof.cuda]
        with profile(activities=kinds) as profiled:
            benchmark.simulate(built.simulation, count, proof.synchronize)
        found = {event.key: event.count / count for event in profiled.key_averages()}
        operators = sum(number for key, number in found.items() if key.startswith("aten::"))
        places = count_waits(proof, built.simulation.step, count)
        numbers = [f"{found.get(key, 0):.1f}" for key in EVENTS]
        proof.row(name, f"{operators:.0f}", *numbers, places or "none")
        built.executor.close()


def count_waits(proof: Proof, call: Callable[[], object], count: int) -> str:
    """Return where the host waits for a GPU, and how often for each of ``count`` calls."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if proof.cuda:
            torch.cuda.set_sync_debug_mode("warn")
        for _ in range(count):
            call()
        if proof.cuda:
            torch.cuda.set_sync_debug_mode("default")
    places = Counter(f"{Path(one.filename).name}:{one.lineno}" for one in caught)
    return ", ".join(f"{place} {number / count:.2f}" for place, number in places.most_common(8))


def memory_of_runs(proof: Proof) -> None:
    """Compare peak memory of a run and of an evaluation with the estimate. On a CPU it is that of the process."""
    proof.head("workload", "estimate MiB", "peak of uploads MiB", "peak of an evaluation MiB")
    for name in ("W1",) if proof.quick else ("W1", "W2", "W4a"):
        built, _ = proof.built_run(name, RUNS[name])
        peaks = []
        for call in (
            partial(benchmark.simulate, built.simulation, 2 if proof.quick else 140, proof.synchronize),
            partial(built.task.evaluate, built.model_d),
        ):
            machine.reset_peak_memory(proof.device)
            call()
            peaks.append(f"{machine.peak_memory(proof.device) / 2**20:.0f}")
        proof.row(name, f"{built.needs.total / 2**20:.0f}", *peaks)
        built.executor.close()


SECTIONS = (
    *(speed_of_the_machine, stacks_of_models, gradients_as_graphs, runs_of_the_engine),
    *(group_of_runs, cost_of_an_arrival, memory_of_runs),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    device = machine.select_device(given.device)
    if device == "cpu":
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
        from fake_graph import FakeGraphs

        fake = FakeGraphs()
        machine.NEEDS_GPU = {}
        build.graphs_or_none = lambda device: fake
    proof = Proof(given.page, device, given.quick, given.minutes)
    for section in SECTIONS:
        proof.run(section)
    return int(proof.failed)


if __name__ == "__main__":
    sys.exit(main())
