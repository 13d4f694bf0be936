"""Rows of a rank: waits are parts of their collectives, and the host's order is kept."""

import numpy as np

from simdp.reports.rank_rows import rows_of
from simdp.results.trace import COMM_LANE, COMPUTE_LANE, FIRST_STREAM_LANE, CallSize, TraceBuilder

RANKS = np.arange(2)
CALL = CallSize("all_reduce", 8.0, 2)


def instants(*seconds):
    return np.array(seconds, dtype=float)


def build():
    builder = TraceBuilder()
    builder.add(RANKS, 0, COMPUTE_LANE, "backward", "late", instants(0.0, 0.0), instants(1.0, 2.0))
    builder.add(RANKS, 0, COMPUTE_LANE, "backward", "early", instants(1.0, 2.0), instants(4.0, 4.0))
    few = RANKS[:1]
    builder.add(few, 0, COMM_LANE, "wait", "all_reduce a", instants(1.0), instants(2.0))
    asked = instants(1.0, 2.0)
    ends = instants(2.0, 2.0), instants(3.0, 3.0)
    builder.add(RANKS, 0, COMM_LANE, "comm", "all_reduce a", *ends, 8.0, CALL, asked)
    builder.add(
        RANKS, 0, FIRST_STREAM_LANE, "comm", "x", instants(5.0, 5.0), instants(6.0, 6.0), 0.0,
        None, instants(1.0, 2.0),
    )  # fmt: skip
    builder.add_one(0, 0, 2, "transfer", "a", 2.0, 3.0, 4.0)
    return builder.build()


def test_a_collective_begins_when_its_rank_comes_and_transfers_are_left_out():
    (_, first), (_, second) = rows_of(build(), [0, 1])
    (mine,) = (row for row in first if row.name == "all_reduce a")
    assert (mine.start, mine.end, mine.stream, mine.call) == (10**9, 3 * 10**9, 1, CALL)
    (other,) = (row for row in second if row.name == "all_reduce a")
    assert (other.start, other.end) == (2 * 10**9, 3 * 10**9)
    assert {row.activity for row in first} == {"backward", "comm"}


def test_a_collective_stands_where_it_was_asked_for_even_if_it_had_to_queue():
    ((_, rows),) = rows_of(build(), [0])
    assert [row.name for row in rows] == ["late", "all_reduce a", "x", "early"]
    assert [row.stream for row in rows] == [0, 1, 2, 0]


def test_a_rank_without_spans_has_no_rows():
    assert list(rows_of(TraceBuilder().build(), [3])) == [(3, [])]
    assert list(rows_of(build(), [7, 8])) == [(7, []), (8, [])]
