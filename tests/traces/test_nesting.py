import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simdp.traces.calls import Threads, innermost, parents


@st.composite
def nested(draw):
    """Intervals of one thread, which lie in each other or apart, in order."""
    found = []

    def fill(start, end, depth):
        at = start
        while depth and end - at > 2 and draw(st.booleans()):
            begin = draw(st.integers(at, end - 2))
            until = draw(st.integers(begin + 1, end))
            found.append((begin, until))
            fill(begin, until, depth - 1)
            at = until

    fill(0, 60, 3)
    return np.array(sorted(found, key=lambda pair: (pair[0], -pair[1])), dtype=float).reshape(-1, 2)


@given(nested(), st.lists(st.integers(0, 60), max_size=9))
def test_the_innermost_is_the_last_that_holds_an_instant(pairs, asked):
    start, end = pairs.T
    at = np.array(asked, dtype=float) + 0.5
    found = innermost(start, end, parents(start, end), at)
    for instant, place in zip(at, found.tolist(), strict=True):
        holding = [i for i, (a, b) in enumerate(pairs) if a <= instant <= b]
        assert place == (holding[-1] if holding else -1)


@given(nested())
def test_the_outermost_lie_in_no_other(pairs):
    start, end = pairs.T
    threads = Threads(start, end, np.ones(len(start), dtype=np.int64))
    free = set(np.flatnonzero(threads.is_outermost).tolist())
    cells = [
        a for i, (a, b) in enumerate(pairs.tolist()) if i in free for a in range(int(a), int(b))
    ]
    assert len(cells) == len(set(cells)), "they do not overlap"
    assert set(cells) == {c for a, b in pairs.tolist() for c in range(int(a), int(b))}


def test_threads_do_not_see_each_other():
    start, end = np.array([0.0, 0.0, 2.0]), np.array([9.0, 5.0, 3.0])
    threads = Threads(start, end, np.array([1, 2, 2]))
    found = threads.holding(np.array([2.5, 2.5, 2.5, 8.0]), np.array([1, 2, 3, 2]))
    assert found.tolist() == [0, 2, -1, -1]
