"""Flat pieces: gradients that are summed bucket by bucket, each piece on the rank that owns it.

As in Megatron's distributed optimizer: every bucket is cut into as many equal pieces as there are
ranks, and rank r keeps, updates and hands out the r-th. Buckets are filled in the reverse order of
registration, from the first step on, since a rank's pieces cannot change hands.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simdp.strategies.base import Bucket, Pending, Rank, Script
from simdp.strategies.buckets import assign, limits
from simdp.strategies.partition import Kept, Partition
from simdp.workload import Workload


def deal_buckets(
    workload: Workload, world_size: int, bucket_cap: float | None, kept: Kept
) -> Partition:
    """Deal each bucket of gradients to all ranks, in equal pieces.

    Parameters
    ----------
    workload : Workload
        Whose parameters.
    world_size : int
        Number of ranks.
    bucket_cap : float or None
        As of `DDP` [bytes].
    kept : Kept
        What is there on every rank.
    """
    parameters = workload.graph.parameters
    buckets = assign(parameters[::-1], workload.gradient_itemsize, limits(bucket_cap))
    return Partition(parameters, buckets, np.arange(world_size)[None, :], kept)


class PieceReducer:
    """Sums the gradients of one backward pass, unit by unit, each piece on its owner.

    The bucket of a unit is given back when the next unit is sent, the last one at the end.

    Parameters
    ----------
    rank : Rank
        Whose gradients.
    units : sequence of sequence of str
        Names of the parameters that travel together, in the order in which they are sent.
    """

    def __init__(self, rank: Rank, units: Sequence[Sequence[str]]) -> None:
        self.rank, self.units = rank, units
        learned = set(rank.ready_order)
        self.home = {name: number for number, names in enumerate(units) for name in names}
        self.missing = [sum(name in learned for name in names) for names in units]
        self.buckets: dict[int, Bucket] = {}
        self.launched: list[Pending] = []
        self.turn = 0
        self.held: list[int] = []

    def backward(self, micro_step: int, overlap: bool) -> Script:
        """Run backward; without ``overlap`` nothing is sent before its end."""
        if overlap:
            yield from self.rank.backward(micro_step, hook=self.mark_ready)
        else:
            yield from self.rank.backward(micro_step)
            for name in self.rank.ready_order:
                yield from self.mark_ready(name)
        yield from self.rank.wait(self.launched)
        for unit in self.held:
            yield from self.rank.release(unit)

    def mark_ready(self, name: str) -> Script:
        """Take a gradient into its bucket; send every bucket whose turn has come."""
        unit = self.home[name]
        if unit not in self.buckets:
            self.buckets[unit] = yield from self.rank.unit_bucket(unit)
        yield from self.rank.fill(self.buckets[unit], name, self.rank.world_size, False)
        self.missing[unit] -= 1
        while self.turn < len(self.units) and not self.missing[self.turn]:
            if self.turn in self.buckets:  # one of unused parameters alone is not sent
                yield from self._send(self.turn)
            self.turn += 1

    def _send(self, unit: int) -> Script:
        for before in self.held:
            yield from self.rank.release(before)
        self.held = [unit]
        bucket = self.buckets.pop(unit)
        self.launched += yield from self.rank.reduce_scatter(unit, bucket, f"bucket {unit}")


def hand_out(rank: Rank, partition: Partition) -> Script:
    """Give every rank all parameters, from those that have updated them."""
    learned = set(rank.ready_order)
    pending: list[Pending] = []
    for unit, names in enumerate(partition.units):
        if learned.intersection(names):
            pending += yield from rank.all_gather(unit, f"parameters {unit}")
    yield from rank.wait(pending)
