"""Residual blocks and the small layers of vision models."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept import kept_nbytes
from layer_checks import differences
from pydantic import ValidationError

from simdp.spec import problems
from simdp.workload.execution import Executor
from simdp.workload.layers import ACTIVATIONS
from simdp.workload.layers.add import Add
from simdp.workload.layers.base import Kernel, Pass, ShapeError
from simdp.workload.layers.concat import Concat
from simdp.workload.layers.flatten import Flatten
from simdp.workload.layers.leaky_relu import LeakyReLU
from simdp.workload.layers.upsample import Upsample
from simdp.workload.models.sequential import Sequential

CONV = {"kind": "conv2d", "in_channels": 2, "out_channels": 2, "kernel_size": 3, "padding": 1}
WIDER = {"kind": "conv2d", "in_channels": 2, "out_channels": 4, "kernel_size": 1, "stride": 2}
NORM = {"kind": "batch_norm2d", "num_features": 2}


def sequential(*layers):
    return Sequential.model_validate({"layers": list(layers), "input_shape": [2, 4, 4]})


def forward_and_backward(model, weights, buffers, x, dy=None):
    """Output and gradients by name, through the executor."""
    graph = model.graph
    executor = Executor(graph, ["float64"] * len(graph.calls), "float64")
    run = Pass(weights, {name: buffer.copy() for name, buffer in buffers.items()})
    (y,), kept = finished(executor.forward(run, [x]))
    finished(executor.backward(run, kept, [np.ones_like(y) if dy is None else dy]))
    return y, run.gradients


def finished(script):
    try:
        next(script)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("nothing here speaks to other ranks")


def drawn(graph):
    random = np.random.default_rng(0)
    weights = {p.name: random.standard_normal(p.shape) for p in graph.parameters}
    buffers = {
        b.name: np.full(b.shape, b.value, dtype="int64" if b.integer else "float64")
        for b in graph.buffers
    }
    return weights, buffers


# Residual ----------------------------------------------------------------------------------------


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
    (line,) = refused({"kind": "residual", "layers": [{"kind": "conv3d"}]})
    assert line.startswith("layers.0.layers.0: unknown layer 'conv3d'; known: ")
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


# Add and Concat ----------------------------------------------------------------------------------


def test_a_sum_hands_its_gradient_to_every_input_that_wants_it():
    add, run = Add(name="a"), Pass({})
    x = [np.full((2, 3), value) for value in (1.0, 2.0, 4.0)]
    y, saved = add.forward(run, *x)
    assert (y == 7).all()
    assert (x[0] == 1).all()
    found = add.backward(run, saved, y, [True, False, True])
    assert found[1] is None
    np.testing.assert_array_equal(found[0], y)
    np.testing.assert_array_equal(found[2], y)
    assert add.forward_cost([(3,)] * 3, 4) == [Kernel(3, 36)] * 2
    assert add.backward_cost([(3,)] * 3, 4, [True] * 3) == []
    assert kept_nbytes(add, [(3,)] * 3, 4) == 0
    for shapes in ([(3,)], [(3,), (1, 3)]):
        with pytest.raises(ShapeError, match="adds two inputs or more of one shape, but gets"):
            add.output_shape(*shapes)


@pytest.mark.parametrize("shape", [(), (3,), (3, 2)])
def test_channels_come_apart_as_they_were_joined(shape):
    concat, run = Concat(name="c"), Pass({})
    random = np.random.default_rng(0)
    x = [random.standard_normal((2, channels, *shape)) for channels in (1, 3, 2)]
    y, saved = concat.forward(run, *x)
    assert y.shape == (2, *concat.output_shape(*[one.shape[1:] for one in x]))
    parts = concat.backward(run, saved, y, [True] * 3)
    for part, one in zip(parts, x, strict=True):
        np.testing.assert_array_equal(part, one)
    assert concat.backward(run, saved, y, [False, True, False])[::2] == (None, None)
    shapes = [one.shape[1:] for one in x]
    assert concat.forward_cost(shapes, 4) == [Kernel(0, 2 * 4 * y[0].size)]
    assert concat.backward_cost(shapes, 4, [True] * 3) == []
    assert kept_nbytes(concat, shapes, 4) == 0


@pytest.mark.parametrize("shapes", [[(2, 3, 3), (2, 3, 4)], [(2,), (2, 1)], [(), ()]])
def test_only_channels_may_differ_in_a_concat(shapes):
    with pytest.raises(ShapeError, match="joins inputs that differ in their channels alone, but"):
        Concat(name="c").output_shape(*shapes)


# Flatten and Upsample ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "wanted"),
    [({}, (24,)), ({"start_dim": 2}, (2, 12)), ({"end_dim": 2}, (6, 4)), ({"end_dim": -2}, (6, 4))],
)
def test_flatten_joins_the_axes_that_it_is_told(dims, wanted):
    flatten, run = Flatten(name="f", **dims), Pass({})
    x = np.arange(48.0).reshape(2, 2, 3, 4)
    y, saved = flatten.forward(run, x)
    assert flatten.output_shape((2, 3, 4)) == wanted
    np.testing.assert_array_equal(y, x.reshape(2, *wanted))
    np.testing.assert_array_equal(flatten.backward(run, saved, y, [True])[0], x)
    assert flatten.backward(run, saved, y, [False]) == (None,)
    assert flatten.forward_cost([(2, 3, 4)], 4) == flatten.backward_cost([(2, 3, 4)], 4, [True])
    assert kept_nbytes(flatten, [(2, 3, 4)], 4) == 0


def test_flatten_puts_channels_first_whatever_the_memory_holds():
    x = np.arange(24.0).reshape(1, 2, 3, 4)
    other = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    y, _ = Flatten(name="f").forward(Pass({}), other)
    assert y[0].tolist() == list(range(24))


def test_flatten_refuses_axes_that_are_not_there():
    with pytest.raises(ShapeError, match=r"flattens axes 1 to 4, but .* whose axes are 1 to 3"):
        Flatten(name="f", end_dim=4).output_shape((2, 3, 4))
    with pytest.raises(ShapeError, match=r"flattens axes 3 to 2, but"):
        Flatten(name="f", start_dim=3, end_dim=2).output_shape((2, 3, 4))
    raw = {"kind": "flatten", "start_dim": 0}
    assert refused(raw) == ["layers.0.start_dim: 0 is out of range; it must be >= 1."]


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
)
def test_upsampling_repeats_pixels_and_adds_their_gradients(factor, shape):
    layer, run = Upsample(name="u", scale_factor=factor), Pass({})
    x = np.random.default_rng(0).standard_normal(shape)
    y, saved = layer.forward(run, x)
    assert y.shape == (*shape[:1], *layer.output_shape(shape[1:]))
    np.testing.assert_array_equal(y, x.repeat(factor[0], axis=2).repeat(factor[1], axis=3))
    dy = np.random.default_rng(1).standard_normal(y.shape)
    (dx,) = layer.backward(run, saved, dy, [True])
    wanted = np.zeros(shape)
    for row, column in np.ndindex(*y.shape[2:]):
        wanted[:, :, row // factor[0], column // factor[1]] += dy[:, :, row, column]
    np.testing.assert_allclose(dx, wanted, rtol=1e-13, atol=1e-13)


def test_upsampling_costs_what_it_reads_and_writes():
    layer = Upsample(name="u", scale_factor=[2, 3])
    assert layer.forward_cost([(2, 4, 4)], 4) == [Kernel(0, 4 * 32 * 7)]
    assert layer.backward_cost([(2, 4, 4)], 4, [True]) == [Kernel(32 * 6, 4 * 32 * 7)]
    assert layer.backward_cost([(2, 4, 4)], 4, [False]) == []
    assert refused({"kind": "upsample", "scale_factor": 2, "mode": "bilinear"}) == [
        "layers.0.mode: 'bilinear' is not allowed; known: 'nearest'."
    ]


# Activations -------------------------------------------------------------------------------------

AT = np.array([[-2.0, 0.0, 1.5]])
TORCH = {  # torch 2.13.0: values and slopes there
    "leaky_relu": ([-0.02, 0.0, 1.5], [0.01, 0.01, 1.0]),
    "sigmoid": (
        [0.11920292202211755, 0.5, 0.8175744761936437],
        [0.1049935854035065, 0.25, 0.14914645207033286],
    ),
    "silu": (
        [-0.2384058440442351, 0.0, 1.2263617142904655],
        [-0.09078424878489547, 0.5, 1.041294154299143],
    ),
}


@pytest.mark.parametrize("kind", TORCH)
def test_values_and_slopes_are_torchs(kind):
    layer, run = ACTIVATIONS[kind](name="a"), Pass({})
    y, saved = layer.forward(run, AT)
    (dx,) = layer.backward(run, saved, np.ones_like(y), [True])
    np.testing.assert_allclose(y[0], TORCH[kind][0], rtol=1e-14)
    np.testing.assert_allclose(dx[0], TORCH[kind][1], rtol=1e-14)


@pytest.mark.parametrize("slope", [-0.5, 0.0, 0.2, 1.0, 3.0])
def test_leaky_relu_bends_at_zero_by_any_slope(slope):
    layer, run = LeakyReLU(name="a", negative_slope=slope), Pass({})
    y, saved = layer.forward(run, AT)
    (dx,) = layer.backward(run, saved, np.ones_like(y), [True])
    assert y.tolist() == [[-2.0 * slope, 0.0, 1.5]]
    assert dx.tolist() == [[slope, slope, 1.0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["sigmoid", "silu"])
def test_far_from_zero_nothing_overflows(kind, dtype):
    """Every warning of NumPy is an error in these tests."""
    layer, run = ACTIVATIONS[kind](name="a"), Pass({})
    x = np.array([[-1e4, -200.0, 200.0, 1e4]], dtype=dtype)
    y, saved = layer.forward(run, x)
    (dx,) = layer.backward(run, saved, np.ones_like(y), [True])
    high = [1.0, 1.0] if kind == "sigmoid" else [200.0, 1e4]
    np.testing.assert_allclose(y[0], [0, 0, *high], atol=1e-30)
    np.testing.assert_allclose(
        dx[0], [0, 0, *([0, 0] if kind == "sigmoid" else [1, 1])], atol=1e-30
    )
    assert y.dtype == dx.dtype == dtype
