"""Reduction of all ranks' buffers in the order of a plan, bit for bit.

The additions that lead to each chunk of the result form a tree. The trees of many short chunks are
evaluated together, level by level: far fewer NumPy calls than one per transfer. Longer chunks are
evaluated one by one, in blocks that fit the processor's cache. Plans with switches or scratch space
run in `simdp.engine.payload`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Array, Ints
from simdp.collectives import Plan
from simdp.engine import payload

SHORT_CHUNK = 500
"""Elements of a chunk up to which all chunks are evaluated together."""

MAX_ELEMENTS = 2**20
"""Elements of all ranks up to which this is so: about 24 MB of indices."""

MAX_MOVES = 4_000_000
"""Transfers of a plan up to which trees are built: about a second."""

BLOCK = 2**15
"""Elements of a block."""


class _Level(NamedTuple):
    """Independent additions: ``space[out] = space[left] + space[right]``."""

    out: slice
    left: Ints | slice
    right: Ints | slice


class _Recipe(NamedTuple):
    """Additions that fold the concatenated buffers of all ranks, and the place of the sum."""

    room: int
    levels: list[_Level]
    result: Ints | slice


def fold(plan: Plan, buffers: Sequence[Array], op: np.ufunc = np.add) -> Array:
    """Reduce the buffers of all ranks in the order of a plan.

    Parameters
    ----------
    plan : Plan
        Of an all_reduce, a reduce or a reduce_scatter.
    buffers : sequence of ndarray, each shape `(num_elements,)`
        One per rank, all of one dtype; not changed.
    op : ufunc
        The reduction.

    Returns
    -------
    ndarray, shape `(num_elements,)`
        The whole sum; of a reduce_scatter the pieces of all ranks, concatenated.
    """
    size, dtype = buffers[0].size, buffers[0].dtype
    if plan.world_size == 1:
        return buffers[0].copy()
    if plan.num_transfers > MAX_MOVES or plan.num_switches or plan.num_scratch:
        copies = [buffer.copy() for buffer in buffers]
        payload.run(plan, copies, op)
        return _held(plan, copies)
    if size > SHORT_CHUNK * plan.num_chunks or len(buffers) * size > MAX_ELEMENTS:
        total = np.empty_like(buffers[0])
        chunks = ChunkSums(plan.offsets(size, dtype.itemsize).tolist(), _kept_additions(plan))
        fold_blocks(chunks, buffers, [total], op, np.empty(BLOCK, dtype))
        return total
    recipe = _recipe(plan, size, dtype.itemsize)
    space = np.empty(recipe.room, dtype=dtype)
    np.concatenate(buffers, out=space[: len(buffers) * size])
    for out, left, right in recipe.levels:
        op(space[left], space[right], out=space[out])
    return space[recipe.result].copy() if isinstance(recipe.result, slice) else space[recipe.result]


class ChunkSums(NamedTuple):
    """Offsets of the chunks, and the `additions` that lead to each."""

    offsets: list[int]
    trees: list[Any]


def fold_blocks(
    chunks: ChunkSums,
    sources: Sequence[Any],
    targets: Sequence[Any],
    op: Callable[..., object],
    room: Any,
    scale: Callable[[Any], None] | None = None,
) -> None:
    """Reduce the buffers of all ranks into some others, in blocks that fit the processor's cache.

    Parameters
    ----------
    chunks : ChunkSums
        The order.
    sources, targets : sequence of ndarray, or of torch's tensors, each shape `(num_elements,)`
        One source per rank; each target gets the result, and may be a source.
    op : callable
        The reduction of two buffers into ``out``.
    room : ndarray or tensor, shape `(BLOCK,)`
        Overwritten.
    scale : callable, optional
        Called with each block of the result.
    """
    for (begin, end), tree in zip(pairwise(chunks.offsets), chunks.trees, strict=True):
        for start in range(begin, end, BLOCK):
            cut = slice(start, min(start + BLOCK, end))
            block = _evaluated(tree, [source[cut] for source in sources], op, room[: end - start])
            if scale is not None:
                scale(block)
            for target in targets:
                target[cut] = block


def _evaluated(tree: Any, pieces: Sequence[Any], op: Callable[..., object], out: Any) -> Any:
    """Evaluate a tree of additions in ``out``; only branches recurse, since chains may be long."""
    terms = list[tuple[Any, bool]]()  # other term of each addition; whether it is the left one
    while not isinstance(tree, int):
        left, right = tree
        if isinstance(left, int):
            terms.append((pieces[left], True))
            tree = right
        elif isinstance(right, int):
            terms.append((pieces[right], False))
            tree = left
        else:
            room = out.copy() if isinstance(out, np.ndarray) else out.clone()
            terms.append((_evaluated(right, pieces, op, room), False))
            tree = left
    reduced = pieces[tree]
    if not terms:
        out[...] = reduced
    for other, is_left in reversed(terms):
        first, second = (other, reduced) if is_left else (reduced, other)
        op(first, second, out=out)
        reduced = out
    return out


@lru_cache(maxsize=4)
def _kept_additions(plan: Plan) -> list[Any]:
    return additions(plan)


def _holders(plan: Plan) -> list[int]:
    """Rank that holds the sum of each chunk."""
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
    order = order[np.searchsorted(depth[order], 1) :]  # those that are needed, level by level
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
    """Return the tree of additions of each chunk of a plan's result.

    A tree is a rank (its buffer), or a pair of trees, added in this order.
    """
    sums, roots = _trees(plan)
    trees: list[Any] = list(range(plan.world_size))
    for left, right in zip(sums.left.tolist(), sums.right.tolist(), strict=True):
        trees.append((trees[left], trees[right]))
    return [trees[root] for root in roots.tolist()]


class _Sums(NamedTuple):
    """Additions of chunks in the order of the plan.

    A term below the number of ranks is that rank's buffer; larger terms number the sums. Additions
    of one batch are independent.
    """

    left: Ints
    right: Ints
    chunk: Ints
    batches: list[int]


def _trees(plan: Plan) -> tuple[_Sums, Ints]:
    """Return all additions of a plan, and the term of each chunk's result."""
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
    left, right, chunk = (
        np.concatenate([nothing, *arrays]) for arrays in zip(*columns, strict=True)
    )
    roots = here[np.array(_holders(plan)) * chunks + np.arange(chunks)]
    return _Sums(left, right, chunk, batches), roots


def _turns(place: Ints) -> list[Ints]:
    """Group moves by the number of earlier moves to the same place in the round."""
    if len(np.unique(place)) == len(place):
        return [np.arange(len(place))]
    order = np.argsort(place, kind="stable")
    heads = np.flatnonzero(np.diff(place[order], prepend=-1))
    turn = np.arange(len(place)) - np.repeat(heads, np.diff(heads, append=len(place)))
    return [np.sort(order[turn == number]) for number in range(int(turn.max()) + 1)]


def _live(sums: _Sums, roots: Ints, n: int) -> Ints:
    """Depth of each needed sum above the buffers; 0 for sums that are not needed."""
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
    """Indices of pieces from their starts and lengths; a slice if contiguous."""
    ends = np.cumsum(lengths)
    places: Ints = np.arange(int(ends[-1])) + np.repeat(first - (ends - lengths), lengths)
    if len(places) and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places
