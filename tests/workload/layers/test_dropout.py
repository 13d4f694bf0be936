"""Dropout: its share, its mean, and what its random numbers depend on."""

from math import sqrt

import numpy as np
import pytest
from for_each import for_each
from layer_checks import drawn, kept_nbytes

from simdp.workload.layers.base import Kernel, Pass
from simdp.workload.layers.tensor_ops import Dropout


def dropped(p, samples, shape, name="d", step=0):
    run = Pass({}, samples=np.array(samples), seed=1, step=step)
    layer = Dropout(name=name, p=p)
    x = np.ones((len(samples), *shape))
    y, saved = layer.forward(run, x)
    (dx,) = layer.backward(run, saved, x, [True])
    np.testing.assert_array_equal(dx, y)  # the same elements stay, grown as much
    return y


@for_each("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_share_and_the_mean(p):
    y = dropped(p, range(50), (40, 50))
    assert set(np.unique(y)) == {0.0, 1 / (1 - p)}
    assert (y == 0).mean() == pytest.approx(p, abs=0.005)
    assert y.mean() == pytest.approx(1, abs=5 * sqrt(p / (1 - p) / y.size))


def test_what_a_sample_drops_depends_neither_on_its_batch_nor_on_its_padding():
    whole = dropped(0.4, [3, 8, 5], (6, 4))
    np.testing.assert_array_equal(dropped(0.4, [8], (6, 4))[0], whole[1])
    np.testing.assert_array_equal(dropped(0.4, [5, 3], (4, 4)), whole[[2, 0], :4])


def test_layers_steps_and_samples_drop_different_elements():
    first, second = dropped(0.5, [0, 1], (100,))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, dropped(0.5, [0], (100,), name="other")[0])
    assert not np.array_equal(first, dropped(0.5, [0], (100,), step=1)[0])


def test_dropout_of_nothing_hands_on_its_input_and_costs_nothing():
    layer, x = Dropout(name="d", p=0), drawn(2, 3)
    y, saved = layer.forward(Pass({}), x)
    assert y is x
    assert layer.backward(Pass({}), saved, x, [True])[0] is x
    assert layer.forward_cost([(3,)], 4) == layer.backward_cost([(3,)], 4, [True]) == []
    assert kept_nbytes(layer, [(3,)], 4) == 0


def test_dropout_of_everything_leaves_zeros():
    assert (dropped(1.0, [0], (3,)) == 0).all()


def test_dropout_keeps_a_mask_of_one_byte_per_element():
    layer = Dropout(name="d", p=0.5)
    assert kept_nbytes(layer, [(3, 4)], 4) == 12
    assert layer.forward_cost([(3, 4)], 4) == [Kernel(24, 12 * (2 * 4 + 1))]
    assert layer.backward_cost([(3, 4)], 4, [False]) == []
