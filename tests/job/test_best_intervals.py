"""Intervals: published examples, the true optimum, and where approximations end."""

from math import inf

import pytest
from closed_forms import daly_first_order, expected_ettr
from for_each import for_each
from scipy.optimize import minimize_scalar

from simdp.job.recovery import daly, exact, slowdown, young

HOUR, MINUTE = 3600.0, 60.0

DALY = [  # mttf; young, first order, higher order, exact [min]; expected hours of 500
    (24 * HOUR, (120.0, 115.0, 116.69, 116.69), 547.9),
    (6 * HOUR, (60.0, 55.0, 56.71, 56.71), 610.2),
    (15 * MINUTE, (12.25, 7.25, 9.14, 9.17), 2504.0),
]


@for_each(("mttf", "minutes", "hours"), DALY)
def test_dalys_cases_are_as_published(mttf, minutes, hours):
    write, restart = 5 * MINUTE, 10 * MINUTE
    found = [rule(write, mttf) / MINUTE for rule in (young, daly_first_order, daly, exact)]
    assert found == pytest.approx(minutes, abs=0.005)
    best = exact(write, mttf)
    assert 500 * slowdown(best, write, mttf, restart) == pytest.approx(hours, rel=2e-4)


@for_each("ratio", [1e-9, 1e-6, 1e-3, 0.1, 1.0, 5.0, 29.0, 31.0, 100.0])
def test_the_exact_interval_is_the_best(ratio):
    mttf = 1000.0
    write = ratio * mttf
    best = exact(write, mttf)
    assert 0 < best <= mttf
    # Its derivative vanishes: exp(-(t + w) / M) = 1 - t / M.
    from math import exp

    assert 1 - best / mttf == pytest.approx(exp(-(best + write) / mttf), abs=1e-14)
    if 1e-6 <= ratio <= 5:
        cost = minimize_scalar(
            lambda t: slowdown(t, write, mttf, 0.0), bounds=(best / 10, mttf), method="bounded"
        )
        assert slowdown(best, write, mttf, 0.0) <= cost.fun * (1 + 1e-12)


@for_each("mttf", [24 * HOUR, 6 * HOUR])
def test_dalys_interval_is_within_a_percent_of_the_best(mttf):
    assert daly(300.0, mttf) == pytest.approx(exact(300.0, mttf), rel=0.01)


def test_a_write_that_takes_longer_than_two_failures_come_is_made_once_per_failure():
    assert daly(200.0, 100.0) == daly(300.0, 100.0) == 100.0
    assert daly_first_order(300.0, 100.0) == 0.0
    assert exact(0.0, 100.0) == 0.0
    assert daly(5.0, inf) == inf


@for_each(
    ("write", "interval", "first_order", "goodput"),
    [(20.0, 667.0, 0.9157, 0.9162), (60.0, 1155.0, 0.8757, 0.8758), (20.0, 3600.0, 0.807, 0.819)],
)
def test_ettr_of_first_order_is_too_low_where_intervals_are_long(
    write, interval, first_order, goodput
):
    mttf = 3.093 * HOUR
    assert expected_ettr(interval, write, mttf, 300.0) == pytest.approx(first_order, abs=5e-4)
    assert 1 / slowdown(interval, write, mttf, 300.0) == pytest.approx(goodput, abs=5e-4)
