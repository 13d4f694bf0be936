"""Every model: torch's parameter names and shapes, in torch's orders."""

import re

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.layers.einsum import split_equation
from simdp.workload.models import MODELS, AnyModel

EXAMPLES = {
    "einsum": {"equation": "bd,df->bf", "d": 4, "f": 3},
    "mlp": {"widths": [4, 5, 3], "activation": "tanh"},
}

every_model = pytest.mark.parametrize("kind", MODELS)


def model(kind, **options):
    return TypeAdapter(AnyModel).validate_python({"kind": kind, **options})


def refusal(**raw):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyModel).validate_python(raw)
    return [found.line for found in problems(caught.value, raw)]


def shapes(chosen):
    return {p.name: p.shape for p in chosen.parameters()}


# Every model -------------------------------------------------------------------------------------


def test_every_kind_of_model_has_an_example_here():
    assert set(EXAMPLES) == set(MODELS)


@every_model
def test_layers_lead_from_the_input_shape_to_the_output_shape(kind):
    chosen = model(kind, **EXAMPLES[kind])
    random = np.random.default_rng(0)
    weights = {p.name: random.standard_normal(p.shape) for p in chosen.parameters()}
    x = random.standard_normal((6, *chosen.input_shape()))
    for layer in chosen.layers():
        x, _ = layer.forward(weights, x)
    assert x.shape == (6, *chosen.output_shape())


@every_model
def test_every_parameter_becomes_ready_once(kind):
    chosen = model(kind, **EXAMPLES[kind])
    assert sorted(chosen.ready_order()) == sorted(shapes(chosen))


@every_model
def test_elements_are_counted(kind):
    chosen = model(kind, **EXAMPLES[kind])
    assert chosen.num_parameters() == sum(int(np.prod(s)) for s in shapes(chosen).values())


@every_model
def test_a_model_is_written_as_it_is_read(kind):
    chosen = model(kind, **EXAMPLES[kind])
    assert TypeAdapter(AnyModel).validate_python(chosen.model_dump(mode="json")) == chosen


# mlp ---------------------------------------------------------------------------------------------


def test_an_mlp_names_its_parameters_as_torch_does():
    assert shapes(model("mlp", widths=[5, 8, 6, 2])) == {
        "layers.0.weight": (8, 5),
        "layers.0.bias": (8,),
        "layers.1.weight": (6, 8),
        "layers.1.bias": (6,),
        "layers.2.weight": (2, 6),
        "layers.2.bias": (2,),
    }


def test_gradients_of_an_mlp_become_ready_from_the_last_layer_bias_first():
    assert model("mlp", widths=[5, 8, 2]).ready_order() == [
        "layers.1.bias",
        "layers.1.weight",
        "layers.0.bias",
        "layers.0.weight",
    ]


def test_an_mlp_without_bias_has_weights_only():
    assert list(shapes(model("mlp", widths=[5, 8, 2], bias=False))) == [
        "layers.0.weight",
        "layers.1.weight",
    ]


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_an_activation_stands_between_linear_layers_only(activation):
    layers = model("mlp", widths=[5, 8, 6, 2], activation=activation).layers()
    assert [layer.kind for layer in layers] == [
        "linear",
        activation,
        "linear",
        activation,
        "linear",
    ]


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        ({"widths": [4]}, "widths: [4] has too few entries; it needs at least 2."),
        ({"widths": [4, 0]}, "widths.1: 0 is out of range; it must be >= 1."),
        ({"widths": "4, 3"}, "widths: '4, 3' is not a list."),
        ({}, "widths: is required but was not given; add it."),
        (
            {"widths": [4, 3], "activation": "relux"},
            "activation: unknown activation 'relux'; known: gelu, relu, tanh. Did you mean 'relu'?",
        ),
        (
            {"widths": [4, 3], "width": 3},
            "unknown key 'width'; known: widths, activation, bias. Did you mean 'widths'?",
        ),
    ],
)
def test_a_wrong_mlp_is_refused(raw, line):
    assert refusal(kind="mlp", **raw) == [line]


# einsum ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "parts"),
    [
        ("bd,df->bf", ("bd", "df", "bf")),
        (" bd , df -> bf ", ("bd", "df", "bf")),
        ("bsd,df->bsf", ("bsd", "df", "bsf")),
        ("bd,fd->bf", ("bd", "fd", "bf")),
        ("bhd,hdf->bhf", ("bhd", "hdf", "bhf")),
        ("bd,d->b", ("bd", "d", "b")),
        ("Bd,dF->BF", ("Bd", "dF", "BF")),
    ],
)
def test_an_equation_is_cut_into_its_operands(equation, parts):
    assert split_equation(equation) == parts


LOOKS = 'it must look like "bd,df->bf": the batch, the weight, the output'


@pytest.mark.parametrize(
    ("equation", "reason"),
    [
        ("", LOOKS),
        ("bd,df", LOOKS),
        ("bd->b", LOOKS),
        ("bd,df,fg->bg", LOOKS),
        ("bd,df->", LOOKS),
        (",df->bf", LOOKS),
        ("b1,1f->bf", LOOKS),
        ("...d,df->...f", LOOKS),
        ("bd,df->bf->b", LOOKS),
        ("bdd,df->bf", "an index may stand once in each operand"),
        ("bd,ddf->bf", "an index may stand once in each operand"),
        ("bd,df->bff", "an index may stand once in each operand"),
        ("bd,df->fb", "the first index of the batch and of the output must be the sample's"),
        ("bd,bdf->bf", "the first index of the batch and of the output must be the sample's"),
        ("bde,df->bf", "the index 'e' stands in one operand only"),
        ("bd,dfe->bf", "the index 'e' stands in one operand only"),
        ("bd,df->bfe", "the index 'e' stands in one operand only"),
    ],
)
def test_an_equation_that_cannot_be_trained_on_is_refused(equation, reason):
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        split_equation(equation)
    assert refusal(kind="einsum", equation=equation, d=4, f=3) == [
        f"equation: {equation!r} cannot be trained on: {reason}."
    ]


def test_an_einsum_has_one_weight_with_a_size_for_every_index():
    chosen = model("einsum", equation="bsd,dhf->bshf", s=2, d=4, h=5, f=3)
    assert shapes(chosen) == {"weight": (4, 5, 3)}
    assert chosen.input_shape() == (2, 4)
    assert chosen.output_shape() == (2, 5, 3)
    assert chosen.parameters()[0].bound == 0.5  # 1 / sqrt(d): what one output sums over


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ({"d": 4}, "index 'f' of 'bd,df->bf' has no size; add f: 64."),
        ({"d": 4, "f": 3, "g": 2}, "unknown key 'g'; known: equation, d, f."),
        ({"b": 8, "d": 4, "f": 3}, "unknown key 'b'; known: equation, d, f."),
        ({"d": 4, "f": 0}, "f: 0 is not a size; write a whole number from 1 to 10^8."),
        ({"d": 4, "f": 2.5}, "f: 2.5 is not a size; write a whole number from 1 to 10^8."),
        ({"d": 4, "f": True}, "f: True is not a size; write a whole number from 1 to 10^8."),
    ],
)
def test_wrong_sizes_of_an_einsum_are_refused(sizes, line):
    assert refusal(kind="einsum", equation="bd,df->bf", **sizes) == [line]
