"""Data of collectives: buffers, and their reduction in plan order.

If every chunk stays at its place, chunks are independent: they are reduced one after the other, in
blocks that fit the processor's cache, so that every rank's bytes are read and written once. If
chunks change places, as in an all_to_all, whole chunks are moved round by round. The order of
additions, and so every bit, is the plan's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from simdp.arrays import Array, Bools, Ints
from simdp.collectives import Plan
from simdp.errors import ScenarioError

# run ----------------------------------------------------------------------------------------------

CACHE_NBYTES = 2**20
"""Size of all ranks' copies of a block together; about a core's second-level cache."""


MIN_BLOCK = 1024
"""Minimum elements of a block, so that the overhead of a call stays small."""


class _Step(NamedTuple):
    """The moves of one chunk in one round."""

    src: list[int]
    dst: list[int]
    reduce: list[bool]
    crossing: bool  # a rank both sends and receives, so that sent values are copied first


@lru_cache(maxsize=64)
def _by_chunk(plan: Plan) -> list[list[_Step]]:
    """Sort a plan's moves by chunk."""
    steps: list[list[_Step]] = [[] for _ in range(plan.num_chunks)]
    empty = np.zeros((plan.num_vertices, plan.num_chunks), dtype=bool)
    empty[plan.world_size :] = True  # a switch has no values before the first arrival
    for src, dst, chunk, _, adding in plan.moves():
        reduce = adding
        if plan.num_switches:
            reduce = adding & ~_first_arrivals(empty, dst, chunk)
        order = np.argsort(chunk, kind="stable")
        chunks, begins = np.unique(chunk[order], return_index=True)
        columns = zip(
            chunks.tolist(),
            np.split(src[order], begins[1:]),
            np.split(dst[order], begins[1:]),
            np.split(reduce[order], begins[1:]),
            strict=True,
        )
        for number, sources, targets, adds in columns:
            crossing = bool(np.isin(sources, targets).any())
            step = _Step(sources.tolist(), targets.tolist(), adds.tolist(), crossing)
            steps[number].append(step)
    return steps


def _first_arrivals(empty: Bools, dst: Ints, chunk: Ints) -> Bools:
    """Mark the first moves to empty places, and fill these places."""
    place = dst * empty.shape[1] + chunk
    first = np.zeros(len(place), dtype=bool)
    first[np.unique(place, return_index=True)[1]] = True
    first &= empty[dst, chunk]
    empty[dst, chunk] = False
    return first


