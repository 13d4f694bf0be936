"""Poolings against slow ones that are written out, and against torch's figures."""

from itertools import product
from math import ceil, floor, prod

import numpy as np
import pytest
from for_each import for_each
from hypothesis import assume, given
from hypothesis import strategies as st
from layer_checks import fits, kept_nbytes
from pydantic import ValidationError

from simdp.spec import problems
from simdp.workload.layers import pooling
from simdp.workload.layers.base import Kernel, Pass, ShapeError
from simdp.workload.layers.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d, RoIAlign


def count(layer, axis, length, dilation=1):
    """Windows along an axis, as torch's documentation has it."""
    step = (layer.stride or layer.kernel_size)[axis]
    room = length + 2 * layer.padding[axis] - dilation * (layer.kernel_size[axis] - 1) - 1
    number = (ceil if layer.ceil_mode else floor)(room / step) + 1
    if layer.ceil_mode and (number - 1) * step >= length + layer.padding[axis]:
        number -= 1
    return number


def cells(layer, axis, length, number, dilation=1):
    """Pixels of the real image that a window sees along an axis."""
    begin = number * (layer.stride or layer.kernel_size)[axis] - layer.padding[axis]
    seen = [begin + dilation * k for k in range(layer.kernel_size[axis])]
    return [pixel for pixel in seen if 0 <= pixel < length]


def divisor(layer, axis, length, number):
    """Pixels that count in a mean along an axis: those of the image and, if wanted, the padding."""
    if not layer.count_include_pad:
        return len(cells(layer, axis, length, number))
    begin = number * (layer.stride or layer.kernel_size)[axis] - layer.padding[axis]
    end = min(begin + layer.kernel_size[axis], length + layer.padding[axis])
    return end - begin


small = st.tuples(st.integers(1, 3), st.integers(1, 3))
sizes = st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(1, 8), st.integers(1, 8))


