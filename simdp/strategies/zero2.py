"""ZeRO-2: as ZeRO-1, and gradients are kept by their owners alone."""

from __future__ import annotations

from typing import Literal

from simdp.spec import Bool, Bytes
from simdp.steps.buckets import BUCKET_CAP_NBYTES
from simdp.steps.facts import Facts, Ops, Step
from simdp.steps.partition import Kept, Partition
from simdp.steps.unit_ops import Shard
from simdp.strategies.base import Strategy, uneven
from simdp.strategies.ddp import DDP
from simdp.strategies.flat_pieces import deal_buckets, step_in_pieces
from simdp.workload import Workload

KEPT = Kept(weights=True, gradients=False)


class Zero2(Strategy):
    """ZeRO stage 2: gradients and optimizer state in pieces, parameters whole.

    With several micro-steps gradients are summed after each, so that a rank never has more of them
    than its pieces and the buckets that are on their way.

    Attributes
    ----------
    bucket_cap : float
        As of `DDP` [bytes].
    overlap, weight_by_shard
        As of `DDP`.

    References
    ----------
    Rajbhandari et al., arXiv 1910.02054.
    """

    kind: Literal["zero2"] = "zero2"
    bucket_cap: Bytes = float(BUCKET_CAP_NBYTES)
    overlap: Bool = True
    weight_by_shard: Bool = False

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        return uneven(workload)

    def _dealt(self, facts: Facts) -> Partition:
        return facts.once("partition", lambda: deal_buckets(facts, self.bucket_cap, KEPT))

    def setup(self, facts: Facts) -> Ops:
        """Make every replica a copy of rank 0's, and deal gradients and optimizer state."""
        yield from DDP().setup(facts)
        yield Shard(self._dealt(facts))

    def train_step(self, facts: Facts, step: Step) -> Ops:
        partition = self._dealt(facts)
        yield from step_in_pieces(
            facts, step, partition, self.overlap, self.weight_by_shard, every=True
        )
