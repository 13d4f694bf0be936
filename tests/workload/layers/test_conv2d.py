"""Conv2d against a convolution that is written out, against differences and torch's figures."""

from itertools import product

import numpy as np
import pytest
from for_each import for_each
from hypothesis import assume, example, given
from hypothesis import strategies as st
from layer_checks import assert_gradient, fits, kept_nbytes, other_memory
from pydantic import ValidationError

from simdp.spec import problems
from simdp.workload.layers import conv as convolution
from simdp.workload.layers.base import Kernel, Pass, ShapeError
from simdp.workload.layers.conv import Conv2d


def convolved(x, weight, stride, before, after, dilation, groups):
    """Cross-correlation, one output at a time."""
    padded = np.pad(x, ((0, 0), (0, 0), (before[0], after[0]), (before[1], after[1])))
    count = [
        (padded.shape[a + 2] - (weight.shape[a + 2] - 1) * dilation[a] - 1) // stride[a] + 1
        for a in (0, 1)
    ]
    y = np.zeros((len(x), len(weight), *count))
    for out, row, column in product(*map(range, y.shape[1:])):
        share, first = weight.shape[1], out // (len(weight) // groups) * weight.shape[1]
        top, left = row * stride[0], column * stride[1]
        seen = padded[
            :,
            first : first + share,
            top : top + (weight.shape[2] - 1) * dilation[0] + 1 : dilation[0],
            left : left + (weight.shape[3] - 1) * dilation[1] + 1 : dilation[1],
        ]
        y[:, out, row, column] = (seen * weight[out]).sum(axis=(1, 2, 3))
    return y


def passes(layer, x, dy=None, needs=(True,), weights=None):
    """Forward and backward; returns output, input gradient and gradients by name."""
    run = Pass(drawn(layer) if weights is None else weights)
    y, saved = layer.forward(run, x)
    dy = np.random.default_rng(2).standard_normal(y.shape) if dy is None else dy
    (dx,) = layer.backward(run, saved, dy.astype(y.dtype), needs)
    return y, dx, run.gradients


def drawn(layer):
    random = np.random.default_rng(0)
    return {p.name: random.standard_normal(p.shape) for p in layer.parameters()}


pair = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def jobs(draw):
    groups = draw(st.integers(1, 3))
    layer = Conv2d(
        name="c",
        in_channels=groups * draw(st.integers(1, 2)),
        out_channels=groups * draw(st.integers(1, 3)),
        kernel_size=draw(pair),
        stride=draw(pair),
        padding=draw(st.tuples(st.integers(0, 3), st.integers(0, 3))),
        dilation=draw(pair),
        groups=groups,
        bias=draw(st.booleans()),
    )
    size = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    return layer, (draw(st.integers(0, 3)), layer.in_channels, *size)


