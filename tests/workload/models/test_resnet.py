"""ResNet and ResNeXt against torchvision, and the preset's published figures."""

import pytest
from for_each import for_each
from image_nets import (
    assert_agrees_with_torch,
    assert_gradients_are_differences,
    assert_has_published_parameters,
    assert_runs_in_float32,
    buffer_digest,
    giga_multiply_adds,
    model,
    parameter_digest,
    published,
    ready_digest,
    refusal,
)

from simdp.workload.layers.base import constant, kaiming_normal, kaiming_uniform

# torchvision 0.29, torch 2.13.0: digests of named_parameters, named_buffers, and the order in which
# hooks on the parameters see their gradients
TORCHVISION = {
    "resnet18": ("ac9170a34b87d925", "68f7d2ac9df6550e", "7ebb8325694d8c2c"),
    "resnet34": ("105e622383a154fa", "f06907600bc4b148", "eb8cefca8200e5d1"),
    "resnet50": ("b8c0ecafd14ab602", "57842945b4e776b1", "1cc2dc97bb107b44"),
    "resnet101": ("8648be1a222f5a86", "5a0e35682a0e4adf", "65e088fd828228e6"),
    "resnet152": ("e8ce4371b7ba9ed9", "9447f02f5a11502c", "8196e73fd01f0196"),
    "resnext50_32x4d": ("9711b0b649d9bc89", "6d605b41af687993", "1cc2dc97bb107b44"),
    "resnext101_32x8d": ("382693877f7a3445", "ce245c23de30ba7f", "65e088fd828228e6"),
}
every_preset = pytest.mark.parametrize("name", TORCHVISION)

SMALL = {"width_multiplier": 0.125, "num_classes": 10, "image_size": 64}
TINY = {"width_multiplier": 1 / 16, "num_classes": 3, "image_size": 16, "layers": [1, 1]}
GROUPED = {"block": "bottleneck", "groups": 4, "width_per_group": 16}


@every_preset
def test_a_preset_has_torchvisions_tensors_and_ready_order(name):
    chosen = model(name)
    found = parameter_digest(chosen), buffer_digest(chosen), ready_digest(chosen)
    assert found == TORCHVISION[name]


@for_each("name", [*TORCHVISION, "resnet18-cifar"])
def test_a_preset_has_the_published_parameters(name):
    assert_has_published_parameters(name)


@for_each("name", [*TORCHVISION, "resnet18-cifar"])
def test_a_preset_has_the_published_flops(name):
    assert giga_multiply_adds(model(name)) == pytest.approx(published(name, "flops"), rel=1e-3)


def test_parameters_are_named_and_ordered_as_torchvisions():
    names = [p.name for p in model("resnet50").parameters()]
    assert names[:3] == ["conv1.weight", "bn1.weight", "bn1.bias"]
    assert names[9:15] == [
        "layer1.0.conv3.weight",
        "layer1.0.bn3.weight",
        "layer1.0.bn3.bias",
        "layer1.0.downsample.0.weight",
        "layer1.0.downsample.1.weight",
        "layer1.0.downsample.1.bias",
    ]
    assert names[-2:] == ["fc.weight", "fc.bias"]


def test_convolutions_start_as_torchvisions():
    chosen = model("resnext50_32x4d")
    initial = {p.name: chosen.initial(p) for p in chosen.parameters()}
    # kaiming_normal_(mode="fan_out"): torch counts the outputs of all groups
    assert initial["layer1.0.conv2.weight"] == kaiming_normal(128 * 9)
    assert initial["bn1.weight"] == constant(1.0)
    assert initial["fc.weight"] == kaiming_uniform(2048)


@for_each(
    ("keys", "loss", "norm"),
    [
        ({"layers": [1, 1, 1, 1]}, 0.2139280651271006, 37.16957130529018),
        ({"layers": [1, 2, 1, 1], **GROUPED}, 0.9915913561619734, 105.90748938337494),
        ({"stem": "cifar", "image_size": 32}, 1.8114928139045412, 42.31589367764374),
    ],
    ids=["basic", "grouped_bottleneck", "cifar"],
)
def test_a_small_one_agrees_with_torch(keys, loss, norm):
    assert_agrees_with_torch(model("resnet", **{**SMALL, **keys}), loss, norm)


@for_each("keys", [{}, GROUPED], ids=["basic", "grouped_bottleneck"])
def test_gradients_are_differences(keys):
    assert_gradients_are_differences(model("resnet", **TINY, **keys))


def test_float32_stays_float32():
    assert_runs_in_float32(model("resnet", **TINY))


def test_keys_beside_a_presets_name_win():
    chosen = model("resnet50", num_classes=10, image_size=64)
    assert chosen.output_shape() == (10,)
    assert chosen.input_shapes() == {"x": (3, 64, 64)}
    assert chosen.layers == [3, 4, 6, 3]


def test_basic_blocks_refuse_groups():
    assert refusal(kind="resnet18", groups=32) == [
        "basic blocks have no groups; leave groups and width_per_group out, "
        "or write block: bottleneck."
    ]
