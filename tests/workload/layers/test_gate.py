"""Gate: SwiGLU by its formula, and what it keeps."""

import numpy as np
import pytest
from for_each import for_each
from layer_checks import drawn, forward, kept_nbytes

from simdp.workload.layers.base import ShapeError
from simdp.workload.layers.linear import Gate


def test_swiglu_is_its_formula():
    gate, up = drawn(2, 3, 4), drawn(2, 3, 4, seed=1)
    y, _ = forward(Gate(name="g"), gate, up)
    np.testing.assert_allclose(y, gate / (1 + np.exp(-gate)) * up, rtol=1e-13)


def test_both_inputs_and_what_the_activation_made_are_kept():
    assert kept_nbytes(Gate(name="g"), [(10, 48)] * 2, 2) == 3 * 10 * 48 * 2


@for_each("shapes", [[(3, 4)], [(3, 4), (3, 5)]])
def test_inputs_of_other_shapes_are_refused(shapes):
    with pytest.raises(ShapeError) as caught:
        Gate(name="g").output_shape(*shapes)
    assert str(caught.value) == (
        "takes a gate and another input of its shape, "
        f"but gets samples of shapes {', '.join(map(str, shapes))}"
    )
