"""How many measured times lie inside intervals of several levels."""

import pytest
from measured_times import row, step

from simdp.results.validation import LEVELS, coverage, holds, num_series


def test_at_90_percent_the_interval_is_the_one_that_is_told():
    for measured, is_inside in ((0.09, True), (0.0899, False), (0.12, True), (0.1201, False)):
        point = step(measured, 0.1, low=0.09 * (1 - 1e-9), high=0.12 * (1 + 1e-9))
        assert holds(point, 0.9) is point.is_inside is is_inside


def test_another_level_reaches_as_far_as_its_quantile_on_either_side():
    ratio = 2.5758293 / 1.6448536  # of 99 to 90 %
    ends = {"low": 0.09, "high": 0.12}
    assert holds(step(0.1 * 1.2**ratio * 0.9999, 0.1, **ends), 0.99)
    assert not holds(step(0.1 * 1.2**ratio * 1.0001, 0.1, **ends), 0.99)
    assert holds(step(0.1 * 0.9**ratio * 1.0001, 0.1, **ends), 0.99)
    assert not holds(step(0.1 * 0.9**ratio * 0.9999, 0.1, **ends), 0.99)


def test_an_end_at_zero_stays_there():
    assert all(holds(step(1e-9, 0.1, low=0.0, high=0.2), level) for level in LEVELS)


def test_points_of_one_table_or_scenario_count_once_in_the_band():
    rows = [row(2**k, 1.0, 1.0, table=k % 2) for k in range(10)]
    assert num_series(rows) == 2
    assert num_series([step(), step(), step(scenario="bert")]) == 2


def test_the_band_is_the_binomial_one_of_the_number_of_series():
    points = [step(scenario=str(k)) for k in range(20)]
    middle = next(one for one in coverage(points) if one.level == 0.9)
    # P(X <= 15) = 0.043, P(X <= 16) = 0.133, P(X <= 19) = 0.878 for 20 tries at 0.9
    assert (middle.low, middle.high) == pytest.approx((0.8, 1.0))
    assert middle.observed == 1.0


def test_observed_is_the_share_of_points_inside():
    points = [step(0.1, 0.1), step(0.1, 0.1), step(0.2, 0.1), step(0.2, 0.1)]
    assert {one.observed for one in coverage(points)} == {0.5}
