"""MLPerf's 3D U-Net: its tensors by hand, and its shapes."""

import pytest
from image_nets import (
    assert_gradients_are_differences,
    assert_has_published_parameters,
    assert_runs_in_float32,
    giga_multiply_adds,
    model,
    published,
    refusal,
)

TINY = {"filters": [2, 3], "num_classes": 2, "patch_size": 8}


def test_the_preset_has_the_parameters_of_its_layers():
    sizes = [32, 64, 128, 256, 320]
    down = zip([1, *sizes], [*sizes, 320], strict=True)
    pairs = [(given, out) for given, out in down] + [(2 * out, out) for out in reversed(sizes)]
    convs = sum(27 * (given + out) * out + 4 * out for given, out in pairs)  # two norms
    ups = sum(
        8 * given * out + out
        for given, out in zip([320, 320, 256, 128, 64], sizes[::-1], strict=True)
    )
    assert model("unet3d").num_parameters() == convs + ups + 32 * 3 + 3
    assert_has_published_parameters("unet3d")


def test_the_preset_has_the_flops_of_its_source():
    found = giga_multiply_adds(model("unet3d"))
    assert found == pytest.approx(published("unet3d", "flops"), rel=1e-4)


def test_parameters_are_named_as_mlperfs():
    names = [p.name for p in model("unet3d").parameters()]
    assert names[:3] == [
        "input_block.conv1.0.weight",
        "input_block.conv1.1.weight",
        "input_block.conv1.1.bias",
    ]
    assert "downsample.3.conv2.0.weight" in names
    assert "bottleneck.conv1.0.weight" in names
    assert "upsample.0.upsample_conv.0.bias" in names
    assert names[-2:] == ["output.conv.0.weight", "output.conv.0.bias"]


def test_every_voxel_gets_its_classes():
    assert model("unet3d").output_shape() == (3, 128, 128, 128)


def test_what_goes_up_stands_beside_what_went_down():
    graph = model("unet", **TINY).graph
    joined = [call for call in graph.calls if call.layer.kind == "concat"]
    shapes = graph.shapes([(1, 8, 8, 8)])
    assert [[shapes[v] for v in call.inputs] for call in joined] == [
        [(3, 4, 4, 4), (3, 4, 4, 4)],
        [(2, 8, 8, 8), (2, 8, 8, 8)],
    ]


@pytest.mark.slow
def test_gradients_are_differences():
    assert_gradients_are_differences(model("unet", **TINY), every=3)


def test_float32_stays_float32():
    assert_runs_in_float32(model("unet", **TINY))


def test_volumes_that_cannot_be_halved_are_refused():
    assert refusal(kind="unet3d", patch_size=100) == [
        "patch_size: 100 is not a multiple of 32, by which 5 sizes shrink a volume; "
        "write 96 or 128."
    ]
