"""HSDP: sharded inside a node, replicated across nodes."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Ints
from simdp.spec import Int
from simdp.strategies.base import ProcessGroups
from simdp.strategies.fsdp import FullySharded
from simdp.strategies.rank_types import REPLICATE, SHARD
from simdp.strategies.zero1 import piece_collectives
from simdp.workload import Workload


class HSDP(FullySharded):
    """Fully sharded in groups of neighbours, each with all pieces; HYBRID_SHARD.

    A unit's gradients are summed piece by piece inside each group; then the ranks with the same
    piece sum it, on a communication stream of their own.

    Attributes
    ----------
    shard_size : int or None
        Ranks of a group; None is as many as a node has.
    """

    kind: Literal["hsdp"] = "hsdp"
    shard_size: Int | None = Field(None, ge=1)

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        if self.shard_size is not None and world_size % self.shard_size:
            fitting = [str(n) for n in range(1, world_size + 1) if world_size % n == 0]
            return (
                f"shard_size: {self.shard_size} does not divide the {world_size} ranks; "
                f"use one of {', '.join(fitting)}."
            )
        return super().problem_with(world_size, workload)

    def _ranks(self, local_size: int, world_size: int) -> Ints:
        return np.arange(world_size).reshape(-1, self.shard_size or local_size)

    def _groups(self) -> tuple[str | None, ...]:
        return (SHARD, REPLICATE)

    def process_groups(
        self, workload: Workload, local_size: int, world_size: int
    ) -> list[ProcessGroups]:
        ranks = self._ranks(local_size, world_size)
        inside = tuple(name for name, _ in piece_collectives(workload))
        return [
            ProcessGroups(SHARD, ranks, 0, inside),
            ProcessGroups(REPLICATE, ranks.T, 1, ("broadcast", "all_reduce")),
        ]
