"""YOLOv3 against Darknet's figures, and against Darknet's cfg built in torch."""

import pytest
from for_each import for_each
from image_nets import (
    assert_agrees_with_torch,
    assert_gradients_are_differences,
    assert_has_published_parameters,
    assert_runs_in_float32,
    digest,
    giga_multiply_adds,
    model,
    published,
    refusal,
)

from simdp.workload.layers.base import constant, kaiming_normal

SMALL = {"width_multiplier": 1 / 16, "num_classes": 2, "image_size": 64}
TINY = {"width_multiplier": 1 / 32, "num_classes": 1, "image_size": 16, "layers": [1, 1, 1]}


def test_the_preset_has_the_published_parameters():
    assert_has_published_parameters("yolov3")


def test_tensors_fill_darknets_file_of_weights():
    chosen = model("yolov3")
    running = sum(b.num_elements for b in chosen.graph.buffers if not b.integer)
    assert running == 52_608
    # yolov3.weights has 248,007,048 bytes, 20 of which are its header
    assert chosen.num_parameters() + running == (248_007_048 - 20) / 4


def test_the_preset_has_the_published_flops():
    # Darknet counts a multiply-add as two.
    found = 2 * giga_multiply_adds(model("yolov3"))
    assert found == pytest.approx(published("yolov3", "flops"), rel=1e-3)


def test_gradients_become_ready_in_torchs_order():
    chosen = model("yolov3")
    number = {p.name: str(i) for i, p in enumerate(chosen.parameters())}
    # torch 2.13.0: the layers of yolov3.cfg, each with its numbers, and hooks on its parameters
    assert digest(number[name] for name in chosen.ready_order()) == "27803aa268e9eae5"
    assert len(number) == 222


def test_the_loss_sees_the_maps_of_all_scales():
    cells = 13**2 + 26**2 + 52**2
    assert model("yolov3").output_shape() == (3 * (5 + 80) * cells,)


def test_convolutions_start_as_darknets():
    chosen = model("yolov3")
    initial = {p.name: chosen.initial(p) for p in chosen.parameters()}
    assert initial["backbone.stage1.down.conv.weight"] == kaiming_normal(32 * 9)
    assert initial["heads.0.detect.bias"] == constant(0.0)
    assert initial["backbone.stem.bn.weight"] == constant(1.0)


def test_a_small_one_agrees_with_torch():
    assert_agrees_with_torch(model("yolo", **SMALL), 23.798990015768897, 3541.727805897122)


@pytest.mark.long
@pytest.mark.slow
def test_gradients_are_differences():
    assert_gradients_are_differences(model("yolo", **TINY))


def test_float32_stays_float32():
    assert_runs_in_float32(model("yolo", **TINY))


@for_each(("size", "near"), [(400, "384 or 416"), (16, "32")])
def test_an_image_that_does_not_divide_is_refused(size, near):
    assert refusal(kind="yolov3", image_size=size) == [
        f"image_size: {size} is not a multiple of 32, by which 5 stages shrink an image; "
        f"write {near}."
    ]
