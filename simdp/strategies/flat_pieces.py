"""Flat pieces: gradients that are summed bucket by bucket, each piece on the rank that owns it.

As in Megatron's distributed optimizer: every bucket is cut into as many equal pieces as there are
ranks, and rank r keeps, updates and hands out the r-th. Buckets are filled in the reverse order of
registration, from the first step on, since a rank's pieces cannot change hands.
"""

from __future__ import annotations

from itertools import count

import numpy as np

from simdp.steps.bucket import Bucket, Group
from simdp.steps.buckets import assign, limits
from simdp.steps.facts import Facts, Ops, Step, trainable
from simdp.steps.ops import AllGather, AllReduce, Fill, ReduceScatter, Scale, Unless, Update, Wait
from simdp.steps.partition import Kept, Partition
from simdp.steps.passes import Tags, backward, forward
from simdp.steps.unit_ops import Open, Release

AGREED_NBYTES = 4.0
"""Norms and flags are float32, whatever the gradients are (torch: FSDP.clip_grad_norm_,
ShardedGradScaler)."""


def deal_buckets(facts: Facts, bucket_cap: float | None, kept: Kept) -> Partition:
    """Deal each bucket of gradients to all ranks, in equal pieces; what is frozen, to nobody.

    Parameters
    ----------
    facts : Facts
        Of the run.
    bucket_cap : float or None
        As of `DDP` [bytes].
    kept : Kept
        What is there on every rank.
    """
    buckets = assign(trainable(facts)[::-1], facts.itemsize, limits(bucket_cap))
    return Partition(trainable(facts), buckets, np.arange(facts.world_size)[None, :], kept)


def unit_bucket(facts: Facts, partition: Partition, unit: int, dtype: str | None = None) -> Bucket:
    """Make the bucket of a unit's gradients, which live in it where they are kept whole.

    Else it is there between an `Open` and a `Release` alone; ``dtype`` is theirs if left out.
    """
    is_view = partition.kept.gradients
    return facts.bucket(partition.units[unit], dtype, unit=unit, is_view=is_view, room=0.0)


class PieceReducer:
    """Sums the gradients of one backward pass, unit by unit, each piece on its owner.

    The bucket of a unit is given back when the next unit is sent, the last one at the end.

    Parameters
    ----------
    facts : Facts
        Of the run.
    partition : Partition
        Whose units travel together, in the order in which they are sent.
    tags : iterator of int
        Numbers for its collectives.
    """

    def __init__(self, facts: Facts, partition: Partition, tags: Tags) -> None:
        self.facts, self.partition, self.tags = facts, partition, tags
        learned = set(facts.ready_order)
        self.missing = [sum(name in learned for name in names) for names in partition.units]
        self.buckets: dict[int, Bucket] = {}
        self.sent: list[int] = []
        self.turn = 0
        self.held: list[Bucket] = []

    def backward(self, micro: int, overlap: bool) -> Ops:
        """Run backward; without ``overlap`` nothing is sent before its end."""
        if overlap:
            yield from backward(self.facts, micro, self.mark_ready)
        else:
            yield from backward(self.facts, micro)
            for name in self.facts.ready_order:
                yield from self.mark_ready(name)
        yield Wait(tuple(self.sent))
        yield from map(Release, self.held)

    def mark_ready(self, name: str) -> Ops:
        """Take a gradient into its bucket; send every bucket whose turn has come."""
        unit = self.partition.unit_of[name]
        if unit not in self.buckets:
            self.buckets[unit] = unit_bucket(self.facts, self.partition, unit)
            yield Open(self.buckets[unit])
        yield Fill(self.buckets[unit], name, self.facts.world_size)
        self.missing[unit] -= 1
        while self.turn < len(self.missing) and not self.missing[self.turn]:
            if self.turn in self.buckets:  # one of unused parameters alone is not sent
                yield from self._send(self.buckets.pop(self.turn))
            self.turn += 1

    def _send(self, bucket: Bucket) -> Ops:
        yield from map(Release, self.held)
        self.held = [bucket]
        self.sent.append(next(self.tags))
        yield ReduceScatter(self.sent[-1], f"bucket {bucket.unit}", bucket)


def step_in_pieces(
    facts: Facts, step: Step, partition: Partition, overlap: bool, by_shard: bool, every: bool
) -> Ops:
    """One step in which gradients are summed on the owners of their pieces.

    Parameters
    ----------
    facts, step
        Of the run, and of the step.
    partition : Partition
        Who owns what.
    overlap : bool
        Whether sums are sent while backward still runs.
    by_shard : bool
        As `Scale`.
    every : bool
        Whether gradients are summed after every micro-step, so that none is kept whole; else after
        the last one.
    """
    tags = count()
    yield Scale(by_shard)
    for micro in range(step.num_micro_steps):
        yield from forward(facts, micro)
        if every or micro == step.num_micro_steps - 1:
            yield from PieceReducer(facts, partition, tags).backward(micro, overlap)
        else:
            yield from backward(facts, micro)
    yield from agree(facts, tags)
    yield Update()
    yield Unless(tuple(hand_out(facts, partition, tags)))


def agree(facts: Facts, tags: Tags, group: Group = None) -> Ops:
    """Sum over the ranks what the pieces of gradients tell of the whole, and wait for it.

    That is the norm, where gradients are clipped, whether there is an inf or nan, where the loss is
    scaled, and two norms of each tensor for an optimizer that trusts them, such as LAMB.
    """
    optimizer = facts.workload.optimizer
    trusting = sum(optimizer.for_parameter(name).trusts for name in facts.ready_order)
    asked = {
        "inf or nan": float(facts.workload.precision.scaler() is not None),
        "gradient norm": float(facts.workload.clip_grad_norm is not None),
        "trust ratios": 2.0 * trusting,
    }
    for label, numbers in asked.items():
        if not numbers:
            continue
        tag = next(tags)
        yield AllReduce(tag, label, numbers * AGREED_NBYTES, group=group)
        yield Wait((tag,))


def gather(facts: Facts, partition: Partition, unit: int, tag: int, label: str) -> AllGather:
    """Start to put a unit's parameters together from their pieces, on every rank."""
    nbytes = float(partition.unit_elements(unit) * facts.weight_itemsize)
    return AllGather(tag, label, nbytes, unit)


def hand_out(facts: Facts, partition: Partition, tags: Tags) -> Ops:
    """Give every rank all parameters, from those that have updated them."""
    learned, sent = set(facts.ready_order), list[int]()
    for unit, names in enumerate(partition.units):
        if learned.intersection(names):
            sent.append(next(tags))
            yield gather(facts, partition, unit, sent[-1], f"parameters {unit}")
    yield Wait(tuple(sent))
