"""Groups of ranks that look the same, and how they are named."""

import numpy as np
from for_each import for_each

from simdp.reports.charts.timeline import choose, groups, listed
from simdp.results.trace import COMM_LANE, COMPUTE_LANE, TraceBuilder


def trace_of(starts, ends, ranks=None):
    builder, ranks = TraceBuilder(), np.arange(len(starts)) if ranks is None else ranks
    times = np.array(starts, dtype=float), np.array(ends, dtype=float)
    builder.add(np.array(ranks), 0, COMPUTE_LANE, "forward", "x", *times)
    return builder.build()


def test_ranks_with_the_same_spans_are_a_group():
    trace = trace_of([0, 0, 1, 0], [2, 3, 3, 2])
    assert groups(trace, 4, 0.1) == [[0, 3], [1], [2]]


def test_instants_within_the_tolerance_are_the_same():
    trace = trace_of([0, 0.05, 0.1, 1.0], [2, 2, 2, 2])
    assert groups(trace, 4, 0.1) == [[0, 1, 2], [3]]


def test_a_chain_of_neighbours_is_no_group():
    n = 101
    found = groups(trace_of(np.arange(n) * 0.09, np.full(n, 50.0)), n, 0.1)
    assert sorted(rank for group in found for rank in group) == list(range(n))
    assert max(0.09 * (group[-1] - group[0]) for group in found) <= 0.1 + 1e-9


def test_a_rank_without_a_span_is_not_like_those_that_have_it():
    builder = TraceBuilder()
    builder.add(np.array([0, 2]), 0, COMM_LANE, "comm", "x", np.zeros(2), np.ones(2))
    assert groups(builder.build(), 3, 0.1) == [[0, 2], [1]]
    assert groups(TraceBuilder().build(), 3, 0.1) == [[0, 1, 2]]


@for_each(
    ("ranks", "text"),
    [
        ([3], "3"),
        ([0, 1, 2, 4, 5, 6, 7], "0–2, 4–7"),
        ([0, 1], "0, 1"),
        (range(0, 64, 2), "0, 2, 4, 6, 8, …, 62"),
        ([*range(100), *range(200, 1024)], "0–99, 200–1023"),
    ],
)
def test_ranks_are_listed_in_short(ranks, text):
    assert listed(ranks) == text


def test_of_many_groups_the_first_the_last_and_the_named_are_chosen():
    found = [[rank] for rank in range(100)]
    chosen = choose(found, [41, 77], 8)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 8
    assert {0, 41, 77, 99} <= set(chosen)
    assert choose(found[:5], [], 8) == [0, 1, 2, 3, 4]
