"""Axes that become one."""

import numpy as np
import pytest
from for_each import for_each
from layer_checks import kept_nbytes, refusal

from simdp.workload.layers.base import Pass, ShapeError
from simdp.workload.layers.tensor_ops import Flatten


@for_each(
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
    assert refusal(**raw) == ["start_dim: 0 is out of range; it must be >= 1."]
