import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdp.traces.intervals import covered, overlap_length, union, union_by_step, union_length

ends = st.lists(st.tuples(st.integers(0, 30), st.integers(-2, 9)), max_size=12)


def columns(pairs):
    start = np.array([begin for begin, _ in pairs], dtype=float)
    return start, start + np.array([length for _, length in pairs], dtype=float)


def cells(pairs):
    return {at for begin, length in pairs for at in range(begin, begin + length)}


@given(ends)
def test_a_union_is_as_long_as_the_cells_that_it_covers(pairs):
    start, end = union(*columns(pairs))
    assert union_length(*columns(pairs)) == len(cells(pairs))
    assert (start[1:] > end[:-1]).all()
    assert (end > start).all()


@given(ends, ends)
def test_an_overlap_is_what_both_cover(pairs, others):
    assert overlap_length(*columns(pairs), *columns(others)) == len(cells(pairs) & cells(others))


@given(ends, st.lists(st.integers(-3, 50), max_size=5))
def test_what_is_covered_before_an_instant(pairs, instants):
    found = covered(*union(*columns(pairs)), np.array(instants, dtype=float))
    assert found.tolist() == [sum(cell < at for cell in cells(pairs)) for at in instants]


def test_intervals_of_no_step_are_left_out():
    start, end = np.array([0.0, 1.0, 5.0, 6.0]), np.array([2.0, 3.0, 7.0, 9.0])
    step = np.array([0, 0, -1, 1])
    assert union_by_step(start, end, step, 2) == pytest.approx([3.0, 3.0])
