"""Every layer: gradients equal differences, and costs count what the formulas say."""

import numpy as np
import pytest

from simdp.workload.layers import ACTIVATIONS, Einsum, Linear
from simdp.workload.layers.base import Cost, cost

LAYERS = {
    "linear": (Linear(name="l", in_features=4, out_features=3), (5, 4)),
    "linear without bias": (Linear(name="l", in_features=4, out_features=3, bias=False), (5, 4)),
    "linear over positions": (Linear(name="l", in_features=4, out_features=3), (5, 2, 4)),
    "linear on nothing": (Linear(name="l", in_features=4, out_features=3), (0, 4)),
    "einsum": (Einsum(name="e", equation="bd,df->bf", sizes={"d": 4, "f": 3}), (5, 4)),
    "einsum over positions": (
        Einsum(name="e", equation="bsd,dhf->bshf", sizes={"s": 2, "d": 4, "h": 2, "f": 3}),
        (5, 2, 4),
    ),
    "einsum of a batch index kept": (
        Einsum(name="e", equation="bhd,hdf->bhf", sizes={"h": 2, "d": 4, "f": 3}),
        (5, 2, 4),
    ),
    "einsum to a scalar": (Einsum(name="e", equation="bd,d->b", sizes={"d": 4}), (5, 4)),
} | {kind: (member(name="a", features=4), (5, 4)) for kind, member in ACTIVATIONS.items()}

every_layer = pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS)


def drawn(layer, shape):
    random = np.random.default_rng(0)
    parameters = {p.name: random.standard_normal(p.shape) for p in layer.parameters()}
    return parameters, random.standard_normal(shape)


def differences(function, at, step=1e-6):
    """Central differences of a number by every element of an array."""
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        there = at[index]
        values = []
        for moved in (there + step, there - step):
            at[index] = moved
            values.append(function())
        at[index] = there
        gradient[index] = (values[0] - values[1]) / (2 * step)
    return gradient


@every_layer
def test_gradients_equal_differences(layer, shape):
    parameters, x = drawn(layer, shape)
    y, saved = layer.forward(parameters, x)
    weights = np.random.default_rng(1).standard_normal(y.shape)

    def total():
        return float((layer.forward(parameters, x)[0] * weights).sum())

    dx, gradients = layer.backward(parameters, saved, weights, True)
    np.testing.assert_allclose(dx, differences(total, x), rtol=1e-6, atol=1e-8)
    assert set(gradients) == set(parameters)
    for name, gradient in gradients.items():
        wanted = differences(total, parameters[name])
        np.testing.assert_allclose(gradient, wanted, rtol=1e-6, atol=1e-8)


@every_layer
def test_the_gradient_of_the_input_is_left_out_where_nobody_needs_it(layer, shape):
    parameters, x = drawn(layer, shape)
    y, saved = layer.forward(parameters, x)
    dx, gradients = layer.backward(parameters, saved, np.ones_like(y), False)
    _, wanted = layer.backward(parameters, saved, np.ones_like(y), True)
    assert dx is None
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(gradient, wanted[name])


@every_layer
def test_gradients_may_be_written_into_arrays_that_are_there(layer, shape):
    parameters, x = drawn(layer, shape)
    y, saved = layer.forward(parameters, x)
    _, wanted = layer.backward(parameters, saved, np.ones_like(y), False)
    into = {name: np.full_like(array, np.nan) for name, array in parameters.items()}
    _, gradients = layer.backward(parameters, saved, np.ones_like(y), False, into)
    assert set(gradients) == set(wanted)
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(gradient, wanted[name])
        assert not np.shares_memory(gradient, parameters[name])


@every_layer
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_layer_keeps_the_dtype_and_its_input(layer, shape, dtype):
    parameters, x = drawn(layer, shape)
    parameters = {name: tensor.astype(dtype) for name, tensor in parameters.items()}
    x = x.astype(dtype)
    kept = x.copy()
    y, saved = layer.forward(parameters, x)
    dy = np.ones_like(y)
    dx, gradients = layer.backward(parameters, saved, dy, True)
    assert {y.dtype, dx.dtype, *(g.dtype for g in gradients.values())} == {np.dtype(dtype)}
    assert {name: g.shape for name, g in gradients.items()} == {
        p.name: p.shape for p in layer.parameters()
    }
    np.testing.assert_array_equal(x, kept)
    np.testing.assert_array_equal(dy, 1)


@every_layer
def test_gradients_become_ready_once_each(layer, shape):
    assert sorted(layer.ready_order()) == sorted(p.name for p in layer.parameters())


def test_the_bias_of_a_linear_layer_is_ready_before_its_weight():
    layer, _ = LAYERS["linear"]
    assert layer.ready_order() == ["l.bias", "l.weight"]
    assert [(p.name, p.shape) for p in layer.parameters()] == [
        ("l.weight", (3, 4)),
        ("l.bias", (3,)),
    ]
    assert all(p.bound == 0.5 for p in layer.parameters())  # 1 / sqrt(4), as torch's default


