"""Activations: their values and slopes, and what they read and write."""

import numpy as np
import pytest
from layer_checks import kept_nbytes

from simdp.workload.layers import Kernel
from simdp.workload.layers.activations import ACTIVATIONS
from simdp.workload.layers.activations.leaky_relu import LeakyReLU
from simdp.workload.layers.base import Pass

every_activation = pytest.mark.parametrize("kind", ACTIVATIONS)

AT_ONE = {
    "gelu": 0.8413447460685429,
    "gelu_tanh": 0.8411919906082768,  # torch 2.13.0
    "relu": 1.0,
    "tanh": 0.7615941559557649,
}


def test_the_slope_of_relu_at_zero_is_zero():
    relu = ACTIVATIONS["relu"](name="a")
    _, saved = relu.forward(Pass({}), np.array([[-1.0, 0.0, 2.0]]))
    (dx,) = relu.backward(Pass({}), saved, np.ones((1, 3)), [True])
    assert dx.tolist() == [[0, 0, 1]]


@pytest.mark.parametrize("kind", AT_ONE)
def test_an_activation_of_one(kind):
    y, _ = ACTIVATIONS[kind](name="a").forward(Pass({}), np.array([[1.0]]))
    np.testing.assert_allclose(y, [[AT_ONE[kind]]], rtol=1e-15)


@every_activation
def test_an_activation_keeps_the_shape_and_acts_on_every_element_alone(kind):
    layer = ACTIVATIONS[kind](name="a")
    x = np.random.default_rng(0).standard_normal((3, 2, 5))
    y, _ = layer.forward(Pass({}), x)
    assert layer.output_shape((2, 5)) == (2, 5)
    for index in np.ndindex(x.shape):
        one, _ = layer.forward(Pass({}), x[index].reshape(1, 1))
        assert y[index] == pytest.approx(one[0, 0], rel=1e-14)


@every_activation
def test_an_activation_reads_its_input_and_writes_its_output(kind):
    layer = ACTIVATIONS[kind](name="a")
    (forward,) = layer.forward_cost([(2, 6)], 4)
    (backward,) = layer.backward_cost([(2, 6)], 4, [True])
    assert forward[1:] == (2 * 12 * 4, 0)
    assert backward[1:] == (3 * 12 * 4, 0)
    assert 0 < forward.flops < backward.flops
    assert isinstance(forward, Kernel)
    assert kept_nbytes(layer, [(2, 6)], 4) == 12 * 4


@every_activation
def test_an_activation_costs_nothing_backward_where_nobody_needs_it(kind):
    layer = ACTIVATIONS[kind](name="a")
    assert layer.backward_cost([(6,)], 4, [False]) == []
    y, saved = layer.forward(Pass({}), np.ones((2, 6)))
    assert layer.backward(Pass({}), saved, y, [False]) == (None,)


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


def test_backward_has_kept_what_torchs_has():
    """torch 2.13.0: whether grad_fn has _saved_result or _saved_self."""
    shape, itemsize = [(3,)], 4
    of_output = [kind for kind in ACTIVATIONS if ACTIVATIONS[kind](name="a").kept(shape, 4).output]
    assert of_output == ["relu", "sigmoid", "tanh"]
    for kind in ACTIVATIONS:
        assert kept_nbytes(ACTIVATIONS[kind](name="a"), shape, itemsize) == 3 * itemsize
