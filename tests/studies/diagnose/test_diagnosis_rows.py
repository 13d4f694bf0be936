"""Rows of ranks, nodes, steps, collectives and waits."""

import numpy as np
import pytest
from trace_maker import RankMaker, job

import simdp


def diagnosed(late, **more):
    return simdp.diagnose(job(late, device=None), remedies=False, **more)


def test_each_step_has_who_came_last_and_what_that_cost():
    found = diagnosed([[0, 0.1, 0], [0, 0, 0.3]])
    assert [(row.step, row.rank) for row in found.late] == [(1, 1), (2, 2)]
    assert [row.lost_s for row in found.late] == pytest.approx([0.1, 0.3])


def test_nodes_are_means_over_their_ranks():
    late = np.zeros((3, 16))
    late[:, 8:] = 0.2
    found = diagnosed(late, machine="dgx-a100")
    assert [row.node for row in found.nodes] == [0, 1]
    assert [row.late_s for row in found.nodes] == pytest.approx([0.0, 0.2])
    assert [row.wait_s for row in found.nodes] == pytest.approx([0.2, 0.0])
    assert "ranks 8, 9, 10, 11 and 4 more (all of node 1) come last" in found.verdict[0].evidence
    assert diagnosed(late).nodes == ()


def test_ranks_have_their_clocks_and_their_waiting():
    traces = job([[0, 0.1]] * 3, origins=[0, 2_000_000_000], device=None)
    off = [type(t)(**{**vars(t), "origin_ns": t.origin_ns + 5_000_000 * t.rank}) for t in traces]
    found = simdp.diagnose(off, remedies=False)
    assert [row.rank for row in found.ranks] == [0, 1]
    assert [row.wait_s for row in found.ranks] == pytest.approx([0.1, 0.0])
    assert [row.late_s for row in found.ranks] == pytest.approx([0.0, 0.1])
    assert abs(found.ranks[1].clock_s) == pytest.approx(0.005)


def test_collectives_have_sizes_times_and_bandwidths():
    (row,) = diagnosed([[0, 0.1]] * 3).collectives
    assert (row.name, row.num_elements, row.dtype, row.nbytes) == (
        "all_reduce",
        10**6,
        "float32",
        4e6,
    )
    assert (row.count, row.group_size, row.algorithm) == (3, 2, "RING")
    assert (row.transfer_s, row.wait_s) == (pytest.approx(0.01), pytest.approx(0.05))
    assert row.algbw == pytest.approx(4e8)
    assert row.busbw == pytest.approx(4e8)  # 2 (n - 1) / n is 1
    assert row.expected_s is None


def test_sizes_that_the_trace_does_not_tell_are_none():
    maker = RankMaker(0, 2, None)
    maker.kernel(0.0, 1.0)
    maker.call("all_reduce", 0.2, 0.3, elements=-1, dtype="")
    (row,) = simdp.diagnose([maker.trace()], remedies=False).collectives
    assert (row.num_elements, row.nbytes, row.busbw) == (None, None, None)


def test_who_waits_for_whom_is_sorted_by_how_long():
    found = diagnosed([[0, 0.1, 0.3]] * 3)
    assert [(row.rank, row.late_rank) for row in found.waits] == [(0, 2), (1, 2)]
    assert [row.wait_s for row in found.waits] == pytest.approx([0.3, 0.2])
