"""Folding: the sum that a plan leaves behind, in the plan's order of additions.

Small buffers of many ranks would spend their time in calls of NumPy, two for each chunk that a
rank sends. What counts is the one copy of each chunk that is asked for in the end: the additions
that lead to it are a tree, and trees of many chunks are added side by side, level by level. Large
buffers, and plans that hold data for a while, are played by `simdp.engine.payload`. Both give the
same bits, since a tree names the operands of each addition as the plan does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Array, Ints
from simdp.collectives import Plan
from simdp.engine import payload

MAX_ELEMENTS = 2**20
"""Elements of all ranks together up to which trees are worth their room: some 24 MB of places."""

MAX_MOVES = 4_000_000
"""Chunks that a plan may move for it, since each is looked at once: a second."""


class _Level(NamedTuple):
    """Additions that need nothing of each other: ``space[out] = space[left] + space[right]``."""

    out: slice
    left: Ints | slice
    right: Ints | slice


class _Recipe(NamedTuple):
    """How to fold the buffers of all ranks, laid end to end, and where the sum then is."""

    room: int
    levels: list[_Level]
    result: Ints | slice


def fold(plan: Plan, buffers: Sequence[Array], op: Any = np.add) -> Array:
    """Add up the buffers of all ranks as a plan does.

    Parameters
    ----------
    plan : Plan
        Of an all_reduce, a reduce or a reduce_scatter.
    buffers : sequence of ndarray, each shape `(num_elements,)`
        One per rank, all of one dtype; left as they are.
    op : ufunc
        What stands for adding.

    Returns
    -------
    ndarray, shape `(num_elements,)`
        The whole sum: of a reduce_scatter every piece as its rank gets it.
    """
    size, dtype = buffers[0].size, buffers[0].dtype
    if plan.world_size == 1:
        return buffers[0].copy()
    many = len(buffers) * size > MAX_ELEMENTS or plan.num_transfers > MAX_MOVES
    if many or plan.num_switches or plan.num_scratch:
        copies = [buffer.copy() for buffer in buffers]
        payload.run(plan, copies, op)
        return _held(plan, copies)
    recipe = _recipe(plan, size, dtype.itemsize)
    space = np.empty(recipe.room, dtype=dtype)
    np.concatenate(buffers, out=space[: len(buffers) * size])
    for out, left, right in recipe.levels:
        op(space[left], space[right], out=space[out])
    return space[recipe.result].copy() if isinstance(recipe.result, slice) else space[recipe.result]


def _holders(plan: Plan) -> list[int]:
    """Whose copy of each chunk is the sum."""
    if plan.collective == "reduce_scatter":
        return [chunk * plan.world_size // plan.num_chunks for chunk in range(plan.num_chunks)]
    return [plan.root if plan.collective == "reduce" else 0] * plan.num_chunks


def _held(plan: Plan, buffers: Sequence[Array]) -> Array:
    offsets = plan.offsets(buffers[0].size, buffers[0].itemsize).tolist()
    pieces = [
        buffers[holder][offsets[chunk] : offsets[chunk + 1]]
        for chunk, holder in enumerate(_holders(plan))
    ]
    return np.concatenate(pieces)


@lru_cache(maxsize=8)
def _recipe(plan: Plan, size: int, itemsize: int) -> _Recipe:
    offsets, n = plan.offsets(size, itemsize), plan.world_size
    sums, roots = _trees(plan)
    depth = _live(sums, roots, n)
    order = np.lexsort([sums.chunk, depth])
    order = order[np.searchsorted(depth[order], 1) :]  # those that count, level by level
    lengths = np.diff(offsets)
    of_each = lengths[sums.chunk[order]]
    begin = np.zeros(len(sums.chunk), dtype=np.int64)
    begin[order] = n * size + np.cumsum(of_each) - of_each

    def places(terms: Ints, chunks: Ints) -> Ints | slice:
        inputs = terms < n
        first = begin[np.where(inputs, 0, terms - n)] if len(begin) else terms
        return _places(np.where(inputs, terms * size + offsets[chunks], first), lengths[chunks])

    steps = []
    cuts = np.flatnonzero(np.diff(depth[order], prepend=0, append=-1)).tolist()
    for start, stop in pairwise(cuts):
        level = order[start:stop]
        first, chunks = int(begin[level[0]]), sums.chunk[level]
        last = int(begin[level[-1]]) + int(of_each[stop - 1])
        if last > first:
            left, right = (places(terms[level], chunks) for terms in (sums.left, sums.right))
            steps.append(_Level(slice(first, last), left, right))
    room = n * size + int(of_each.sum())
    return _Recipe(room, steps, places(roots, np.arange(plan.num_chunks)))


def additions(plan: Plan) -> list[Any]:
    """What each chunk of a plan's result is the sum of.

    Parameters
    ----------
    plan : Plan
        As for `fold`.

    Returns
    -------
    list
        For each chunk a rank, whose buffer it is, or a pair of such sums, added in this order.
    """
    sums, roots = _trees(plan)
    found: list[Any] = list(range(plan.world_size))
    for left, right in zip(sums.left.tolist(), sums.right.tolist(), strict=True):
        found.append((found[left], found[right]))
    return [found[root] for root in roots.tolist()]


class _Sums(NamedTuple):
    """Additions of chunks in the order of the plan.

    A term below the number of ranks is the buffer of that rank; others are sums, counted from there
    on. What is in one batch needs nothing of each other.
    """

    left: Ints
    right: Ints
    chunk: Ints
    batches: list[int]


def _trees(plan: Plan) -> tuple[_Sums, Ints]:
    """What each sum is the sum of, and the terms that are asked for, one per chunk."""
    n, chunks = plan.world_size, plan.num_chunks
    here = np.repeat(np.arange(n), chunks)
    columns: list[tuple[Ints, Ints, Ints]] = []
    batches = [0]
    for src, dst, chunk, _, reduce in plan.moves():
        place, sent = dst * chunks + chunk, here[src * chunks + chunk]
        for turn in _turns(place):
            adds = turn[reduce[turn]]
            values = sent.copy()
            values[adds] = n + batches[-1] + np.arange(len(adds))
            columns.append((here[place[adds]], sent[adds], chunk[adds]))
            here[place[turn]] = values[turn]
            batches.append(batches[-1] + len(adds))
    nothing = np.empty(0, dtype=np.int64)
    left, right, chunk = (np.concatenate([nothing, *each]) for each in zip(*columns, strict=True))
    roots = here[np.array(_holders(plan)) * chunks + np.arange(chunks)]
    return _Sums(left, right, chunk, batches), roots


def _turns(place: Ints) -> list[Ints]:
    """Sort moves by how many come before them to the same place in the same round."""
    if len(np.unique(place)) == len(place):
        return [np.arange(len(place))]
    order = np.argsort(place, kind="stable")
    heads = np.flatnonzero(np.diff(place[order], prepend=-1))
    turn = np.arange(len(place)) - np.repeat(heads, np.diff(heads, append=len(place)))
    return [np.sort(order[turn == number]) for number in range(int(turn.max()) + 1)]


def _live(sums: _Sums, roots: Ints, n: int) -> Ints:
    """The longest way from each sum that counts down to the buffers; 0 for those that do not."""
    needed = np.zeros(len(sums.chunk) + n, dtype=bool)
    depth = np.zeros(len(sums.chunk) + n, dtype=np.int64)
    needed[roots] = True
    batches = list(pairwise(sums.batches))
    for start, stop in reversed(batches):  # a sum comes after its terms
        counts = needed[n + start : n + stop]
        needed[sums.left[start:stop][counts]] = True
        needed[sums.right[start:stop][counts]] = True
    for start, stop in batches:
        longest = np.maximum(depth[sums.left[start:stop]], depth[sums.right[start:stop]])
        depth[n + start : n + stop] = np.where(needed[n + start : n + stop], longest + 1, 0)
    return depth[n:]


def _places(first: Ints, lengths: Ints) -> Ints | slice:
    """Where pieces of so many elements lie that begin at some places; a slice if without gaps."""
    ends = np.cumsum(lengths)
    found: Ints = np.arange(int(ends[-1])) + np.repeat(first - (ends - lengths), lengths)
    if len(found) and (np.diff(found) == 1).all():
        return slice(int(found[0]), int(found[-1]) + 1)
    return found
