"""Allocators by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.cluster.allocators.base import Allocator
from simdp.cluster.allocators.exact import Exact
from simdp.family import Family
from simdp.spec import one_of

ALLOCATORS: Family[Allocator] = Family(
    "allocators",
    Allocator,
    __name__,
    {
        "cuda": "cuda:Cuda",
        "exact": "exact:Exact",
    },
)
AnyAllocator = Annotated[Allocator, one_of("allocator", ALLOCATORS)]

__all__ = ["ALLOCATORS", "Allocator", "AnyAllocator", "Exact"]
