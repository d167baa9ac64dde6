"""What models cost clients. The numbers for AlexNet are those of the code that GAS (Yang, Liu 2024) released."""

import pytest
import torch
from torch import nn

from asyncfl_bench.models import convolutional as images
from asyncfl_bench.models.base import ModelConfig
from asyncfl_bench.models.convolutional import LeNet5, LeNet5Config
from asyncfl_bench.models.costs import footprint
from asyncfl_bench.models.language import FastText, FastTextConfig, Lstm, LstmConfig
from asyncfl_bench.models.layers import Size
from asyncfl_bench.models.perceptrons import Mlp, MlpConfig, Softmax
from asyncfl_bench.models.transformers import VitSmall, VitSmallConfig
from asyncfl_bench.types import Footprint

COLOUR, GREY = (3, 32, 32), (1, 28, 28)
SPLIT = 6  # layers of AlexNet on clients
SEQUENTIAL = [
    Mlp(MlpConfig(hidden=[5, 3], cut=3)),
    LeNet5(LeNet5Config(cut=6)),
    images.Cnn(images.CnnConfig(cut=4)),
    images.CnnOnePool(images.CnnOnePoolConfig(cut=5)),
    images.AlexNet(images.AlexNetConfig(cut=7)),
    images.Vgg16(images.Vgg16Config(cut=10)),
    images.ResNet18(images.ResNet18Config(width=16, groups=4, cut=4)),
    images.ResNet8(images.ResNet8Config(cut=4)),
    VitSmall(VitSmallConfig(patch=1, cut=2)),
]


def alexnet(shape, classes):
    return images.AlexNet(images.AlexNetConfig()).build(shape, classes, 0)


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        (COLOUR, Footprint(3_868_746, 19_392, 69_833_728, 5_603_328, 131_072 // 32)),
        (GREY, Footprint(3_868_170, 18_816, 53_691_904, 3_838_464, 100_352 // 32)),
    ],
    ids=["cifar10", "fashion_mnist"],
)
def test_alexnet_has_the_published_numbers(shape, found):
    module = alexnet(shape, 10)
    assert footprint(module, torch.zeros(1, *shape), SPLIT) == found
    uncut = footprint(module, torch.zeros(1, *shape))
    assert uncut == Footprint(found.parameters, found.parameters, found.macs, found.macs)


def test_what_is_sent_is_four_bytes_a_number():
    found = footprint(alexnet(COLOUR, 10), torch.zeros(1, *COLOUR), SPLIT)
    assert (8 * found.client_bytes, 8 * found.model_bytes) == (620_544, 123_799_872)
    assert 8 * found.message_bytes(32) == 32 * 131_072


def test_layers_after_each_other_add_up_and_every_place_counts():
    linear = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2))
    assert footprint(linear, torch.zeros(1, 4), 2) == Footprint(35 + 16, 35, 28 + 14, 28, 7)
    lenet = LeNet5(LeNet5Config()).build(COLOUR, 10, 0)
    assert footprint(lenet, torch.zeros(1, *COLOUR), 6) == Footprint(
        62_006, 2_872, 28 * 28 * 6 * 75 + 100 * 16 * 150 + 400 * 120 + 120 * 84 + 840, 28 * 28 * 450 + 240_000, 400
    )
    lstm = Lstm(LstmConfig(embedding=3, hidden=5, layers=1)).build((7,), 4, 0, 6)
    assert footprint(lstm, torch.zeros(1, 7, dtype=torch.uint8)).macs == 7 * 4 * 5 * (3 + 5) + 5 * 4


def test_every_other_cut_is_told_too():
    """The two among which S2FL's devices choose: multiply-adds and bits of a sample."""
    found = footprint(alexnet(COLOUR, 10), torch.zeros(1, *COLOUR), SPLIT).at_cut
    assert len(found) == 14 and not found[2].at_cut
    told = [(found[cut - 1].client_macs, 8 * found[cut - 1].message_bytes(1)) for cut in (3, 6)]
    assert told == [(884_736, 262_144), (5_603_328, 131_072)]
    assert [found[cut - 1].client_parameters for cut in (3, 6)] == [3 * 32 * 9 + 32, 19_392]


def test_counting_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2 * 14 * 14, 10))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    footprint(module, torch.ones(1, 3, 16, 16))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training and not any(layer._forward_hooks for layer in module.modules())


@pytest.mark.parametrize("model", SEQUENTIAL, ids=lambda model: model.name)
def test_a_model_is_counted_before_it_is_built(model):
    shape = (3, 33, 38)
    with torch.device("meta"):  # no weights: 130 MB of VGG-16 else
        module = model.build(shape, 7, 0)
        found = footprint(module, torch.zeros(1, *shape), model.config.cut)
        activation = tuple(module[: model.config.cut](torch.zeros(2, *shape)).shape[1:])
    assert model.size(shape, 7) == Size(found.parameters, found.client_parameters, activation)


def test_models_that_cannot_be_cut_are_counted_too():
    with torch.device("meta"):
        for model in (
            Softmax(ModelConfig()),
            images.ResNet18(images.ResNet18Config(norm="batch")),
        ):
            found = footprint(model.build((3, 33, 38), 7, 0), torch.zeros(1, 3, 33, 38))
            assert model.size((3, 33, 38), 7) == Size(found.parameters)
    lstm = Lstm(LstmConfig(embedding=3, hidden=5, layers=3))
    found = footprint(lstm.build((7,), 4, 0, 6), torch.zeros(1, 7, dtype=torch.uint8))
    assert lstm.size((7,), 4, 6) == Size(found.parameters)
    words = FastText(FastTextConfig(embedding=4, buckets=10))
    assert words.size((7,), 2, 6).d == sum(one.numel() for one in words.build((7,), 2, 0, 6, 0).parameters())
