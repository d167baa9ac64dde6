"""Several models at once by formulas: the bits of archived runs, automatic differentiation, and kernels of a gradient.

Legend: d parameters, p models at once, B samples of a mini-batch.
"""

from __future__ import annotations

import pytest
import torch
from fake_graph import FakeGraphs
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from asyncfl_bench.kernels.perceptron import LinearLayer
from asyncfl_bench.kernels.stacked_networks import StackedNetwork
from asyncfl_bench.models.base import ModelConfig
from asyncfl_bench.models.convolutional import (
    AlexNet,
    AlexNetConfig,
    Cnn,
    CnnConfig,
    CnnOnePool,
    CnnOnePoolConfig,
    LeNet5,
    LeNet5Config,
    ResNet8,
    ResNet8Config,
)
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.language import Lstm, LstmConfig
from asyncfl_bench.models.perceptrons import Mlp, MlpConfig, Softmax

CLASSES = 10
PERCEPTRONS = {
    "softmax": (Softmax(ModelConfig()), (1, 6, 6)),
    "mlp": (Mlp(MlpConfig([20])), (1, 6, 6)),
    "mlp of three hidden layers": (Mlp(MlpConfig([9, 8, 7])), (12,)),
}
CONVOLUTIONS = {
    "lenet5 on 3 channels": (LeNet5(LeNet5Config()), (3, 32, 32)),
    "lenet5 on 1 channel": (LeNet5(LeNet5Config()), (1, 28, 28)),  # padded
    "cnn": (Cnn(CnnConfig(16)), (3, 11, 9)),  # a pool leaves a row and a column out
    "cnn_one_pool": (CnnOnePool(CnnOnePoolConfig()), (1, 9, 8)),
    "alexnet": (AlexNet(AlexNetConfig()), (3, 12, 12)),
}
# the last pool of a smaller image leaves one pixel, which needs no order
NETWORKS = PERCEPTRONS | CONVOLUTIONS | {"alexnet on 20x20 pixels": (AlexNet(AlexNetConfig()), (3, 20, 20))}


def flat_model(name):
    model, shape = NETWORKS[name]
    return FlatModel(model.build(shape, CLASSES, seed=3)), shape


def stack_of(name, p, b, kind="ragged", seed=0):
    """(flat model, arguments of a stacked gradient); a bias where the seed is odd."""
    flat, shape = flat_model(name)
    drawn = torch.Generator().manual_seed(seed)
    w_pd = flat.initial_d().repeat(p, 1) + 0.05 * torch.randn(p, flat.d, generator=drawn)
    x_pb = torch.randn(p, b, *shape, generator=drawn)
    if kind == "one colour":  # every window of a pool ties
        x_pb = torch.randn(p, b, *[1] * len(shape), generator=drawn).expand(x_pb.shape).contiguous()
    if kind == "three colours":
        x_pb = x_pb.sign() * (x_pb.abs() > 0.4)
    y_pb = torch.randint(CLASSES, (p, b), generator=drawn)
    sizes_p1 = torch.randint(1, b + 1, (p, 1), generator=drawn) if kind == "ragged" else torch.full((p, 1), b)
    weight_pb = (torch.arange(b) < sizes_p1) / sizes_p1
    bias_pc = torch.randn(p, CLASSES, generator=drawn) if seed % 2 else None
    return flat, (w_pd, x_pb, y_pb, weight_pb, torch.full((p, flat.d), torch.nan), bias_pc)


def archived_gradient(layers, w_pd, x_pb, y_pb, weight_pb, out_pd, bias_pc=None):
    """The formulas of the archived runs of perceptrons, operator by operator: never to be changed."""
    inputs = [x_pb.flatten(2)]
    for layer in layers[:-1]:
        weight, bias = layer.weight(w_pd), layer.bias(w_pd)
        inputs.append(torch.baddbmm(bias.unsqueeze(1), inputs[-1], weight.transpose(1, 2)).relu_())
    weight, bias = layers[-1].weight(w_pd), layers[-1].bias(w_pd)
    logits_pbc = torch.baddbmm(bias.unsqueeze(1), inputs[-1], weight.transpose(1, 2))
    if bias_pc is not None:
        logits_pbc.add_(bias_pc.unsqueeze(1))
    log_pbc = torch.log_softmax(logits_pbc, dim=2)
    index_pb1 = y_pb.unsqueeze(2)
    loss_p = -(log_pbc.gather(2, index_pb1).squeeze(2) * weight_pb).sum(dim=1)
    error = log_pbc.exp_().scatter_add_(2, index_pb1, log_pbc.new_full((1,), -1.0).expand(index_pb1.shape))
    error.mul_(weight_pb.unsqueeze(2))
    for number in range(len(layers) - 1, -1, -1):
        layer, entered = layers[number], inputs[number]
        torch.bmm(error.transpose(1, 2), entered, out=layer.weight(out_pd))
        torch.sum(error, dim=1, out=layer.bias(out_pd))
        if number:
            error = torch.bmm(error, layer.weight(w_pd)).mul_(entered > 0)
    return loss_p


