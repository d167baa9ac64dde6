"""The stand-in for a CUDA graph has the traps of one."""

import numpy as np
import pytest
import torch
from fake_graph import MAX_EMBEDDED, CaptureRefused, FakeGraphs
from torch import nn
from torch.nn import functional as F


def captured(compute):
    return FakeGraphs().capture(compute)


def test_a_replay_reads_static_memory_and_runs_no_python():
    x, out, calls = torch.ones(3), torch.zeros(3), []

    def compute():
        calls.append(1)
        out.copy_((x * 2).add_(len(calls)))

    graph = captured(compute)
    assert len(calls) == 2 and graph.launches == 3
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    graph.replay()
    graph.replay()
    assert out.tolist() == [4.0, 6.0, 8.0] and len(calls) == 2 and graph.replays == 2  # the number is frozen
    x = torch.zeros(3)  # another memory, which the graph does not see
    graph.replay()
    assert out.tolist() == [4.0, 6.0, 8.0]


def test_a_capture_computes_nothing_and_what_a_graph_made_is_gone_after_a_replay():
    made, out = [], torch.zeros(2)

    def compute():
        made.append(out + 1)
        out.copy_(made[-1])

    graph = captured(compute)
    assert out.tolist() == [1.0, 1.0]  # of the warm-up
    assert made[-1].isnan().all()
    graph.replay()
    assert out.tolist() == [2.0, 2.0] and made[-1].isnan().all()


def test_the_gradient_of_another_batch_has_the_bits_of_the_operators():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))
    x, y, out = torch.randn(6, 1, 8, 8), torch.randint(5, (6,)), [torch.zeros_like(p) for p in module.parameters()]

    def compute():
        torch._foreach_copy_(out, torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters())))

    graph = captured(compute)
    x.copy_(torch.randn_like(x)), y.copy_(y.flip(0))
    compute()
    expected = [one.clone() for one in out]
    for one in out:
        one.fill_(float("nan"))
    graph.replay()
    assert all(map(torch.equal, out, expected))


X, INDEX = torch.ones(4, 3), torch.tensor([0, 2])
EMBEDDING = nn.Embedding(5, 2)


def embed(size):
    return torch.autograd.grad(EMBEDDING(torch.zeros(size, dtype=torch.long)).sum(), EMBEDDING.weight)


REFUSALS = {
    "a number": lambda: X.sum().item(),
    "a branch": lambda: bool(X.sum() > 0),
    "a list": lambda: X.tolist(),
    "an array": lambda: X.numpy(),
    "an array of the host": lambda: X + torch.from_numpy(np.ones(3, np.float32)),
    "numbers of the host": lambda: X + torch.tensor([1.0, 2.0, 3.0]),
    "chosen rows": lambda: X[X[:, 0] > 0],
    "a draw": lambda: F.dropout(X),
    "a scatter that adds up": lambda: X.scatter_add(0, INDEX[None], X[:1, :2]),
    "rows that add up": lambda: torch.zeros(4, 3).index_put_((INDEX,), X[:2], accumulate=True),
    "the gradient of chosen rows": lambda: torch.autograd.grad(X.requires_grad_()[INDEX].sum(), X),
    "a large embedding": lambda: embed(MAX_EMBEDDED + 1),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_a_capture_refuses_is_refused(what):
    with pytest.raises(CaptureRefused):
        captured(REFUSALS[what])
    X.requires_grad_(False)
    assert X.tolist()  # the host reads again


def test_what_a_capture_takes_is_taken():
    attend = torch.randn(1, 2, 3, 4)
    for compute in (
        lambda: X[INDEX],
        lambda: embed(MAX_EMBEDDED),
        lambda: torch.zeros(4, 3).index_put_((INDEX,), X[:2]),
        lambda: X.masked_fill_(X > 5, 0.0),
        lambda: F.scaled_dot_product_attention(attend, attend, attend),
    ):
        assert captured(compute).launches
