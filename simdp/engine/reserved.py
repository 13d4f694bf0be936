"""Memory that torch's caching allocator reserves for a rank.

The allocations of the first steps are replayed in blocks and segments, since reserved memory
depends on the order in which tensors are allocated and freed, not only on their sum.

References
----------
torch, c10/cuda/CUDACachingAllocator.cpp: malloc, get_allocation_size, should_split, free_block,
release_cached_blocks, ExpandableSegment.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from simdp.cluster.allocators import (
    BLOCK_NBYTES,
    MIN_SPLIT_NBYTES,
    OWN_SEGMENT_NBYTES,
    ROUND_LARGE_NBYTES,
)
from simdp.engine.collective import Planner
from simdp.engine.interpreters.footprints import Amount, Footprint
from simdp.engine.interpreters.memory import MemoryLedger
from simdp.engine.run import Run
from simdp.engine.slowdown import Slowdown
from simdp.scenario.root import Scenario
from simdp.steps.partition import RowPartition
from simdp.strategies.memory import beside_tensors

SMALL_NBYTES = 2**20
"""Tensors up to here share small segments (torch: kSmallSize)."""

SMALL_SEGMENT_NBYTES = 2 * 2**20
"""A segment of small tensors (torch: kSmallBuffer)."""

LARGE_SEGMENT_NBYTES = 20 * 2**20
"""A segment of tensors below `OWN_SEGMENT_NBYTES`; a page that expands (torch: kLargeBuffer)."""

STEPS = 3
"""The first has no optimizer state yet; the third equals all later ones."""

MAIN, REDUCE, GATHER = range(3)
"""Streams of FSDP2, each with blocks of its own: compute; reduce_scatter, with the gradient shards
that it makes; all_gather."""

Pool = tuple[int, bool]
"""A stream, and whether its blocks are small."""


class Block:
    """A part of a segment, linked to its neighbours."""

    __slots__ = ("after", "before", "is_free", "nbytes", "number", "pool")

    def __init__(self, number: int, nbytes: int, pool: Pool) -> None:
        self.number, self.nbytes, self.pool = number, nbytes, pool
        self.before: Block | None = None
        self.after: Block | None = None
        self.is_free = False


class CachingAllocator:
    """Torch's allocator of one device.

    Parameters
    ----------
    is_expandable : bool
        Whether each pool is one segment that grows (``expandable_segments:True``).
    capacity : float or None
        At this size it releases segments that are free, and tries again [bytes].

    Attributes
    ----------
    allocated, reserved : int
        Memory of tensors, and of segments [bytes].
    most_allocated, most_reserved : int
        Their peaks [bytes].
    """

    def __init__(self, is_expandable: bool = False, capacity: float | None = None) -> None:
        self.is_expandable, self._capacity = is_expandable, capacity
        self.allocated = self.reserved = self.most_allocated = self.most_reserved = 0
        self._free: dict[Pool, list[tuple[int, int, Block]]] = {}
        self._end: dict[Pool, Block] = {}
        self._made = 0

    def malloc(self, nbytes: float, stream: int = MAIN) -> Block:
        """Allocate the smallest free block that fits, or a new segment; the rest stays free."""
        size = max(ceil(nbytes / BLOCK_NBYTES), 1) * BLOCK_NBYTES
        pool = stream, size <= SMALL_NBYTES
        fitting = self._free.setdefault(pool, [])
        place = bisect_left(fitting, (size, -1))
        if place < len(fitting):
            block = fitting.pop(place)[-1]
        else:
            block = self._grown(size, pool) if self.is_expandable else self._segment(size, pool)
        rest = block.nbytes - size
        if rest >= BLOCK_NBYTES if pool[1] or self.is_expandable else rest > MIN_SPLIT_NBYTES:
            self._split(block, size, rest)
        block.is_free = False
        self.allocated += block.nbytes
        self.most_allocated = max(self.most_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Free a block, and join it with free neighbours."""
        self.allocated -= block.nbytes
        block.is_free = True
        if block.after is not None and block.after.is_free:
            self._take(block.after)
            self._absorb(block, block.after)
        if block.before is not None and block.before.is_free:
            self._take(block.before)
            block = block.before
            assert block.after is not None
            self._absorb(block, block.after)
        insort(self._free[block.pool], (block.nbytes, block.number, block))

    def _segment(self, size: int, pool: Pool) -> Block:
        nbytes = SMALL_SEGMENT_NBYTES
        if not pool[1]:
            nbytes = LARGE_SEGMENT_NBYTES
            if size >= OWN_SEGMENT_NBYTES:
                nbytes = ceil(size / ROUND_LARGE_NBYTES) * ROUND_LARGE_NBYTES
        if self._capacity is not None and self.reserved + nbytes > self._capacity:
            self._release_cached()
        return self._new(nbytes, pool)

    def _release_cached(self) -> None:
        for blocks in self._free.values():
            for segment in [b for b in blocks if b[-1].before is None and b[-1].after is None]:
                blocks.remove(segment)
                self.reserved -= segment[0]

    def _grown(self, size: int, pool: Pool) -> Block:
        """Extend a pool's segment by the pages that are missing."""
        end, page = self._end.get(pool), SMALL_SEGMENT_NBYTES if pool[1] else LARGE_SEGMENT_NBYTES
        there = 0
        if end is not None and end.is_free:
            self._take(end)
            there = end.nbytes
        block = self._new(ceil((size - there) / page) * page, pool)
        if end is not None:
            end.after, block.before = block, end
            if there:
                self._absorb(end, block)
                return end
        self._end[pool] = block
        return block

    def _new(self, nbytes: int, pool: Pool) -> Block:
        self.reserved += nbytes
        self.most_reserved = max(self.most_reserved, self.reserved)
        self._made += 1
        return Block(self._made, nbytes, pool)

    def _split(self, block: Block, size: int, rest: int) -> None:
        self._made += 1
        other = Block(self._made, rest, block.pool)
        other.is_free = True
        other.before, other.after, block.nbytes = block, block.after, size
        if block.after is not None:
            block.after.before = other
        elif self.is_expandable:
            self._end[block.pool] = other
        block.after = other
        insort(self._free[block.pool], (rest, other.number, other))

    def _absorb(self, block: Block, after: Block) -> None:
        block.nbytes += after.nbytes
        block.after = after.after
        if after.after is not None:
            after.after.before = block
        elif self.is_expandable:
            self._end[block.pool] = block

    def _take(self, block: Block) -> None:
        blocks = self._free[block.pool]
        blocks.pop(bisect_left(blocks, (block.nbytes, block.number)))


