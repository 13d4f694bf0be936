"""Folding gives the bits of the plan, whatever the algorithm."""

import numpy as np
import pytest
from for_each import for_each, for_some
from hypothesis import given
from hypothesis import strategies as st

from simdp.collectives import FAMILIES, Layout
from simdp.engine import payload
from simdp.engine.programs import folding

SUMS = [
    pytest.param(family, kind, id=f"{family}.{kind}")
    for family in ("all_reduce", "reduce", "reduce_scatter")
    for kind in FAMILIES[family]
    if kind not in ("auto", "msccl")
]


def played(plan, buffers, op=np.add):
    """What the plan leaves where its sum is asked for."""
    copies = [buffer.copy() for buffer in buffers]
    payload.run(plan, copies, op)
    if plan.collective == "reduce_scatter":
        pieces = [np.split(copy, plan.world_size)[rank] for rank, copy in enumerate(copies)]
        return np.concatenate(pieces)
    return copies[plan.root if plan.collective == "reduce" else 0]


@pytest.mark.slow
@for_some(("family", "kind"), SUMS, 2)
@given(
    n=st.integers(2, 9),
    pieces=st.integers(0, 5),
    seed=st.integers(0, 99),
    root=st.integers(0, 8),
    op=st.sampled_from([np.add, np.multiply, np.maximum]),
)
def test_a_fold_has_the_bits_of_the_plan(family, kind, n, pieces, seed, root, op):
    layout = Layout(n, 0)
    algorithm = FAMILIES[family][kind]()
    if algorithm.problem_with(layout) is not None:
        return
    size = pieces * n if family == "reduce_scatter" else pieces
    plan = algorithm.plan(layout, 4.0 * size, root % n if family == "reduce" else 0)
    random = np.random.default_rng(seed)
    buffers = list(random.normal(size=(n, size)).astype(np.float32))
    before = [buffer.copy() for buffer in buffers]
    assert folding.fold(plan, buffers, op).tobytes() == played(plan, buffers, op).tobytes()
    np.testing.assert_array_equal(buffers, before)


@for_each(("family", "kind"), SUMS)
@for_each("layout", [Layout(6, 3), Layout(4, 4, inside=(4, 4, 4, 4, -1))])
def test_every_algorithm_multiplies_as_well_as_it_adds(family, kind, layout):
    algorithm = FAMILIES[family][kind]()
    if algorithm.problem_with(layout) is not None:
        return
    n = layout.world_size
    plan = algorithm.plan(layout, 8.0 * 5 * n)
    buffers = list(np.random.default_rng(2).integers(1, 9, (n, 5 * n)))
    expected = np.multiply.reduce(buffers, axis=0)
    np.testing.assert_array_equal(played(plan, buffers, np.multiply), expected)
    np.testing.assert_array_equal(folding.fold(plan, buffers, np.multiply), expected)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), SUMS)
@for_each("limit", ["MAX_ELEMENTS", "MAX_MOVES"])
def test_large_buffers_and_plans_give_the_same(family, kind, limit, monkeypatch):
    layout = Layout(8, 4)
    algorithm = FAMILIES[family][kind]()
    if algorithm.problem_with(layout) is not None:
        pytest.skip("not for this layout")
    plan = algorithm.plan(layout, 8.0 * 64)
    buffers = list(np.random.default_rng(1).normal(size=(8, 64)))
    small = folding.fold(plan, buffers)
    monkeypatch.setattr(folding, limit, 0)
    assert folding.fold(plan, buffers).tobytes() == small.tobytes()


def test_one_rank_keeps_what_it_has():
    mine = np.arange(3.0)
    plan = FAMILIES["all_reduce"]["ring"]().plan(1, 24.0)
    found = folding.fold(plan, [mine])
    assert found.tolist() == [0, 1, 2]
    assert found is not mine


def test_blocks_may_end_within_a_chunk_and_be_written_to_a_source(monkeypatch):
    monkeypatch.setattr(folding, "BLOCK", 7)
    plan = FAMILIES["all_reduce"]["tree"]().plan(6, 8.0 * 50)
    buffers = list(np.random.default_rng(3).normal(size=(6, 50)))
    expected = played(plan, buffers)
    chunks = folding.ChunkSums(plan.offsets(50, 8).tolist(), folding.additions(plan))
    folding.fold_blocks(chunks, buffers, [buffers[2], buffers[5]], np.add, np.empty(7))
    assert buffers[2].tobytes() == buffers[5].tobytes() == expected.tobytes()


def test_a_long_chain_of_additions_needs_no_deep_recursion():
    tree, pieces = 0, list(np.random.default_rng(4).normal(size=(3_000, 5)))
    total = pieces[0]
    for rank, piece in enumerate(pieces[1:], 1):
        tree = (tree, rank) if rank % 2 else (rank, tree)
        total = total + piece
    out = np.empty(5)
    chunks = folding.ChunkSums([0, 5], [tree])
    folding.fold_blocks(chunks, pieces, [out], np.add, np.empty(folding.BLOCK))
    assert out.tobytes() == total.tobytes()