def run(plan: Plan, buffers: Sequence[Array], op: np.ufunc = np.add) -> None:
    """Execute a collective on real buffers, in place.

    Parameters
    ----------
    plan : Plan
        Its transfers.
    buffers : sequence of ndarray, each shape `(num_elements,)`
        One contiguous buffer per rank, all of one dtype: the whole buffer, even if a rank uses only
        a piece of it (rank r's piece is the r-th).
    op : ufunc
        The reduction of a rank's and an incoming value; default: the sum.

    Raises
    ------
    ValueError
        If the buffers do not match the plan or each other; or, for an all_to_all, if they do not
        divide evenly.
    """
    if len(buffers) != plan.world_size:
        raise ValueError(f"the plan needs {plan.world_size} buffers, got {len(buffers)}")
    kinds = {(buffer.shape, buffer.dtype) for buffer in buffers}
    if len(kinds) > 1 or buffers[0].ndim != 1:
        raise ValueError(
            f"buffers must be 1-D with one shape and dtype, got {sorted(map(str, kinds))}"
        )
    if plan.num_scratch:
        _run_with_scratch(plan, buffers, op)
        return
    size, itemsize = buffers[0].size, buffers[0].itemsize
    offsets = plan.offsets(size, itemsize).tolist()
    block = max(CACHE_NBYTES // (plan.world_size * itemsize), MIN_BLOCK)
    longest = min(block, max((e - b for b, e in pairwise(offsets)), default=0))
    switches = [np.empty(longest, dtype=buffers[0].dtype) for _ in range(plan.num_switches)]
    for steps, (begin, end) in zip(_by_chunk(plan), pairwise(offsets), strict=True):
        for start in range(begin, end, block):
            stop = min(start + block, end)
            views = [buffer[start:stop] for buffer in buffers]
            _play(steps, views + [switch[: stop - start] for switch in switches], op)


def _play(steps: list[_Step], views: list[Array], op: np.ufunc) -> None:
    for step in steps:
        sent = {src: views[src].copy() for src in step.src} if step.crossing else None
        for src, dst, reduce in zip(step.src, step.dst, step.reduce, strict=True):
            incoming = views[src] if sent is None else sent[src]
            mine = views[dst]
            if reduce:
                op(mine, incoming, out=mine)
            else:
                mine[:] = incoming


def _run_with_scratch(plan: Plan, buffers: Sequence[Array], op: np.ufunc) -> None:
    """Move whole chunks, with scratch space on each rank."""
    n, chunks, size = plan.world_size, plan.num_chunks, buffers[0].size
    exchange = plan.collective == "all_to_all"
    if exchange and size % chunks:
        raise ValueError(f"{plan.collective} needs a multiple of {chunks} elements, got {size}")
    # Every slot has the length of the longest chunk.
    offsets = plan.offsets(size, buffers[0].itemsize)
    pieces = list(zip(range(chunks), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    longest = int(np.diff(offsets).max(initial=0))
    slots = np.zeros((plan.num_vertices, plan.num_slots, longest), dtype=buffers[0].dtype)
    for rank, buffer in enumerate(buffers):
        for number, begin, end in pieces:
            slots[rank, number, : end - begin] = buffer[begin:end]
    if exchange:  # a rank's chunk to itself
        own = np.arange(chunks) * n // chunks == np.arange(n)[:, None]
        ranks, places = np.nonzero(own)
        slots[ranks, chunks + places] = slots[ranks, places]
    for src, dst, chunk, to, reduce in plan.moves():
        sent = slots[src, chunk]
        slots[dst[~reduce], to[~reduce]] = sent[~reduce]
        op.at(slots, (dst[reduce], to[reduce]), sent[reduce])
    first = chunks if exchange else 0
    for rank, buffer in enumerate(buffers):
        for number, begin, end in pieces:
            buffer[begin:end] = slots[rank, first + number, : end - begin]


class FlatBuffers:
    """One contiguous buffer per rank that holds several tensors, one after the other.

    The number of elements is padded with zeros to a ``multiple``.

    Attributes
    ----------
    flat : list of ndarray
        Of each rank.
    """

    def __init__(
        self,
        shapes: dict[str, tuple[int, ...]],
        world_size: int,
        dtype: np.dtype[np.generic],
        multiple: int = 1,
    ) -> None:
        sizes = [prod(shape) for shape in shapes.values()]
        ends = np.cumsum([0, *sizes]).tolist()
        self.flat = [
            np.empty(-(-ends[-1] // multiple) * multiple, dtype) for _ in range(world_size)
        ]
        for flat in self.flat:
            flat[ends[-1] :] = 0
        self._places = {
            name: (slice(begin, end), shape)
            for (name, shape), begin, end in zip(shapes.items(), ends, ends[1:], strict=False)
        }

    def views(self, name: str) -> list[Array]:
        """One tensor's view of every rank's buffer, in the tensor's shape."""
        place, shape = self._places[name]
        return [flat[place].reshape(shape) for flat in self.flat]

    def names(self) -> list[str]:
        """The tensors, in order."""
        return list(self._places)


def of_rank(arrays: Mapping[str, Array], rank: int, name: str, shape: tuple[int, ...]) -> Array:
    """A rank's array of a state, or else that of rank 0.

    Raises
    ------
    ScenarioError
        If there is none, or it has another shape.
    """
    array = arrays.get(f"{rank}/{name}", arrays.get(f"0/{name}"))
    if array is None:
        raise ScenarioError([f"the state has no {name}, which this run keeps from step to step."])
    if array.shape != shape:
        raise ScenarioError(
            [f"{name} of the state has the shape {array.shape}, but that of this run is {shape}."]
        )
    return array


def without_repeats(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Drop arrays of later ranks that equal rank 0's."""
    kept: dict[str, Array] = {}
    for key, value in arrays.items():
        rank, _, name = key.partition("/")
        first = arrays.get(f"0/{name}")
        is_repeated = rank != "0" and first is not None and value.tobytes() == first.tobytes()
        if not is_repeated:
            kept[key] = value
    return kept
