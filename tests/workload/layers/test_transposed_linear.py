"""TransposedLinear: a Linear whose weight lies the other way round."""

import numpy as np
import pytest
from layer_checks import kept_nbytes, new_pass, weights_of

from simdp.workload.layers.base import ShapeError
from simdp.workload.layers.linear import Linear, TransposedLinear

LAYER = TransposedLinear(name="l", in_features=4, out_features=3)
TWIN = Linear(name="l", in_features=4, out_features=3)
SHAPES = [(5, 4)]
X = np.random.default_rng(0).standard_normal((2, 5, 4))
DY = np.random.default_rng(1).standard_normal((2, 5, 3))


def turned(arrays):
    return {name: array.T for name, array in arrays.items()}


def passed(layer, weights, needs=(True,), into=None):
    run = new_pass(layer, weights, len(X), into=into or {})
    y, saved = layer.forward(run, X)
    return y, layer.backward(run, saved, DY, needs), run.gradients


def test_it_equals_a_linear_with_its_weight_turned():
    weights = weights_of(LAYER)
    y, (dx,), gradients = passed(LAYER, weights)
    wanted_y, (wanted_dx,), wanted = passed(TWIN, turned(weights))
    np.testing.assert_allclose(y, wanted_y, rtol=1e-13)
    np.testing.assert_allclose(dx, wanted_dx, rtol=1e-13)
    for name, gradient in turned(wanted).items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-13)


def test_it_costs_what_a_linear_costs():
    assert LAYER.forward_cost(SHAPES, 4) == TWIN.forward_cost(SHAPES, 4)
    for needs in ([True], [False]):
        assert LAYER.backward_cost(SHAPES, 4, needs) == TWIN.backward_cost(SHAPES, 4, needs)
    assert kept_nbytes(LAYER, SHAPES, 4) == kept_nbytes(TWIN, SHAPES, 4)
    assert LAYER.ready_order() == TWIN.ready_order()
    assert LAYER.output_shape(*SHAPES) == TWIN.output_shape(*SHAPES)


def test_gradients_may_be_written_into_arrays_that_are_there():
    weights = weights_of(LAYER)
    into = {name: np.full_like(array, np.nan) for name, array in weights.items()}
    _, below, gradients = passed(LAYER, weights, [False], into)
    assert below == (None,)
    assert all(gradients[name] is into[name] for name in into)
    for name, gradient in passed(LAYER, weights)[2].items():
        np.testing.assert_array_equal(gradients[name], gradient)


def test_features_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match="takes 4 features"):
        LAYER.output_shape((5, 3))
