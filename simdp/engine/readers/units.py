"""Units: what those that are gathered, and their gradients on the way, take of every device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simdp.engine.readers.footprints import Amount, Footprint
from simdp.steps.bucket import Bucket
from simdp.steps.coalesced import GatherTogether
from simdp.steps.facts import Facts
from simdp.steps.ops import AllGather
from simdp.steps.partition import Partition
from simdp.steps.rows import Rows
from simdp.steps.unit_ops import Free, Open, Release, Unshard
from simdp.workload.precision.rounding import numpy_dtype

Taken = Iterator[tuple[str, Amount]]
"""Parts of memory and what is taken of each, or given back where it is negative [bytes]."""


class UnitMemory:
    """Follows buffers and parameters of units.

    A flat unit is a buffer, which is its parameters; rows are copied out of it into others.

    Parameters
    ----------
    facts : Facts
        Of the run.
    partition : Partition or None
        How parameters are dealt, if they are.
    footprint : Footprint
        Knows the allocator.
    """

    def __init__(self, facts: Facts, partition: Partition | None, footprint: Footprint) -> None:
        self._facts, self._dealt, self._footprint = facts, partition, footprint
        self._rows = partition if isinstance(partition, Rows) else None
        self._held: dict[int, list[float]] = {}
        self._parts: dict[int, float] = {}
        self._own: set[str] = set()

    @property
    def in_rows(self) -> bool:
        """Whether every parameter is cut by itself."""
        return self._rows is not None

    def open(self, op: Open) -> Taken:
        """A buffer for a unit's gradients is made."""
        yield "buckets", self._of_bucket(op.bucket)

    def release(self, op: Release) -> Taken:
        """It is given back."""
        yield "buckets", -self._of_bucket(op.bucket)

    def _of_bucket(self, bucket: Bucket) -> float:
        """What a unit's whole gradients take beside what is kept of them.

        Sums in another dtype than the weights' own are there beside what is made of them.
        """
        if bucket.is_view or bucket.unit is None:
            return 0.0
        if self._rows is None:
            itemsize = numpy_dtype(bucket.dtype).itemsize
            return self._footprint.room([self._elements(bucket.unit) * itemsize])
        own = bucket.dtype == self._facts.workload.dtype
        sums = [] if own else [bucket.nbytes / self._rows.num_places]
        return self._footprint.room([bucket.nbytes, *sums])

    def _elements(self, unit: int) -> int:
        assert self._dealt is not None, "there are units"
        return self._dealt.piece_elements(unit) * self._dealt.num_places

    def all_gather(self, op: AllGather) -> Taken:
        """A buffer for a unit's parameters is made."""
        if op.unit is not None and self._dealt is not None and not self._dealt.kept.weights:
            nbytes = self._elements(op.unit) * self._facts.weight_itemsize
            self._held[op.unit] = [self._footprint.room([nbytes])]
            yield "gathered", self._held[op.unit][0]

    def gather_together(self, op: GatherTogether) -> Taken:
        """Buffers for the parameters of several units are made."""
        for unit in op.units:
            nbytes = self._elements(unit) * self._facts.weight_itemsize
            self._held[unit] = [self._footprint.room([nbytes])]
            yield "gathered", self._held[unit][0]

    def unshard(self, op: Unshard) -> Taken:
        """Parameters are made, and the parts of which they were gathered are forgotten."""
        sizes = (self._facts.sizes[name] for name in self._of(op.unit))
        nbytes = self._footprint.room(size * self._facts.weight_itemsize for size in sizes)
        self._held[op.unit].append(nbytes)
        yield "gathered", nbytes - self._parts.pop(op.unit, 0.0)

    def copied_out(self, op: Unshard) -> Taken:
        """The buffer is given back."""
        yield "gathered", -self._held[op.unit].pop(0)

    def free(self, op: Free) -> Taken:
        """Whatever there is of a unit is given back; or a part of it is kept."""
        yield "gathered", -sum(self._held.pop(op.unit))
        if op.parts:
            nbytes = self._elements(op.unit) * self._facts.weight_itemsize / op.parts
            self._parts[op.unit] = self._footprint.room([nbytes])
            yield "gathered", self._parts[op.unit]

    def _of(self, unit: int) -> Iterable[str]:
        assert self._dealt is not None, "there are units"
        return self._dealt.units[unit]

    def summed(self, bucket: Bucket) -> Taken:
        """A unit's whole gradients are in their buffer; its owners get rows of their own."""
        for name in bucket.names:
            itemsize = self._facts.itemsize
            yield "gradients", -self._footprint.room([self._facts.sizes[name] * itemsize])
            if name not in self._own:
                self._own.add(name)
                yield "gradients", self._footprint.gradient(name)

    def forget_gradients(self) -> Taken:
        """The optimizer is through with them."""
        for name in self._facts.ready_order:
            if name in self._own:
                yield "gradients", -self._footprint.gradient(name)
        self._own.clear()
