"""TokenTypeEmbedding: the first row is added and learned, the others stay."""

import numpy as np
import pytest
from layer_checks import differences, kept_nbytes, new_pass, weights_of

from simdp.workload.layers.base import ShapeError
from simdp.workload.layers.embedding import TokenTypeEmbedding

LAYER = TokenTypeEmbedding(name="types", num_embeddings=2, embedding_dim=4)
X = np.random.default_rng(0).standard_normal((3, 5, 4))


def passed(into=None, need=True):
    run = new_pass(LAYER, weights_of(LAYER), len(X), into=into or {})
    y, saved = LAYER.forward(run, X)
    (dx,) = LAYER.backward(run, saved, y, [need])
    return y, dx, run.gradients["types.weight"]


def test_every_token_is_of_the_first_type():
    y, _, _ = passed()
    np.testing.assert_array_equal(y, X + weights_of(LAYER)["types.weight"][0])


def test_gradients_equal_differences():
    weights = weights_of(LAYER)

    def half_square():
        return 0.5 * float((LAYER.forward(new_pass(LAYER, weights, len(X)), X)[0] ** 2).sum())

    _, _, gradient = passed()
    wanted = differences(half_square, weights["types.weight"])
    np.testing.assert_allclose(gradient, wanted, rtol=1e-6, atol=1e-6)
    assert not gradient[1].any()


def test_the_gradient_of_the_input_is_the_slope_itself_where_it_is_needed():
    y, dx, _ = passed()
    np.testing.assert_array_equal(dx, y)
    assert passed(need=False)[1] is None


def test_the_gradient_may_be_written_into_an_array_that_is_there():
    room = np.full((2, 4), np.nan)
    _, _, gradient = passed({"types.weight": room})
    assert gradient is room
    np.testing.assert_array_equal(gradient, passed()[2])


def test_features_that_do_not_fit_are_refused():
    assert LAYER.output_shape((5, 4)) == (5, 4)
    with pytest.raises(ShapeError, match="takes 4 features"):
        LAYER.output_shape((5, 3))


def test_kernels_gather_add_and_scatter():
    size = 5 * 4
    gathered, added = LAYER.forward_cost([(5, 4)], 4)
    assert (gathered.flops, gathered.nbytes) == (0, 2 * size * 4)
    assert (added.flops, added.nbytes) == (size, 3 * size * 4)
    cleared, summed = LAYER.backward_cost([(5, 4)], 4, [True])
    assert (cleared.fixed, summed.flops) == (2 * 4 * 4, size)
    assert kept_nbytes(LAYER, [(5, 4)], 4) == 0
