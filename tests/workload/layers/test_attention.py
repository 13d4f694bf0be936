"""Attention takes queries, keys and values packed in one input, in two, or apart."""

import numpy as np
import pytest
from kept import kept_nbytes

from simdp.workload.layers.attention import Attention
from simdp.workload.layers.base import Pass, ShapeError

LAYER = Attention(name="a", num_heads=2, causal=True)
APART = list(np.random.default_rng(0).standard_normal((3, 2, 5, 8)))
DY = np.random.default_rng(1).standard_normal((2, 5, 8))


def packed(arrays, parts):
    ends = np.cumsum(parts)
    return [
        np.concatenate(arrays[end - n : end], axis=2) for n, end in zip(parts, ends, strict=True)
    ]


def passed(inputs):
    run = Pass({}, samples=np.arange(2))
    y, saved = LAYER.forward(run, *inputs)
    return y, LAYER.backward(run, saved, DY, [True] * len(inputs))


@pytest.mark.parametrize("parts", [(3,), (1, 2)])
def test_how_queries_keys_and_values_are_packed_changes_nothing(parts):
    y, below = passed(APART)
    other, others = passed(packed(APART, parts))
    np.testing.assert_array_equal(other, y)
    for gradient, wanted in zip(others, packed(below, parts), strict=True):
        np.testing.assert_array_equal(gradient, wanted)


def test_how_they_are_packed_changes_no_cost():
    shapes = {3: [(5, 24)], 2: [(5, 8), (5, 16)], 1: [(5, 8)] * 3}
    costs = [(LAYER.forward_cost(s, 4), kept_nbytes(LAYER, s, 4)) for s in shapes.values()]
    assert costs[0] == costs[1] == costs[2]


@pytest.mark.parametrize(
    "shapes", [[(5, 8), (4, 8), (5, 8)], [(5, 8), (5, 8), (5, 6)], [(5, 8), (5, 8)], [(5, 23)]]
)
def test_inputs_that_do_not_go_together_are_refused(shapes):
    with pytest.raises(ShapeError, match="takes packed queries, keys and values of 2 heads"):
        LAYER.output_shape(*shapes)
