"""Convolutions along one axis and three, and transposed ones, against those along two."""

from itertools import product

import numpy as np
import pytest
from for_each import for_each
from hypothesis import assume, given
from hypothesis import strategies as st
from layer_checks import drawn, fits, kept_nbytes, new_pass, refusal, weights_of

from simdp.workload.layers import LAYERS, conv
from simdp.workload.layers.base import Kernel, ShapeError
from simdp.workload.layers.conv import Conv1d, Conv2d, Conv3d, ConvTranspose2d, ConvTranspose3d


def passes(layer, x, weights=None, dy=None):
    """Output, gradient of the input, and gradients by name."""
    run = new_pass(layer, weights_of(layer) if weights is None else weights, len(x))
    y, saved = layer.forward(run, x)
    (dx,) = layer.backward(run, saved, drawn(*y.shape, seed=2) if dy is None else dy, [True])
    return y, dx, run.gradients


def flat(**arguments):
    """Arguments of a layer along one axis as those along two, of which the first is 1."""
    first = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
    return {key: [first[key], value] if key in first else value for key, value in arguments.items()}


@for_each("kind", ["conv", "conv_transpose", "max_pool", "avg_pool"])
@for_each(
    "window", [{}, {"stride": 2, "padding": 1}, {"stride": 1}], ids=lambda window: str(window)
)
def test_a_series_is_an_image_of_height_one(kind, window):
    channels = {"in_channels": 4, "out_channels": 6, "groups": 2} if "conv" in kind else {}
    arguments = {"name": "c", "kernel_size": 3, **channels, **window}
    one, two = LAYERS[f"{kind}1d"](**arguments), LAYERS[f"{kind}2d"](**flat(**arguments))
    weights, x = weights_of(one), drawn(3, 4, 11)
    y, dx, gradients = passes(one, x, weights)
    tall = {n: w[:, :, None] if w.ndim == 3 else w for n, w in weights.items()}
    wanted = passes(two, x[:, :, None], tall, drawn(*y.shape, seed=2)[:, :, None])
    np.testing.assert_allclose(y, wanted[0][:, :, 0], atol=1e-12)
    np.testing.assert_allclose(dx, wanted[1][:, :, 0], atol=1e-12)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient.ravel(), wanted[2][name].ravel(), atol=1e-12)


def written_out(x, weight, stride, padding, dilation):
    """Cross-correlation of volumes, one output at a time."""
    padded = np.pad(x, ((0, 0), (0, 0), *[(margin, margin) for margin in padding]))
    count = [
        (padded.shape[a + 2] - (weight.shape[a + 2] - 1) * dilation[a] - 1) // stride[a] + 1
        for a in range(3)
    ]
    y = np.zeros((len(x), len(weight), *count))
    for place in product(*map(range, count)):
        at = [
            slice(p * s, p * s + (k - 1) * d + 1, d)
            for p, s, k, d in zip(place, stride, weight.shape[2:], dilation, strict=True)
        ]
        seen = padded[:, :, *at]
        y[:, :, *place] = np.einsum("ncijk,ocijk->no", seen, weight)
    return y


length = st.integers(1, 3)
three = st.tuples(length, length, length)


