"""The payload: what a plan does to real arrays, in plan order and apart from any clock.

Chunks do not touch each other in any plan, so that they are played one after the other, and each in
blocks that fit the processor's cache: every rank's bytes come from memory once and go back once.
The order of additions, and so every bit, is the plan's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simdp.collectives import Plan

Array = NDArray[Any]

CACHE_NBYTES = 2**20
"""What all ranks' copies of a block may take together; about a core's second-level cache."""


MIN_BLOCK = 1024
"""Elements of a block at least, so that what a call costs stays small beside its work."""


class _Step(NamedTuple):
    """The transfers of one chunk in one round."""

    src: list[int]
    dst: list[int]
    reduce: list[bool]
    crossing: bool  # a rank both sends and receives, so that what is sent must be kept first


@lru_cache(maxsize=64)
def _by_chunk(plan: Plan) -> list[list[_Step]]:
    """Sort a plan's transfers by chunk."""
    steps: list[list[_Step]] = [[] for _ in range(plan.num_chunks)]
    for transfers in plan.rounds():
        reduce = np.broadcast_to(transfers.reduce, transfers.src.shape)
        order = np.argsort(transfers.chunk, kind="stable")
        chunks, begins = np.unique(transfers.chunk[order], return_index=True)
        columns = zip(
            chunks.tolist(),
            np.split(transfers.src[order], begins[1:]),
            np.split(transfers.dst[order], begins[1:]),
            np.split(reduce[order], begins[1:]),
            strict=True,
        )
        for chunk, src, dst, adds in columns:
            crossing = bool(np.isin(src, dst).any())
            steps[chunk].append(_Step(src.tolist(), dst.tolist(), adds.tolist(), crossing))
    return steps


def run(plan: Plan, buffers: Sequence[Array]) -> None:
    """Carry out a collective on real buffers, in place, with sum as the reduction.

    Parameters
    ----------
    plan : Plan
        Who sends what to whom.
    buffers : sequence of ndarray, each shape `(num_elements,)`
        One contiguous buffer per rank, all of one dtype: the whole buffer, also where the
        collective gives or takes only a piece of it (rank r's piece is chunk r).

    Raises
    ------
    ValueError
        If the buffers do not match the plan or each other.
    """
    if len(buffers) != plan.world_size:
        raise ValueError(f"the plan needs {plan.world_size} buffers, got {len(buffers)}")
    kinds = {(buffer.shape, buffer.dtype) for buffer in buffers}
    if len(kinds) > 1 or buffers[0].ndim != 1:
        raise ValueError(f"buffers must be 1-D and alike, got {sorted(map(str, kinds))}")
    size, itemsize = buffers[0].size, buffers[0].itemsize
    offsets = plan.offsets(size, itemsize).tolist()
    block = max(CACHE_NBYTES // (plan.world_size * itemsize), MIN_BLOCK)
    for steps, begin, end in zip(_by_chunk(plan), offsets, offsets[1:], strict=False):
        for start in range(begin, end, block):
            stop = min(start + block, end)
            _play(steps, [buffer[start:stop] for buffer in buffers])


def _play(steps: list[_Step], views: list[Array]) -> None:
    add = np.add
    for step in steps:
        sent = {src: views[src].copy() for src in step.src} if step.crossing else None
        for src, dst, reduce in zip(step.src, step.dst, step.reduce, strict=True):
            incoming = views[src] if sent is None else sent[src]
            mine = views[dst]
            if reduce:
                add(mine, incoming, out=mine)
            else:
                mine[:] = incoming
