"""Memory allocators: exact bytes, or torch's caching allocator."""

from __future__ import annotations

from abc import abstractmethod
from math import ceil
from typing import Annotated, Literal

from simdp.family import Family
from simdp.spec import Spec, one_of

__path__: list[str] = []  # for old names of submodules, see simdp.moved


class Allocator(Spec):
    """How a device's memory is handed out."""

    kind: str

    @abstractmethod
    def taken(self, nbytes: float) -> float:
        """Bytes of device memory that a tensor of so many bytes takes; 0 for none."""


BLOCK_NBYTES = 512
"""Sizes are rounded up to this (torch: kMinBlockSize)."""

MIN_SPLIT_NBYTES = 2**20
"""What is left of a large segment is split off only if it is larger (torch: kSmallSize)."""

OWN_SEGMENT_NBYTES = 10 * 2**20
"""From here on a tensor has a segment of its own (torch: kMinLargeAlloc)."""

ROUND_LARGE_NBYTES = 2 * 2**20
"""Segments of their own are rounded up to this (torch: kRoundLarge)."""


class Cuda(Allocator):
    """Tensors in blocks, as ``torch.cuda.memory_allocated`` counts them.

    Tensors below 10 MiB share segments, from which blocks of 512 B are cut. A larger one has a
    segment of whole 2 MiB, and takes all of it where not more than 1 MiB is left.

    References
    ----------
    torch, c10/cuda/CUDACachingAllocator: round_size, get_allocation_size, should_split.
    """

    kind: Literal["cuda"] = "cuda"

    def taken(self, nbytes: float) -> float:
        block = ceil(nbytes / BLOCK_NBYTES) * BLOCK_NBYTES
        if block < OWN_SEGMENT_NBYTES:
            return float(block)
        segment = ceil(block / ROUND_LARGE_NBYTES) * ROUND_LARGE_NBYTES
        return float(block if segment - block > MIN_SPLIT_NBYTES else segment)


class Exact(Allocator):
    """Every tensor takes its exact number of bytes."""

    kind: Literal["exact"] = "exact"

    def taken(self, nbytes: float) -> float:
        return nbytes


ALLOCATORS: Family[Allocator] = Family(
    "allocators",
    Allocator,
    __name__,
    {
        "cuda": "Cuda",
        "exact": "Exact",
    },
)
AnyAllocator = Annotated[Allocator, one_of("allocator", ALLOCATORS)]
