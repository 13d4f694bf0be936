"""Row units: when FSDP2 gathers a unit's rows, puts parameters together, and sums gradients.

The host runs ahead of the device, and nothing holds it back. On the device a gather starts when the
parameters before the last ones have been copied out of their buffer, so that there are two such
buffers at most; in backward one unit is gathered while another one computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simdp.steps.bucket import Bucket, Group
from simdp.steps.facts import Facts, Ops
from simdp.steps.offload import HostCopy
from simdp.steps.ops import AllGather, AllReduce, Copy, Fill, ReduceScatter, Wait
from simdp.steps.passes import Tags, backward, forward
from simdp.steps.rows import Rows
from simdp.steps.unit_ops import Free, Open, Release, Unshard
from simdp.strategies.unit_names import Module
from simdp.workload.graph import Graph
from simdp.workload.precision.rounding import numpy_dtype

BUFFERS = 2
"""Gathers that are asked for before the first one has been copied out."""

AVERAGED = ("float32", "bfloat16")
"""Dtypes in which sums are divided by the collective itself (torch: ReduceOp.AVG)."""


class RowUnit(NamedTuple):
    """Modules whose parameters come and go together.

    Attributes
    ----------
    number : int
        Of the unit in the partition.
    label : str
        The modules.
    first, last : int
        Calls between which forward needs it, and backward in reverse.
    stays : bool
        Whether it is kept after forward unless that is refused: what backward needs first.
    is_late : bool
        Whether no gradient flows out of it, so that nothing tells that its backward is over.
    names : tuple of str
        Of the parameters in it that get gradients.
    has_backward : bool
        Whether gradients flow through any of its calls, so that backward needs it.
    """

    number: int
    label: str
    first: int
    last: int
    stays: bool
    is_late: bool
    names: tuple[str, ...]
    has_backward: bool = True


class RowRules(NamedTuple):
    """What of FSDP2's options decides when units come and go.

    Attributes
    ----------
    reshard_after_forward : bool, int or None
        As of `simdp.strategies.fsdp.FSDP`, an int being one that is neither 1 nor the group's size.
    reshard_after_backward, sums_last : bool
        Whether units are freed after every backward; whether the last one alone sums gradients.
    forward_prefetch, backward_prefetch : int or None
        As of `simdp.strategies.fsdp.FSDP`.
    reduce_dtype : str
        In which gradients travel.
    inside, across, part : str or None
        The process groups in which units are gathered and summed; those that have the same pieces,
        where there are several; those that keep units between forward and backward.
    offloads : bool
        Whether pieces lie in the memory of the host, as do gradients that are summed.
    across_last : bool
        Whether sums go across groups after the last micro-step alone.
    """

    reshard_after_forward: bool | int | None
    reshard_after_backward: bool
    sums_last: bool
    forward_prefetch: int | None
    backward_prefetch: int | None
    reduce_dtype: str
    inside: Group = None
    across: Group = None
    part: Group = None
    offloads: bool = False
    across_last: bool = False


def row_units(graph: Graph, modules: Sequence[Module]) -> list[RowUnit]:
    """Find when each unit is needed; units that no call needs are left out.

    Parameters
    ----------
    graph : Graph
        The model.
    modules : sequence of Module
        The units, the root first.

    Returns
    -------
    list of RowUnit
        In the order in which forward gathers them.
    """
    learned, found = set(graph.ready_order), []
    for number, module in enumerate(modules):
        if module.last < 0:
            continue
        is_late = not number or not any(graph.needs[module.first])
        names = tuple(name for name in module.parameters if name in learned)
        first, last = module.first, module.last
        flows = any(graph.flows[first : last + 1])
        found.append(
            RowUnit(number, module.label, first, last, module.stays, is_late, names, flows)
        )
    return sorted(found, key=lambda unit: (unit.number > 0, unit.first))


def divisors(num_ranks: int, dtype: str) -> tuple[float, float]:
    """What gradients are divided by before and after the sum, so that it is a mean."""
    if dtype in AVERAGED:
        return 1.0, float(num_ranks)
    factor = 1
    while num_ranks % factor == 0 and num_ranks / factor > factor:
        factor *= 2
    return float(factor), num_ranks / factor


class RowWalk:
    """Lets units come and go in the micro-steps of a step.

    Parameters
    ----------
    facts : Facts
        Of the run.
    partition : Rows
        Of the units.
    units : sequence of RowUnit
        From `row_units`.
    rules : RowRules
        When.
    tags : iterator of int
        Numbers for its collectives.
    """

    def __init__(
        self, facts: Facts, partition: Rows, units: Sequence[RowUnit], rules: RowRules, tags: Tags
    ) -> None:
        self.facts, self.partition, self.units = facts, partition, list(units)
        self.rules, self.tags = rules, tags
        self.inner = [unit for unit in self.units if unit.number]
        self.by_number = {unit.number: unit for unit in self.units}
        self.beginning: dict[int, list[RowUnit]] = {}
        self.ending: dict[int, list[RowUnit]] = {}
        for unit in self.units:
            self.beginning.setdefault(unit.first, []).append(unit)
            self.ending.setdefault(unit.last, []).append(unit)
        self.place_inside = {unit.number: place for place, unit in enumerate(self.inner)}
        self.asked: dict[int, int] = {}  # units that are being gathered, and the tag
        self.whole = set[int]()
        self.parted = set[int]()  # units of which a few ranks keep all parts
        self.order: list[int] = []  # in which forward has left units
        self.left: dict[int, list[int]] = {unit.number: [] for unit in self.units}
        self.queue: list[RowUnit] = []
        self.place_in_queue: dict[int, int] = {}
        self.summing: tuple[int, Bucket] | None = None
        self.pending: list[int] = []
        self.summed = 0.0  # bytes of sums that the host waits for
        self.is_last = True

    def run(self, micro: int, is_last: bool) -> Ops:
        """Run forward and backward; the last micro-step leaves nothing gathered."""
        self.is_last = is_last
        yield from forward(self.facts, micro, self._before_forward, self._after_forward)
        yield from backward(
            self.facts, micro, before=self._before_backward, after=self._after_backward
        )

    # Gathering ----------------------------------------------------------------------------------

    def _nbytes(self, unit: int) -> float:
        elements = self.partition.piece_elements(unit) * self.partition.num_places
        return float(elements * self.facts.weight_itemsize)

    def _gather(self, unit: RowUnit) -> Ops:
        number, itemsize = unit.number, self.facts.workload.itemsize
        if number in self.asked or number in self.whole:
            return
        tag = self.asked[number] = next(self.tags)
        nbytes, rules = self._nbytes(number), self.rules
        if number in self.parted:
            part = self.partition.after_forward
            assert part is not None, "a few ranks keep all parts"
            own = 2 * nbytes / part.num_places
            yield AllGather(tag, unit.label, nbytes, number, group=rules.part, copied=own)
            return
        kept = self.partition.piece_elements(number) * itemsize
        own = kept + nbytes / self.partition.num_places
        upload = HostCopy("rows", float(kept)) if rules.offloads else None
        yield AllGather(
            tag, unit.label, nbytes, number, group=rules.inside, copied=own, before=upload
        )

    def _need(self, unit: RowUnit) -> Ops:
        number = unit.number
        if number in self.whole:
            return
        yield from self._gather(unit)
        yield Wait((self.asked.pop(number),))
        yield Unshard(number, unit.label, self._nbytes(number))
        self.whole.add(number)
        self.parted.discard(number)

    def _free(self, unit: RowUnit, parts: int = 0) -> Ops:
        if unit.number in self.whole:
            self.whole.remove(unit.number)
            yield Free(unit.number, parts)
            if parts:
                self.parted.add(unit.number)

    # Forward ------------------------------------------------------------------------------------

    def _before_forward(self, number: int) -> Ops:
        window = max(BUFFERS, (self.rules.forward_prefetch or 0) + 1)
        if number == 0:
            begun = {*self.whole, *self.asked}
            self.queue = [unit for unit in self.units if unit.number not in begun]
            self.place_in_queue = {unit.number: place for place, unit in enumerate(self.queue)}
            for unit in self.queue[:window]:
                yield from self._gather(unit)
        for unit in self.beginning.get(number, ()):
            yield from self._need(unit)
            place = self.place_in_queue.get(unit.number, len(self.queue))
            for following in self.queue[place + window : place + window + 1]:
                yield from self._gather(following)

    def _after_forward(self, number: int) -> Ops:
        asked = self.rules.reshard_after_forward
        for unit in reversed(self.ending.get(number, ())):
            self.left[unit.number].append(len(self.order))
            self.order.append(unit.number)
            if asked if asked is not None else not unit.stays:
                parts = 0 if asked is None or asked is True else int(asked)
                yield from self._free(unit, parts)

    # Backward -----------------------------------------------------------------------------------

    def _before_backward(self, number: int) -> Ops:
        for unit in self.ending.get(number, ()):
            if unit.has_backward:
                yield from self._need(unit)
                place = self.left[unit.number].pop()
                for following in self._ahead(unit, place):
                    yield from self._gather(following)

    def _ahead(self, unit: RowUnit, place: int) -> list[RowUnit]:
        """Units that are gathered while a unit's backward runs."""
        asked = self.rules.backward_prefetch
        if asked is not None and unit.number in self.place_inside:
            at = self.place_inside[unit.number]
            if at:
                return self.inner[max(at - asked, 0) : at][::-1]
        return [self.by_number[number] for number in self.order[max(place - 1, 0) : place]]

    def _after_backward(self, number: int) -> Ops:
        for unit in self.beginning.get(number, ()):
            if unit.number and not unit.is_late:
                yield from self._leave(unit)
        if number == 0:
            for unit in self.units:
                if unit.is_late:
                    yield from self._leave(unit)
            yield from self._finish()

    @property
    def _sums(self) -> bool:
        return self.is_last or not self.rules.sums_last

    def _leave(self, unit: RowUnit) -> Ops:
        if self.is_last or self.rules.reshard_after_backward:
            yield from self._free(unit)
        if self._sums and unit.names:
            yield from self._sum(unit)

    def _sum(self, unit: RowUnit) -> Ops:
        """Sum a unit's gradients on the owners of their rows; one is under way at a time."""
        yield from self._settle()
        rules, dtype = self.rules, self.rules.reduce_dtype
        padded = self.partition.elements_of(unit.names)
        places, itemsize = self.partition.num_places, numpy_dtype(dtype).itemsize
        bucket = Bucket(
            unit.names, padded * places, dtype, float(padded * places * itemsize), unit=unit.number
        )
        before, after = divisors(self.facts.quorum.num_counted, dtype)
        yield Open(bucket)
        for name in unit.names:
            yield Fill(bucket, name, before)
        elements = self.facts.num_elements(unit.names)
        moved = elements * self.facts.itemsize + bucket.nbytes
        yield Copy(f"{unit.label} gradients", moved / 2)
        tag = next(self.tags)
        self.summing = tag, bucket
        yield ReduceScatter(tag, unit.label, bucket, rules.inside, after, self._download())
        if rules.offloads:
            self.summed = float(padded * self.facts.workload.itemsize)
        if rules.across is not None and (self.is_last or not rules.across_last):
            self.pending.append(next(self.tags))
            yield AllReduce(
                self.pending[-1],
                unit.label,
                bucket.nbytes / places,
                bucket,
                group=rules.across,
                after=(tag,),
            )

    def _download(self) -> HostCopy | None:
        """Copy the last sums to the host, on the stream that has made them."""
        nbytes, self.summed = self.summed, 0.0
        return HostCopy("gradients", nbytes) if nbytes else None

    def _settle(self) -> Ops:
        if self.summing is not None:
            tag, bucket = self.summing
            self.summing = None
            yield Wait((tag,))
            yield Release(bucket)

    def _finish(self) -> Ops:
        """End backward: wait for sums, and drop what was gathered for nothing."""
        if not self._sums:
            return
        yield from self._settle()
        yield Wait(tuple(self.pending))
        left = self._download()
        yield from [] if left is None else [left]
        self.pending, self.order = [], []
        for places in self.left.values():
            places.clear()
        for number, tag in self.asked.items():
            yield Wait((tag,))
            yield Free(number)
        self.asked.clear()
        self.parted.clear()
