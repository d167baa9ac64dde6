"""A network cut in two computes what it computes in one piece."""

import pytest
import torch
from tiers import slow
from torch.nn import functional as F

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
    ResNet18,
    ResNet18Config,
    Vgg16,
    Vgg16Config,
)
from asyncfl_bench.models.flat import FlatModel
from asyncfl_bench.models.parts import Cut
from asyncfl_bench.models.perceptrons import Mlp, MlpConfig
from asyncfl_bench.models.transformers import VitSmall, VitSmallConfig

MODELS = {
    "mlp": (Mlp(MlpConfig([6, 5])), (4,)),
    "lenet5": (LeNet5(LeNet5Config()), (1, 12, 12)),
    "cnn": (Cnn(CnnConfig(7)), (1, 8, 8)),
    "cnn_one_pool": (CnnOnePool(CnnOnePoolConfig()), (1, 8, 8)),
    "alexnet": (AlexNet(AlexNetConfig()), (3, 16, 16)),
    "resnet8": (ResNet8(ResNet8Config(width=4, groups=2)), (1, 9, 8)),
    "resnet18": (ResNet18(ResNet18Config(width=4, groups=2)), (1, 9, 8)),
    "vit_small": (VitSmall(VitSmallConfig(width=8, heads=2, hidden=6, blocks=2)), (3, 8, 12)),
}
COMPILED = {
    **{"mlp": {3, 5}, "lenet5": {3, 6, 7, 9, 11}, "cnn": {3, 6, 7, 9}, "cnn_one_pool": {2, 5, 6, 8}},
    **{"alexnet": (), "resnet8": (), "resnet18": (), "vit_small": ()},
}


def built(name, seed=0):
    model, shape = MODELS[name]
    flat = FlatModel(model.build(shape, 3, seed))
    generator = torch.Generator().manual_seed(seed)
    return model.config, flat, torch.randn(5, *shape, generator=generator), torch.tensor([0, 1, 2, 1, 0]), shape


@pytest.mark.parametrize(
    ("name", "compiled"), [*((name, False) for name in MODELS), *slow(*((name, True) for name in MODELS))]
)
def test_the_parts_gradients_at_every_cut_are_those_of_the_whole(name, compiled):
    config, flat, x, y, shape = built(name)
    assert config.layers == len(flat.module)
    w_d, whole_d = flat.initial_d() * 1.1, torch.empty(flat.d)
    loss = flat.gradient(w_d, x, y, whole_d)
    for layers in (
        range(config.first_cut, config.layers) if compiled else {config.first_cut, config.usual_cut, config.layers - 1}
    ):
        parts = Cut(flat, layers, shape, 3)
        if compiled:
            assert parts.compile() == (layers in COMPILED[name]), layers
        s_d, found_d = w_d[parts.d_client :], torch.empty(flat.d)
        activations, back = parts.client.forward(w_d[: parts.d_client], x)
        assert activations.shape[1:] == parts.activation
        rows = activations.flatten(1)  # also taken as rows
        reply = parts.reply(s_d, rows, y, out_d=found_d[parts.d_client :])
        assert reply.gradient.shape == rows.shape
        found_d[: parts.d_client] = back(reply.gradient.view_as(activations))
        torch.testing.assert_close(found_d, whole_d, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(reply.loss, loss)
        again_d = torch.empty(flat.d - parts.d_client)
        torch.testing.assert_close(parts.gradient(s_d, rows, y, again_d), loss)
        torch.testing.assert_close(again_d, whole_d[parts.d_client :], rtol=1e-4, atol=1e-6)


def test_layers_of_vgg16_are_counted_as_the_configuration_counts_them():
    config = Vgg16Config()
    assert config.layers == len(Vgg16(config).build((3, 32, 32), 10, 0)) and config.usual_cut == 10


def test_a_bias_joins_the_logits_of_the_loss_that_is_answered():
    config, flat, x, y, shape = built("mlp")
    parts, bias_c = Cut(flat, config.usual_cut, shape, 3), torch.tensor([0.5, -2.0, 1.0])
    w_d = flat.initial_d()
    s_d = w_d[parts.d_client :]
    a, _ = parts.client.forward(w_d[: parts.d_client], x)
    reply = parts.reply(s_d, a, y, bias_c)
    leaf = a.clone().requires_grad_()
    weight, bias = s_d[-(5 * 3 + 3) : -3].view(3, 5), s_d[-3:]
    hidden = torch.relu(leaf @ s_d[: 6 * 5].view(5, 6).T + s_d[6 * 5 : 6 * 5 + 5])
    loss = F.cross_entropy(hidden @ weight.T + bias + bias_c, y)
    torch.testing.assert_close(reply.loss, loss.detach())
    torch.testing.assert_close(reply.gradient, torch.autograd.grad(loss, leaf)[0])
    assert torch.equal(parts.reply(s_d, a, y, torch.ones(3)).gradient.sign(), parts.reply(s_d, a, y).gradient.sign())
    absent = parts.reply(s_d, a[:1], y[:1], torch.tensor([0.0, -27.6, -27.6]))  # log of 1e-12
    assert absent.loss < 1e-9 and absent.gradient.abs().max() < 1e-9


def test_a_graph_may_wait_while_others_are_computed():
    config, flat, x, _, _ = built("lenet5")
    client = Cut(flat, config.usual_cut, tuple(x.shape[1:]), 10).client
    one_d, other_d = flat.initial_d()[: client.d].requires_grad_(), (flat.initial_d()[: client.d] * 2).requires_grad_()
    alone = torch.autograd.grad(client(one_d, x).square().sum(), one_d)[0]
    waiting = client(one_d, x)
    client(other_d, x)
    assert torch.equal(torch.autograd.grad(waiting.square().sum(), one_d)[0], alone)
