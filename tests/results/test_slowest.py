"""The slowest rank of each step: who, how often, and by how much."""

import numpy as np
import pytest

from simdp.results.metrics import busy_times, slowest
from simdp.results.trace import ACTIVITIES, COMM_LANE, COMPUTE_LANE, SpanBlock


def block(activity, step, length, lane=COMPUTE_LANE, ranks=(0, 1, 2, 3)):
    ranks, start = np.array(ranks), np.full(len(ranks), 2.0 * step)
    return SpanBlock(ranks, step, lane, ACTIVITIES.index(activity), 0, start, start + length, 0.0)


def test_work_is_what_the_compute_stream_does_but_for_waiting():
    blocks = [
        block("forward", -1, 9.0),  # the setup
        block("forward", 0, 1.0),
        block("update", 0, np.array([0.5]), ranks=[2]),
        block("wait", 0, 5.0),
        block("comm", 1, 4.0, COMM_LANE),
        block("backward", 1, 2.0),
    ]
    assert busy_times(blocks, 4, 2).tolist() == [[1, 1, 1.5, 1], [2, 2, 2, 2]]


def test_each_step_counts_for_its_slowest_rank_but_the_first():
    busy = np.array([[9.0, 1, 1, 1], [1, 3, 1, 1], [1, 2, 1, 1], [1, 1, 1, 8], [1, 1, 1, 1]])
    assert slowest(busy, 2) == [
        {"rank": 3, "node": 1, "steps": 1, "seconds": pytest.approx(7 / 4)},
        {"rank": 1, "node": 0, "steps": 2, "seconds": pytest.approx((2 + 1) / 4)},
    ]


def test_one_step_is_the_one_that_counts():
    assert slowest(np.array([[1.0, 1.5, 1.0]]), 3) == [
        {"rank": 1, "node": 0, "steps": 1, "seconds": 0.5}
    ]


def test_nobody_is_the_slowest_of_equals():
    assert slowest(np.ones((3, 4)), 2) == []
    assert slowest(np.zeros((0, 4)), 2) == []
