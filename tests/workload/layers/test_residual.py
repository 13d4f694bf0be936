"""Residual blocks: names and order, values and gradients, and what is refused."""

import numpy as np
import pytest
from layer_checks import differences, finished
from pydantic import ValidationError

from simdp.spec import problems
from simdp.workload.execution import GraphExecutor
from simdp.workload.layers.base import Pass, ShapeError
from simdp.workload.models.sequential import Sequential

CONV = {"kind": "conv2d", "in_channels": 2, "out_channels": 2, "kernel_size": 3, "padding": 1}
WIDER = {"kind": "conv2d", "in_channels": 2, "out_channels": 4, "kernel_size": 1, "stride": 2}
NORM = {"kind": "batch_norm2d", "num_features": 2}


def sequential(*layers):
    return Sequential.model_validate({"layers": list(layers), "input_shape": [2, 4, 4]})


def forward_and_backward(model, weights, buffers, x, dy=None):
    """Output and gradients by name, through the executor."""
    graph = model.graph
    executor = GraphExecutor(graph, ["float64"] * len(graph.calls), "float64")
    run = Pass(weights, {name: buffer.copy() for name, buffer in buffers.items()})
    (y,), kept = finished(executor.forward(run, [x]))
    finished(executor.backward(run, kept, [np.ones_like(y) if dy is None else dy]))
    return y, run.gradients


def drawn(graph):
    random = np.random.default_rng(0)
    weights = {p.name: random.standard_normal(p.shape) for p in graph.parameters}
    buffers = {
        b.name: np.full(b.shape, b.value, dtype="int64" if b.integer else "float64")
        for b in graph.buffers
    }
    return weights, buffers


def test_the_layers_of_a_block_are_named_and_ordered_as_in_torch():
    """torch 2.13.0: hooks on a module that registers and calls layers and shortcut like this."""
    block = {
        "kind": "residual",
        "name": "block",
        "layers": [CONV, NORM, "relu", {**WIDER, "name": "last"}],
        "shortcut": [WIDER],
    }
    graph = sequential(block).graph
    assert [p.name for p in graph.parameters] == [
        "block.0.weight",
        "block.0.bias",
        "block.1.weight",
        "block.1.bias",
        "block.last.weight",
        "block.last.bias",
        "block.shortcut.0.weight",
        "block.shortcut.0.bias",
    ]
    assert [call.layer.name for call in graph.calls] == [
        "block.0",
        "block.1",
        "block.2",
        "block.last",
        "block.shortcut.0",
        "block.add",
        "block.relu",
    ]
    assert graph.ready_order == (
        "block.shortcut.0.weight",
        "block.shortcut.0.bias",
        "block.last.weight",
        "block.last.bias",
        "block.1.weight",
        "block.1.bias",
        "block.0.weight",
        "block.0.bias",
    )
    assert graph.buffers[0].name == "block.1.running_mean"


def test_blocks_stand_in_blocks():
    inner = {"kind": "residual", "name": "inner", "layers": [CONV]}
    graph = sequential({"kind": "residual", "name": "outer", "layers": [CONV, inner]}).graph
    assert [p.name for p in graph.parameters] == [
        "outer.0.weight",
        "outer.0.bias",
        "outer.inner.0.weight",
        "outer.inner.0.bias",
    ]


def test_a_block_is_the_sum_of_both_ways():
    model = sequential({"kind": "residual", "layers": [CONV], "shortcut": [{**CONV, "name": "s"}]})
    weights, buffers = drawn(model.graph)
    x = np.random.default_rng(1).standard_normal((3, 2, 4, 4))
    y, _ = forward_and_backward(model, weights, buffers, x)
    ways = []
    for name in ("0.0", "0.s"):
        own = {f"0.{kind}": weights[f"{name}.{kind}"] for kind in ("weight", "bias")}
        ways.append(forward_and_backward(sequential(CONV), own, {}, x)[0])
    np.testing.assert_allclose(y, np.maximum(ways[0] + ways[1], 0), rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "none"])
@pytest.mark.parametrize(
    ("layers", "shortcut"), [([CONV, NORM, "relu", CONV], []), ([CONV, WIDER], [WIDER])]
)
def test_gradients_of_a_block_equal_differences(layers, shortcut, activation):
    block = {"kind": "residual", "layers": layers, "shortcut": shortcut, "activation": activation}
    model = sequential(CONV, block, "flatten")
    weights, buffers = drawn(model.graph)
    x = np.random.default_rng(1).standard_normal((2, 2, 4, 4))
    y, _ = forward_and_backward(model, weights, buffers, x)
    dy = np.random.default_rng(2).standard_normal(y.shape)
    _, gradients = forward_and_backward(model, weights, buffers, x, dy)

    def total():
        return float((forward_and_backward(model, weights, buffers, x)[0] * dy).sum())

    for name, gradient in gradients.items():
        wanted = differences(total, weights[name])
        np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_block_survives_its_way_through_a_file():
    block = {"kind": "Residual", "layers": [CONV, "ReLU"], "shortcut": ["leaky-relu"]}
    model = sequential(block, "flatten")
    plain = model.model_dump(mode="json", exclude_none=True)
    assert Sequential.model_validate(plain) == model
    assert plain["layers"][0]["shortcut"] == [
        {"kind": "leaky_relu", "name": "shortcut.0", "negative_slope": 0.01}
    ]


def test_a_block_whose_ways_differ_in_shape_is_refused():
    model = sequential({"kind": "residual", "name": "block", "layers": [WIDER]})
    with pytest.raises(ShapeError, match=r"^block.add: adds two inputs or more of one shape, but"):
        model.output_shape()


def refused(layer):
    raw = {"layers": [layer]}
    with pytest.raises(ValidationError) as caught:
        Sequential.model_validate(raw)
    return [found.line for found in problems(caught.value, raw)]


def test_what_a_block_cannot_hold_is_refused():
    (line,) = refused({"kind": "residual", "layers": [{"kind": "conv4d"}]})
    assert line.startswith("layers.0.layers.0: unknown layer 'conv4d'. Did you mean ")
    assert refused({"kind": "residual", "layers": []}) == [
        "layers.0.layers: [] has too few entries; it needs at least 1."
    ]
    twice = [{**CONV, "name": "a"}, {**CONV, "name": "a"}]
    assert refused({"kind": "residual", "layers": twice}) == [
        "layers.0: 2 layers are called 'a'; give each a name of its own."
    ]
    assert refused({"kind": "residual", "layers": "relu"}) == [
        "layers.0.layers: 'relu' is not a list."
    ]
    assert refused({"kind": "residual", "layers": ["relu"], "activation": "tanh"}) == [
        "layers.0.activation: 'tanh' is not allowed; known: 'relu' or 'none'."
    ]
