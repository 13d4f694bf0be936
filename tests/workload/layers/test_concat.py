"""Channels of several inputs behind each other."""

import numpy as np
import pytest
from for_each import for_each
from layer_checks import kept_nbytes

from simdp.workload.layers.base import Kernel, Pass, ShapeError
from simdp.workload.layers.tensor_ops import Concat


@for_each("shape", [(), (3,), (3, 2)])
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


@for_each("shapes", [[(2, 3, 3), (2, 3, 4)], [(2,), (2, 1)], [(), ()]])
def test_only_channels_may_differ_in_a_concat(shapes):
    with pytest.raises(ShapeError, match="joins inputs that differ in their channels alone, but"):
        Concat(name="c").output_shape(*shapes)


def test_another_axis_is_joined_where_it_is_named():
    concat = Concat(name="c", dim=2)
    assert concat.output_shape((2, 3), (2, 4)) == (2, 7)
    y, _ = concat.forward(Pass({}), np.ones((5, 2, 3)), np.zeros((5, 2, 4)))
    assert y.shape == (5, 2, 7)
    with pytest.raises(ShapeError, match="joins inputs that differ in axis 2 alone, but gets"):
        concat.output_shape((2, 3), (3, 3))
    with pytest.raises(ShapeError, match=r"works along axis 2, but gets samples of shape \(3,\)"):
        concat.output_shape((3,), (3,))
