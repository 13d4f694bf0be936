"""The table of a program's ranks: what went on at the same time is counted once."""

import numpy as np
import pytest

from simdp.reports import table
from simdp.results.trace import COMM_LANE, COMPUTE_LANE, TraceBuilder


def traced(*spans):
    builder = TraceBuilder()
    for rank, activity, start, end in spans:
        lane = COMPUTE_LANE if activity in ("compute", "forward", "update") else COMM_LANE
        builder.add_one(rank, 0, lane, activity, "x", start, end)
    return builder.build()


def test_times_of_a_rank_add_up_to_its_end():
    trace = traced(
        (0, "forward", 0.0, 2.0),
        (0, "wait", 1.0, 3.0),
        (0, "comm", 3.0, 5.0),
        (0, "update", 4.0, 6.0),
        (0, "comm", 4.5, 5.5),
        (1, "compute", 1.0, 2.0),
    )
    one, other = table.rows(trace, np.array([7.0, 2.0]))
    assert one == pytest.approx(
        {
            "rank": 0,
            "compute_s": 4.0,
            "comm_s": 2.5,
            "exposed_comm_s": 1.0,
            "wait_s": 1.0,
            "idle_s": 1.0,
            "end_s": 7.0,
        }
    )
    assert (other["compute_s"], other["idle_s"]) == (1.0, 1.0)


def test_neighbours_that_are_alike_share_a_line():
    lines = table.lines(traced(), np.array([0.0, 0.0, 1.0, 0.0]))
    assert [line.split()[0] for line in lines] == ["rank", "0-1", "2", "3"]
    assert lines[1].split()[1:] == ["0", "s"] * 6


def test_many_ranks_are_cut():
    lines = table.lines(traced(), np.arange(20.0))
    assert len(lines) == 1 + table.MAX_ROWS + 1
    assert lines[-1] == "and 4 more ranks; --json has them all"
