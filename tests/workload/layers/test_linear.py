"""Linear: torch's tensors and orders, and what its products cost."""

import numpy as np
import pytest
from for_each import for_each
from layer_checks import kept_nbytes, new_pass, weights_of

from simdp.workload.layers.base import Kernel, ShapeError, kaiming_uniform, uniform
from simdp.workload.layers.linear import Linear


def test_weight_comes_before_bias_and_both_start_within_torchs_bound():
    layer = Linear(name="l", in_features=4, out_features=3)
    assert [(p.name, p.shape) for p in layer.parameters()] == [
        ("l.weight", (3, 4)),
        ("l.bias", (3,)),
    ]
    assert [p.initial for p in layer.parameters()] == [kaiming_uniform(4), uniform(1 / 4**0.5)]
    assert kaiming_uniform(4).size == pytest.approx(0.5)


def test_the_bias_is_ready_before_the_weight():
    assert Linear(name="l", in_features=4, out_features=3).ready_order() == ["l.bias", "l.weight"]


def test_without_a_bias_there_is_the_weight_alone():
    layer = Linear(name="l", in_features=4, out_features=3, bias=False)
    assert layer.ready_order() == ["l.weight"]


@for_each("shape", [(4,), (7, 4), (2, 5, 4)])
def test_the_last_axis_is_mapped_and_those_before_it_are_kept(shape):
    layer = Linear(name="l", in_features=4, out_features=3)
    assert layer.output_shape(shape) == (*shape[:-1], 3)


@for_each("shape", [(), (3,), (4, 5)])
def test_a_last_axis_of_another_length_is_refused(shape):
    with pytest.raises(ShapeError) as caught:
        Linear(name="l", in_features=4, out_features=3).output_shape(shape)
    assert str(caught.value) == f"takes 4 features, but gets samples of shape {shape}"


@for_each("bias", [True, False])
@for_each("positions", [1, 6])
def test_it_costs_what_its_products_cost(bias, positions):
    i, o, itemsize = 7, 5, 4
    layer = Linear(name="l", in_features=i, out_features=o, bias=bias)
    shapes = [(i,) if positions == 1 else (positions, i)]
    flops, moved = positions * 2 * i * o, positions * (i + o) * itemsize
    weight = i * o * itemsize
    assert layer.forward_cost(shapes, itemsize) == [
        Kernel(flops, moved, weight + o * bias * itemsize, misaligned=1)
    ]
    for need_input_grad in (True, False):
        sums = [Kernel(positions * o, positions * o * itemsize, o * itemsize)] * bias
        products = [Kernel(flops, moved, weight, misaligned=1)] * (1 + need_input_grad)
        assert layer.backward_cost(shapes, itemsize, [need_input_grad]) == sums + products
    assert kept_nbytes(layer, shapes, itemsize) == positions * i * itemsize


@for_each(
    ("itemsize", "sizes", "misaligned"),
    [
        (2, (768, 50257), 1),
        (2, (768, 50304), 0),
        (2, (12, 8), 1),
        (4, (12, 8), 0),
        (4, (7, 8), 1),
    ],
)
def test_rows_of_16_bytes_are_aligned(itemsize, sizes, misaligned):
    layer = Linear(name="l", in_features=sizes[0], out_features=sizes[1], bias=False)
    shapes = [(sizes[0],)]
    kernels = layer.forward_cost(shapes, itemsize) + layer.backward_cost(shapes, itemsize, [True])
    assert [kernel.misaligned for kernel in kernels] == [misaligned] * 3


def test_positions_are_mapped_one_by_one():
    layer = Linear(name="l", in_features=4, out_features=3)
    weights = weights_of(layer)
    x = np.random.default_rng(0).standard_normal((5, 2, 4))
    y, _ = layer.forward(new_pass(layer, weights, 5), x)
    for sample in range(5):
        for position in range(2):
            wanted = weights["l.weight"] @ x[sample, position] + weights["l.bias"]
            np.testing.assert_allclose(y[sample, position], wanted, rtol=1e-14)
