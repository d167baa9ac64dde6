"""The compiled kernel beside automatic differentiation, on every kind of shape, and what happens without a compiler."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.linalg import _umath_linalg
from torch import nn

from asyncfl_bench import run
from asyncfl_bench.clients import choosing
from asyncfl_bench.clients.choosing import native_network
from asyncfl_bench.data.base import Data, Scale
from asyncfl_bench.errors import BenchError, ConfigError
from asyncfl_bench.kernels import compiler, native
from asyncfl_bench.kernels.native import Convolution, NativeNetwork, Shapes
from asyncfl_bench.models import networks
from asyncfl_bench.models.convolutional import Cnn, CnnConfig, CnnOnePool, CnnOnePoolConfig, LeNet5, LeNet5Config
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.layers import stack
from asyncfl_bench.models.task import Task

CLASSES = 5


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3 * 2 * 3, CLASSES))


SMALL = (2, 6, 9)


def blocks(*convolutions: tuple[int, int, int, int, bool], features: int, hidden: tuple[int, ...] = ()) -> nn.Module:
    """convolutions: channels in and out, kernel, padding, pool."""
    layers: list[nn.Module] = []
    for channels, outputs, kernel, padding, pool in convolutions:
        layers += [nn.Conv2d(channels, outputs, kernel, padding=padding), nn.ReLU(), *[nn.MaxPool2d(2)] * pool]
    widths = (features, *hidden, CLASSES)
    linears: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        linears += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), *linears[:-1])


NETWORKS = {
    "lenet5 on 3 channels": (lambda: LeNet5(LeNet5Config()).build((3, 32, 32), 10, 0), (3, 32, 32)),
    "lenet5 on 1 channel": (lambda: LeNet5(LeNet5Config()).build((1, 28, 28), 10, 0), (1, 28, 28)),
    "lenet5, odd and small": (lambda: LeNet5(LeNet5Config()).build((1, 13, 15), 4, 0), (1, 13, 15)),
    "cnn": (lambda: Cnn(CnnConfig(20)).build((3, 10, 7), 10, 0), (3, 10, 7)),
    "cnn_one_pool": (lambda: CnnOnePool(CnnOnePoolConfig()).build((1, 12, 11), 62, 0), (1, 12, 11)),
    "cnn_one_pool on femnist": (lambda: CnnOnePool(CnnOnePoolConfig()).build((1, 28, 28), 62, 0), (1, 28, 28)),
    "three blocks, 17 channels": (
        lambda: blocks((2, 17, 3, 1, True), (17, 9, 2, 0, False), (9, 20, 3, 2, True), features=180, hidden=(7,)),
        (2, 13, 13),
    ),
    "one block, no pool": (lambda: blocks((1, 4, 7, 3, False), features=4 * 9 * 8), (1, 9, 8)),
    "no block": (lambda: networks.sequential(stack((30,), "linear 33, relu, linear 16, relu, linear 3")), (30,)),
}


class FakeTask:
    def __init__(self, module: nn.Module, shape: tuple[int, ...]):
        self.flat, self.shape, self._factor = FlatModel(module), shape, None

    try_compile = Task.try_compile


TASK = FakeTask(small(), SMALL)


def both(
    module: nn.Module,
    shape: tuple[int, ...],
    x: torch.Tensor,
    y: torch.Tensor,
    w_d: torch.Tensor | None = None,
    bias_c: torch.Tensor | None = None,
):
    """(loss, gradient) of torch and of the kernel, whose logits are compared too."""
    flat = FlatModel(module)
    found = NativeNetwork.try_compile(flat, shape)
    assert found is not None
    w_d = flat.initial_d() if w_d is None else w_d
    answers = []
    for network in (flat, found):
        out_d = torch.full_like(w_d, 7.0)  # all of it is to be written
        answers.append((network.gradient(w_d, x, y, out_d, bias_c).item(), out_d))
    close = {"rtol": 1e-5, "atol": 1e-5, "equal_nan": True}
    torch.testing.assert_close(found.logits(w_d, x), flat.logits(w_d, x).clone(), **close)
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_automatic_differentiation(name):
    make, shape = NETWORKS[name]
    module = make()
    classes = list(module.parameters())[-1].numel()
    draw = torch.Generator().manual_seed(1)
    # sums of such numbers are exact: which pixel wins under a pool, ties as well, is no matter of rounding
    w_d = torch.randint(-1, 2, (FlatModel(module).d,), generator=draw) / 16
    for count in (1, 2, 9, 50):
        x = torch.randint(-8, 9, (count, *shape), generator=draw) / 4
        y = torch.randint(classes, (count,), generator=draw)
        bias_c = torch.randn(classes, generator=draw) if count > 2 else None
        (loss, expected_d), (own_loss, found_d) = both(module, shape, x, y, w_d, bias_c)
        assert own_loss == pytest.approx(loss, rel=1e-5)
        assert (found_d - expected_d).abs().max() < 1e-5 * expected_d.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("total", [0.0, 0.3, 1.0, 2.0])
def test_targets_may_be_shares_of_the_classes_whatever_their_sum(total):
    draw = torch.Generator().manual_seed(3)
    shares = total * torch.rand((9, CLASSES), generator=draw).softmax(dim=1)
    (loss, expected_d), (own_loss, found_d) = both(small(), SMALL, torch.randn((9, *SMALL), generator=draw), shares)
    assert own_loss == pytest.approx(loss, rel=1e-5, abs=1e-7)
    torch.testing.assert_close(found_d, expected_d, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: LeNet5(LeNet5Config()).build((3, 17, 12), 10, 0),
        lambda: networks.sequential(stack((3, 17, 12), "flatten, linear 7, relu, linear 10")),
    ],
)
def test_images_are_taken_where_they_lie_with_the_bits_of_a_fetched_mini_batch(make, augment):
    draw = np.random.default_rng(2)
    images, labels = draw.integers(0, 256, (300, 3, 17, 12), dtype=np.uint8), draw.integers(0, 10, 300)
    data = Data(images, labels, images, labels, 10, Scale((0.1, 0.5, 0.4), (0.2, 0.3, 0.25)))
    task = Task(data, [np.arange(300)], FlatModel(make()), "cpu")
    network, w_d, chosen = task.try_compile(), task.flat.initial_d(), draw.permutation(300)[:40]
    in_place_d, fetched_d = torch.empty_like(w_d), torch.empty_like(w_d)
    cut = task.draw_augmentation(draw, 40) if augment else None
    loss = task.gradient_in_place(network, w_d, in_place_d, chosen, cut)
    assert loss == network.gradient(w_d, *task.batch(chosen, cut), fetched_d)
    assert torch.equal(in_place_d, fetched_d)
    by_torch = task.evaluate(w_d)
    task.evaluate_with(network, 2)
    assert task.evaluate(w_d) == pytest.approx(by_torch, rel=1e-5)


@pytest.mark.slow
def test_ties_under_the_pool_go_to_the_first_pixel_as_in_torch():
    x = torch.ones(4, *SMALL)  # every pixel of a channel gives the same
    y = torch.tensor([0, 1, 2, 3])
    (_, expected_d), (_, found_d) = both(small(), SMALL, x, y)
    torch.testing.assert_close(found_d, expected_d)
    x[:, :, ::2] = 2.0  # rows in turn: ties along them, also between the rows of the pool in another order
    (_, expected_d), (_, found_d) = both(small(), SMALL, x, y)
    torch.testing.assert_close(found_d, expected_d)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name", ["lenet5, odd and small", "three blocks, 17 channels", "one block, no pool", "no block"]
)
def test_an_infinite_pixel_spoils_the_same_parts_of_the_gradient_as_in_torch(name, bad):
    make, shape = NETWORKS[name]
    module, draw = make(), torch.Generator().manual_seed(4)
    classes, d = list(module.parameters())[-1].numel(), FlatModel(module).d
    x, y = torch.rand((3, *shape), generator=draw), torch.randint(classes, (3,), generator=draw)
    w_d = 0.1 * torch.rand(d, generator=draw)  # all above zero: no pool and no ReLU lets -Inf pass
    finite = []
    for pixel in (0, 17, -1):  # pools leave out the last row and column where their number is odd
        bad_x = x.clone()
        bad_x[1].view(-1)[pixel] = bad
        (loss, expected_d), (own_loss, found_d) = both(module, shape, bad_x, y, w_d)
        assert math.isfinite(own_loss) == math.isfinite(loss)
        assert torch.equal(found_d.isfinite(), expected_d.isfinite())
        finite.append(expected_d.isfinite())
    assert not all(part.all() for part in finite)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_infinite_weight_spoils_the_same_parts_of_the_gradient_as_in_torch(bad):
    module = blocks((1, 3, 3, 0, True), (3, 17, 2, 0, False), features=17 * 3 * 2)
    shape, second = (1, 10, 8), 3 * 9 + 3  # the place of the second block's first weight
    x, y = torch.rand((2, *shape), generator=torch.Generator().manual_seed(5)), torch.tensor([0, 1])
    w_d = torch.full((FlatModel(module).d,), 0.1)
    w_d[second] = bad
    (loss, expected_d), (own_loss, found_d) = both(module, shape, x, y, w_d)
    assert math.isfinite(own_loss) == math.isfinite(loss) == (bad == -math.inf)
    assert torch.equal(found_d.isfinite(), expected_d.isfinite()) and not expected_d[:9].isfinite().any()


@pytest.mark.slow
def test_an_empty_mini_batch_and_vectors_at_odd_addresses():
    module = small()
    (loss, expected_d), (own_loss, found_d) = both(module, SMALL, torch.empty(0, *SMALL), torch.empty(0, dtype=int))
    assert math.isnan(loss) and math.isnan(own_loss)
    assert not found_d.any() and not expected_d.nan_to_num().any()
    flat = FlatModel(module)
    whole = torch.empty(flat.d + 3)
    w_d, x = whole[3:], torch.randn(2 * math.prod(SMALL) + 1)[1:].view(2, *SMALL)
    w_d.copy_(flat.initial_d())
    (_, expected_d), (_, found_d) = both(module, SMALL, x, torch.tensor([0, 4]), w_d)
    torch.testing.assert_close(found_d, expected_d)


SANITIZED = """
#include <vector>
#include <cstdio>
int main() {
  const int64_t d = Net::COUNT, size = Net::SIZE, classes = Net::width[Net::LAYERS];
  const int64_t height = HEIGHT, width = WIDTH, channels = size / height / width;
  for (int64_t b : {0, 1, 3, 10}) {
    std::vector<float> w(d, 0.01f), x(b * size, 0.5f), table(channels * 256, 0.5f), out(d), d_in(b * size);
    std::vector<uint8_t> images((b + 1) * size, 255);
    std::vector<int64_t> chosen(b, b), y_all(b + 1, classes - 1), y(b, classes - 1);
    std::vector<char> memory(bytes(b, 1)), forth(bytes(b, 0));
    std::vector<float> loss(1), z(b * classes), shares(b * classes, 1.0f / classes), bias(classes, 0.25f);
    Samples numbers{x.data()};
    gradient(w.data(), &numbers, y.data(), nullptr, nullptr, b, out.data(), nullptr, loss.data(), memory.data());
    if (b) std::printf("%f\\n", loss[0]);
    float* into = d_in.data();
    gradient(w.data(), &numbers, nullptr, shares.data(), bias.data(), b, out.data(), into, loss.data(), memory.data());
    gradient(w.data(), &numbers, y.data(), nullptr, nullptr, b, nullptr, into, loss.data(), memory.data());
    pull_back(w.data(), &numbers, z.data(), b, out.data(), memory.data());
    outputs(w.data(), &numbers, b, z.data(), forth.data());
    for (int64_t corner : {0, 4, 8})
      for (int64_t mirrored : {0, 1}) {
        std::vector<int64_t> cut(2 * b, corner);
        cut.insert(cut.end(), b, mirrored);
        Samples pixels{nullptr, images.data(), table.data(), channels, chosen.data(), cut.data(), height, width, 4};
        gradient(w.data(), &pixels, y_all.data(), nullptr, nullptr, b, out.data(), nullptr, loss.data(), memory.data());
        pixels.cut = nullptr;
        outputs(w.data(), &pixels, b, z.data(), forth.data());
      }
    if (b) std::printf("%f\\n", loss[0]);
  }
}"""
CUTS = {"first block": slice(3), "last blocks": slice(3, None), "up to a ReLU": slice(9), "rows": slice(9, None)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["three blocks, 17 channels", "one block, no pool", "cnn_one_pool", "no block", *CUTS])
def test_no_address_beyond_its_memory_is_touched(name, tmp_path):
    """The kernel alone under gcc's and clang's address sanitizer, with arrays that end where they end."""
    module, shape = NETWORKS.get(name, NETWORKS["lenet5, odd and small"])[0](), NETWORKS.get(name, (0, (1, 13, 15)))[1]
    if name in CUTS:
        shape = tuple(module[: CUTS[name].start or 0](torch.zeros(1, *shape)).shape[1:])
        module = module[CUTS[name]]
    shapes = Shapes.try_from_module(module, shape)
    assert shapes is not None
    height, width = shape[-2:] if len(shape) == 3 else (1, 1)
    text, program = tmp_path / "main.cpp", tmp_path / "main"
    text.write_text(shapes.source() + SANITIZED.replace("HEIGHT", str(height)).replace("WIDTH", str(width)))
    flags = ["-O1", "-g", "-march=native", "-std=c++17", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([*compiler.find_compilers()[0], *flags, "-o", program, text], check=True)
    answer = subprocess.run([program], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert [float(line) for line in answer.stdout.split()] == pytest.approx([math.log(shapes.widths[-1])] * 6, abs=0.2)


def test_shapes_are_read_from_the_network():
    shapes = Shapes.try_from_module(LeNet5(LeNet5Config()).build((3, 32, 32), 10, 0), (3, 32, 32))
    first, second = Convolution(3, 32, 32, 6, 5, 0, True), Convolution(6, 14, 14, 16, 5, 0, True)
    assert shapes == Shapes((first, second), (400, 120, 84, 10))
    assert second.shape == (16, 5, 5)
    assert (
        "Network<Chain<Conv<3, 32, 32, 6, 5, 0, 1, 1, 0>, Conv<6, 14, 14, 16, 5, 0, 1, 0, 1>>, false, 400, 120, 84, 10>"
        in (shapes.source())
    )


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)),
        nn.Sequential(nn.Conv2d(1, 2, (3, 1)), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(8, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(72, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(71, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 9), nn.ReLU(), nn.Flatten(), nn.Linear(2, 3)),
        nn.Linear(64, 3),
    ],
    ids=[
        *("stride", "no bias", "not square", "tanh", "pool of 3", "dropout", "other features", "no linear", "ReLU"),
        *("pixels", "no pixel", "no list"),
    ],
)
def test_other_networks_are_left_to_torch(module):
    assert NativeNetwork.try_compile(FlatModel(module), (1, 8, 8)) is None


class Bounded(nn.Sequential):
    def forward(self, x):
        return super().forward(x).clamp(-1, 1)


class Capped(nn.ReLU):
    def forward(self, x):
        return x.clamp(0, 6)


def with_hook() -> nn.Sequential:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    module[1].register_forward_hook(lambda layer, x, out: 2 * out)
    return module


def with_a_shared_layer() -> nn.Sequential:
    layer = nn.Linear(8, 8)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), layer, nn.ReLU(), layer)


def with_a_frozen_layer() -> nn.Sequential:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    module[1].requires_grad_(False)
    return module


@pytest.mark.parametrize(
    "module",
    [
        Bounded(nn.Flatten(), nn.Linear(64, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Capped(), nn.Linear(8, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3), Capped(), nn.Flatten(), nn.Linear(72, 3)),
        with_hook(),
        with_a_shared_layer(),
        with_a_frozen_layer(),
    ],
    ids=["class of its own", "layer of one's own", "behind a convolution", "hook", "shared layer", "frozen layer"],
)
def test_what_only_torch_knows_is_left_to_torch(module):
    flat = FlatModel(module)
    assert NativeNetwork.try_compile(flat, (1, 8, 8)) is None and flat.perceptron is None


BROKEN = """#!/bin/sh
[ "$1" = --version ] && exit 0
ps -o pgid= -p $$ | grep -qw $$ || exit 1  # in a process group of its own, so that Ctrl-C does not end it
echo 'fatal error: out of paper' >&2
exit 1
"""


@pytest.fixture
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler._version.cache_clear()


def test_a_compiler_that_fails_or_is_missing_leaves_the_work_to_torch(no_cache, monkeypatch, tmp_path, capsys):
    broken = tmp_path / "broken"
    broken.write_text(BROKEN)
    broken.chmod(0o755)
    reasons = {str(broken): "fatal error: out of paper", "/nowhere/c++": "/nowhere/c++", "/bin/true": "exit status 0"}
    for command, reason in reasons.items():
        monkeypatch.setenv("CXX", command)
        assert native_network("auto", "cpu", TASK) is None
        assert reason in capsys.readouterr().err
        with pytest.raises(ConfigError, match="executor=native: not possible"):
            native_network("native", "cpu", TASK)
        assert not list(tmp_path.rglob("*.so"))
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BenchError, match=r"no C\+\+ compiler"):
        compiler.find_compilers()


def script(path, lines):
    path.write_text("#!/bin/sh\n" + lines)
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
def test_an_old_compiler_leaves_it_to_the_next_one(no_cache, monkeypatch, tmp_path, capsys):
    (real,) = compiler.find_compilers()[0]
    script(tmp_path / "c++", 'echo "error: __builtin_shufflevector was not declared" >&2; exit 1')
    script(tmp_path / "clang++", f'exec {real} "$@"')
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert native_network("auto", "cpu", TASK) is not None
    assert capsys.readouterr().err == ""


def test_a_compiler_that_hangs_is_ended_with_all_it_started_and_not_asked_again(no_cache, monkeypatch, tmp_path):
    lines = 'case "$*" in *--version) exit 0;; esac; echo once >> asked; sleep 60 & echo $! > child; wait'
    monkeypatch.setenv("CXX", script(tmp_path / "hangs", lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compiler, "TIMEOUT_S", 0.5)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"executor=native: not possible: .*hangs did not end within 0.5 s"):
            native_network("native", "cpu", TASK)
    assert (tmp_path / "asked").read_text() == "once\n"
    child = Path("/proc") / (tmp_path / "child").read_text().strip()
    for _ in range(100):
        if not child.exists() or "Z" in (child / "stat").read_text().split(")")[1].split()[0]:
            break
        time.sleep(0.01)
    else:
        pytest.fail("its child goes on")


def copying_compiler(folder: Path) -> str:
    """A command that makes a library of NumPy's whatever the source, and writes a line for each."""
    lines = [
        'case "$*" in *--version) exit;; esac',
        f"echo once >> {folder / 'compiled'}",
        "for word; do made=$there there=$word; done",  # after -o
        f'cp {_umath_linalg.__file__} "$made"',
    ]
    return script(folder / "copies", "\n".join(lines))


