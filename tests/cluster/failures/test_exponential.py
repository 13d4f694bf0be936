"""Exponential failures: gaps without memory, at a rate with its unit."""

import numpy as np
import pytest
from for_each import for_each
from processes import HOUR, drawn, failures, refusal


def test_gaps_of_one_unit_have_the_mean_that_is_given_and_spread_as_much():
    gaps = np.diff([0, *(event.time for event in drawn(failures("exponential"), 20_000, 1))])
    assert gaps.mean() / HOUR == pytest.approx(1000, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.02)


def test_many_units_fail_as_many_times_as_often():
    events = drawn(failures("exponential", per="device"), 20_000, 4, 8)
    assert events[-1].time / 20_000 / HOUR == pytest.approx(1000 / 32, rel=0.02)


@for_each(
    ("rate", "hours"),
    [
        ("6.5 per 1000 node-days", 24_000 / 6.5),
        ("6.5 per 1000 days", 24_000 / 6.5),
        ("2 per week", 84),
        ("1e-3 per node-h", 1000),
    ],
)
def test_a_rate_is_read_as_it_is_published(rate, hours):
    process = failures("exponential", mtbf=None, rate=rate)
    assert process.mean_gap() / HOUR == pytest.approx(hours, rel=1e-12)
    assert process.model_dump(mode="json", exclude_none=True)["rate"] == rate


@for_each(
    ("options", "line"),
    [
        ({"mtbf": 1000}, 'mtbf: 1000 has no unit; write "1000 s", "1000 ms" or "1000 us".'),
        ({"mtbf": "0 h"}, "mtbf: 0 h is out of range; it must be > 0 s and finite."),
        ({"mtbf": "5 GB"}, "mtbf: '5 GB' is not a time; write for example \"5 us\"."),
        (
            {"mtbf": None},
            'give either mtbf, a time, or rate; write for example "6.5 per 1000 node-days".',
        ),
        (
            {"rate": "1 per day"},
            'give either mtbf, a time, or rate; write for example "6.5 per 1000 node-days".',
        ),
        (
            {"mtbf": None, "rate": 6.5},
            "rate: 6.5 is not a number of failures per time; write for example "
            '"6.5 per 1000 node-days".',
        ),
        (
            {"mtbf": None, "rate": "6.5 per 1000"},
            "rate: '6.5 per 1000' is not a number of failures per time; write for example "
            '"6.5 per 1000 node-days".',
        ),
        (
            {"mtbf": None, "rate": "0 per day"},
            "rate: 0 per day is out of range; it must be > 0 and finite.",
        ),
        (
            {"mtbf": None, "rate": "1 per fortnight"},
            "rate: '1 fortnight' has an unknown unit 'fortnight'; write for example \"5 us\".",
        ),
        (
            {"mtbf": None, "rate": "1 per 0 days"},
            "rate: 0 days is out of range; it must be > 0 s and finite.",
        ),
        (
            {"mtbf": None, "rate": "6.5 per 1000 device-days"},
            "rate: 6.5 per 1000 device-days is per device, and per is node; make them agree.",
        ),
    ],
)
def test_a_wrong_rate_is_refused(options, line):
    assert refusal("exponential", **options) == line
