"""Pixels that become rectangles."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from layer_checks import new_pass, refusal

from simdp.workload.layers.base import Kernel, Pass
from simdp.workload.layers.pooling import Upsample


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
)
def test_upsampling_repeats_pixels_and_adds_their_gradients(factor, shape):
    layer, run = Upsample(name="u", scale_factor=factor), Pass({})
    x = np.random.default_rng(0).standard_normal(shape)
    y, saved = layer.forward(run, x)
    assert y.shape == (*shape[:1], *layer.output_shape(shape[1:]))
    np.testing.assert_array_equal(y, x.repeat(factor[0], axis=2).repeat(factor[1], axis=3))
    dy = np.random.default_rng(1).standard_normal(y.shape)
    (dx,) = layer.backward(run, saved, dy, [True])
    wanted = np.zeros(shape)
    for row, column in np.ndindex(*y.shape[2:]):
        wanted[:, :, row // factor[0], column // factor[1]] += dy[:, :, row, column]
    np.testing.assert_allclose(dx, wanted, rtol=1e-13, atol=1e-13)


def test_upsampling_costs_what_it_reads_and_writes():
    layer = Upsample(name="u", scale_factor=[2, 3])
    assert layer.forward_cost([(2, 4, 4)], 4) == [Kernel(0, 4 * 32 * 7)]
    assert layer.backward_cost([(2, 4, 4)], 4, [True]) == [Kernel(32 * 6, 4 * 32 * 7)]
    assert layer.backward_cost([(2, 4, 4)], 4, [False]) == []
    lines = Upsample(name="u", scale_factor=[2, 3], mode="bilinear")
    assert lines.forward_cost([(2, 4, 4)], 4) == [Kernel(9 * 32 * 6, 4 * 32 * 7)]
    assert lines.backward_cost([(2, 4, 4)], 4, [True]) == [Kernel(8 * 32 * 6, 4 * 32 * 7)]


def test_modes_that_do_not_exist_and_corners_without_lines_are_refused():
    assert refusal(kind="upsample", scale_factor=2, mode="cubic") == [
        "mode: 'cubic' is not allowed; known: 'nearest' or 'bilinear'."
    ]
    assert refusal(kind="upsample", scale_factor=2, align_corners=True) == [
        "align_corners goes with mode: bilinear, but the mode is nearest; leave it out, or change "
        "the mode."
    ]


def test_one_pixel_becomes_a_plain_rectangle():
    x = np.full((1, 1, 1, 1), 3.0)
    for corners in (False, True):
        layer = Upsample(name="u", scale_factor=2, mode="bilinear", align_corners=corners)
        y, _ = layer.forward(new_pass(layer, {}, 1), x)
        np.testing.assert_array_equal(y, np.full((1, 1, 2, 2), 3.0))
