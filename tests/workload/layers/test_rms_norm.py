"""RMSNorm: its formula, its one number of torch's, and what a norm in pieces costs and keeps."""

import numpy as np
import pytest
from for_each import for_each
from layer_checks import drawn, forward, kept_nbytes, refusal

from simdp.workload.layers.base import Kernel, ShapeError
from simdp.workload.layers.normalization import RMSNorm


@for_each("eps", [1e-6, 0.1])
def test_rows_have_a_mean_square_of_one_times_the_weight(eps):
    x, weights = drawn(2, 3, 4), {"n.weight": drawn(4, seed=1)}
    y, _ = forward(RMSNorm(name="n", normalized_shape=4, eps=eps), x, weights=weights)
    root = np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    np.testing.assert_allclose(y, x / root * weights["n.weight"], rtol=1e-13)


@for_each("dtype", ["float32", "float64"])
def test_the_default_eps_is_that_of_the_dtype_as_in_torch(dtype):
    x = np.zeros((1, 4), dtype=dtype)
    x[0, 0] = 1e-4
    layer = RMSNorm(name="n", normalized_shape=4, elementwise_affine=False)
    y, _ = forward(layer, x)
    wanted = 1e-4 / np.sqrt(1e-8 / 4 + np.finfo(dtype).eps)
    assert y[0, 0] == pytest.approx(wanted, rel=1e-5)


def test_a_norm_in_pieces_gives_the_same_numbers_with_more_kernels():
    x, dy = drawn(2, 3, 4), drawn(2, 3, 4, seed=1)
    layers = [RMSNorm(name="n", normalized_shape=4, eps=1e-6, fused=f) for f in (True, False)]
    (y, backward), (other, other_backward) = (forward(layer, x) for layer in layers)
    np.testing.assert_array_equal(y, other)
    np.testing.assert_array_equal(backward(dy)[0][0], other_backward(dy)[0][0])
    kernels = [len(layer.forward_cost([(3, 4)], 2)) for layer in layers]
    assert kernels == [1, 7]  # two of them are casts
    costs = (layers[1].forward_cost([(3, 4)], 2), layers[1].backward_cost([(3, 4)], 2, [True]))
    moved = [sum(kernel.nbytes for kernel in cost) for cost in costs]
    narrow, wide, per_row = 12 * 2, 12 * 4, 3 * 4  # bytes of tensors in 16 bits and in float32
    assert moved == [4 * narrow + 7 * wide + 4 * per_row, 8 * narrow + 13 * wide + 6 * per_row]


def test_a_fused_norm_has_a_kernel_for_the_input_and_one_for_the_weight():
    fused = RMSNorm(name="n", normalized_shape=4)
    below, learned = Kernel(6 * 12, 3 * 12 * 2, 4 * 2), Kernel(2 * 12, 2 * 12 * 2, 4 * 2)
    assert fused.backward_cost([(3, 4)], 2, [True]) == [below, learned]
    assert fused.backward_cost([(3, 4)], 2, [False]) == [learned]


def test_what_is_kept_is_what_golden_20_lists():
    # per token: a float32 copy, what it became, and 1 / rms; in float32 the input is no copy
    pieces = RMSNorm(name="n", normalized_shape=32, eps=1e-6, fused=False)
    assert kept_nbytes(pieces, [(10, 32)], 2) == 10 * (4 * 32 + 2 * 32 + 4)
    assert kept_nbytes(pieces, [(10, 32)], 4) == 10 * (4 * 32 + 4 * 32 + 4)
    assert pieces.kept([(10, 32)], 2).inputs == ()
    fused = RMSNorm(name="n", normalized_shape=32)
    assert kept_nbytes(fused, [(10, 32)], 2) == 10 * (2 * 32 + 4)


def test_a_row_of_several_axes_is_one_row():
    x, dy = drawn(2, 3, 4), drawn(2, 3, 4, seed=1)
    both = RMSNorm(name="n", normalized_shape=[3, 4])
    assert both.parameters()[0].shape == (3, 4)
    flat = RMSNorm(name="n", normalized_shape=12)
    assert both.forward_cost([(3, 4)], 4) == flat.forward_cost([(12,)], 4)
    y, backward = forward(both, x)
    wanted, other = forward(flat, x.reshape(2, 12))
    np.testing.assert_array_equal(y, wanted.reshape(x.shape))
    np.testing.assert_array_equal(
        backward(dy)[0][0], other(dy.reshape(2, 12))[0][0].reshape(x.shape)
    )
    with pytest.raises(ShapeError, match=r"takes rows of shape \(3, 4\), but gets .* \(4, 3\)"):
        both.output_shape((4, 3))
    assert refusal(kind="rms_norm", normalized_shape=[]) != []


def test_a_negative_eps_is_refused():
    assert refusal(kind="rms_norm", normalized_shape=4, eps=-1) == [
        "eps: -1 is out of range; it must be >= 0.0."
    ]
