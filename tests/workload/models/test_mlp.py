"""mlp: torch's names, shapes and orders, and what is refused."""

import pytest
from for_each import for_each
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.layers.activations import ACTIVATIONS
from simdp.workload.models import AnyModel


def mlp(**options):
    return TypeAdapter(AnyModel).validate_python({"kind": "mlp", **options})


def shapes(chosen):
    return {p.name: p.shape for p in chosen.parameters()}


def test_parameters_are_named_as_torchs():
    assert shapes(mlp(widths=[5, 8, 6, 2])) == {
        "layers.0.weight": (8, 5),
        "layers.0.bias": (8,),
        "layers.1.weight": (6, 8),
        "layers.1.bias": (6,),
        "layers.2.weight": (2, 6),
        "layers.2.bias": (2,),
    }


def test_gradients_become_ready_from_the_last_layer_bias_first():
    assert mlp(widths=[5, 8, 2]).ready_order() == [
        "layers.1.bias",
        "layers.1.weight",
        "layers.0.bias",
        "layers.0.weight",
    ]


def test_without_bias_there_are_weights_only():
    assert list(shapes(mlp(widths=[5, 8, 2], bias=False))) == [
        "layers.0.weight",
        "layers.1.weight",
    ]


@for_each("activation", ACTIVATIONS)
def test_an_activation_stands_between_linear_layers_only(activation):
    calls = mlp(widths=[5, 8, 6, 2], activation=activation).graph.calls
    assert [call.layer.kind for call in calls] == [
        "linear",
        activation,
        "linear",
        activation,
        "linear",
    ]


def test_only_the_first_layer_needs_no_gradient_of_its_input():
    needs = mlp(widths=[5, 8, 6, 2]).graph.needs
    assert needs == ((False,), (True,), (True,), (True,), (True,))


@for_each(
    ("raw", "line"),
    [
        ({"widths": [4]}, "widths: [4] has too few entries; it needs at least 2."),
        ({"widths": [4, 0]}, "widths.1: 0 is out of range; it must be >= 1."),
        ({"widths": "4, 3"}, "widths: '4, 3' is not a list."),
        ({}, "widths: is required but was not given; add it."),
        (
            {"widths": [4, 3], "activation": "relux"},
            f"activation: unknown activation 'relux'. Did you mean 'relu'? Known: "
            f"{', '.join([*ACTIVATIONS][:10])}, ... and 9 more: simdp list activations.",
        ),
        (
            {"widths": [4, 3], "width": 3},
            "unknown key 'width'. Did you mean 'widths'? Known: widths, activation, bias.",
        ),
    ],
)
def test_a_wrong_mlp_is_refused(raw, line):
    with pytest.raises(ValidationError) as caught:
        mlp(**raw)
    assert [found.line for found in problems(caught.value, {"kind": "mlp", **raw})] == [line]