def test_the_slope_of_relu_at_zero_is_zero():
    relu = ACTIVATIONS["relu"](name="a", features=3)
    _, saved = relu.forward({}, np.array([[-1.0, 0.0, 2.0]]))
    dx, _ = relu.backward({}, saved, np.ones((1, 3)), True)
    assert dx.tolist() == [[0, 0, 1]]


@pytest.mark.parametrize(
    ("kind", "value"),
    [("relu", 1.0), ("tanh", 0.7615941559557649), ("gelu", 0.8413447460685429)],
)
def test_an_activation_of_one(kind, value):
    y, _ = ACTIVATIONS[kind](name="a", features=1).forward({}, np.array([[1.0]]))
    np.testing.assert_allclose(y, [[value]], rtol=1e-15)


# Costs -------------------------------------------------------------------------------------------


@every_layer
@pytest.mark.parametrize("itemsize", [4, 8])
def test_a_batch_of_nothing_costs_nothing(layer, shape, itemsize):
    batch = np.array([0.0, 3.0])
    for work in (
        layer.forward_cost(batch, itemsize),
        layer.backward_cost(batch, itemsize, True),
        layer.backward_cost(batch, itemsize, False),
    ):
        for part in work:
            assert part.shape == (2,)
            assert part[0] == 0
            assert part[1] >= 0
    assert layer.activation_nbytes(batch, itemsize)[0] == 0


@every_layer
def test_flops_grow_with_the_batch_and_launches_do_not(layer, shape):
    batch = np.array([1.0, 2.0, 10.0])
    work = layer.forward_cost(batch, 4)
    np.testing.assert_allclose(work.flops, batch * work.flops[0], rtol=1e-15)
    assert (work.launches == work.launches[0]).all()
    assert (np.diff(work.nbytes) > 0).all()


@every_layer
def test_bytes_grow_with_the_itemsize(layer, shape):
    batch = np.array([3.0])
    for work in ("forward_cost", "backward_cost"):
        more = () if work == "forward_cost" else (True,)
        four, eight = (getattr(layer, work)(batch, size, *more) for size in (4, 8))
        assert eight.nbytes == 2 * four.nbytes
        assert eight.flops == four.flops


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_costs_what_its_products_cost(bias):
    i, o, b = 7, 5, 3
    layer = Linear(name="l", in_features=i, out_features=o, bias=bias)
    batch = np.array([float(b)])
    forward = layer.forward_cost(batch, 4)
    assert forward.flops == 2 * i * o * b
    assert forward.nbytes == 4 * (b * (i + o) + i * o + o * bias)
    assert forward.launches == 1
    for need_input_grad in (True, False):
        backward = layer.backward_cost(batch, 4, need_input_grad)
        products = 1 + need_input_grad
        assert backward.flops == products * 2 * i * o * b + bias * o * b
        assert backward.nbytes == 4 * (products * (b * (i + o) + i * o) + bias * (b * o + o))
        assert backward.launches == products + bias
    assert layer.activation_nbytes(batch, 4) == 4 * i * b


def test_an_einsum_costs_what_the_same_linear_layer_costs():
    einsum, _ = LAYERS["einsum"]
    linear, _ = LAYERS["linear without bias"]
    batch = np.array([0.0, 1.0, 9.0])
    for need_input_grad in (True, False):
        np.testing.assert_array_equal(
            einsum.backward_cost(batch, 4, need_input_grad),
            linear.backward_cost(batch, 4, need_input_grad),
        )
    np.testing.assert_array_equal(einsum.forward_cost(batch, 4), linear.forward_cost(batch, 4))
    np.testing.assert_array_equal(
        einsum.activation_nbytes(batch, 4), linear.activation_nbytes(batch, 4)
    )


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_an_activation_reads_its_input_and_writes_its_output(kind):
    layer = ACTIVATIONS[kind](name="a", features=6)
    batch = np.array([2.0])
    forward, backward = layer.forward_cost(batch, 4), layer.backward_cost(batch, 4, True)
    assert forward.nbytes == 2 * 12 * 4
    assert backward.nbytes == 3 * 12 * 4
    assert forward.launches == backward.launches == 1
    assert layer.activation_nbytes(batch, 4) == 12 * 4


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_an_activation_costs_nothing_backward_where_nobody_needs_it(kind):
    work = ACTIVATIONS[kind](name="a", features=6).backward_cost(np.array([2.0]), 4, False)
    assert [float(part[0]) for part in work] == [0, 0, 0]


def test_costs_add_up():
    one = cost(np.array([2.0]), flops=3, nbytes=5, launches=1, fixed=7)
    assert [float(part[0]) for part in one] == [6, 17, 1]
    assert [float(part[0]) for part in one + one] == [12, 34, 2]
    with pytest.raises(TypeError):
        Cost(*one) + 1