def test_a_compiler_that_makes_something_else_leaves_the_work_to_torch(no_cache, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CXX", copying_compiler(tmp_path))
    choosing.say_once.cache_clear()
    assert native_network("auto", "cpu", TASK) is None
    assert "gradient" in capsys.readouterr().err


def put_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def put_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("put", [put_fifo, put_dangling_link, put_folder])
def test_what_is_no_file_in_the_cache_is_not_read(no_cache, monkeypatch, tmp_path, put):
    monkeypatch.setenv("CXX", copying_compiler(tmp_path))
    compiler.build_library("")
    (kept,) = tmp_path.rglob("*.so")
    put(kept)

    def end(*_):
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(5)
    try:
        compiler.build_library("")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert (tmp_path / "compiled").read_text() == "once\n" * 2
    assert kept.is_file() or put is put_folder


@pytest.mark.slow
def test_without_a_compiler_a_run_goes_on_and_one_that_asks_for_it_is_refused(no_cache, monkeypatch, afl_run):
    monkeypatch.setenv("CXX", "/bin/false")
    choosing.say_once.cache_clear()
    words = [
        "algorithm=fedbuff",
        "model=cnn",
        "scale=smoke",
        "progress=false",
        "threads=1",
        "budget.server_iterations=1",
    ]
    done = afl_run(*words, "hydra.run.dir=here")
    assert done.returncode == 0 and done.stderr.count("/bin/false") == 1
    assert json.loads(Path("here/summary.json").read_text())["executor"] == "sequential"
    refused = afl_run(*words, "executor=native", "hydra.run.dir=there")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "executor=native: not possible: /bin/false failed" in refused.stderr
    assert not Path("there").exists()


@pytest.mark.slow
def test_a_damaged_library_is_compiled_again_and_a_cache_is_not_needed(no_cache, monkeypatch, tmp_path):
    flat, calls, compiled = FlatModel(small()), [], compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda *args: calls.append(args) or compiled(*args))
    for damage in (b"", b"whole", b"nonsense"):
        for kept in tmp_path.rglob("*.so"):
            content = kept.read_bytes()
            kept.unlink()  # what is mapped into this process stays as it is
            kept.write_bytes(content if damage == b"whole" else content[:5000] + damage)
        assert NativeNetwork.try_compile(flat, SMALL) is not None
    assert len(calls) == 2  # not for the whole one
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert NativeNetwork.try_compile(flat, SMALL) is not None and len(calls) == 3


