"""Weibull failures: the mean and spread of gaps, whichever way their length is given."""

from collections import defaultdict
from itertools import takewhile
from math import gamma, sqrt

import numpy as np
import pytest
from for_each import for_each, for_some
from processes import HOUR, drawn, failures, refusal

from simdp.rng import stream


@pytest.mark.slow
@for_some("shape", [0.5, 0.7, 1, 3], 2)
@for_each("num_units", [1, 200])
def test_gaps_have_the_moments_of_their_distribution(shape, num_units):
    """E[X] = scale G(1 + 1/k), E[X^2] = scale^2 G(1 + 2/k)."""
    times = defaultdict(list)
    for event in drawn(failures("weibull", shape=shape), 200 * num_units + 10_000, num_units):
        times[event.nodes].append(event.time / HOUR)
    num = min(map(len, times.values()))  # as many of each; in an equal time, long ones would lack
    gaps = np.diff([found[:num] for found in times.values()])
    assert gaps.size > 8000
    cv = sqrt(gamma(1 + 2 / shape) / gamma(1 + 1 / shape) ** 2 - 1)
    assert np.mean(gaps) == pytest.approx(1000, rel=0.04)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.07)


def test_a_scale_is_the_time_by_which_63_percent_of_gaps_have_ended():
    process = failures("weibull", mtbf=None, scale="1000 h", shape=0.7)
    assert process.mean_gap() / HOUR == pytest.approx(1000 * gamma(1 + 1 / 0.7), rel=1e-9)
    gaps = np.diff([event.time for event in drawn(process, 20_000, 1)])
    assert np.mean(gaps < 1000 * HOUR) == pytest.approx(1 - np.exp(-1), abs=0.01)


@pytest.mark.slow
@for_each(("shape", "share"), [(0.5, 0.0950), (1, 0.00995), (2, 0.0001)])
def test_new_units_fail_by_their_distribution(shape, share):
    """1 - exp(-(t / scale)^k) of them by a hundredth of the scale, more than on average if young
    ones fail more often."""
    process = failures("weibull", mtbf=None, scale="1000 h", shape=shape, new=True)
    firsts = 0
    for run in range(100):
        events = process.events(2000, 8, stream(0, "failures", run, 0))
        firsts += len({e.nodes for e in takewhile(lambda e: e.time < 10 * HOUR, events)})
    assert firsts / 200_000 == pytest.approx(share, rel=0.05, abs=5e-5)
    assert process.job_rate(2000, 8) is None


@for_each(
    ("options", "line"),
    [
        ({"mtbf": None}, "give either mtbf, the mean time between failures, or scale."),
        ({"scale": "1 h"}, "give either mtbf, the mean time between failures, or scale."),
        ({"mtbf": 5}, 'mtbf: 5 has no unit; write "5 s", "5 ms" or "5 us".'),
        ({"shape": None}, "shape: is required but was not given; add it."),
        ({"shape": 0}, "shape: 0 is out of range; it must be >= 0.1."),
        ({"shape": 101}, "shape: 101 is out of range; it must be <= 100.0."),
        ({"new": 1}, "new: 1 is not true or false."),
    ],
)
def test_a_wrong_weibull_is_refused(options, line):
    assert refusal("weibull", **options) == line
