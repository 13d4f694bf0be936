import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simdp.traces.intervals import NOTHING, Instants, covered, union

ends = st.lists(st.tuples(st.integers(0, 30), st.integers(-2, 9)), max_size=12)


def columns(pairs):
    start = np.array([begin for begin, _ in pairs], dtype=float)
    return start, start + np.array([length for _, length in pairs], dtype=float)


def cells(pairs):
    return {at for begin, length in pairs for at in range(begin, begin + length)}


@given(ends)
def test_a_union_is_as_long_as_the_cells_that_it_covers(pairs):
    start, end = union(*columns(pairs))
    assert (end - start).sum() == len(cells(pairs))
    assert (start[1:] > end[:-1]).all()
    assert (end > start).all()


@given(ends, ends)
def test_sets_of_instants_are_those_of_their_cells(pairs, others):
    one, other = Instants.of(*columns(pairs)), Instants.of(*columns(others))
    mine, theirs = cells(pairs), cells(others)
    for found, wanted in [
        (one.both(other), mine & theirs),
        (one.without(other), mine - theirs),
        (one.plus(other), mine | theirs),
        (one.both(NOTHING), set()),
        (one.without(NOTHING), mine),
    ]:
        assert cells((int(a), int(b - a)) for a, b in zip(*found, strict=True)) == wanted
        assert found.length() == len(wanted)
    begin, end = np.array([3.0, 15.0]), np.array([12.0, 90.0])
    assert one.within(begin, end).tolist() == [
        sum(3 <= cell < 12 for cell in mine),
        sum(cell >= 15 for cell in mine),
    ]


@given(ends, st.lists(st.integers(-3, 50), max_size=5))
def test_what_is_covered_before_an_instant(pairs, instants):
    found = covered(*union(*columns(pairs)), np.array(instants, dtype=float))
    assert found.tolist() == [sum(cell < at for cell in cells(pairs)) for at in instants]
