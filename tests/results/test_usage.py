"""Memory over time, from what ranks took and gave back."""

import numpy as np
from for_each import for_each

from simdp.results.memory import MEMORY_PARTS, NAMED, Holding, summed, usage

PARAMETERS, GRADIENTS, TEMPORARY = map(MEMORY_PARTS.index, ("parameters", "gradients", "temporary"))
BOTH = np.arange(2)


def held(step, part, at, nbytes, ranks=BOTH):
    return Holding(ranks, step, part, np.full(len(ranks), float(at)), nbytes)


RUN = [
    held(-1, PARAMETERS, 0, 10.0),
    held(0, GRADIENTS, 1, np.array([5.0, 7.0])),
    held(0, TEMPORARY, 2, 4.0, BOTH[1:]),
    held(0, TEMPORARY, 3, -4.0, BOTH[1:]),
    held(0, GRADIENTS, 4, np.array([-5.0, -7.0])),
]


def test_what_is_there_is_the_sum_of_what_came_and_went():
    found = usage(RUN, [1])
    assert found.step.tolist() == [-1, 0, 0, 0, 0]
    assert found.at.tolist() == [0, 1, 2, 3, 4]
    assert found.total.tolist() == [10, 17, 21, 17, 10]
    assert found.kept[2, [PARAMETERS, GRADIENTS, TEMPORARY]].tolist() == [10, 7, 4]
    assert found.peak() == 2
    assert usage(RUN, [0]).total.tolist() == [10, 15, 10]


def test_ranks_that_share_a_device_are_added_up_in_the_order_of_time():
    late = [held(0, TEMPORARY, at, 1.0, BOTH[rank:][:1]) for rank, at in ((0, 3), (1, 1), (0, 5))]
    found = usage(late, [0, 1])
    assert found.at.tolist() == [1, 3, 5]
    assert found.total.tolist() == [1, 2, 3]


def test_of_equal_peaks_the_last_steps_first_one_counts():
    steps = [(0, 1.0), (0, -1.0), (1, 1.0), (1, -1.0), (1, 1.0), (1, -1.0)]
    found = usage([held(s, GRADIENTS, at, b) for at, (s, b) in enumerate(steps)], [0])
    assert found.peak() == 2


def test_nothing_is_known_of_ranks_that_held_nothing():
    assert len(usage(RUN, [7]).at) == 0


@for_each("part", MEMORY_PARTS)
def test_every_part_has_a_place_in_the_result(part):
    parts = np.zeros(len(MEMORY_PARTS))
    parts[MEMORY_PARTS.index(part)] = 3.0
    found = summed(parts)
    assert found == {**dict.fromkeys((*NAMED, "other"), 0), part if part in NAMED else "other": 3}