@st.composite
def windows(draw):
    kernel = draw(small)
    padding = tuple(draw(st.integers(0, length // 2)) for length in kernel)
    stride = draw(st.none() | small)
    return {
        "name": "p",
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "ceil_mode": draw(st.booleans()),
    }


def passes(layer, x):
    y, saved = layer.forward(Pass({}), x)
    dy = np.random.default_rng(1).standard_normal(y.shape)
    (dx,) = layer.backward(Pass({}), saved, dy, [True])
    return y, dy, dx


@given(windows(), small, sizes)
def test_a_max_pooling_is_the_one_written_out(arguments, dilation, shape):
    layer = MaxPool2d(**arguments, dilation=dilation)
    assume(fits(layer, shape[1:]))
    # Whole numbers, so that there are many equal pixels.
    x = np.random.default_rng(0).integers(-2, 3, shape).astype(float)
    y, dy, dx = passes(layer, x)
    numbers = [count(layer, axis, shape[axis + 2], dilation[axis]) for axis in (0, 1)]
    assert y.shape == (*shape[:2], *numbers)
    wanted = np.zeros(shape)
    for image, channel, *place in product(*map(range, y.shape)):
        rows, columns = (
            cells(layer, axis, shape[axis + 2], place[axis], dilation[axis]) for axis in (0, 1)
        )
        if not rows or not columns:  # torch lets a dilated window miss the image
            continue
        seen = x[image, channel][np.ix_(rows, columns)]
        assert y[image, channel, place[0], place[1]] == seen.max()
        row, column = np.unravel_index(seen.argmax(), seen.shape)
        wanted[image, channel, rows[row], columns[column]] += dy[image, channel, *place]
    np.testing.assert_allclose(dx, wanted, rtol=1e-12, atol=1e-12)


@given(windows(), st.booleans(), sizes)
def test_an_average_pooling_is_the_one_written_out(arguments, include, shape):
    layer = AvgPool2d(**arguments, count_include_pad=include)
    assume(fits(layer, shape[1:]))
    x = np.random.default_rng(0).standard_normal(shape)
    y, dy, dx = passes(layer, x)
    numbers = [count(layer, axis, shape[axis + 2]) for axis in (0, 1)]
    assert y.shape == (*shape[:2], *numbers)
    wanted, slopes = np.zeros(y.shape), np.zeros(shape)
    for row, column in product(*map(range, numbers)):
        rows, columns = (
            cells(layer, axis, shape[axis + 2], number) for axis, number in enumerate((row, column))
        )
        share = divisor(layer, 0, shape[2], row) * divisor(layer, 1, shape[3], column)
        for i, j in product(rows, columns):
            wanted[:, :, row, column] += x[:, :, i, j] / share
            slopes[:, :, i, j] += dy[:, :, row, column] / share
    np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(dx, slopes, rtol=1e-12, atol=1e-12)


@given(st.tuples(st.integers(1, 9), st.integers(1, 9)), sizes)
def test_an_adaptive_average_pooling_is_the_one_written_out(grid, shape):
    layer = AdaptiveAvgPool2d(name="p", output_size=grid)
    x = np.random.default_rng(0).standard_normal(shape)
    y, dy, dx = passes(layer, x)
    assert y.shape == (*shape[:2], *grid)
    slopes = np.zeros(shape)
    for row, column in product(*map(range, grid)):
        part = tuple(
            slice(floor(number * length / cells), ceil((number + 1) * length / cells))
            for number, length, cells in zip((row, column), shape[2:], grid, strict=True)
        )
        seen = x[:, :, *part]
        np.testing.assert_allclose(
            y[:, :, row, column], seen.mean(axis=(2, 3)), rtol=1e-12, atol=1e-12
        )
        slopes[:, :, *part] += dy[:, :, row, column, None, None] / prod(seen.shape[2:])
    np.testing.assert_allclose(dx, slopes, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("elements", [1, 40, 10**6])
def test_a_max_pooling_in_blocks_of_any_size_gives_the_same(elements, monkeypatch):
    layer = MaxPool2d(name="p", kernel_size=3, stride=2, padding=1)
    x = np.random.default_rng(0).standard_normal((5, 3, 7, 6))
    wanted = passes(layer, x)
    monkeypatch.setattr(pooling, "BLOCK_ELEMENTS", elements)
    for found, array in zip(passes(layer, x), wanted, strict=True):
        np.testing.assert_array_equal(found, array)


# torch 2.13.0 ------------------------------------------------------------------------------------


def test_a_max_pooling_gives_torchs_figures():
    layer = MaxPool2d(name="p", kernel_size=3, stride=2, padding=1, ceil_mode=True)
    x = (np.arange(25.0) * 7 % 11).reshape(1, 1, 5, 5)
    y, saved = layer.forward(Pass({}), x)
    assert y.tolist() == [[[[9, 10, 10], [9, 9, 10], [8, 9, 7]]]]
    (dx,) = layer.backward(Pass({}), saved, np.arange(1.0, 10).reshape(y.shape), [True])
    assert dx.tolist() == [
        [[[0, 0, 0, 5, 0], [0, 10, 0, 0, 0], [0, 0, 0, 0, 6], [0, 0, 8, 0, 0], [7, 0, 0, 9, 0]]]
    ]


def test_of_equal_pixels_the_first_gets_the_gradient():
    layer = MaxPool2d(name="p", kernel_size=2, stride=1)
    _, saved = layer.forward(Pass({}), np.zeros((1, 1, 2, 3)))
    (dx,) = layer.backward(Pass({}), saved, np.array([[[[1.0, 2.0]]]]), [True])
    assert dx.tolist() == [[[[1, 2, 0], [0, 0, 0]]]]


@for_each(
    ("include", "wanted"),
    [
        (True, [[4 / 3, 3, 8 / 3], [7, 12, 9], [31 / 6, 8.5, 37 / 6]]),
        (False, [[3, 4.5, 6], [10.5, 12, 13.5], [15.5, 17, 18.5]]),
    ],
)
def test_an_average_pooling_gives_torchs_figures(include, wanted):
    layer = AvgPool2d(
        name="p", kernel_size=3, stride=2, padding=1, ceil_mode=True, count_include_pad=include
    )
    y, _ = layer.forward(Pass({}), np.arange(20.0).reshape(1, 1, 4, 5))
    np.testing.assert_allclose(y[0, 0], wanted, rtol=1e-14)


def test_an_adaptive_average_pooling_gives_torchs_figures():
    layer = AdaptiveAvgPool2d(name="p", output_size=[3, 2])
    y, _ = layer.forward(Pass({}), np.arange(20.0).reshape(1, 1, 4, 5))
    np.testing.assert_allclose(y[0, 0], [[3.5, 5.5], [8.5, 10.5], [13.5, 15.5]], rtol=1e-14)


# Costs and errors --------------------------------------------------------------------------------


def test_regions_are_spread_by_the_golden_ratio_and_its_square():
    """Region n begins at half of n / 1.618 and of n / 2.618, less whole numbers."""
    image = np.arange(100.0 * 100).reshape(1, 1, 100, 100)
    y, _ = RoIAlign(name="r", num_rois=3, output_size=1).forward(Pass({}), image)
    assert y.reshape(-1).tolist() == [2525, 5544, 3663]  # row, column of the middle


def test_poolings_cost_what_they_read_and_write():
    image, before, after = [(3, 8, 6)], 3 * 8 * 6, 3 * 4 * 3
    largest = MaxPool2d(name="p", kernel_size=2)
    indices = 8 * after  # torch keeps them as int64
    assert largest.forward_cost(image, 4) == [Kernel(4 * after, 4 * (before + after) + indices)]
    assert largest.backward_cost(image, 4, [True]) == [
        Kernel(after, 4 * (before + after) + indices)
    ]
    assert largest.backward_cost(image, 4, [False]) == []
    assert kept_nbytes(largest, image, 4) == 4 * before + indices
    mean = AvgPool2d(name="p", kernel_size=2)
    assert mean.forward_cost(image, 4) == [Kernel(4 * after, 4 * (before + after))]
    assert mean.backward_cost(image, 4, [True]) == mean.forward_cost(image, 4)
    assert mean.backward_cost(image, 4, [False]) == []
    assert kept_nbytes(mean, image, 4) == 4 * before
    grid = AdaptiveAvgPool2d(name="p", output_size=[4, 3])
    assert grid.forward_cost(image, 4) == [Kernel(before, 4 * (before + after))]
    assert kept_nbytes(grid, image, 4) == 4 * before
    assert kept_nbytes(AdaptiveAvgPool2d(name="p", output_size=1), image, 4) == 0


@for_each("kind", [MaxPool2d, AvgPool2d])
def test_padding_of_more_than_half_a_window_is_refused(kind):
    raw = {"name": "p", "kernel_size": [3, 2], "padding": [1, 2]}
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(raw)
    assert [found.line for found in problems(caught.value, raw)] == [
        "padding: [1, 2] is more than half of kernel_size, [3, 2]; write less."
    ]


@for_each(
    "layer",
    [
        MaxPool2d(name="p", kernel_size=2),
        AvgPool2d(name="p", kernel_size=2),
        AdaptiveAvgPool2d(name="p", output_size=2),
    ],
    ids=lambda layer: layer.kind,
)
@for_each("shape", [(), (4,), (4, 4), (1, 4, 4, 4)])
def test_only_images_are_pooled(layer, shape):
    with pytest.raises(ShapeError, match="takes images, shape \\(channels, height, width\\), but"):
        layer.output_shape(shape)


def test_images_smaller_than_a_window_are_refused():
    with pytest.raises(ShapeError, match="has windows of 3 x 3 pixels, but gets images of shape"):
        MaxPool2d(name="p", kernel_size=3).output_shape((1, 2, 4))
