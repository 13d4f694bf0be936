"""HSDP: sharded inside a node, replicated across nodes."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Ints
from simdp.spec import Int
from simdp.steps.bucket import Group
from simdp.steps.facts import Facts, Ops
from simdp.steps.ops import NewGroup
from simdp.steps.rows import Rows
from simdp.strategies.base import members
from simdp.strategies.fsdp import PerParameter
from simdp.strategies.left_out import asks_others
from simdp.strategies.row_units import RowRules
from simdp.workload import Workload

SHARD, REPLICATE = "shard", "replicate"
"""Names of process groups: the ranks that share all pieces, and those with the same pieces."""


class HSDP(PerParameter):
    """Fully sharded in groups of neighbours, each with all pieces: a mesh of two dimensions.

    A unit's gradients are summed piece by piece inside each group; then the ranks with the same
    piece sum it, on a communication stream of their own.

    Attributes
    ----------
    shard_size : int or None
        Ranks of a group; None is as many as a node has.
    all_reduce : {"every", "last"}
        After which micro-steps sums are summed across groups; "last" adds up those of earlier
        micro-steps inside each group, as ``set_requires_all_reduce(False)`` for them does.
    """

    kind: Literal["hsdp"] = "hsdp"
    shard_size: Int | None = Field(None, ge=1)
    all_reduce: Literal["every", "last"] = "every"

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        return unequal(self.shard_size, world_size) or super().problem_with(world_size, workload)

    def problem_with_groups(
        self, num_groups: int, world_size: int, workload: Workload
    ) -> str | None:
        if self.shard_size is None or self.shard_size * num_groups != world_size:
            return (
                "shard_size: ranks that have all pieces together drop out together; write "
                f"{max(world_size // num_groups, 1)} for {num_groups} replica groups of "
                f"{world_size} ranks."
            )
        return asks_others(workload)

    def _shard_size(self, world_size: int) -> int | None:
        return self.shard_size

    def _ranks(self, facts: Facts) -> Ints:
        return np.arange(facts.world_size).reshape(-1, self.shard_size or facts.local_size)

    def _groups(self) -> tuple[Group, ...]:
        return (SHARD, REPLICATE)

    def _rules(self, facts: Facts, partition: Rows) -> RowRules:
        return super()._rules(facts, partition)._replace(across_last=self.all_reduce == "last")

    def setup(self, facts: Facts) -> Ops:
        """Make the groups, and in them every rank's model that of rank 0; keep the pieces."""
        ranks = facts.quorum.among(self._ranks(facts))
        yield NewGroup(SHARD, members(ranks), 0)
        yield NewGroup(REPLICATE, members(ranks.T), 1)
        yield from super().setup(facts)


def unequal(shard_size: int | None, world_size: int) -> str | None:
    """Say that groups of so many ranks are not all of all ranks; or None."""
    if shard_size is None or not world_size % shard_size:
        return None
    fitting = [str(n) for n in range(1, world_size + 1) if world_size % n == 0]
    return (
        f"shard_size: {shard_size} does not divide the {world_size} ranks; "
        f"use one of {', '.join(fitting)}."
    )
