"""Axes in another order."""

import numpy as np
import pytest
from layer_checks import drawn, refusal

from simdp.workload.layers.base import Pass, ShapeError
from simdp.workload.layers.tensor_ops import Permute


def test_axes_come_out_in_their_new_order_and_go_back():
    layer, x = Permute(name="p", dims=[0, 3, 1, 2]), drawn(2, 3, 4, 5)
    y, saved = layer.forward(Pass({}), x)
    np.testing.assert_array_equal(y, np.moveaxis(x, -1, 1))
    assert layer.output_shape((3, 4, 5)) == (5, 3, 4)
    (dx,) = layer.backward(Pass({}), saved, y, [True])
    np.testing.assert_array_equal(dx, x)
    assert layer.forward_cost([(3, 4, 5)], 4) == []


def test_what_is_no_order_is_refused():
    for dims in ([1, 0], [0, 1, 1], [0, 2], []):
        assert refusal(kind="permute", name="p", dims=dims) == [
            f"dims: {dims} does not name each axis once, the samples' axis 0 first; write for "
            "example [0, 2, 1]."
        ]
    with pytest.raises(ShapeError, match=r"orders axes 0 to 2, but gets samples of shape \(3,\)"):
        Permute(name="p", dims=[0, 2, 1]).output_shape((3,))
