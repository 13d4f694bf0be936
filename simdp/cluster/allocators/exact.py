"""Every tensor takes what it holds."""

from __future__ import annotations

from typing import Literal

from simdp.cluster.allocators.base import Allocator


class Exact(Allocator):
    """Every tensor takes what it holds, to the byte."""

    kind: Literal["exact"] = "exact"

    def taken(self, nbytes: float) -> float:
        return nbytes
