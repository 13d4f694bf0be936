"""Fetching: when parameters of ZeRO-3 come and go, as DeepSpeed's coordinator decides it.

Every call of the model that has parameters is a module. From the second step on the order of their
uses, the trace, is known, and parameters are fetched ahead of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from simdp.steps.coalesced import GatherTogether
from simdp.steps.facts import Facts, Ops
from simdp.steps.offload import HostCopy
from simdp.steps.ops import Wait
from simdp.steps.partition import Partition
from simdp.steps.passes import AtCall, Tags
from simdp.steps.unit_ops import Free


class FetchRules(NamedTuple):
    """DeepSpeed's options for fetching; as of `simdp.strategies.zero3.Zero3`, in elements."""

    prefetch_bucket_size: int
    max_live_parameters: int
    max_reuse_distance: int
    from_host: bool = False


class Use(NamedTuple):
    """A call that needs parameters.

    Attributes
    ----------
    units : tuple of int
        All that must be there.
    own : tuple of int
        Those of the call itself, which may go after it.
    """

    units: tuple[int, ...]
    own: tuple[int, ...]


class Trace(NamedTuple):
    """Uses of a micro-step, and which of them belongs to a call of forward, and of backward."""

    uses: list[Use]
    forward: dict[int, int]
    backward: dict[int, int]


def trace_of(facts: Facts, partition: Partition) -> Trace:
    """Find the uses of parameters in a micro-step; what is computed again needs them too."""
    calls = facts.graph.calls
    own = [
        tuple(sorted({partition.unit_of[p.name] for p in call.layer.parameters()}))
        for call in calls
    ]
    found = Trace([], {}, {})
    for call in range(len(calls)):
        if own[call]:
            found.forward[call] = len(found.uses)
            found.uses.append(Use(own[call], own[call]))
    for call in reversed(range(len(calls))):
        again = [unit for inside in facts.recomputed.get(call, ()) for unit in own[inside]]
        here = own[call] if facts.graph.flows[call] else ()
        needed = tuple(dict.fromkeys([*here, *again]))
        if needed:
            found.backward[call] = len(found.uses)
            found.uses.append(Use(needed, own[call]))
    return found


class Fetcher:
    """Gathers parameters before they are used, and frees them behind, in one micro-step.

    Parameters
    ----------
    facts : Facts
        Of the run.
    partition : Partition
        A unit for each parameter.
    trace : Trace
        Of the micro-step.
    is_known : bool
        Whether the trace has been recorded; else nothing is fetched ahead or kept for later.
    rules : FetchRules
        How.
    persistent : frozenset of int
        Units that stay on every rank.
    tags : iterator of int
        Numbers for its collectives.

    References
    ----------
    DeepSpeed, runtime/zero/partitioned_param_coordinator.py.
    """

    def __init__(
        self,
        facts: Facts,
        partition: Partition,
        trace: Trace,
        is_known: bool,
        rules: FetchRules,
        persistent: frozenset[int],
        tags: Tags,
    ) -> None:
        self.facts, self.partition, self.trace = facts, partition, trace
        self.is_known, self.rules, self.tags = is_known, rules, tags
        self.persistent = persistent
        self.there: dict[int, int] = {}  # gathered units, and by which collective
        self.pending = set[int]()
        self.live = sum(map(partition.unit_elements, persistent))
        self.queue = [(place, u) for place, use in enumerate(trace.uses) for u in use.units]
        each = [sum(map(partition.unit_elements, use.units)) for use in trace.uses]
        self.passed = [0, *accumulate(each)]  # elements used before each place
        self.places: dict[int, list[int]] = {}
        for place, unit in self.queue:
            self.places.setdefault(unit, []).append(place)
        self.ahead = 0
        self.fetched_for: dict[int, int] = {}

    def before(self, places: dict[int, int], call: int) -> Ops:
        """Fetch what a call needs, and then what comes next."""
        if call not in places:
            return
        place = places[call]
        units = [unit for unit in self.trace.uses[place].units if unit not in self.persistent]
        yield from self._gather([unit for unit in units if unit not in self.there])
        if self.is_known:
            yield from self._prefetch(place)
        tags = {self.there[unit] for unit in units} & self.pending
        self.pending -= tags
        yield from [Wait(tuple(sorted(tags)))] if tags else []

    def _prefetch(self, place: int) -> Ops:
        """Fetch what follows in the trace, until it is as much as a bucket holds."""
        while self.ahead < len(self.queue) and self.queue[self.ahead][0] <= place:
            self.ahead += 1
        most = min(self.rules.max_live_parameters - self.live, self.rules.prefetch_bucket_size)
        found: list[int] = []
        held = 0
        while self.ahead < len(self.queue) and held < most:
            used_at, unit = self.queue[self.ahead]
            self.ahead += 1
            self.fetched_for[unit] = used_at
            if unit not in self.there and unit not in self.persistent and unit not in found:
                found.append(unit)
                held += self.partition.unit_elements(unit)
        yield from self._gather(found)

    def _gather(self, units: Sequence[int]) -> Ops:
        if units:
            tag = next(self.tags)
            self.pending.add(tag)
            self.there |= dict.fromkeys(units, tag)
            self.live += sum(map(self.partition.unit_elements, units))
            yield together(self.facts, self.partition, units, tag, self.rules.from_host)

    def after(self, places: dict[int, int], call: int) -> Ops:
        """Free a call's parameters, but for those that are used again soon."""
        if call not in places:
            return
        place = places[call]
        gone = [unit for unit in self.trace.uses[place].own if unit in self.there]
        if self.is_known:
            gone = [
                unit
                for unit in gone
                if self.fetched_for.get(unit, -1) <= place and not self._is_used_soon(unit, place)
            ]
        for unit in gone:
            del self.there[unit]
            self.live -= self.partition.unit_elements(unit)
            yield Free(unit)

    def _is_used_soon(self, unit: int, place: int) -> bool:
        """Whether a unit is used within ``max_reuse_distance`` elements of what comes next."""
        places = self.places[unit]
        further = bisect_right(places, place)
        if further == len(places):
            return False
        passed = self.passed[places[further]] - self.passed[place + 1]
        return passed < self.rules.max_reuse_distance

    def around(self, places: dict[int, int]) -> tuple[AtCall, AtCall]:
        """What to run before and after each call of a pass, of which the trace has the places."""
        return partial(self.before, places), partial(self.after, places)


def together(
    facts: Facts, partition: Partition, units: Sequence[int], tag: int, from_host: bool
) -> GatherTogether:
    """Gather some parameters in one all_gather, each filled up to pieces of equal length.

    From the host, every rank first copies its own pieces.
    """
    elements = sum(partition.piece_elements(unit) * partition.num_places for unit in units)
    label = partition.units[units[0]][0]
    if len(units) > 1:
        label = f"{label} and {len(units) - 1} more"
    nbytes = float(elements * facts.weight_itemsize)
    before = HostCopy("parameters", nbytes / partition.num_places) if from_host else None
    return GatherTogether(tag, label, nbytes, tuple(units), before)
