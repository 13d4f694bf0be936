"""Sets of instants: against a count of small pieces."""

import numpy as np
from for_each import for_each

from simdp.studies.diagnose.spans import NOTHING, Instants


def instants(random, n):
    start = random.integers(0, 200, n).astype(float)
    return Instants.of(start, start + random.integers(0, 12, n))


def pieces(some):
    """Which of the pieces [i, i + 1) it holds."""
    held = np.zeros(220, dtype=bool)
    for begin, end in zip(*some, strict=True):
        held[int(begin) : int(end)] = True
    return held


@for_each("seed", range(5))
def test_sets_are_what_counting_says(seed):
    random = np.random.default_rng(seed)
    one, other = instants(random, 25), instants(random, 25)
    a, b = pieces(one), pieces(other)
    assert (pieces(one.both(other)) == (a & b)).all()
    assert (pieces(one.without(other)) == (a & ~b)).all()
    assert (pieces(one.plus(other)) == (a | b)).all()
    assert one.length() == a.sum()
    begin, end = np.array([3.0, 50.0]), np.array([40.0, 90.0])
    assert one.within(begin, end).tolist() == [a[3:40].sum(), a[50:90].sum()]


def test_nothing_has_no_part_in_anything():
    some = Instants.of(np.array([1.0]), np.array([2.0]))
    assert NOTHING.both(some).length() == some.both(NOTHING).length() == 0
    assert some.without(NOTHING).length() == some.plus(NOTHING).length() == 1
