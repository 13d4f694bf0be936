"""sequential: torch's names, layers that are never called, shapes from the data, refusals."""

import pytest
from pydantic import TypeAdapter, ValidationError

from simdp.phrases import problems
from simdp.workload.models import AnyModel

FIRST = {"kind": "linear", "in_features": 4, "out_features": 5}
LAST = {"kind": "linear", "in_features": 5, "out_features": 3}


def sequential(*layers, **options):
    raw = {"kind": "sequential", "layers": list(layers), **options}
    return TypeAdapter(AnyModel).validate_python(raw)


def refusal(layers, **options):
    raw = {"kind": "sequential", "layers": layers, **options}
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyModel).validate_python(raw)
    return [found.line for found in problems(caught.value, raw)]


def names(chosen):
    return [p.name for p in chosen.parameters()]


def test_layers_without_names_are_numbered_as_in_torchs_sequential():
    chosen = sequential(FIRST, "relu", LAST)
    assert names(chosen) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert chosen.ready_order() == ["2.bias", "2.weight", "0.bias", "0.weight"]


def test_named_layers_keep_their_names():
    chosen = sequential({"name": "features.0", **FIRST}, "tanh", {**LAST, "name": "fc"})
    assert names(chosen) == ["features.0.weight", "features.0.bias", "fc.weight", "fc.bias"]


def test_torchs_spelling_of_a_kind_is_understood():
    chosen = sequential({**FIRST, "kind": "Linear"}, "ReLU")
    assert [layer.kind for layer in chosen.layers] == ["linear", "relu"]


def test_unused_layers_are_registered_and_never_called():
    chosen = sequential(FIRST, {"name": "idle", **FIRST}, LAST, unused=["idle"])
    assert names(chosen)[2:4] == ["idle.weight", "idle.bias"]
    assert [call.layer.name for call in chosen.graph.calls] == ["0", "2"]
    assert chosen.graph.unused == ("idle.weight", "idle.bias")
    assert not set(chosen.graph.unused) & set(chosen.ready_order())


def test_the_shape_of_a_sample_comes_from_the_data_unless_it_is_given():
    chosen = sequential("relu")
    assert chosen.input_shapes() == {"x": None}
    settled = chosen.with_input_shapes({"x": (2, 7)})
    assert settled.known_shapes() == ((2, 7),)
    assert settled.output_shape() == (2, 7)
    given = sequential("relu", input_shape=[4])
    assert given.with_input_shapes({"x": (2, 7)}) is given
    assert chosen.with_input_shapes({}) is chosen


@pytest.mark.parametrize(
    ("layers", "options", "line"),
    [
        ([], {}, "layers: [] has too few entries; it needs at least 1."),
        (
            [{"name": "a", **FIRST}, {"name": "a", **LAST}],
            {},
            "layers: 2 layers are called 'a'; give each a name of its own.",
        ),
        (
            [{"name": "1", **FIRST}, LAST],
            {},
            "layers: 2 layers are called '1'; give each a name of its own.",
        ),
        ([FIRST, LAST], {"unused": ["2"]}, "unused: no layer is called '2'; known: 0, 1."),
        ([FIRST], {"unused": ["0"]}, "unused: every layer is unused; leave one out."),
        (
            [{**FIRST, "out_feature": 3}],
            {},
            "layers.0: unknown key 'out_feature'; known: name, in_features, out_features, bias. "
            "Did you mean 'out_features'?",
        ),
        (
            [FIRST, {"kind": "linear", "in_features": 5}],
            {},
            "layers.1.out_features: is required but was not given; add it.",
        ),
        (
            ["relu"],
            {"input_shape": [0]},
            "input_shape.0: 0 is out of range; it must be >= 1.",
        ),
        ("relu", {}, "layers: 'relu' is not a list."),
    ],
)
def test_a_wrong_sequential_is_refused(layers, options, line):
    assert refusal(layers, **options) == [line]


def test_an_unknown_layer_is_refused_with_the_known_ones():
    (line,) = refusal(["relux"])
    assert line.startswith("layers.0: unknown layer 'relux'; known: ")
    assert line.endswith("Did you mean 'relu'?")


def test_a_name_that_is_also_a_kind_is_still_found():
    (line,) = refusal([{"name": "linear", "kind": "linear", "in_features": 0, "out_features": 1}])
    assert line == "layers.0.in_features: 0 is out of range; it must be >= 1."