@pytest.mark.slow
@given(jobs(), st.sampled_from([(0, 1, 2, 3), (0, 2, 3, 1), (1, 0, 3, 2)]))
@example(
    (Conv2d(name="c", in_channels=4, out_channels=4, kernel_size=3, groups=4), (2, 4, 5, 5)),
    (0, 1, 2, 3),
)
def test_a_convolution_and_its_gradients_are_those_written_out(job, order):
    layer, shape = job
    assume(fits(layer, shape[1:]))
    x = np.random.default_rng(1).standard_normal(shape)
    weights = drawn(layer)
    arguments = layer.stride, layer.padding, layer.padding, layer.dilation, layer.groups
    wanted = convolved(x, weights["c.weight"], *arguments)
    if layer.bias:
        wanted += weights["c.bias"][:, None, None]
    y, dx, gradients = passes(layer, other_memory(x, order))
    assert y.shape == (len(x), *layer.output_shape(shape[1:]))
    np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-12)

    # The map is linear in x and in the weight: products with random arrays test its adjoints.
    dy = np.random.default_rng(2).standard_normal(y.shape)
    random = np.random.default_rng(3)
    for _ in range(3):
        u, v = random.standard_normal(x.shape), random.standard_normal(weights["c.weight"].shape)
        by_x = (convolved(u, weights["c.weight"], *arguments) * dy).sum()
        by_weight = (convolved(x, v, *arguments) * dy).sum()
        np.testing.assert_allclose((dx * u).sum(), by_x, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(
            (gradients["c.weight"] * v).sum(), by_weight, rtol=1e-11, atol=1e-11
        )
    if layer.bias:
        np.testing.assert_allclose(gradients["c.bias"], dy.sum(axis=(0, 2, 3)), atol=1e-12)


@pytest.mark.slow
@for_each(
    "arguments",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "padding": 3, "dilation": 2},
        {"kernel_size": [2, 3], "padding": "same", "groups": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": [3, 2], "stride": [1, 3], "dilation": [1, 2], "groups": 2},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": 1, "padding": 2},
    ],
)
def test_gradients_equal_differences(arguments):
    layer = Conv2d(name="c", in_channels=4, out_channels=2, **arguments)
    x = np.random.default_rng(1).standard_normal((2, 4, 5, 6))
    weights = drawn(layer)
    y, _ = layer.forward(Pass(weights), x)
    dy = np.random.default_rng(2).standard_normal(y.shape)

    def total():
        return float((layer.forward(Pass(weights), x)[0] * dy).sum())

    _, dx, gradients = passes(layer, x, dy, weights=weights)
    assert_gradient(dx, total, x)
    for name, gradient in gradients.items():
        assert_gradient(gradient, total, weights[name], name=name)


@given(jobs(), st.integers(1, 400), st.integers(1, 20))
def test_blocks_of_any_size_give_the_same(job, nbytes, pixels):
    layer, shape = job
    assume(fits(layer, shape[1:]))
    x = np.random.default_rng(1).standard_normal(shape)
    whole = passes(layer, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "BLOCK_NBYTES", nbytes)
        patch.setattr(convolution, "MIN_PIXELS", pixels)
        parts = passes(layer, x)
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(parts[1], whole[1], rtol=1e-12, atol=1e-12)
    for name, gradient in whole[2].items():
        np.testing.assert_allclose(parts[2][name], gradient, rtol=1e-12, atol=1e-12)


def test_the_figures_of_torch():
    # torch 2.13.0: F.conv2d(x, w, b, stride=(1, 2), padding=(1, 0), dilation=(2, 1), groups=2)
    layer = Conv2d(
        name="c",
        in_channels=2,
        out_channels=2,
        kernel_size=[2, 3],
        stride=[1, 2],
        padding=[1, 0],
        dilation=[2, 1],
        groups=2,
    )
    weights = {
        "c.weight": (np.arange(12.0) - 5).reshape(2, 1, 2, 3),
        "c.bias": np.array([1.0, -2.0]),
    }
    x = np.arange(40.0).reshape(1, 2, 4, 5)
    dy = np.arange(16.0).reshape(1, 2, 4, 2) - 7
    y, dx, gradients = passes(layer, x, dy, weights=weights)
    assert y.tolist() == [
        [
            [[-15, -21], [-40, -70], [-115, -145], [-129, -153]],
            [[390, 420], [593, 635], [698, 740], [186, 198]],
        ]
    ]
    assert dx.tolist() == [
        [
            [[25, 20, 35, 16, 12], [29, 19, 31, 14, 6], [15, 9, 11, 4, 0], [6, 3, 4, 2, 0]],
            [[3, 6, 13, 8, 12], [9, 15, 35, 22, 30], [19, 29, 63, 36, 48], [20, 25, 54, 30, 36]],
        ]
    ]
    assert gradients["c.weight"].tolist() == [
        [[[-47, -62, -77], [-254, -281, -308]]],
        [[[901, 934, 967], [694, 715, 736]]],
    ]
    assert gradients["c.bias"].tolist() == [-28, 36]