def layers_of(flat):
    at, layers = 0, []
    for part in flat.module:
        if isinstance(part, nn.Linear):
            layers.append(LinearLayer(at, part.out_features, part.in_features))
            at += part.out_features * (part.in_features + 1)
    return layers


@pytest.mark.parametrize("name", PERCEPTRONS)
def test_a_stack_of_perceptrons_has_the_bits_of_the_archived_runs(name):
    for seed, (p, b) in enumerate([(1, 1), (1, 32), (2, 7), (3, 20), (4, 32), (16, 5), (33, 10), (64, 32), (64, 3)]):
        flat, given = stack_of(name, p, b, seed=seed)
        expected_pd = torch.empty_like(given[4])
        expected_p = archived_gradient(layers_of(flat), *given[:4], expected_pd, given[5])
        assert torch.equal(flat.perceptron.gradient(*given), expected_p)
        assert torch.equal(given[4], expected_pd)


def test_a_diverged_stack_has_the_bits_of_the_archived_runs_too():
    flat, given = stack_of("mlp", 8, 6, seed=1)
    given[0][::2] *= torch.tensor([1e20, 1e38, torch.inf, torch.nan])[:, None]
    expected_pd = torch.empty_like(given[4])
    expected_p = archived_gradient(layers_of(flat), *given[:4], expected_pd, given[5])
    assert not expected_pd.isfinite().all()
    torch.testing.assert_close(flat.perceptron.gradient(*given), expected_p, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(given[4], expected_pd, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("kind", ["ragged", "one colour", "three colours"])
def test_gradients_of_convolutions_are_those_of_automatic_differentiation_ties_included(name, kind):
    flat, (w_pd, x_pb, y_pb, weight_pb, out_pd, bias_pc) = stack_of(name, 3, 5, kind, seed=1)
    loss_p = flat.stack.gradient(w_pd, x_pb, y_pb, weight_pb, out_pd, bias_pc)
    expected_d = torch.empty(flat.d)
    for i, size in enumerate((weight_pb > 0).sum(dim=1).tolist()):
        loss = flat.gradient(w_pd[i].clone(), x_pb[i, :size], y_pb[i, :size], expected_d, bias_pc[i])
        torch.testing.assert_close(loss_p[i], loss, rtol=1e-5, atol=0)
        assert (out_pd[i] - expected_d).abs().max() <= 1e-5 * expected_d.abs().max()


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(
            *(nn.Conv2d(2, 5, 3, stride=2, padding=3), nn.ReLU(), nn.Conv2d(5, 4, 2), nn.MaxPool2d(3, 1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(64, 7), nn.Linear(7, CLASSES)),
        ),
        nn.Sequential(nn.Conv2d(2, 8, 3), nn.MaxPool2d(2), nn.Conv2d(8, 6, 2), nn.Flatten(), nn.Linear(24, CLASSES)),
        nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(2, 4, 1), nn.ReLU(), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)),
        nn.Sequential(nn.MaxPool2d(3), nn.Flatten(), nn.Linear(18, CLASSES)),
    ],
    ids=["strides and padding", "no ReLU", "a pool first", "no convolution"],
)
def test_other_orders_of_layers_agree_too(module):
    flat, drawn = FlatModel(module), torch.Generator().manual_seed(0)
    w_pd = flat.initial_d().repeat(2, 1) + 0.05 * torch.randn(2, flat.d, generator=drawn)
    x_pb, y_pb = torch.randn(2, 3, 2, 9, 9, generator=drawn), torch.tensor([[0, 1, 2], [3, 3, 9]])
    out_pd, expected_d = torch.empty_like(w_pd), torch.empty(flat.d)
    flat.stack.gradient(w_pd, x_pb, y_pb, torch.full((2, 3), 1 / 3), out_pd)
    for i in range(2):
        flat.gradient(w_pd[i].clone(), x_pb[i], y_pb[i], expected_d)
        torch.testing.assert_close(out_pd[i], expected_d, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "kernels"),
    {
        "softmax": 12,
        "mlp": 19,
        "lenet5 on 3 channels": 35,
        "lenet5 on 1 channel": 35,
        "cnn": 30,
        "cnn_one_pool": 23,
        "alexnet on 20x20 pixels": 50,
    }.items(),
)
def test_a_gradient_is_captured_and_takes_as_many_kernels_for_any_number_of_rows(name, kernels):
    launches = set()
    for p in (1, 2):
        flat, (w_pd, x_pb, y_pb, weight_pb, out_pd, _) = stack_of(name, p, 2)
        bound, expected_pd = flat.stack.bind(p, 2, x_pb.shape[2:], w_pd), out_pd.clone()
        x_pb = x_pb if bound is None else bound.inputs.copy_(x_pb)
        given = w_pd, x_pb, y_pb, weight_pb
        graph = FakeGraphs().capture(lambda flat=flat, rest=(*given, out_pd, None, bound): flat.stack.gradient(*rest))
        flat.stack.gradient(w_pd, x_pb.clone(), y_pb, weight_pb, expected_pd)
        graph.replay()
        assert torch.equal(out_pd, expected_pd)
        launches.add(graph.launches)
    assert launches == {kernels}


