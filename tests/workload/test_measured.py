"""Measured steps: which points hold, what lies between and beyond them, and what contradicts."""

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from simdp.spec import problems
from simdp.workload.compute import FromMeasurements, time_at


def measured(*points, **more):
    return FromMeasurements.model_validate({"kind": "measured", "points": list(points), **more})


def point(microbatch, milliseconds, **more):
    return {"microbatch": microbatch, "step_time": f"{milliseconds} ms", **more}


def in_proportion(samples):
    return float(samples)


def test_one_point_grows_with_the_size_of_the_work():
    assert time_at([(64, 0.25)], 64, in_proportion) == 0.25
    assert time_at([(64, 0.25)], 16, in_proportion) == pytest.approx(0.0625)
    with_launches = time_at([(64, 0.25)], 16, lambda samples: 64.0 + samples)
    assert with_launches == pytest.approx(0.25 * 80 / 128)


POINTS = [(10, 1.0), (20, 1.5), (40, 3.5)]


@for_each(
    ("microbatch", "seconds"),
    [(10, 1.0), (15, 1.25), (20, 1.5), (30, 2.5), (40, 3.5), (50, 4.5), (4, 0.7)],
)
def test_between_and_beyond_points_time_is_linear(microbatch, seconds):
    assert time_at(POINTS, microbatch, in_proportion) == pytest.approx(seconds, rel=1e-14)


def test_a_steep_line_never_leads_below_the_proportion():
    assert time_at([(10, 1.0), (20, 3.0)], 2, in_proportion) == pytest.approx(0.2)


@given(
    gaps=st.lists(st.tuples(st.integers(1, 50), st.floats(0, 5)), min_size=1, max_size=5),
    microbatch=st.integers(1, 400),
)
def test_time_is_positive_and_never_falls_with_the_batch(gaps, microbatch):
    samples, seconds, points = 0, 0.01, []
    for more, longer in gaps:
        samples, seconds = samples + more, seconds + longer
        points.append((samples, seconds))
    now, next_one = (time_at(points, b, in_proportion) for b in (microbatch, microbatch + 1))
    assert 0 < now <= next_one * (1 + 1e-12)


FALLING = [(20, 1.57), (28, 1.55), (40, 1.7), (57, 3.3), (80, 3.2)]


@for_each(
    ("microbatch", "seconds"),
    [(28, 1.55), (24, 1.56), (80, 3.2), (10, 1.505), (120, 4.7)],
)
def test_beyond_points_that_fall_the_nearest_line_that_does_not_fall_leads_on(microbatch, seconds):
    assert time_at(FALLING, microbatch, in_proportion) == pytest.approx(seconds, rel=1e-14)


def test_beyond_points_that_only_fall_the_outermost_grows_with_the_size_of_the_work():
    points = [(32, 1.0), (64, 0.96)]
    assert time_at(points, 128, lambda samples: 64.0 + samples) == pytest.approx(0.96 * 192 / 128)
    assert time_at(points, 16, lambda samples: 64.0 + samples) == pytest.approx(1.0 * 80 / 96)


def test_a_larger_batch_may_take_less_by_as_much_as_steps_scatter():
    assert len(measured(point(163, 506), point(200, 463)).points) == 2


def test_points_may_come_in_any_order():
    compute = measured(point(40, 3), point(10, 1), point(20, 2))
    assert [p.microbatch for p in compute.of_device("t4-16gb")] == [10, 20, 40]


def test_points_of_a_device_replace_those_of_all():
    compute = measured(point(8, 5), point(8, 2, device="h100-sxm5-80gb"))
    assert [p.step_time for p in compute.of_device("h100-sxm5-80gb")] == [2e-3]
    assert [p.step_time for p in compute.of_device("t4-16gb")] == [5e-3]
    assert [p.step_time for p in compute.of_device(None)] == [5e-3]
    assert measured(point(8, 2, device="t4-16gb")).of_device("l4-24gb") == []


def test_backward_has_two_thirds_unless_it_is_said():
    assert measured(point(8, 5)).forward_fraction == pytest.approx(1 / 3)


@for_each(
    ("raw", "line"),
    [
        ({"points": []}, "points: [] has too few entries; it needs at least 1."),
        (
            {"points": [point(8, 5), point(8, 6)]},
            "points: two are of microbatch 8; keep one of them.",
        ),
        (
            {"points": [point(8, 5, device="t4-16gb"), point(8, 6, device="t4-16gb")]},
            "points: two of device t4-16gb are of microbatch 8; keep one of them.",
        ),
        (
            {"points": [point(16, 5), point(8, 6)]},
            "points: microbatch 16 takes 5 ms, less than the 6 ms of microbatch 8; correct one of "
            "them.",
        ),
        (
            {"points": [point(8, 60), point(16, 57), point(32, 53)]},
            "points: microbatch 32 takes 53 ms, less than the 60 ms of microbatch 8; correct one "
            "of them.",
        ),
        (
            {"points": [point(8, 5)], "forward_fraction": 1},
            "forward_fraction: 1 is out of range; it must be < 1.0.",
        ),
        (
            {"points": [{"microbatch": 8, "step_time": 0.2}]},
            'points.0.step_time: 0.2 has no unit; write "0.2 s", "0.2 ms" or "0.2 us".',
        ),
    ],
)
def test_points_that_say_nothing_clear_are_refused(raw, line):
    with pytest.raises(ValidationError) as caught:
        FromMeasurements.model_validate(raw)
    assert [found.line for found in problems(caught.value, raw)] == [line]
