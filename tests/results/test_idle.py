"""Idle time: gaps between work, found for blocks and single spans, in and out of order."""

import numpy as np
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.results.metrics import Idle
from simdp.results.trace import COMM_LANE, COMPUTE_LANE, TraceBuilder

EVERYONE = np.arange(3)


def built(*works):
    """A trace of work: ranks, starts and ends in turn."""
    builder = TraceBuilder()
    for ranks, start, end in works:
        arrays = np.array(start, dtype=float), np.array(end, dtype=float)
        builder.add(np.array(ranks), 0, COMPUTE_LANE, "forward", "x", *arrays)
    return builder.build()


def rest(trace, rank, start, end, world_size=3):
    found = Idle(trace, world_size).within(np.array([rank]), np.array([start]), np.array([end]))
    return found.item()


def test_without_work_everything_is_idle():
    assert rest(built(), 1, 2.0, 5.0) == 3.0


def test_before_between_and_after_work_is_idle():
    trace = built((EVERYONE, [1, 2, 3], [4, 4, 4]), (EVERYONE, [4, 5, 6], [8, 8, 8]))
    found = Idle(trace, 3).within(EVERYONE, np.zeros(3), np.full(3, 10.0))
    assert found.tolist() == [1 + 0 + 2, 2 + 1 + 2, 3 + 2 + 2]


def test_a_rank_that_a_block_lacks_rests_meanwhile():
    trace = built(([0, 2], [0, 0], [2, 2]), (EVERYONE, [2, 2, 3], [4, 4, 4]), ([2], [5], [6]))
    assert [rest(trace, rank, 0.0, 6.0) for rank in range(3)] == [2.0, 4.0, 2.0]


def test_many_intervals_are_looked_at_in_one_call():
    trace = built((EVERYONE, [1, 1, 1], [2, 3, 4]))
    start = np.array([[0.0, 0.0, 0.0], [3.0, 3.0, 3.0]])
    found = Idle(trace, 3).within(EVERYONE, start, start + 2)
    assert found.tolist() == [[1, 1, 1], [2, 2, 1]]


@for_each("ranks", [[2, 0], [1, 1], [0, 0, 2, 2], [2, 1, 0]])
def test_any_ranks_may_be_asked_about(ranks):
    trace = built((EVERYONE, [0, 0, 0], [1, 2, 3]))
    found = Idle(trace, 3).within(np.array(ranks), np.zeros(len(ranks)), np.full(len(ranks), 4.0))
    assert found.tolist() == [3.0 - rank for rank in ranks]


def test_work_that_was_recorded_out_of_order_hides_as_much():
    trace = built((EVERYONE, [5, 5, 5], [6, 6, 7]), (EVERYONE, [0, 1, 2], [3, 3, 3]))
    assert [rest(trace, rank, 0.0, 8.0) for rank in range(3)] == [4.0, 5.0, 5.0]


def test_a_block_may_name_a_rank_twice_or_ranks_in_any_order():
    trace = built(([1, 0, 1], [0, 1, 4], [2, 2, 6]), ([0], [2], [5]))
    assert [rest(trace, rank, 0.0, 8.0) for rank in range(3)] == [4.0, 4.0, 8.0]


def test_communication_keeps_no_compute_stream_busy():
    builder = TraceBuilder()
    builder.add(EVERYONE, 0, COMM_LANE, "comm", "x", np.zeros(3), np.ones(3))
    assert rest(builder.build(), 0, 0.0, 1.0) == 1.0


@st.composite
def works(draw):
    """Spans of work on a grid, per rank; and one interval per rank."""
    spans = []
    for rank in range(3):
        now = 0
        for _ in range(draw(st.integers(0, 6))):
            start = now + draw(st.integers(0, 2))
            now = start + draw(st.integers(0, 3))
            spans.append((rank, start, now))
    asked = [sorted(draw(st.tuples(st.integers(0, 30), st.integers(0, 30)))) for _ in range(3)]
    return draw(st.permutations(spans)), asked


@given(works(), st.booleans())
def test_idle_time_is_what_a_count_of_the_grid_finds(made, single):
    spans, asked = made
    builder = TraceBuilder()
    for rank, start, end in spans:
        if single:
            builder.add_one(rank, 0, COMPUTE_LANE, "forward", "x", float(start), float(end))
        else:
            arrays = np.array([float(start)]), np.array([float(end)])
            builder.add(np.array([rank]), 0, COMPUTE_LANE, "forward", "x", *arrays)
    begin, until = np.array(asked, dtype=float).T
    found = Idle(builder.build(), 3).within(EVERYONE, begin, until)
    busy = [
        {t for r, start, end in spans if r == rank for t in range(start, end)} for rank in range(3)
    ]
    wanted = [len(set(range(*asked[rank])) - busy[rank]) for rank in range(3)]
    assert found.tolist() == wanted