class ReservedMemory(NamedTuple):
    """Peaks of the fullest rank [bytes]."""

    allocated: float
    reserved: float


def reserved_memory(scenario: Scenario) -> ReservedMemory:
    """Replay the allocations of the fullest rank in its first steps.

    Segments have the memory of a device less the middle of `beside_tensors`.

    Parameters
    ----------
    scenario : Scenario
        Without numerics, of a strategy without a parameter server.
    """
    cluster = scenario.cluster
    memory = min(device.memory for device in cluster.devices()) / cluster.ranks_per_device
    capacity = memory - sum(beside_tensors(0.0, cluster.world_size)) / 2
    steps = {"steps": max(STEPS, scenario.workload.steps or 0), "epochs": None}
    workload = scenario.workload.model_copy(update=steps)
    longer = scenario.model_copy(update={"workload": workload})
    run = Run(longer, Slowdown(cluster, scenario.seed), Planner(cluster))
    allocator = CachingAllocator(cluster.allocator.grows, capacity)
    has_streams = isinstance(run.program.partition, RowPartition)
    run.memory.ledger = _AllocationLedger(allocator, has_streams)
    _keep_sizes(run.memory.footprint)
    run.follow_memory(num_steps=STEPS)
    return ReservedMemory(float(allocator.most_allocated), float(allocator.most_reserved))


class _Bytes(float):
    """A number of bytes with the sizes of its tensors."""

    sizes: tuple[float, ...]
    is_piece: bool

    @classmethod
    def of(cls, nbytes: float, sizes: Iterable[float], is_piece: bool = False) -> _Bytes:
        nbytes_of_sizes = cls(nbytes)
        nbytes_of_sizes.sizes, nbytes_of_sizes.is_piece = tuple(sizes), is_piece
        return nbytes_of_sizes

    def __neg__(self) -> _Bytes:
        return _Bytes.of(-float(self), self.sizes, self.is_piece)

    def __add__(self, other: float) -> Any:
        if isinstance(other, _Bytes):
            return _Bytes.of(float(self) + float(other), self.sizes + other.sizes, self.is_piece)
        return self if other == 0 else float(self) + other

    __radd__ = __add__

    def __sub__(self, other: float) -> Any:
        return self if isinstance(other, float) and other == 0 else float(self) - other


def _keep_sizes(footprint: Footprint) -> None:
    """Make a footprint return bytes with the sizes of their tensors."""
    room, gradient = footprint.room, footprint.gradient

    def sized(nbytes: Iterable[float]) -> float:
        sizes = [size for size in nbytes if size]
        return _Bytes.of(room(sizes), sizes) if sizes else 0.0

    def piece(name: str) -> Amount:
        nbytes = gradient(name)
        sizes = getattr(nbytes, "sizes", None)
        return nbytes if sizes is None else _Bytes.of(float(nbytes), sizes, is_piece=True)

    footprint.room, footprint.gradient = sized, piece  # type: ignore[method-assign]


class _AllocationLedger(MemoryLedger):
    """Passes allocations to an allocator, and frees the youngest tensor of a size."""

    def __init__(self, allocator: CachingAllocator, has_streams: bool) -> None:
        super().__init__(1)
        self._allocator, self._has_streams = allocator, has_streams
        self._held: dict[str, list[tuple[float, Block]]] = {}

    def hold(self, part: str, nbytes: Amount) -> None:
        most = nbytes
        if isinstance(nbytes, np.ndarray):
            most = float(nbytes.max() if nbytes.max() > 0 else nbytes.min())
        sizes = getattr(most, "sizes", (abs(float(most)),))
        held = self._held.setdefault(part, [])
        if most > 0:
            stream = self._stream(part, most, len(sizes))
            held += [(size, self._allocator.malloc(size, stream)) for size in sizes]
            return
        for size in sizes:
            self._allocator.free(held.pop(_youngest(held, size))[1])

    def _stream(self, part: str, nbytes: Amount, num_tensors: int) -> int:
        if not self._has_streams:
            return MAIN
        if part == "buckets" or getattr(nbytes, "is_piece", False):
            return REDUCE
        return GATHER if part == "gathered" and num_tensors == 1 else MAIN


def _youngest(held: list[tuple[float, Block]], size: float) -> int:
    """Index of the youngest tensor of a size, or of the nearest size."""
    for place in range(len(held) - 1, -1, -1):
        if held[place][0] == size:
            return place
    return min(range(len(held)), key=lambda place: abs(held[place][0] - size))
