"""ZeRO-2: as ZeRO-1, and gradients are kept by their owners alone."""

from __future__ import annotations

from typing import Literal

from simdp.spec import Bool, Bytes
from simdp.strategies.base import Rank, Script, Strategy, uneven
from simdp.strategies.buckets import BUCKET_CAP_NBYTES
from simdp.strategies.ddp import DDP
from simdp.strategies.flat_pieces import deal_buckets
from simdp.strategies.partition import Kept, Partition
from simdp.strategies.zero1 import piece_collectives, step_in_pieces, unit_nbytes
from simdp.workload import Workload


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

    def uses(self, world_size: int, workload: Workload, num_samples: int) -> list[tuple[str, int]]:
        return piece_collectives(workload)

    def partition(self, workload: Workload, local_size: int, world_size: int) -> Partition:
        kept = Kept(weights=True, gradients=False)
        return deal_buckets(workload, world_size, self.bucket_cap, kept)

    def sent_nbytes(self, rank: Rank) -> list[int]:
        return unit_nbytes(rank)

    def setup(self, rank: Rank) -> Script:
        """Make every replica a copy of rank 0's, and deal gradients and optimizer state."""
        yield from DDP().setup(rank)
        yield from rank.shard()

    def train_step(self, rank: Rank) -> Script:
        yield from step_in_pieces(rank, self.overlap, self.weight_by_shard, every=True)
