"""What was left out: figures of each fold, over what is predicted in it."""

import json

import pytest
from measured_times import row, step, validation

from simdp.results.validation import HeldOutPoint, LeftOut


def left_out():
    """Two folds of steps with a point that does not count, one of a table, and a point in none."""
    points = [
        step(0.1, 0.11, low=0.1, high=0.121),
        step(0.2, 0.18, low=0.09, high=0.36),
        step(0.3, 0.3, role="calibration"),
        step(0.4, 0.4),
        step(0.5, 0.55),
    ]
    rows = [row(2**27, 1.0, 1.5), row(2**10, 1.0, 1.1)]
    of_points = [
        HeldOutPoint("a", True, 0.1),
        HeldOutPoint("a", True, 0.21),
        HeldOutPoint("a", False, 0.3),
        HeldOutPoint(None, False, 0.4),
        HeldOutPoint("b", True, 0.5),
    ]
    of_rows = [HeldOutPoint("a", True, 1.2), HeldOutPoint("a", True, 1.0)]
    return LeftOut("model", validation(points, rows), tuple(of_points), tuple(of_rows))


def test_a_fold_is_summed_up_over_what_is_predicted_in_it():
    a, b, table = left_out().folds
    assert (a.name, a.kind, a.num_points) == ("a", "steps", 2)
    assert (a.mean_error, a.worst_error) == pytest.approx((0.1, 0.1))
    assert (a.tau, a.inside) == (1.0, 1.0)
    assert a.width == pytest.approx((1.1 * 2) ** 0.5)
    assert a.fit_error == pytest.approx(0.025)
    assert (b.name, b.num_points, b.tau) == ("b", 1, None)
    assert (table.kind, table.num_points, table.tau) == ("collectives", 2, None)
    assert (table.mean_error, table.large_error) == pytest.approx((0.3, 0.5))


def test_means_are_over_folds_not_over_points():
    steps, tables = left_out().means()
    assert (steps.num_folds, steps.num_points, tables.num_folds) == (2, 3, 1)
    assert steps.mean_error == pytest.approx(0.1)
    assert steps.fit_error == pytest.approx(0.0125)


def test_a_summary_is_of_what_is_predicted_and_json_has_every_point():
    found = left_out()
    assert len(found.validation.points) == 3
    plain = json.loads(found.to_json())
    assert [point["fold"] for point in plain["points"]] == ["a", "a", "a", None, "b"]
    assert [row["fold"] for row in plain["collective_points"]] == ["a", "a"]
    assert plain["overall"]["num_points"] == 3
    assert [fold["name"] for fold in plain["folds"]] == ["a", "b", "a"]


def test_an_interval_that_reaches_zero_has_no_width():
    point = step(0.1, 0.11, low=0.0)
    (fold,) = LeftOut("nodes", validation([point]), (HeldOutPoint("a", True, 0.1),), ()).folds
    assert fold.width is None
