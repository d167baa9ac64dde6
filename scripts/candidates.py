"""Ways of computing gradients on a CPU that are not in use, each timed in turn with the way that is.

    python scripts/candidates.py                           all, a Markdown table
    python scripts/candidates.py compiled bf16 --repeats 9 some of them

Microseconds per gradient in one thread unless the row says otherwise: medians over the repeats, and the median of the
ratios present / candidate, so above 1 the candidate is faster. "differs by" is the largest difference between the two
gradients over the largest entry: 0 means the same bits, 1e-6 rounding.

Legend: p pieces of work, d parameters, B samples of a mini-batch, F features, C classes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from asyncfl_bench.tasks import models
from asyncfl_bench.tasks.flat import FlatModel

COLOUR, GREY, CLASSES = (3, 32, 32), (1, 28, 28), 10
WORKERS = 2


@dataclass
class Pair:
    """Two callables that give the same (p, d) or (d,) gradients, `gradients` of them per call."""

    what: str
    present: Callable[[], torch.Tensor]
    candidate: Callable[[], torch.Tensor]
    gradients: int
    calls: int = 1  # per repeat


def flat_model(name: str) -> FlatModel:
    """One of ``lenet5 | resnet18 | mlp | softmax`` with its usual samples."""
    kind = {"lenet5": models.LeNet5, "resnet18": models.ResNet18, "mlp": models.Mlp, "softmax": models.Softmax}[name]
    return FlatModel(kind(kind.Config()).build(COLOUR if name in ("lenet5", "resnet18") else GREY, CLASSES, seed=0))


def batch(flat_name: str, size: int, pieces: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Random (B, ...) samples and (B,) labels; with ``pieces`` (p, B, ...) and (p, B)."""
    lead = (size,) if pieces is None else (pieces, size)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(*lead, *(COLOUR if flat_name in ("lenet5", "resnet18") else GREY), generator=generator)
    return x, torch.randint(0, CLASSES, lead, generator=generator)


def one_after_another(name: str) -> tuple[Callable[[], torch.Tensor], list[torch.Tensor], tuple]:
    """The present way for convolutions, at two models by turns as with clients that start from different versions."""
    flat = flat_model(name)
    w_d, (x, y), out_d = flat.initial_d(), batch(name, 50), torch.empty(flat.d)
    versions = [w_d, w_d.clone()]

    def present() -> torch.Tensor:
        versions.reverse()
        flat.gradient(versions[0], x, y, out_d)
        return out_d

    return present, versions, (x, y)


def compiled() -> Iterator[Pair]:
    """torch.compile (inductor) of the network; autograd and the flat vectors around it as they are."""
    present, versions, (x, y) = one_after_another("lenet5")
    flat = flat_model("lenet5")
    flat.module = torch.compile(flat.module)
    out_d = torch.empty(flat.d)

    def candidate() -> torch.Tensor:
        versions.reverse()
        flat.gradient(versions[0], x, y, out_d)
        return out_d

    yield Pair("LeNet5, batch 50: torch.compile", present, candidate, 1, calls=15)


def channels_last() -> Iterator[Pair]:
    """Images as (B, H, W, C) in memory: the convolutions follow their input, the flat vector stays as it is."""
    for name, calls in (("lenet5", 15), ("resnet18", 1)):
        present, versions, (x, y) = one_after_another(name)
        flat, out_d = flat_model(name), torch.empty(flat_model(name).d)

        def candidate(flat=flat, x=x, y=y, versions=versions, out_d=out_d) -> torch.Tensor:
            versions.reverse()
            flat.gradient(versions[0], x.contiguous(memory_format=torch.channels_last), y, out_d)
            return out_d

        yield Pair(f"{name}, batch 50: channels last", present, candidate, 1, calls)


def bf16() -> Iterator[Pair]:
    """Autocast to bfloat16 in the forward and backward pass."""
    for name, calls in (("lenet5", 15), ("resnet18", 1)):
        present, versions, (x, y) = one_after_another(name)
        flat, out_d = flat_model(name), torch.empty(flat_model(name).d)

        def candidate(flat=flat, x=x, y=y, versions=versions, out_d=out_d) -> torch.Tensor:
            versions.reverse()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                flat.gradient(versions[0], x, y, out_d)
            return out_d

        yield Pair(f"{name}, batch 50: bf16 autocast", present, candidate, 1, calls)


def stacked(name: str, size: int, versions: list[torch.Tensor], together: int) -> Callable[[], torch.Tensor]:
    """The present way for linear networks: models copied into a stack, `together` at a time, then the formulas."""
    flat, pieces = flat_model(name), len(versions)
    x_pb, y_pb = batch(name, size, pieces)
    weight_pb = torch.full((pieces, size), 1 / size)
    w_pd, out_pd = torch.empty(together, flat.d), torch.empty(pieces, flat.d)

    def present() -> torch.Tensor:
        for first in range(0, pieces, together):
            part = slice(first, min(first + together, pieces))
            start_pd = w_pd[: part.stop - first]
            for row, version_d in zip(start_pd, versions[part], strict=True):
                row.copy_(version_d)
            flat.stacked_gradient(start_pd, x_pb[part], y_pb[part], weight_pb[part], out_pd[part])
        return out_pd

    return present