def test_same_pads_what_is_odd_below_and_right_as_torch():
    layer = Conv2d(
        name="c", in_channels=1, out_channels=1, kernel_size=2, padding="same", bias=False
    )
    weights = {"c.weight": np.array([[[[1.0, 10.0], [100.0, 1000.0]]]])}
    y, _, _ = passes(layer, np.arange(6.0).reshape(1, 1, 2, 3), weights=weights)
    assert y.tolist() == [[[[4310, 5421, 502], [43, 54, 5]]]]  # torch 2.13.0


@for_each("kernel", [1, 2, 3, 5])
@for_each("dilation", [1, 2])
def test_same_keeps_the_size(kernel, dilation):
    layer = Conv2d(
        name="c", in_channels=3, out_channels=4, kernel_size=kernel, dilation=dilation,
        padding="same",
    )  # fmt: skip
    assert layer.output_shape((3, 9, 4)) == (4, 9, 4)


def test_valid_is_no_padding():
    valid, none = (
        Conv2d(name="c", in_channels=2, out_channels=3, kernel_size=2, padding=padding)
        for padding in ("valid", 0)
    )
    x = np.random.default_rng(0).standard_normal((2, 2, 4, 4))
    np.testing.assert_array_equal(passes(valid, x)[0], passes(none, x)[0])


@for_each("stride", [1, 2])
def test_small_groups_are_computed_together_without_seeing_each_other(stride):
    """Each group alone gives the same as all of them, also where zeros stand between them."""
    many = Conv2d(name="c", in_channels=12, out_channels=24, kernel_size=3, stride=stride, groups=6)
    one = Conv2d(name="c", in_channels=2, out_channels=4, kernel_size=3, stride=stride)
    weights = drawn(many)
    x = np.random.default_rng(1).standard_normal((2, 12, 6, 6))
    y, dx, gradients = passes(
        many, x, np.ones((2, 24, *many.output_shape((12, 6, 6))[1:])), weights=weights
    )
    for group in range(6):
        ins, outs = slice(2 * group, 2 * group + 2), slice(4 * group, 4 * group + 4)
        own = {name: weight[outs] for name, weight in weights.items()}
        alone = passes(one, x[:, ins], np.ones_like(y[:, outs]), weights=own)
        np.testing.assert_allclose(y[:, outs], alone[0], atol=1e-13)
        np.testing.assert_allclose(dx[:, ins], alone[1], atol=1e-13)
        for name, gradient in alone[2].items():
            np.testing.assert_allclose(gradients[name][outs], gradient, atol=1e-12)


def test_the_slope_of_a_sum_is_as_exact_in_float32_as_its_parts():
    """A bias gradient adds up many numbers; their rounding errors must not add up as well."""
    layer = Conv2d(name="c", in_channels=1, out_channels=2, kernel_size=1)
    x = np.zeros((32, 1, 64, 64), dtype=np.float32)
    dy = np.full((32, 2, 64, 64), 0.1, dtype=np.float32)
    weights = {name: weight.astype(np.float32) for name, weight in drawn(layer).items()}
    _, _, gradients = passes(layer, x, dy, weights=weights)
    assert gradients["c.bias"].dtype == np.float32
    wanted = float(np.float32(0.1)) * 32 * 64 * 64
    np.testing.assert_allclose(gradients["c.bias"], wanted, rtol=1e-6)


def test_parameters_start_and_become_ready_as_in_torch():
    layer = Conv2d(name="c", in_channels=4, out_channels=6, kernel_size=[3, 2], groups=2)
    assert [(p.name, p.shape) for p in layer.parameters()] == [
        ("c.weight", (6, 2, 3, 2)),
        ("c.bias", (6,)),
    ]
    assert [p.initial.size for p in layer.parameters()] == pytest.approx([(2 * 3 * 2) ** -0.5] * 2)
    assert layer.ready_order() == ["c.weight", "c.bias"]  # torch 2.13.0, hooks on the parameters
    bare = Conv2d(name="c", in_channels=4, out_channels=6, kernel_size=3, bias=False)
    assert bare.ready_order() == ["c.weight"]


