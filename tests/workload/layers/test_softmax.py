"""Softmax, its logarithm, GLU and PReLU: axes, large numbers, what is refused."""

import numpy as np
import pytest
from for_each import for_each
from layer_checks import drawn, new_pass

from simdp.workload.layers.activations.smooth import LogSoftmax, Softmax
from simdp.workload.layers.base import Pass, ShapeError
from simdp.workload.layers.linear import GLU, PReLU


@for_each("dim", [1, 2, -1])
def test_a_softmax_adds_up_to_one_along_its_axis(dim):
    x = drawn(3, 4, 5)
    y, _ = Softmax(name="s", dim=dim).forward(Pass({}), x)
    np.testing.assert_allclose(y.sum(axis=dim), 1, rtol=1e-14)
    z, _ = LogSoftmax(name="s", dim=dim).forward(Pass({}), x)
    np.testing.assert_allclose(np.exp(z), y, rtol=1e-14)


def test_large_numbers_do_not_overflow():
    x = np.array([[1e4, 0.0, -1e4]])
    assert Softmax(name="s").forward(Pass({}), x)[0].tolist() == [[1, 0, 0]]
    assert LogSoftmax(name="s").forward(Pass({}), x)[0].tolist() == [[0, -1e4, -2e4]]


@for_each("layer", [Softmax(dim=0), LogSoftmax(dim=3), GLU(dim=-3)])
def test_an_axis_that_samples_have_not_is_refused(layer):
    with pytest.raises(ShapeError, match=r"works along axis -?\d, but gets samples of shape \(4, "):
        layer.output_shape((4, 5))


def test_an_odd_axis_has_no_halves():
    with pytest.raises(ShapeError, match=r"halves axis -1, but gets samples of shape \(4, 5\)"):
        GLU(name="g").output_shape((4, 5))


def test_one_slope_serves_all_channels_and_many_need_theirs():
    one, many = PReLU(name="p"), PReLU(name="p", num_parameters=2)
    x = drawn(3, 2, 4)
    for layer in (one, many):
        weights = {"p.weight": np.full(layer.num_parameters, 0.25)}
        y, _ = layer.forward(new_pass(layer, weights, 3), x)
        np.testing.assert_allclose(y, np.where(x > 0, x, 0.25 * x))
    assert one.output_shape(()) == ()
    with pytest.raises(ShapeError, match="takes 2 channels, but gets samples of shape"):
        many.output_shape((3, 4))