def shared_weights() -> Iterator[Pair]:
    """Ten pieces of work of one model version: one matrix product of 320 rows per layer, then each piece's own dW."""
    pieces, size = 10, 32
    w_d = flat_model("mlp").initial_d()
    x_pb, y_pb = batch("mlp", size, pieces)
    hidden, features = 200, 784
    cuts = (hidden * features, hidden, CLASSES * hidden, CLASSES)
    out_pd = torch.empty(pieces, w_d.numel())

    def candidate() -> torch.Tensor:
        w1, b1, w2, b2 = w_d.split(cuts)
        w1, w2 = w1.view(hidden, features), w2.view(CLASSES, hidden)
        x = x_pb.reshape(pieces * size, features)
        z = torch.addmm(b1, x, w1.t()).relu_()
        error = torch.softmax(torch.addmm(b2, z, w2.t()), dim=1)
        error[torch.arange(len(error)), y_pb.reshape(-1)] -= 1
        error.div_(size)
        d1, d1_bias, d2, d2_bias = out_pd.split(cuts, dim=1)
        error_pbc, z_pbh = error.view(pieces, size, -1), z.view(pieces, size, -1)
        torch.bmm(error_pbc.transpose(1, 2), z_pbh, out=d2.view(pieces, CLASSES, hidden))
        torch.sum(error_pbc, dim=1, out=d2_bias)
        back_pbh = torch.mm(error, w2).mul_(z > 0).view(pieces, size, -1)
        torch.bmm(back_pbh.transpose(1, 2), x_pb.reshape(pieces, size, features), out=d1.view(pieces, hidden, features))
        torch.sum(back_pbh, dim=1, out=d1_bias)
        return out_pd

    present = stacked("mlp", size, [w_d] * pieces, together=4)
    yield Pair("MLP 784-200-10, batch 32: 10 pieces of one version share W", present, candidate, pieces, calls=10)


def lockstep() -> Iterator[Pair]:
    """Two seeds' pending work in one stack, as far as that is a matter of larger stacks."""
    for name, alone in (("softmax", 16), ("softmax", 64), ("mlp", 4)):
        both = 2 * alone
        versions = [flat_model(name).initial_d() for _ in range(both)]
        present, candidate = (stacked(name, 32, versions, together) for together in (alone, both))
        what = {"softmax": "softmax 784-10", "mlp": "MLP 784-200-10"}[name]
        yield Pair(f"{what}, batch 32: stacks of {both} for {alone}", present, candidate, both, calls=10)


def _gradients_in_turn(flat: FlatModel, w_d, x, y, out_pd, rows) -> None:
    for row in rows:
        flat.gradient(w_d, x, y, out_pd[row])


def _process(w_d, x, y, out_pd, orders, done) -> None:
    """A worker: computes the rows it is sent into shared memory until it is sent None."""
    torch.set_num_threads(1)
    flat = flat_model("lenet5")
    while (rows := orders.get()) is not None:
        _gradients_in_turn(flat, w_d, x, y, out_pd, rows)
        done.put(rows)


def processes() -> Iterator[Pair]:
    """One piece of work per core in processes with shared memory, in place of threads."""
    pieces = 4 * WORKERS
    flat = flat_model("lenet5")
    x, y = batch("lenet5", 50)
    shared = [tensor.share_memory_() for tensor in (flat.initial_d(), x, y, torch.empty(pieces, flat.d))]
    context = torch.multiprocessing.get_context("spawn")
    orders, done = context.Queue(), context.Queue()
    workers = [context.Process(target=_process, args=(*shared, orders, done), daemon=True) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()

    def candidate() -> torch.Tensor:
        for row in range(pieces):
            orders.put([row])
        for _ in range(pieces):
            done.get()
        return shared[3]

    pool = ThreadPoolExecutor(WORKERS, initializer=lambda: torch.set_num_threads(1))
    twins, out_pd = [flat.twin() for _ in range(WORKERS)], torch.empty(pieces, flat.d)

    def present() -> torch.Tensor:
        jobs = [
            pool.submit(_gradients_in_turn, twin, shared[0], x, y, out_pd, range(first, pieces, WORKERS))
            for first, twin in enumerate(twins)
        ]
        for job in jobs:
            job.result()
        return out_pd

    yield Pair(f"LeNet5, batch 50: {WORKERS} processes for {WORKERS} threads", present, candidate, pieces, calls=2)
    for _ in workers:
        orders.put(None)
    for worker in workers:
        worker.join()
    pool.shutdown()


CANDIDATES = {
    function.__name__: function for function in (compiled, channels_last, bf16, shared_weights, lockstep, processes)
}


def microseconds(run: Callable[[], torch.Tensor], calls: int, gradients: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - started) / (calls * gradients) * 1e6


def row(pair: Pair, repeats: int) -> str:
    """One line of the table; the first calls, which may compile, are not timed."""
    expected, found = pair.present().clone(), pair.candidate()
    differs = ((expected - found).abs().max() / expected.abs().max()).item()
    present, candidate = [], []
    for _ in range(repeats):
        present.append(microseconds(pair.present, pair.calls, pair.gradients))
        candidate.append(microseconds(pair.candidate, pair.calls, pair.gradients))
    gains = [old / new for old, new in zip(present, candidate, strict=True)]
    median = statistics.median
    return (
        f"| {pair.what} | {median(present):.4g} | {median(candidate):.4g} | "
        f"**{median(gains):.2f}** ({min(gains):.2f} to {max(gains):.2f}) | {differs:.0e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CANDIDATES)}; default: all")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    if unknown := set(given.names) - set(CANDIDATES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(CANDIDATES)}")
    torch.set_num_threads(1)
    print("| candidate | present, us | candidate, us | present / candidate | differs by |")
    print("| --- | ---: | ---: | ---: | ---: |", flush=True)
    for name in given.names or CANDIDATES:
        for pair in CANDIDATES[name]():
            print(row(pair, given.repeats), flush=True)


if __name__ == "__main__":
    main()
