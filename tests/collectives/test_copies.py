"""Copies of unequal pieces between one rank and the others."""

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.collectives.direct import copies_from, copies_to
from simdp.engine import payload


@st.composite
def pieces(draw):
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any))
    return draw(st.integers(0, len(sizes) - 1)), tuple(sizes)


@given(pieces(), st.integers(1, 3))
def test_everyone_gets_its_own_piece_and_nothing_else(asked, width):
    root, sizes = asked
    ends = np.cumsum(sizes) * width
    buffers = [np.full(ends[-1], -1) for _ in sizes]
    buffers[root][:] = np.arange(ends[-1])
    payload.run(copies_from(root, sizes), buffers)
    for rank, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        begin = end - size * width
        assert buffers[rank][begin:end].tolist() == list(range(begin, end))
        if rank != root:
            rest = np.delete(buffers[rank], np.arange(begin, end))
            assert (rest == -1).all()


@given(pieces(), st.integers(1, 3))
def test_the_root_gets_everyones_piece(asked, width):
    root, sizes = asked
    owner = np.repeat(np.arange(len(sizes)), np.array(sizes) * width)
    buffers = [np.where(owner == rank, rank, -1) for rank in range(len(sizes))]
    payload.run(copies_to(root, sizes), buffers)
    assert buffers[root].tolist() == owner.tolist()


@given(pieces())
def test_copies_come_one_by_one_and_carry_exactly_the_pieces(asked):
    root, sizes = asked
    for plan in (copies_from(root, sizes), copies_to(root, sizes)):
        assert plan.order == "rank"
        assert all(len(transfers.src) == 1 for transfers in plan.rounds())
        moved = plan.sends_per_rank.sum() / plan.num_chunks
        assert moved == pytest.approx((sum(sizes) - sizes[root]) / sum(sizes))


def test_equal_pieces_are_one_chunk_each():
    assert copies_from(0, (256, 256, 256)).num_chunks == 3
    assert copies_from(0, (4, 4, 2)).num_chunks == 5


@for_each("make", [copies_from, copies_to])
def test_bad_arguments_are_refused(make):
    with pytest.raises(ValueError, match=r"root must be in 0 ... 1, got 2"):
        make(2, (1, 1))
    with pytest.raises(ValueError, match=r"sizes must be >= 0 and not all 0"):
        make(0, (1, -1))
    with pytest.raises(ValueError, match=r"sizes must be >= 0 and not all 0"):
        make(0, (0, 0))
