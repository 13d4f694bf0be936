"""A sum of several inputs."""

import numpy as np
import pytest
from layer_checks import kept_nbytes

from simdp.workload.layers.base import Kernel, Pass, ShapeError
from simdp.workload.layers.tensor_ops import Add


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
