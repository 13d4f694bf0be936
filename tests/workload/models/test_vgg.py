"""VGG against torchvision, and the preset's published figures."""

import pytest
from for_each import for_each
from image_nets import (
    assert_agrees_with_torch,
    assert_gradients_are_differences,
    assert_has_published_parameters,
    assert_runs_in_float32,
    giga_multiply_adds,
    model,
    parameter_digest,
    published,
    ready_digest,
)

from simdp.workload.layers.base import constant, kaiming_normal, normal

BY_STAGE = {"layers": [1, 1, 1, 1, 1], "width_multiplier": 0.125, "num_classes": 10}
NORMED = {"batch_norm": True, "width_multiplier": 0.0625, "num_classes": 10, "image_size": 64}
TINY = {"width_multiplier": 1 / 64, "num_classes": 3, "image_size": 8, "layers": [1, 2]}


def test_the_preset_has_torchvisions_tensors_and_ready_order():
    chosen = model("vgg16")
    # torchvision 0.29, torch 2.13.0: digests of named_parameters and of the hooks' order
    assert (parameter_digest(chosen), ready_digest(chosen)) == (
        "8a41c838cadbc3e0",
        "0bb5f3dc45312009",
    )
    assert chosen.graph.buffers == ()


def test_the_preset_has_the_published_parameters():
    assert_has_published_parameters("vgg16")


def test_the_preset_has_the_published_flops():
    assert giga_multiply_adds(model("vgg16")) == pytest.approx(
        published("vgg16", "flops"), rel=1e-3
    )


def test_weights_start_as_torchvisions():
    chosen = model("vgg16")
    initial = {p.name: chosen.initial(p) for p in chosen.parameters()}
    assert initial["features.2.weight"] == kaiming_normal(64 * 9)
    assert initial["features.2.bias"] == constant(0.0)
    assert initial["classifier.6.weight"] == normal(0.01)
    assert initial["classifier.6.bias"] == constant(0.0)


def test_batch_norms_are_counted_among_the_features():
    names = [p.name for p in model("vgg16", batch_norm=True).parameters()]
    assert names[:2] == ["features.0.weight", "features.0.bias"]
    assert names[2:4] == ["features.1.weight", "features.1.bias"]
    assert names[4] == "features.3.weight"


@for_each(
    ("keys", "loss", "norm"),
    [
        (BY_STAGE, -0.6314407462751803, 44.956802544628474),
        (NORMED, 0.9051990688582878, 142.95576081380412),
    ],
    ids=["plain", "batch_norm"],
)
def test_a_small_one_agrees_with_torch(keys, loss, norm):
    assert_agrees_with_torch(model("vgg", dropout=0.0, **keys), loss, norm)


def test_gradients_are_differences():
    assert_gradients_are_differences(model("vgg", **TINY))


def test_float32_stays_float32():
    assert_runs_in_float32(model("vgg", **TINY))