# Costs -------------------------------------------------------------------------------------------


def test_a_convolution_costs_its_products_and_moves_each_tensor_once():
    layer = Conv2d(
        name="c", in_channels=4, out_channels=6, kernel_size=[3, 2], padding=1, stride=2, groups=2
    )
    before, after, weight = 4 * 9 * 7, 6 * 5 * 4, 6 * 2 * 3 * 2
    assert layer.output_shape((4, 9, 7)) == (6, 5, 4)
    flops = 2 * 6 * 2 * 3 * 2 * 5 * 4
    product = Kernel(flops, 4 * (before + after), 4 * weight)
    forward = layer.forward_cost([(4, 9, 7)], 4)
    assert forward == [product._replace(fixed=4 * (weight + 6))]
    bias = Kernel(after, 4 * after, 4 * 6)
    assert layer.backward_cost([(4, 9, 7)], 4, [True]) == [product, product, bias]
    assert layer.backward_cost([(4, 9, 7)], 4, [False]) == [product, bias]
    assert kept_nbytes(layer, [(4, 9, 7)], 2) == 2 * before


def test_a_convolution_of_one_pixel_costs_what_a_linear_layer_costs():
    from simdp.workload.layers.linear import Linear

    conv = Conv2d(name="c", in_channels=8, out_channels=4, kernel_size=1)
    linear = Linear(name="c", in_features=8, out_features=4)
    assert conv.forward_cost([(8, 1, 1)], 4) == linear.forward_cost([(8,)], 4)
    assert sorted(conv.backward_cost([(8, 1, 1)], 4, [True])) == sorted(
        linear.backward_cost([(8,)], 4, [True])
    )


# What is refused ---------------------------------------------------------------------------------


def refused(**arguments):
    raw = {"name": "c", "in_channels": 4, "out_channels": 6, "kernel_size": 3, **arguments}
    with pytest.raises(ValidationError) as caught:
        Conv2d.model_validate(raw)
    return [found.line for found in problems(caught.value, raw)]


def test_what_does_not_fit_is_refused():
    assert refused(groups=4) == [
        "groups: 4 does not divide out_channels, 6; write a number that divides both."
    ]
    assert refused(groups=3) == [
        "groups: 3 does not divide in_channels, 4; write a number that divides both."
    ]
    assert refused(padding="same", stride=2) == [
        "padding: same needs stride 1; leave stride out, or give numbers."
    ]
    assert refused(padding="sam") == [
        "padding: 'sam' is neither a whole number >= 0 nor a pair of them, such as [1, 2], "
        "nor 'same', nor 'valid'."
    ]
    for given_size in ([1, 2, 3], 0, 2.5, True, [3, -1]):
        assert refused(kernel_size=given_size) == [
            f"kernel_size: {given_size} is neither a whole number >= 1 nor a pair of them, "
            "such as [2, 3]."
        ]


def test_images_that_do_not_fit_are_refused():
    layer = Conv2d(name="c", in_channels=4, out_channels=6, kernel_size=3, dilation=2, padding=1)
    with pytest.raises(ShapeError, match=r"takes images of 4 channels, but gets .* \(3, 8, 8\)"):
        layer.output_shape((3, 8, 8))
    with pytest.raises(ShapeError, match="takes images, shape \\(channels, height, width\\), but"):
        layer.output_shape((4, 8))
    with pytest.raises(ShapeError, match="has windows of 5 x 5 pixels, but gets images of shape"):
        layer.output_shape((4, 2, 8))


def test_one_number_stands_for_both_axes_and_comes_back_as_one():
    layer = Conv2d(name="c", in_channels=1, out_channels=1, kernel_size=3, stride=[2, 1])
    assert (layer.kernel_size, layer.stride) == ((3, 3), (2, 1))
    plain = layer.model_dump(mode="json")
    assert (plain["kernel_size"], plain["stride"], plain["padding"]) == (3, [2, 1], 0)
    assert Conv2d.model_validate(plain) == layer
