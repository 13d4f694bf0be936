"""What makes one row of a sequence: the mean over its tokens, or the first of them."""

import numpy as np
import pytest
from for_each import for_each
from layer_checks import drawn, forward

from simdp.workload.layers.base import ShapeError
from simdp.workload.layers.pooling import MeanPool
from simdp.workload.layers.tensor_ops import FirstToken


def test_the_mean_over_tokens_leaves_padding_out():
    x, tokens = drawn(3, 4, 2), np.array([[5, 0, 5, 0], [5, 5, 5, 5], [0, 0, 0, 0]])
    y, backward = forward(MeanPool(name="m", pad_id=0), x, tokens)
    wanted = [x[0, [0, 2]].mean(axis=0), x[1].mean(axis=0), np.zeros(2)]
    np.testing.assert_allclose(y, wanted, rtol=1e-13)
    (dx, none), _ = backward(np.ones((3, 2)))
    assert none is None
    np.testing.assert_allclose(dx[:, :, 0], [[0.5, 0, 0.5, 0], [0.25] * 4, [0] * 4], rtol=1e-14)
    plain, _ = forward(MeanPool(name="m"), x)
    np.testing.assert_allclose(plain, x.mean(axis=1), rtol=1e-13)


@for_each("inputs", [[(3, 2)], [(3, 2), (4,)]])
def test_a_mean_without_padding_needs_the_tokens_of_its_rows(inputs):
    with pytest.raises(ShapeError) as caught:
        MeanPool(name="m", pad_id=0).output_shape(*inputs)
    assert str(caught.value) == (f"takes the tokens of 3 rows too, but gets {tuple(inputs[1:])}")


def test_the_first_token_is_the_first_row():
    x = drawn(3, 4, 2)
    y, backward = forward(FirstToken(name="f"), x)
    np.testing.assert_array_equal(y, x[:, 0])
    (dx,), _ = backward(np.ones((3, 2)))
    assert (dx[:, 0] == 1).all()
    assert (dx[:, 1:] == 0).all()
