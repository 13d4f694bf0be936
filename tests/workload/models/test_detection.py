"""RetinaNet, Mask R-CNN and SSD against torchvision's figures and MLPerf's code."""

from math import log
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from image_nets import (
    Run,
    assert_gradients_are_differences,
    assert_has_published_parameters,
    giga_multiply_adds,
    images,
    model,
    published,
    refusal,
    weights,
)
from one_batch import scenario

import simdp
from simdp.scenario import checked
from simdp.workload.layers.base import ShapeError, constant, kaiming_normal, normal
from simdp.workload.layers.pooling import RoIAlign

PRESETS = ["mask-rcnn", "retinanet", "ssd"]
ALL_LEARN = {"trainable_layers": 5}

BODY = {
    "layers": [1, 1, 1, 1],
    "base_channels": 4,
    "fpn_channels": 3,
    "image_height": 32,
    "image_width": 64,
}
SMALL = [
    {"kind": "retinanet_fpn", **BODY, "num_classes": 2, "num_anchors": 1},
    {"kind": "mask_rcnn_fpn", **BODY, "num_classes": 2, "box_rois": 4, "representation": 5}
    | {"mask_rois": 3, "trainable_layers": 4},
    {"kind": "ssd_resnet", "layers": [1, 1, 1], "width_multiplier": 1 / 32, "num_classes": 2},
]


# Figures -----------------------------------------------------------------------------------------


def test_retinanet_with_resnet50_has_torchvisions_parameters_and_flops():
    chosen = model("retinanet_fpn", **ALL_LEARN)
    assert chosen.num_parameters() == 34_014_999
    assert giga_multiply_adds(chosen) == pytest.approx(151.54, abs=0.005)


def test_mask_rcnn_has_torchvisions_parameters_and_flops():
    assert model("mask_rcnn_fpn", **ALL_LEARN).num_parameters() == 44_401_393
    one, two = (
        giga_multiply_adds(model("mask_rcnn_fpn", box_rois=1000, mask_rois=rois)) for rois in (1, 2)
    )
    assert one - (two - one) == pytest.approx(134.38, abs=0.005)  # torchvision's found no mask


def test_ssd_is_a_resnet34_up_to_its_third_stage_and_heads():
    resnet = {p.name: p.num_elements for p in model("resnet34").parameters()}
    body = sum(n for name, n in resnet.items() if not name.startswith(("layer4.", "fc.")))
    blocks = [(256, 256, 512), (512, 256, 512), (512, 128, 256), (256, 128, 256), (256, 128, 256)]
    extra = sum(a * b + b + 9 * b * c + c for a, b, c in blocks)
    maps = zip([256, 512, 512, 256, 256, 256], [4, 6, 6, 6, 4, 4], strict=True)
    heads = sum((9 * channels + 1) * boxes * (81 + 4) for channels, boxes in maps)
    assert model("ssd").num_parameters() == body + extra + heads


def test_ssd_has_8732_boxes():
    assert model("ssd").output_shape() == (8732 * (81 + 4),)


def test_retinanet_looks_at_five_maps():
    cells = 100**2 + 50**2 + 25**2 + 13**2 + 7**2
    assert model("retinanet").output_shape() == (cells * 9 * (264 + 4),)


@for_each("name", PRESETS)
def test_presets_have_the_figures_of_their_sources(name):
    more = {} if name == "ssd" else ALL_LEARN
    assert model(name, **more).num_parameters() == published(name, "parameters")
    assert giga_multiply_adds(model(name)) == pytest.approx(published(name, "flops"), rel=1e-3)


def test_the_ssd_preset_has_the_published_parameters():
    assert_has_published_parameters("ssd")


# Frozen layers -----------------------------------------------------------------------------------


def test_the_first_stages_learn_nothing():
    chosen = model("retinanet")
    names = [p.name for p in chosen.parameters()]
    assert names[0] == "backbone.body.layer2.0.conv1.weight"
    assert not any(".bn" in name for name in names)
    assert chosen.num_parameters() == 36_849_004
    buffers = [b.name for b in chosen.graph.buffers]
    assert "backbone.body.conv1.weight" in buffers
    assert "backbone.body.layer2.0.bn1.running_var" in buffers


def test_backward_ends_where_nothing_below_learns():
    graph = model(**SMALL[0]).graph
    first = next(n for n, call in enumerate(graph.calls) if call.layer.parameters())
    assert graph.calls[first].layer.name == "backbone.body.layer2.0.conv1"
    assert not any(any(needs) for needs in graph.needs[: first + 1])


# Numbers -----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
@for_each("keys", SMALL)
def test_gradients_are_differences(keys):
    assert_gradients_are_differences(model(**keys), every=3)


@for_each("keys", SMALL)
def test_float32_stays_float32(keys):
    chosen = model(**keys)
    values = {name: value.astype(np.float32) for name, value in weights(chosen).items()}
    run = Run(chosen, values, images(chosen).astype(np.float32))
    assert {y.dtype for y in run.outputs} == {np.dtype(np.float32)}
    assert {g.dtype for g in run.gradients().values()} == {np.dtype(np.float32)}


def test_heads_begin_as_the_paper_says():
    chosen = model("retinanet_fpn")
    initial = {p.name: chosen.initial(p) for p in chosen.parameters()}
    head = "head.classification_head"
    assert initial[f"{head}.cls_logits.bias"] == constant(-log(99))
    assert initial[f"{head}.conv.0.0.weight"] == normal(0.01)
    assert initial["head.regression_head.bbox_reg.bias"] == constant(0.0)
    chosen = model("mask_rcnn_fpn")
    initial = {p.name: chosen.initial(p) for p in chosen.parameters()}
    assert initial["rpn.head.cls_logits.weight"] == normal(0.01)
    assert initial["backbone.fpn.inner_blocks.0.0.bias"] == constant(0.0)
    assert initial["roi_heads.mask_head.0.0.weight"] == kaiming_normal(256 * 9)


# Times -------------------------------------------------------------------------------------------


@for_each("name", PRESETS)
def test_a_preset_has_times_without_data(name):
    raw = scenario("ddp", 2, numerics=False, model=name, dataset="none", loss="none", epochs=None)
    raw["workload"] |= {"microbatch": 2, "steps": 2, "dtype": "float32"}
    del raw["workload"]["global_batch"]
    result = simdp.simulate(checked(raw, Path()))
    learned = 4 * model(name).num_parameters()
    assert sum(result.metrics["bucket_bytes"]) == learned


# Refused -----------------------------------------------------------------------------------------


def test_images_that_cannot_be_halved_are_refused():
    assert refusal(kind="retinanet", image_width=1333) == [
        "image_width: 1333 is not a multiple of 32, by which four stages shrink an image; "
        "write 1312 or 1344."
    ]


def test_regions_are_of_maps_of_equal_channels():
    with pytest.raises(ShapeError, match="takes maps of as many channels each, but gets"):
        RoIAlign(name="l", num_rois=1, output_size=2).output_shape((2, 4, 4), (3, 2, 2))


def test_regions_stand_below_each_other_or_lie_flat():
    shapes = (2, 8, 8), (2, 4, 4)
    assert RoIAlign(num_rois=5, output_size=3).output_shape(*shapes) == (2, 15, 3)
    assert RoIAlign(num_rois=5, output_size=3, flat=True).output_shape(*shapes) == (5, 18)


def test_every_place_of_a_map_has_a_box_at_least():
    line = "num_anchors: 0 is out of range; it must be >= 1."
    assert refusal(kind="retinanet_fpn", num_anchors=0) == [line]