@pytest.mark.slow
@pytest.mark.process
def test_two_processes_may_compile_the_same_at_once(tmp_path):
    program = """
from torch import nn
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.kernels.native import NativeNetwork
NativeNetwork.try_compile(FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 3))), (4,))
"""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    both = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(2)]
    assert [process.wait(300) for process in both] == [0, 0]
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".so"}


@pytest.mark.slow
def test_native_is_asked_for_in_vain_for_other_networks_and_on_a_gpu():
    small, large = networks.softmax((4,), 2), networks.sequential(stack((200,), "linear 100, relu, linear 100"))
    assert native_network("auto", "cpu", FakeTask(small, (4,))) is None  # formulas are faster
    assert native_network("auto", "cpu", FakeTask(large, (200,))) is not None
    with pytest.raises(ConfigError, match="possible only on a CPU"):
        native_network("native", "cuda", TASK)
    assert native_network("threads", "cpu", TASK) is None


@pytest.mark.slow
def test_a_library_that_computes_something_else_is_not_used(no_cache, monkeypatch):
    wrong = native.SOURCE.replace("e[label] -= 1.0f / b;", "e[label] -= 1.01f / b;")
    source = Shapes.source
    monkeypatch.setattr(Shapes, "source", lambda self: source(self).replace(native.SOURCE, wrong))
    with pytest.raises(BenchError, match="another gradient than torch"):
        NativeNetwork.try_compile(FlatModel(small()), SMALL)


@pytest.mark.slow
def test_a_run_is_the_same_in_any_number_of_threads_and_says_what_computed_it(tmp_path):
    words = ["algorithm=fedbuff", "model=cnn", "dataset=digits", "client.local_steps=3", "budget.server_iterations=10"]
    results = {}
    for name, more in {"one": ["threads=1"], "two": ["threads=2"], "torch": ["threads=1", "executor=threads"]}.items():
        results[name] = run([*words, *more, "progress=false", f"hydra.run.dir={tmp_path / name}"])
    one, two, by_torch = results.values()
    assert (one.summary["executor"], by_torch.summary["executor"]) == ("native", "threads")
    assert one.summary["final"] == two.summary["final"]
    assert one.summary["final"]["test/loss"] == pytest.approx(by_torch.summary["final"]["test/loss"], rel=1e-4)
