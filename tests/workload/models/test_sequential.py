"""sequential: torch's names, layers that are never called, shapes from the data, refusals."""

import numpy as np
import pytest
from for_each import for_each
from layer_checks import drawn, finished, weights_of
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.execution import GraphExecutor
from simdp.workload.layers.base import Pass, ShapeError
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


@for_each(
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
            "layers.0: unknown key 'out_feature'. Did you mean 'out_features'? Known: name, "
            "inputs, in_features, out_features, bias.",
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


SKIP = [
    {"name": "a", "kind": "linear", "in_features": 4, "out_features": 4},
    {"name": "b", "kind": "tanh"},
    {"name": "sum", "kind": "add", "inputs": ["b", "input"]},
    {"name": "all", "kind": "concat", "inputs": ["a", "sum", "b"]},
    {"name": "fc", "kind": "linear", "in_features": 12, "out_features": 3},
]


def test_layers_take_those_that_they_name():
    chosen = sequential(*SKIP, input_shape=[4])
    calls = [(call.layer.name, call.inputs) for call in chosen.graph.calls]
    assert calls == [("a", (0,)), ("b", (1,)), ("sum", (2, 0)), ("all", (1, 3, 2)), ("fc", (4,))]
    assert chosen.output_shape() == (3,)
    x, weights = drawn(5, 4), weights_of(chosen.graph)
    h = x @ weights["a.weight"].T + weights["a.bias"]
    joined = np.concatenate([h, np.tanh(h) + x, np.tanh(h)], axis=1)
    executor = GraphExecutor(chosen.graph, ["float64"] * 5, "float64")
    (y,), _ = finished(executor.forward(Pass(weights, samples=np.arange(5)), [x]))
    np.testing.assert_allclose(y, joined @ weights["fc.weight"].T + weights["fc.bias"])


def test_a_model_with_skips_comes_back_as_it_was_written():
    chosen = sequential(*SKIP, input_shape=[4])
    plain = chosen.model_dump(mode="json", exclude_none=True)
    assert plain["layers"][2]["inputs"] == ["b", "input"]
    assert "inputs" not in plain["layers"][0]
    assert TypeAdapter(AnyModel).validate_python(plain) == chosen


def test_layers_without_names_are_named_by_their_numbers():
    chosen = sequential("tanh", "relu", {"kind": "add", "inputs": [0, 1]}, input_shape=[4])
    assert chosen.graph.calls[2].inputs == (1, 2)


def test_blocks_of_two_inputs_take_two():
    attend = {"kind": "multihead_attention", "embed_dim": 4, "num_heads": 2}
    chosen = sequential(
        {"name": "q", "kind": "tanh"},
        {**attend, "inputs": ["q", "input"]},
        input_shape=[3, 4],
    )
    assert chosen.output_shape() == (3, 4)


@for_each(
    ("layers", "options", "line"),
    [
        (
            ["tanh", {"kind": "add", "inputs": ["0", "2"]}, "relu"],
            {},
            "layers.1.inputs: unknown earlier layer '2'; known: input, 0.",
        ),
        (
            [{"name": "conv1", **FIRST}, {"kind": "add", "inputs": ["conv", "input"]}],
            {},
            "layers.1.inputs: unknown earlier layer 'conv'. Did you mean 'conv1'? Known: input, "
            "conv1.",
        ),
        (
            ["tanh", {**FIRST, "inputs": ["0", "input"]}],
            {},
            "layers.1.inputs: linear takes 1, but 2 are named; join them first, by add or concat.",
        ),
        (
            ["tanh", {"kind": "relu", "inputs": ["input"]}],
            {},
            "layers.0: its output is not used; name it in the inputs of a later layer, or "
            "list it in unused.",
        ),
        (
            [FIRST, {**FIRST, "inputs": ["0"]}],
            {"unused": ["1"]},
            "layers.1.inputs: the layer is unused; leave inputs out.",
        ),
        (
            [FIRST, FIRST, {**FIRST, "inputs": ["1"]}],
            {"unused": ["1"]},
            "layers.2.inputs: unknown earlier layer '1'; known: input, 0.",
        ),
        (
            [{"name": "input", **FIRST}, {"kind": "relu", "inputs": ["input"]}],
            {},
            "layers: 'input' is the name of the sample where layers name their inputs; rename "
            "the layer.",
        ),
        (
            ["tanh", {"kind": "add", "inputs": []}],
            {},
            "layers.1.inputs: [] has too few entries; it needs at least 1.",
        ),
        (
            ["tanh", {"kind": "residual", "layers": [{"kind": "relu", "inputs": ["input"]}]}],
            {},
            "layers.1: '0' names its inputs, but a residual block runs its layers one after the "
            "other; leave inputs out, or write the layers in the model itself.",
        ),
    ],
)
def test_wrong_inputs_are_refused(layers, options, line):
    assert refusal(layers, **options) == [line]


@for_each(
    ("layer", "message"),
    [
        ({"kind": "add", "inputs": ["a", "input"]}, "j: adds two inputs or more of one shape, but"),
        ({"kind": "add"}, "j: adds two inputs or more of one shape, but gets samples of shapes"),
        ({"kind": "concat", "dim": 2, "inputs": ["a", "a"]}, "j: works along axis 2, but gets"),
    ],
)
def test_shapes_that_do_not_join_are_refused(layer, message):
    chosen = sequential({"name": "a", **FIRST}, {"name": "j", **layer}, input_shape=[4])
    with pytest.raises(ShapeError, match=message):
        chosen.output_shape()


def test_an_unknown_layer_is_refused_with_the_known_ones():
    (line,) = refusal(["relux"])
    assert line.startswith("layers.0: unknown layer 'relux'. Did you mean 'relu'? Known: ")


def test_a_name_that_is_also_a_kind_is_still_found():
    (line,) = refusal([{"name": "linear", "kind": "linear", "in_features": 0, "out_features": 1}])
    assert line == "layers.0.in_features: 0 is out of range; it must be >= 1."
