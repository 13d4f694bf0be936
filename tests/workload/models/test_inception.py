"""Inception v3 against torchvision, and the preset's published figures."""

import pytest
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
)

from simdp.workload.layers.base import trunc_normal, uniform

SMALL = {"width_multiplier": 1 / 16, "num_classes": 10, "dropout": 0.0}
TINY = {"width_multiplier": 1 / 64, "num_classes": 3, "image_size": 139, "aux_logits": False}


def test_the_preset_has_torchvisions_tensors_and_ready_order():
    chosen = model("inception_v3")
    # torchvision 0.29, torch 2.13.0: digests of named_parameters, named_buffers, and of the order
    # in which hooks see the gradients of loss + 0.4 auxiliary loss
    assert (parameter_digest(chosen), buffer_digest(chosen), ready_digest(chosen)) == (
        "6ba657b410acd326",
        "dd0ad07ad8033b28",
        "0e758eeb9ab1ee4d",
    )


def test_the_preset_has_the_published_parameters():
    assert_has_published_parameters("inception_v3")


def test_the_main_path_has_the_published_flops():
    main = model("inception_v3", aux_logits=False)
    assert giga_multiply_adds(main) == pytest.approx(published("inception_v3", "flops"), rel=1e-3)


def test_the_auxiliary_loss_counts_in_part():
    graph = model("inception_v3").graph
    assert [weight for _, weight in graph.outputs] == [1.0, 0.4]
    shapes = graph.shapes([(3, 299, 299)])
    assert [shapes[value] for value, _ in graph.outputs] == [(1000,), (1000,)]


def test_without_the_auxiliary_classifier_its_tensors_are_gone():
    with_aux, without = model("inception_v3"), model("inception_v3", aux_logits=False)
    gone = {p.name for p in with_aux.parameters()} - {p.name for p in without.parameters()}
    assert {name.split(".")[0] for name in gone} == {"AuxLogits"}
    assert len(without.graph.outputs) == 1


def test_weights_start_as_torchvisions():
    chosen = model("inception_v3")
    initial = {p.name: chosen.initial(p) for p in chosen.parameters()}
    assert initial["Mixed_7c.branch1x1.conv.weight"] == trunc_normal(0.1)
    assert initial["AuxLogits.fc.weight"] == trunc_normal(0.001)
    assert initial["AuxLogits.fc.bias"] == uniform(1 / 768**0.5)


def test_a_small_one_agrees_with_torch():
    assert_agrees_with_torch(model("inception", **SMALL), -1.918088355504036, 330.2057862146764)


@pytest.mark.long
@pytest.mark.slow
def test_gradients_are_differences():
    assert_gradients_are_differences(model("inception", **TINY), every=9)


def test_float32_stays_float32():
    assert_runs_in_float32(model("inception", **TINY))
