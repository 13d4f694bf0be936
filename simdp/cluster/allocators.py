"""Memory allocators: exact bytes, or torch's caching allocator."""

from __future__ import annotations

from abc import abstractmethod
from math import ceil
from typing import Annotated, ClassVar, Literal

from simdp.family import Family
from simdp.spec import Bool, Spec, one_of


class Allocator(Spec):
    """Base of the memory allocators."""

    kind: str

    caches: ClassVar[bool] = False
    """Whether it keeps free memory in segments, so that it reserves more than tensors take."""

    @property
    def grows(self) -> bool:
        """Whether its segments grow."""
        return False

    @abstractmethod
    def taken(self, nbytes: float) -> float:
        """Return the device memory used by a tensor of ``nbytes``; 0 for none."""


BLOCK_NBYTES = 512
"""Sizes are rounded up to a multiple of this (torch: kMinBlockSize)."""

MIN_SPLIT_NBYTES = 2**20
"""The rest of a large segment is split off only if larger (torch: kSmallSize)."""

OWN_SEGMENT_NBYTES = 10 * 2**20
"""Tensors from this size on have a separate segment (torch: kMinLargeAlloc)."""

ROUND_LARGE_NBYTES = 2 * 2**20
"""Separate segments are rounded up to a multiple of this (torch: kRoundLarge)."""


class Cuda(Allocator):
    """Tensors in blocks, as counted by ``torch.cuda.memory_allocated``.

    Tensors below 10 MiB share segments, cut into blocks of 512 B. A larger one has a segment of
    whole 2 MiB, and uses all of it if at most 1 MiB is left.

    References
    ----------
    torch, c10/cuda/CUDACachingAllocator: round_size, get_allocation_size, should_split.
    """

    kind: Literal["cuda"] = "cuda"

    caches: ClassVar[bool] = True

    expandable_segments: Bool = False
    """As of ``PYTORCH_CUDA_ALLOC_CONF``: each segment grows, which reduces reserved memory."""

    @property
    def grows(self) -> bool:
        return self.expandable_segments

    def taken(self, nbytes: float) -> float:
        block = ceil(nbytes / BLOCK_NBYTES) * BLOCK_NBYTES
        if block < OWN_SEGMENT_NBYTES:
            return float(block)
        segment = ceil(block / ROUND_LARGE_NBYTES) * ROUND_LARGE_NBYTES
        return float(block if segment - block > MIN_SPLIT_NBYTES else segment)


class Exact(Allocator):
    """Every tensor uses its exact number of bytes."""

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
