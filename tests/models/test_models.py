from __future__ import annotations

import pytest
import torch

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
    ResNet18,
    ResNet18Config,
    Vgg16,
    Vgg16Config,
)
from asyncfl_bench.models.language import Lstm, LstmConfig
from asyncfl_bench.models.perceptrons import Mlp, MlpConfig, Softmax
from asyncfl_bench.models.transformers import VitSmall, VitSmallConfig

VIT = VitSmall(VitSmallConfig())
RESNET = ResNet18(ResNet18Config())
ALL = [
    Softmax(ModelConfig()),
    Mlp(MlpConfig()),
    LeNet5(LeNet5Config()),
    Cnn(CnnConfig()),
    CnnOnePool(CnnOnePoolConfig()),
    AlexNet(AlexNetConfig()),
    RESNET,
    VIT,
]


def parameters(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("model", ALL, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("shape, classes", [((3, 32, 32), 100), ((1, 28, 28), 10)])
def test_every_model_gives_one_logit_per_class(model, shape, classes):
    assert model.build(shape, classes, seed=1)(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize("model", [Cnn(CnnConfig()), RESNET, Mlp(MlpConfig())], ids=lambda m: type(m).__name__)
def test_small_digits_pass_where_the_docs_say_so(model):
    assert model.build((1, 8, 8), 10, seed=1)(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


@pytest.mark.parametrize(
    "shape, classes, d", [((1, 28, 28), 10, 61_706), ((3, 32, 32), 10, 62_006), ((3, 32, 32), 100, 69_656)]
)
def test_lenet5_has_the_classical_number_of_parameters(shape, classes, d):
    assert parameters(LeNet5(LeNet5Config()).build(shape, classes, 0)) == d


def test_the_cnn_with_one_pooling_flattens_to_9216_on_femnist():
    module = CnnOnePool(CnnOnePoolConfig()).build((1, 28, 28), 62, 0)
    # 28 - 2 - 2 = 24 pixels after two convolutions without padding, 12 after pooling: 64 * 12 * 12 = 9216
    assert parameters(module) == (9 + 1) * 32 + (9 * 32 + 1) * 64 + (9216 + 1) * 62 == 590_270


@pytest.mark.parametrize(
    ("shape", "classes", "d", "cuts"),
    [
        ((3, 32, 32), 10, 3_868_746, {3: (32, 16, 16), 6: (64, 8, 8), 7: (128, 8, 8), 11: (256, 3, 3)}),
        ((1, 28, 28), 10, 3_868_170, {6: (64, 7, 7)}),
        ((3, 32, 32), 100, 3_868_746 + 90 * 513, {}),
        ((1, 12, 12), 10, 3_868_170 - 256 * 8 * 1024, {}),
    ],
)
def test_alexnet_has_the_parameters_and_the_cuts_of_gas(shape, classes, d, cuts):
    module = AlexNet(AlexNetConfig()).build(shape, classes, 0)
    assert parameters(module) == d
    for layers, activation in cuts.items():
        assert module[:layers](torch.zeros(1, *shape)).shape == (1, *activation)


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_vgg16_has_the_parameters_and_the_cuts_of_gas(norm):
    with torch.device("meta"):  # 130 MB else
        module = Vgg16(Vgg16Config(norm=norm)).build((3, 32, 32), 10, 0)
        shapes = {layers: module[:layers](torch.zeros(2, 3, 32, 32)).shape[1:] for layers in (10, 17, 24, 31)}
    assert parameters(module) == 33_646_666
    assert shapes == {10: (128, 8, 8), 17: (256, 4, 4), 24: (512, 2, 2), 31: (512, 1, 1)}
    config = Vgg16Config(norm=norm)
    assert Vgg16(config).config.normalised_groups == (None if norm == "batch" else 32)


def test_the_lstm_for_shakespeare_has_the_parameters_of_its_layers():
    module = Lstm(LstmConfig()).build((80,), 80, 0, 80)
    # embedding, four gates of two layers with two biases each, linear
    assert parameters(module) == 80 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2) + 257 * 80 == 819_920
    small = Lstm(LstmConfig(embedding=3, hidden=5, layers=1)).build((7,), 4, 0, 6)
    assert parameters(small) == 6 * 3 + 4 * 5 * (3 + 5 + 2) + 6 * 4
    assert small(torch.zeros(2, 7, dtype=torch.uint8)).shape == (2, 4)


def test_the_lstm_reads_every_token_and_the_last_ones_differently_from_the_first():
    module = Lstm(LstmConfig(hidden=16)).build((5,), 6, 1, 6)
    x = torch.tensor([[0, 1, 2, 3, 4], [5, 1, 2, 3, 4], [0, 1, 2, 3, 5], [4, 3, 2, 1, 0]], dtype=torch.uint8)
    logits = module(x)
    assert all(not torch.allclose(logits[i], logits[j], atol=1e-7) for i in range(4) for j in range(i))


def test_the_lstms_initial_weights_depend_on_the_seed_alone():
    built = [
        torch.cat([p.flatten() for p in Lstm(LstmConfig()).build((80,), 80, s, 80).parameters()]) for s in (5, 5, 6)
    ]
    assert torch.equal(built[0], built[1]) and not torch.equal(built[0], built[2])


def test_resnet18_for_cifar10_has_its_known_number_of_parameters_under_both_norms():
    # torchvision's 11 689 512, less the 1000-class head and the 7x7 stem, plus 10 classes and a 3x3 stem
    d = 11_689_512 - 513 * 1000 + 513 * 10 - 64 * 3 * 49 + 64 * 3 * 9
    for norm in ("group", "batch"):
        assert parameters(ResNet18(ResNet18Config(norm=norm)).build((3, 32, 32), 10, 0)) == d


@pytest.mark.parametrize(
    ("model", "d", "cuts"),
    [
        (ResNet18(ResNet18Config()), 11_173_962, {4: (64, 32, 32), 5: (128, 16, 16), 6: (256, 8, 8), 7: (512, 4, 4)}),
        (ResNet8(ResNet8Config()), 78_042, {4: (16, 32, 32), 5: (32, 16, 16), 6: (64, 8, 8)}),
        (VIT, 9_523_722, {1: (65, 512), 2: (65, 512), 7: (65, 512)}),
    ],
    ids=["resnet18", "resnet8", "vit_small"],
)
def test_networks_of_stages_and_blocks_have_their_parameters_and_cuts(model, d, cuts):
    with torch.device("meta"):
        module = model.build((3, 32, 32), 10, 0)
        shapes = {layers: module[:layers](torch.zeros(2, 3, 32, 32)).shape[1:] for layers in cuts}
    assert parameters(module) == d == model.size((3, 32, 32), 10).d and shapes == cuts


def test_a_vit_reads_every_patch_in_its_place_and_nothing_but_them():
    module = VitSmall(VitSmallConfig(width=8, heads=2, hidden=6, blocks=2)).build((1, 8, 8), 3, 0)
    x = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    swapped = torch.cat([x[:, :, 4:], x[:, :, :4]], dim=2)
    logits = module(torch.cat([x, swapped, x + torch.eye(8)]))
    assert all(not torch.allclose(logits[i], logits[j], atol=1e-6) for i in range(3) for j in range(i))
    torch.testing.assert_close(module(x), logits[:1])


def test_the_groups_of_a_narrow_resnet_divide_its_width():
    assert parameters(ResNet18(ResNet18Config(width=16, groups=8)).build((3, 32, 32), 10, 0)) == 701_466
    narrow = ResNet8(ResNet8Config(width=12, groups=3))
    assert parameters(narrow.build((3, 32, 32), 10, 0)) == narrow.size((3, 32, 32), 10).d


@pytest.mark.parametrize("model", ALL[1:4], ids=lambda m: type(m).__name__)
def test_initial_weights_depend_on_the_seed_alone(model):
    torch.manual_seed(7)
    first = torch.cat([p.flatten() for p in model.build((1, 28, 28), 10, seed=5).parameters()])
    torch.manual_seed(8)
    again = torch.cat([p.flatten() for p in model.build((1, 28, 28), 10, seed=5).parameters()])
    other = torch.cat([p.flatten() for p in model.build((1, 28, 28), 10, seed=2**63 - 2).parameters()])
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("model", ALL, ids=lambda m: type(m).__name__)
def test_building_leaves_torchs_own_draws_as_they_were(model):
    torch.manual_seed(3)
    untouched = torch.rand(3)
    torch.manual_seed(3)
    model.build((1, 28, 28), 10, seed=5)
    assert torch.equal(torch.rand(3), untouched)


def test_softmax_starts_at_zero():
    module = Softmax(ModelConfig()).build((60,), 10, seed=0)
    assert parameters(module) == 610 and all((p == 0).all() for p in module.parameters())


def test_mlp_has_the_widths_asked_for():
    module = Mlp(MlpConfig(hidden=[5, 3])).build((2,), 4, 0)
    assert [tuple(p.shape) for p in module.parameters()] == [(5, 2), (5,), (3, 5), (3,), (4, 3), (4,)]


def test_the_smallest_allowed_images_pass():
    assert LeNet5(LeNet5Config()).build((1, 12, 12), 10, 0)(torch.zeros(1, 1, 12, 12)).shape == (1, 10)
    assert Cnn(CnnConfig()).build((1, 4, 4), 10, 0)(torch.zeros(1, 1, 4, 4)).shape == (1, 10)
    assert CnnOnePool(CnnOnePoolConfig()).build((1, 6, 6), 10, 0)(torch.zeros(1, 1, 6, 6)).shape == (1, 10)
    for model, pixels in ((ResNet18(ResNet18Config(norm="batch")), 16), (ResNet8(ResNet8Config(norm="batch")), 8)):
        assert model.build((1, pixels, pixels), 10, 0).train()(torch.zeros(1, 1, pixels, pixels)).shape == (1, 10)
