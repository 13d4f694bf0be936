"""Blocks: regrouped by turn and stacked, they still hold the same spans."""

from itertools import pairwise

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.results import trace
from simdp.results.trace import SpanBlock, blocks_by_turn, columns_of, is_everyone, stacks

KEYS = ("step", "lane", "activity", "name")


def block(ranks, step=0, lane=0, activity=0, name=0, start=0.0, length=1.0, nbytes=0.0):
    ranks = np.array(ranks, dtype=np.int64)
    begin = np.full(len(ranks), start)
    return SpanBlock(ranks, step, lane, activity, name, begin, begin + length, nbytes)


def spans(some):
    """The spans of blocks, in an order of their own."""
    return sorted(zip(*(column.tolist() for column in columns_of(some)), strict=True))


def made(draw_lane):
    instants = st.integers(0, 5).map(float)
    ranks = st.lists(st.integers(0, 3), min_size=1, max_size=5)
    small = st.integers(0, 1)
    return st.lists(
        st.builds(block, ranks, small, draw_lane, small, small, instants, instants, instants),
        max_size=8,
    )


@given(made(st.integers(0, 3)))
def test_turns_hold_the_same_spans_in_the_order_of_time(some):
    turns = blocks_by_turn(columns_of(some))
    assert spans(turns) == spans(some)
    for turn in turns:
        assert (np.diff(turn.ranks) > 0).all()
    for rank in range(4):
        for lane in range(4):
            mine = [turn for turn in turns if turn.lane == lane and rank in turn.ranks]
            starts = [turn.start[turn.ranks == rank].item() for turn in mine]
            assert starts == sorted(starts)


def test_ranks_that_do_the_same_share_a_block():
    rows = [block([rank], name=name, start=float(name)) for rank in (1, 0, 2) for name in (0, 1)]
    turns = blocks_by_turn(columns_of(rows))
    assert [turn.ranks.tolist() for turn in turns] == [[0, 1, 2], [0, 1, 2]]
    assert [turn.name for turn in turns] == [0, 1]


def test_no_spans_make_no_blocks():
    assert blocks_by_turn(columns_of([])) == []


def test_an_array_of_lanes_and_numbers_of_bytes_lie_beside_single_ones():
    some = [block([1, 2])._replace(lane=np.array([3, 4])), block([0], lane=1, nbytes=8.0)]
    some.append(block([3, 4])._replace(nbytes=np.array([1.0, 2.0])))
    columns = columns_of(some)
    assert columns.lane.tolist() == [3, 4, 1, 0, 0]
    assert columns.nbytes.tolist() == [0, 0, 8, 1, 2]
    assert columns.rank.dtype == columns.lane.dtype == np.int64
    assert columns.start.dtype == columns.nbytes.dtype == np.float64


@pytest.mark.parametrize("most", [1, 4, 9, 1000])
def test_stacks_hold_every_block_once_few_at_a_time(monkeypatch, most):
    monkeypatch.setattr(trace, "MAX_STACKED", most)
    all_ranks, two = np.arange(4), np.array([1, 3])
    some = [
        block(ranks, step, activity=activity, start=10.0 * step + turn, nbytes=1.0 + turn)._replace(
            ranks=ranks
        )
        for step in (1, 0, 2)
        for turn in range(3)
        for activity, ranks in ((0, all_ranks), (1, all_ranks), (0, two))
    ]
    found = []
    for stack in stacks(some):
        assert len(stack.steps) == 1 or stack.start.size <= most
        assert stack.start.shape == stack.end.shape == (len(stack.steps), len(stack.ranks))
        assert all(one <= two for one, two in pairwise(stack.steps.tolist()))
        assert stack.nbytes == sum(start % 10 + 1 for start in stack.start[:, 0])
        found += [
            (stack.ranks.tolist(), stack.activity, step, start[0], end[0])
            for step, start, end in zip(stack.steps, stack.start, stack.end, strict=True)
        ]
    wanted = [(b.ranks.tolist(), b.activity, b.step, b.start[0], b.end[0]) for b in some]
    assert sorted(found) == sorted(wanted)


@for_each(
    ("ranks", "everyone"), [([0, 1, 2], True), ([0, 2, 1], False), ([0, 1], False), ([1, 1, 2], 0)]
)
def test_everyone_is_all_ranks_in_order(ranks, everyone):
    assert is_everyone(np.array(ranks), 3) == everyone