@given(three, three, st.tuples(*[st.integers(0, 2)] * 3), three, three.map(tuple))
def test_a_convolution_of_volumes_is_the_one_written_out(kernel, stride, padding, dilation, more):
    layer = Conv3d(
        name="c", in_channels=2, out_channels=3, kernel_size=kernel, stride=stride,
        padding=padding, dilation=dilation, bias=False,
    )  # fmt: skip
    shape = tuple(2 + n for n in more)
    assume(fits(layer, (2, *shape)))
    x, weights = drawn(2, 2, *shape), weights_of(layer)
    y, dx, gradients = passes(layer, x, weights)
    weight, dy = weights["c.weight"], drawn(*y.shape, seed=2)
    np.testing.assert_allclose(y, written_out(x, weight, stride, padding, dilation), atol=1e-12)
    # The map is linear in the input and in the weight, so that its gradients are its adjoints.
    along = drawn(*x.shape, seed=3)
    moved = written_out(along, weight, stride, padding, dilation)
    assert (dx * along).sum() == pytest.approx((dy * moved).sum(), rel=1e-9, abs=1e-9)
    along = drawn(*weight.shape, seed=4)
    moved = written_out(x, along, stride, padding, dilation)
    found = (gradients["c.weight"] * along).sum()
    assert found == pytest.approx((dy * moved).sum(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("nbytes", "pixels"), [(1, 1), (1, 5), (400, 7), (2000, 40)])
def test_blocks_of_a_volume_of_any_size_give_the_same(monkeypatch, nbytes, pixels):
    layer = Conv3d(name="c", in_channels=2, out_channels=3, kernel_size=2, padding=1)
    x = drawn(2, 2, 3, 4, 5)
    whole = passes(layer, x)
    monkeypatch.setattr(conv, "BLOCK_NBYTES", nbytes)
    monkeypatch.setattr(conv, "MIN_PIXELS", pixels)
    parts = passes(layer, x)
    np.testing.assert_allclose(parts[0], whole[0], atol=1e-12)
    np.testing.assert_allclose(parts[1], whole[1], atol=1e-12)
    for name, gradient in whole[2].items():
        np.testing.assert_allclose(parts[2][name], gradient, atol=1e-12)


@given(
    st.tuples(length, length), st.tuples(length, length), st.tuples(length, length),
    st.tuples(st.integers(0, 1), st.integers(0, 1)), st.integers(1, 2),
)  # fmt: skip
def test_a_transposed_convolution_is_the_adjoint_of_a_convolution(
    kernel, stride, dilation, padding, groups
):
    window = {"kernel_size": kernel, "stride": stride, "dilation": dilation, "padding": padding}
    down = Conv2d(name="c", in_channels=4, out_channels=6, groups=groups, bias=False, **window)
    x = drawn(2, 4, 7, 6)
    assume(fits(down, x.shape[1:]))
    y, _, _ = passes(down, x)
    # What is left over at the end of the image is the output's padding.
    bare = ConvTranspose2d(name="c", in_channels=6, out_channels=4, **window)
    assume(fits(bare, y.shape[1:]))
    _, *short = bare.output_shape(y.shape[1:])
    left = [have - n for have, n in zip((7, 6), short, strict=True)]
    up = ConvTranspose2d(
        name="c", in_channels=6, out_channels=4, groups=groups, bias=False, output_padding=left,
        **window,
    )  # fmt: skip
    weights, slope = weights_of(down), drawn(*y.shape, seed=5)
    back, dslope, gradients = passes(up, slope, weights, dy=x)
    assert back.shape == x.shape
    y, dx, of_down = passes(down, x, weights, dy=slope)
    np.testing.assert_allclose(back, dx, atol=1e-12)
    np.testing.assert_allclose(dslope, y, atol=1e-12)
    np.testing.assert_allclose(gradients["c.weight"], of_down["c.weight"], atol=1e-12)


def test_a_transposed_convolution_costs_its_products_and_moves_each_tensor_once():
    layer = ConvTranspose2d(name="c", in_channels=4, out_channels=6, kernel_size=2, stride=2)
    before, after, weight = 4 * 3 * 5, 6 * 6 * 10, 4 * 6 * 2 * 2
    assert layer.output_shape((4, 3, 5)) == (6, 6, 10)
    product_ = Kernel(2 * before * 6 * 2 * 2, 4 * (before + after), 4 * weight)
    (forward,) = layer.forward_cost([(4, 3, 5)], 4)
    assert forward == product_._replace(fixed=4 * (weight + 6))
    bias = Kernel(after, 4 * after, 4 * 6)
    assert layer.backward_cost([(4, 3, 5)], 4, [True]) == [product_, product_, bias]
    assert kept_nbytes(layer, [(4, 3, 5)], 2) == 2 * before


def test_transposed_convolutions_start_as_torchs():
    layer = ConvTranspose3d(name="c", in_channels=4, out_channels=6, kernel_size=2, groups=2)
    assert [(p.name, p.shape) for p in layer.parameters()] == [
        ("c.weight", (4, 3, 2, 2, 2)),
        ("c.bias", (6,)),
    ]
    assert [p.initial.size for p in layer.parameters()] == pytest.approx([(3 * 8) ** -0.5] * 2)


CONV = {"name": "c", "in_channels": 4, "out_channels": 6, "kernel_size": 3}


@for_each(
    ("raw", "line"),
    [
        (
            {"kind": "conv1d", **CONV, "kernel_size": [1, 2]},
            "kernel_size: [1, 2] is neither a whole number >= 1 nor a list of one, such as [2].",
        ),
        (
            {"kind": "conv3d", **CONV, "stride": [1, 2]},
            "stride: [1, 2] is neither a whole number >= 1 nor three of them, such as [2, 3, 4].",
        ),
        (
            {"kind": "conv_transpose2d", **CONV, "groups": 4},
            "groups: 4 does not divide out_channels, 6; write a number that divides both.",
        ),
        (
            {"kind": "conv_transpose2d", **CONV, "stride": 2, "output_padding": 2},
            "output_padding: [2, 2] is not less than the stride, [2, 2], or the dilation, [1, 1]; "
            "write less.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(raw, line):
    assert refusal(**raw) == [line]


@for_each(
    ("layer", "shape", "message"),
    [
        (Conv1d(**CONV), (4, 9, 9), r"takes series, shape \(channels, length\), but gets samples"),
        (Conv1d(**CONV), (3, 9), "takes series of 4 channels, but gets samples of shape"),
        (Conv1d(**CONV), (4, 2), "has windows of 3 pixels, but gets images of shape"),
        (
            Conv3d(**CONV),
            (4, 9, 9),
            r"takes volumes, shape \(channels, depth, height, width\), but",
        ),
        (ConvTranspose2d(**CONV, padding=2), (4, 1, 9), "has no output for samples of shape"),
    ],
)
def test_samples_that_do_not_fit_are_refused(layer, shape, message):
    with pytest.raises(ShapeError, match=message):
        layer.output_shape(shape)


def test_one_number_stands_for_all_axes_and_comes_back_as_one():
    layer = Conv3d(**{**CONV, "stride": [1, 2, 2]})
    plain = layer.model_dump(mode="json")
    assert (plain["kernel_size"], plain["stride"], plain["padding"]) == (3, [1, 2, 2], 0)
    assert Conv3d.model_validate(plain) == layer
