"""Bounded least squares on logarithms: values, intervals, and what the data leave open."""

from types import SimpleNamespace

import numpy as np
import pytest

from simdp.studies.calibrate.fit import Constant, _loses_with_nodes, fit, jacobian

SIZES = np.array([1.0, 10.0, 100.0, 1000.0, 1e4, 1e5])
ALPHA = Constant("alpha", "time", 1.0, 1e-3, 1e3)
BETA = Constant("beta", None, 1.0, 1e-6, 1e3)
IDLE = Constant("idle", None, 2.0, 1e-3, 1e3)


def line(values):
    return values[0] + values[1] * SIZES


def test_exact_data_give_their_constants_back():
    found = fit(line, line(np.array([5.0, 0.02])), [ALPHA, BETA])
    assert found.values == pytest.approx([5.0, 0.02], rel=1e-2)
    assert found.residual < 0.01
    assert found.undetermined() == []


def test_intervals_hold_the_truth_and_grow_with_the_noise():
    noise = np.exp(0.05 * np.array([1, -1, 1, -1, -1, 1]))
    true = np.array([5.0, 0.02])
    found = fit(line, line(true) * noise, [ALPHA, BETA])
    for index in range(2):
        low, high = found.interval(index)
        assert low < true[index] < high
    quiet = fit(line, line(true), [ALPHA, BETA])
    assert quiet.interval(0)[1] / quiet.interval(0)[0] < high / low


def test_a_constant_without_effect_stays_at_its_typical_value_and_is_reported():
    found = fit(line, line(np.array([5.0, 0.02])), [ALPHA, BETA, IDLE])
    assert found.values[2] == pytest.approx(2.0)
    assert found.undetermined() == ["idle"]


def test_two_constants_that_only_their_product_tells_are_both_reported():
    product = fit(lambda values: values[0] * values[1] * SIZES, 6 * SIZES, [ALPHA, BETA])
    assert product.undetermined() == ["alpha", "beta"]
    assert product.values[0] * product.values[1] == pytest.approx(6, rel=0.01)


def test_bounds_hold_and_are_reported():
    bounded = Constant("alpha", "time", 1.0, 0.5, 2.0)
    found = fit(line, line(np.array([5.0, 0.02])), [bounded, BETA])
    assert found.values[0] == pytest.approx(2.0, rel=1e-3)
    assert "alpha" in found.undetermined()
    assert found.interval(0)[1] <= 2.0


def test_one_point_that_is_far_off_moves_little():
    data = line(np.array([5.0, 0.02]))
    data[2] *= 3
    found = fit(line, data, [ALPHA, BETA])
    assert found.values == pytest.approx([5.0, 0.02], rel=0.1)
    assert np.argmax(np.abs(found.errors)) == 2


def test_a_fit_repeats_to_the_last_bit():
    data = line(np.array([5.0, 0.02])) * np.exp(0.1 * np.sin(SIZES))
    one, other = (fit(line, data, [ALPHA, BETA, IDLE]) for _ in range(2))
    np.testing.assert_array_equal(one.values, other.values)


def test_slopes_are_those_of_logarithms():
    slopes = jacobian(lambda v: v[0] ** 2 * v[1] ** -3 * SIZES, np.array([2.0, 5.0]))
    np.testing.assert_allclose(slopes, np.tile([2.0, -3.0], (6, 1)), rtol=1e-6)


def test_restraints_hold_constants_apart():
    def order(values):
        return np.maximum(np.log(values[:1] / values[1:]), 0) / 0.001

    free = fit(line, line(np.array([5.0, 0.02])), [ALPHA, BETA])
    held = fit(line, line(np.array([5.0, 0.02])), [ALPHA, BETA], restraints=order)
    assert free.values[0] > 100 * free.values[1]
    assert held.values[0] < 1.05 * held.values[1]


def test_two_numbers_of_several_nodes_tell_what_sockets_lose_with_more():
    def points(*counts):
        return [SimpleNamespace(wiring=SimpleNamespace(num_nodes=count)) for count in counts]

    tcp, ib = (SimpleNamespace(network=network) for network in ("tcp", "ib"))
    assert _loses_with_nodes(tcp, points(1, 2, 4))
    assert not _loses_with_nodes(tcp, points(1, 2))
    assert not _loses_with_nodes(ib, points(2, 4))
