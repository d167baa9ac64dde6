"""Measure on a GPU what no CPU can show, in ten minutes: bits, speed beside the floor, waits and memory.

    python scripts/prove_gpu.py gpu.md                        a page, written as it goes
    python scripts/prove_gpu.py try.md --device cpu --quick   every line once, with graphs that are not there

A section that fails says so and the next one runs; the exit code is then 1. Images are made up. Times are medians.
The floor of a gradient is the larger of its arithmetic over the speed of a product and of its least traffic (samples,
weights, gradient and upload) over the speed of a copy, both as measured here in fp32.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import benchmark
import torch
from torch.profiler import ProfilerActivity, profile

from asyncfl_bench.clients.stacked import rows_of_stack
from asyncfl_bench.config import compose
from asyncfl_bench.experiment import build, machine
from asyncfl_bench.kernels.graphed import GraphedNetwork, capture_checked
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.footprint import footprint

IMAGE, CLASSES = (3, 32, 32), 10
STACKED = {"lenet5": 50, "cnn": 50, "alexnet": 32}  # mini-batches
GRAPHED = {"resnet8": 50, "resnet18": 50, "vgg16": 32, "vit_small": 32}
# the new executor of each workload; the old one is sequential
RUNS = {"W1": "batched", "W2": "graph", "W3a": "batched", "W3f": "batched"}
RUNS |= {"W4a": "graph", "W5": "batched", "W7": "auto"}
QUICK = ("lenet5", "resnet8", "W1", "W2", "W3f", "W7")  # cases that take every line
EVENTS = ("cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaStreamSynchronize")


class Proof:
    """The page and what its sections share. flop_s, bytes_s: of a product and a copy, measured by the first section"""

    def __init__(self, page: Path, device: str, quick: bool, minutes: float) -> None:
        self.device, self.quick, self.cuda = device, quick, device.startswith("cuda")
        self.end, self.page = time.monotonic() + 60 * minutes, page.open("a", encoding="utf-8")
        self.folder, self.failed = Path(tempfile.mkdtemp()), False
        self.flop_s = self.bytes_s = float("nan")
        self.synchronize: Callable[[], None] = torch.cuda.synchronize if self.cuda else lambda: None
        self.graphs = build.graphs_or_none(device)
        assert self.graphs is not None

    def say(self, line: str) -> None:
        print(line, flush=True)
        self.page.write(line + "\n")
        self.page.flush()

    def head(self, *names: str) -> None:
        self.row(*names)
        self.row("---", *["---:"] * (len(names) - 1))

    def row(self, *cells: object) -> None:
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

    def built_run(self, name: str, executor: str):
        _, words, shape, samples, _ = benchmark.WORKLOADS[name]
        batch = 32 if shape == benchmark.GREY else 50
        if self.quick:
            words, batch = [word.replace("resnet18", "resnet8") for word in words], 4
        data = benchmark.made_up_images(shape, min(samples, 2000) if self.quick else samples, self.folder)
        return benchmark.built_run([*words, f"executor={executor}"], data, self.device, batch), batch


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
    """Gradients of a stack beside one model at a time, twice, among other rows, and as a graph."""
    machine.make_deterministic(proof.device)
    proof.head("network", "beside one model", "twice", "among others", "eager us", "graph us", "us a model")
    for name, size in proof.cases(STACKED):
        b = 4 if proof.quick else size
        rows, flat = rows_of_stack(b), proof.network(name)
        assert flat.stack is not None
        w_rd = flat.initial_d() + 0.02 * proof.random(rows, flat.d)
        x, y = proof.random(rows, b, *IMAGE), (torch.arange(rows * b, device=proof.device) % CLASSES).view(rows, b)
        out_rd, again_rd = torch.empty_like(w_rd), torch.empty_like(w_rd)
        weight_rb = torch.full((rows, b), 1 / b, device=proof.device)
        compute = partial(flat.stack.gradient, w_rd, x, y, weight_rb, out_rd)
        compute()
        expected_rd, single_d = out_rd.clone(), torch.empty(flat.d, device=proof.device)
        flat.gradient(w_rd[0].clone(), x[0], y[0], single_d)
        off = float((single_d - out_rd[0]).abs().max() / single_d.abs().max())
        compute()
        same = torch.equal(out_rd, expected_rd)
        others_rd = torch.cat([w_rd[:1], w_rd[1:] * 0.5])
        flat.stack.gradient(others_rd, x, y, weight_rb, again_rd)
        apart = torch.equal(again_rd[0], expected_rd[0])
        eager = proof.time(compute)
        replay = proof.time(capture_checked(proof.graphs, compute, [w_rd, x, out_rd]).replay)
        proof.row(name, f"{off:.1e}", same, apart, f"{eager:.0f}", f"{replay:.0f}", f"{replay / rows:.1f}")


def gradients_as_graphs(proof: Proof) -> None:
    """Gradients of large networks, operator by operator and as a graph."""
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
    """Updates per second (W7: local steps) one after another and by the new executor, and its bits twice."""
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


def cost_of_an_arrival(proof: Proof) -> None:
    """Operators, launches and copies of an upload, and where the host waits for the device."""
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
    """Peaks of a run and of an evaluation beside the estimate. On a CPU they are of the whole process."""
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
    *(cost_of_an_arrival, memory_of_runs),
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