@pytest.mark.parametrize(
    "module",
    [
        ResNet8(ResNet8Config()).build((3, 8, 8), CLASSES, 0),
        Lstm(LstmConfig(hidden=4)).build((8,), CLASSES, 0, CLASSES),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False)),
        nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(4, 3)),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding="same"), nn.Flatten(), nn.Linear(4, 3)),
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.MaxPool2d(2, padding=1), nn.Flatten(), nn.Linear(4, 3)),
        nn.Sequential(nn.Conv2d(4, 4, (3, 2)), nn.Flatten(), nn.Linear(4, 3)),
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3)),
    ],
    ids=lambda module: str(module)[:40].replace("\n", ""),
)
def test_other_networks_have_no_formulas(module):
    assert StackedNetwork.try_from_module(module) is None and FlatModel(module).perceptron is None


def test_only_linear_layers_with_relus_between_them_are_a_perceptron():
    linear = nn.Linear
    known = {
        True: [nn.Sequential(nn.Flatten(), linear(4, 3)), nn.Sequential(linear(4, 3), nn.ReLU(), linear(3, 2))],
        False: [nn.Sequential(linear(4, 3), linear(3, 2)), flat_model("cnn")[0].module],
    }
    for perceptron, modules in known.items():
        assert [StackedNetwork.try_from_module(module).perceptron for module in modules] == [perceptron] * 2


class Products(TorchDispatchMode):
    """Notes in which precision batched products would be computed."""

    def __init__(self):
        super().__init__()
        self.tf32 = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            self.tf32.append(torch.backends.cuda.matmul.allow_tf32)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("tf32", [True, False])
def test_on_a_gpu_products_of_convolutions_alone_have_their_precision(tf32):
    net = StackedNetwork.try_from_module(flat_model("lenet5 on 3 channels")[0].module)
    with FakeTensorMode(), torch.backends.cudnn.flags(allow_tf32=tf32):
        w_pd, x_pb = torch.empty(2, 62_006, device="cuda"), torch.empty(2, 3, 3, 32, 32, device="cuda")
        y_pb, weight_pb = torch.empty(2, 3, dtype=torch.int64, device="cuda"), torch.empty(2, 3, device="cuda")
        with Products() as products:
            net.gradient(w_pd, x_pb, y_pb, weight_pb, torch.empty_like(w_pd))
    # forwards two convolutions, three linear layers and the loss; backwards two products each, of the samples none
    assert products.tf32 == [tf32] * 2 + [False] * 3 + [False] + [False] * 6 + [tf32] * 3
    assert not torch.backends.cuda.matmul.allow_tf32
