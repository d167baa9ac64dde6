"""The gradient of any network as one launch: a CUDA graph captures its operators once and replays them.

This is faster for networks whose step is many small kernels, which take longer to launch than to compute.

Legend: d parameters, B samples of a mini-batch, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import first_line
from .known_layers import FlatNetwork

Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None]  # x, y, weight_b and bias_c

MOST_GRAPHS = 8  # shapes of mini-batches with a graph; for others each operator is launched
SEEN_FIRST = 2  # uses of a shape before its capture: many shapes occur once


class Graphs:
    """Captures on a GPU.

    All graphs share one pool of memory, because they run one after another and keep nothing in it. They share one
    stream for captures, because cuBLAS keeps 32 MiB for each stream in deterministic mode.
    """

    def __init__(self, device: str) -> None:
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)

    def capture(self, compute: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Return a graph of the operators of ``compute``, which is called a few times.

        All memory that ``compute`` reads and writes must stay allocated. Raises RuntimeError if an operator cannot be
        captured.
        """
        outer = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(outer)
        with torch.cuda.stream(self._stream):  # cuDNN and cuBLAS choose kernels and create handles before the capture
            for _ in range(3):
                compute()
        outer.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # other threads may allocate memory meanwhile
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            compute()
        return graph


def graphs_or_none(device: str) -> Graphs | None:
    """Return the object that captures on the device; None for a CPU."""
    return Graphs(device) if device.startswith("cuda") else None


def capture_checked(graphs: Graphs, compute: Callable[[], object], memory: Sequence[Tensor]) -> torch.cuda.CUDAGraph:
    """Return the graph of ``compute``, after a test that its replay on other numbers has the bits of the operators.

    memory  tensors that ``compute`` reads and that change between replays, and those that it writes; they do not change
    Raises RuntimeError if an operator cannot be captured, or if the bits differ.
    """
    before, results = [part.clone() for part in memory], []
    graph = graphs.capture(compute)
    for take_step in (compute, graph.replay):
        for part, numbers in zip(memory, before, strict=True):
            is_vector = part.is_floating_point() and part.dim() < 2
            part.copy_(numbers * 1.01 if is_vector else numbers.flip(0))
        take_step()
        results.append([part.reshape(-1).clone().view(torch.uint8) for part in memory])
    for part, numbers in zip(memory, before, strict=True):
        part.copy_(numbers)
    if not all(map(torch.equal, *results)):
        raise RuntimeError("a replay differs from its operators")
    return graph


class _Step:
    """Static memory of one shape of mini-batch, and the graph of its gradient."""

    def __init__(self, network: GraphedNetwork, x: Tensor, y: Tensor, weight_b: Tensor, bias_c: Tensor | None):
        self._network = network
        self.inputs = x.clone(), y.clone(), weight_b.clone(), None if bias_c is None else bias_c.clone()
        self.loss = network.w_d.new_zeros(())
        memory = network.w_d, network.out_d, self.loss, *(part for part in self.inputs if part is not None)
        self._graph = capture_checked(network.graphs, self.compute, memory)

    def compute(self) -> None:
        self.loss.copy_(self._network.compute(*self.inputs))

    def replay(self, *inputs: Tensor | None) -> Tensor:
        for static, given in zip(self.inputs, inputs, strict=True):
            if static is not None and given is not None:
                static.copy_(given)
        self._graph.replay()
        return self.loss.clone()


class GraphedNetwork:
    """Computes gradients as ``FlatModel``, from the third mini-batch of a shape on by a graph, with equal bits.

    Smaller mini-batches are padded to ``size`` with weight 0, so that most have one shape. Not for batch normalisation,
    whose statistics would include the padding.

    flat    of this network only: its parameters stay bound to static memory
    size    samples of a full mini-batch; 0: no padding
    report  called with the reason, in one line, if the network cannot be captured
    """

    has_statistics = False
    reads_in_place = False
    vectors = 3  # of d floats: w_d, out_d and the initial vector of ``flat``

    def __init__(self, flat: FlatNetwork, graphs: Graphs, size: int, report: Callable[[str], None]):
        self.graphs = graphs
        self.w_d, self.out_d = flat.initial_d(), flat.initial_d()
        self._flat, self._size, self._report = flat, size, report
        self._weights: dict[tuple[int, int], Tensor] = {}
        self._steps: dict[tuple, _Step] = {}
        self._uses: Counter[tuple] = Counter()
        self._captures = True

    def gradient(self, w_d: Tensor, x: Tensor, y: Tensor, out_d: Tensor, bias_c: Tensor | None = None) -> Tensor:
        """Compute as ``FlatModel.gradient``."""
        inputs: Inputs = (*self._pad(x, y), bias_c)
        self.w_d.copy_(w_d)
        step = self._find_step(*inputs)
        loss = self.compute(*inputs) if step is None else step.replay(*inputs)
        out_d.copy_(self.out_d)
        return loss

    def compute(self, x: Tensor, y: Tensor, weight_b: Tensor, bias_c: Tensor | None) -> Tensor:
        """Write the gradient at ``w_d`` into ``out_d``, operator by operator. Return the loss."""
        return self._flat.gradient(self.w_d, x, y, self.out_d, bias_c, weight_b)

    def logits(self, w_d: Tensor, x: Tensor) -> Tensor:
        """Compute as ``FlatModel.logits``."""
        self.w_d.copy_(w_d)
        return self._flat.logits(self.w_d, x)

    def _pad(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return x, y and weights (B,) of a mini-batch of at least ``size`` samples.

        The padding is copies of the first sample, because some networks divide by zero for a sample of zeros.
        """
        b, missing = len(y), max(0, self._size - len(y))
        if (key := (b, missing)) not in self._weights:
            self._weights[key] = torch.cat([y.new_full((b,), 1 / b, dtype=torch.float32), self.w_d.new_zeros(missing)])
        if missing:
            x, y = (torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) for part in (x, y))
        return x, y, self._weights[key]

    def _find_step(self, x: Tensor, y: Tensor, weight_b: Tensor, bias_c: Tensor | None) -> _Step | None:
        """Return the captured step for inputs of these shapes; None if there is none."""
        key = (tuple(x.shape), x.dtype, bias_c is None)
        if key in self._steps:
            return self._steps[key]
        self._uses[key] += 1
        if not self._captures or self._uses[key] <= SEEN_FIRST or len(self._steps) == MOST_GRAPHS:
            return None
        try:
            self._steps[key] = _Step(self, x, y, weight_b, bias_c)
        except RuntimeError as error:
            self._captures = False
            self._report(first_line(error)[:200])
            return None
        return self._steps[key]
