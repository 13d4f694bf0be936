"""Spreads over runs."""

import pytest

from simdp.results.job import Spread


def test_a_spread_has_the_mean_and_quantiles():
    found = Spread.of([float(n) for n in range(101)])
    assert (found.mean, found.p50, found.p90, found.p99) == pytest.approx((50, 50, 90, 99))


def test_a_single_run_has_no_spread():
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0, 3.0)
