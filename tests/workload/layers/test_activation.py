"""Activations: their values and slopes, and what they read and write."""

import numpy as np
import pytest
from kept import kept_nbytes

from simdp.workload.layers import ACTIVATIONS, Kernel
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
