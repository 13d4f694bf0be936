"""FSDP1 (FullyShardedDataParallel).

All collectives of the units use one communication stream, in the host's order. The host runs ahead
of the device until two freed units are not done on the device yet (torch's ``limit_all_gathers``, a
queue of two events). Operations run at the device's pace; a gather as early as the host may launch
it is one after the free that the host waits for, and behind earlier launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from simdp.arrays import Ints
from simdp.spec import Bool, Int
from simdp.steps.facts import Facts, LayerDtypes, Ops, StepContext, Tags
from simdp.steps.ops import (
    AllReduce,
    FillBucket,
    Free,
    NewGroup,
    Open,
    ReduceScatter,
    Release,
    ScaleLoss,
    Shard,
    Update,
    Wait,
)
from simdp.steps.partition import Bucket, Group, Partition, ReplicatedPart
from simdp.steps.passes import backward, forward
from simdp.strategies.base import (
    Low,
    Strategy,
    agree,
    broadcast_model,
    gather,
    low_problem,
    members,
    unequal_shards,
    uneven,
    unit_bucket,
)
from simdp.strategies.fsdp import REPLICATE, SHARD
from simdp.strategies.unit_names import UnitModules, Units, chosen, unknown_unit
from simdp.workload import Workload
from simdp.workload.layers.base import ModelGraph

# Units --------------------------------------------------------------------------------------------

MAX_IN_FLIGHT = 2
"""Gathers in flight under ``limit_all_gathers`` (torch: _FreeEventQueue)."""


class Unit(NamedTuple):
    """A module with parameters that are gathered and freed together."""

    number: int  # index in the partition
    first: int  # first call that needs it in forward
    last: int  # and last
    last_used: int  # first call of backward that needs it
    first_used: int  # and last
    learns: bool = True  # whether it has trainable parameters
    has_backward: bool = True  # whether gradients flow through any of its calls


class UnitRules(NamedTuple):
    """Options of `FSDP1` that decide when units are gathered and freed."""

    reshard: bool  # whether all units but the root are freed after forward
    backward_prefetch: Literal["backward_pre", "backward_post", "none"]
    forward_prefetch: bool
    limit_all_gathers: bool
    inside: Group = None  # groups that gather and sum units; None is all ranks
    across: Group = None  # of ranks with equal pieces; None if there is one
    reduce_dtype: str | None = None  # of gradients that are sent, if not their own


def units_in_use(graph: ModelGraph, modules: Sequence[UnitModules]) -> list[Unit]:
    """Return the units that calls use, in the order in which forward gathers them.

    ``modules`` are all units, the root first; it is needed throughout forward.
    """
    units = []
    uses = [{p.name for p in call.layer.parameters()} for call in graph.calls]
    for number, module in enumerate(modules):
        if module.last < 0:
            continue
        first, last, of_unit = module.first, module.last, set(module.parameters)
        learns, flows = not graph.frozen.issuperset(of_unit), any(graph.flows[first : last + 1])
        if learns:
            needed = (n for n in range(first, last + 1) if graph.flows[n] and of_unit & uses[n])
            first_used = next(needed, 0)
        else:  # it goes when the gradient of its module's input is there, or at the end
            first_used = first if number and any(graph.needs[first]) else 0
        units.append(Unit(number, first, last, last, first_used, learns, flows))
    return sorted(units, key=lambda unit: (unit.number > 0, unit.first))


class UnitWalk:
    """Gathers and frees units in one micro-step.

    The gradient buffer of a unit is released when the next unit's is sent, the last one at the end,
    without waiting for the sums.
    """

    def __init__(
        self,
        facts: Facts,
        partition: Partition,
        units: Sequence[Unit],
        rules: UnitRules,
        tags: Tags,
    ) -> None:
        self.facts, self.partition, self.units = facts, partition, list(units)
        self.rules, self.tags = rules, tags
        self.forth = [unit for unit in self.units if unit.number]
        needed = [unit for unit in self.units if unit.has_backward]
        self.back = sorted(needed, key=lambda unit: (unit.number > 0, -unit.last_used))
        self.there: dict[int, tuple[int, ...]] = {}  # gathered units, pending tags
        self.buckets: dict[int, Bucket] = {}
        self.sent: list[int] = []
        self.held: list[Bucket] = []

    def run(self, micro: int) -> Ops:
        """Run forward and backward."""
        yield from forward(self.facts, micro, self._before_forward, self._after_forward)
        yield from backward(
            self.facts, micro, self._take_gradient, self._before_backward, self._after_backward
        )
        yield Wait(tuple(self.sent))
        yield from map(Release, self.held)
        for unit in [unit for unit in self.units if unit.number in self.there]:
            yield from self._need(unit)
            yield from self._free(unit)

    def _gather(self, unit: Unit) -> Ops:
        if unit.number not in self.there:
            tag, label = next(self.tags), f"unit {unit.number}"
            self.there[unit.number] = (tag,)
            op = gather(self.facts, self.partition, unit.number, tag, label)
            yield replace(op, group=self.rules.inside)

    def _need(self, unit: Unit) -> Ops:
        yield from self._gather(unit)
        pending, self.there[unit.number] = self.there[unit.number], ()
        yield Wait(pending)

    def _free(self, unit: Unit) -> Ops:
        del self.there[unit.number]
        yield Free(unit.number)

    # Forward -----------------------------------------------------------------------------------

    @property
    def _window(self) -> int:
        """Number of units besides the root that are gathered before the first one is freed."""
        # Units that are not freed leave no event that the host would wait for.
        if not (self.rules.limit_all_gathers and self.rules.reshard):
            return len(self.forth)
        return MAX_IN_FLIGHT + self.rules.forward_prefetch

    def _before_forward(self, number: int) -> Ops:
        if number == 0:
            roots = [unit for unit in self.units if not unit.number]
            for unit in [*roots, *self.forth[: self._window]]:
                yield from self._gather(unit)
        for unit in self.units:
            if unit.first == number:
                yield from self._need(unit)

    def _after_forward(self, number: int) -> Ops:
        for place, unit in enumerate(self.forth):
            if unit.last == number and self.rules.reshard:
                yield from self._free(unit)
                for following in self.forth[place + self._window : place + self._window + 1]:
                    if following.first > number:  # one inside this unit has been used by now
                        yield from self._gather(following)

    # Backward ----------------------------------------------------------------------------------

    def _before_backward(self, number: int) -> Ops:
        for place, unit in enumerate(self.back):
            if unit.last_used == number:
                yield from self._gather(unit)
                if self.rules.backward_prefetch == "backward_pre":
                    yield from self._gather_after(place, number)
                yield from self._need(unit)

    def _gather_after(self, place: int, number: int) -> Ops:
        for unit in self.back[place + 1 : place + 2]:
            if unit.first_used < number:  # else its backward is over: the root ends after it
                yield from self._gather(unit)

    def _take_gradient(self, name: str) -> Ops:
        unit = self.partition.unit_of[name]
        if unit not in self.buckets:
            self.buckets[unit] = unit_bucket(
                self.facts, self.partition, unit, self.rules.reduce_dtype
            )
            yield Open(self.buckets[unit])
        yield FillBucket(self.buckets[unit], name, self.facts.world_size)

    def _after_backward(self, number: int) -> Ops:
        for place, unit in enumerate(self.back):
            if unit.first_used == number:
                yield from self._free(unit)
                if self.rules.backward_prefetch == "backward_post":
                    yield from self._gather_after(place, number)
                if unit.learns:
                    yield from self._send(unit.number)

    def _send(self, unit: int) -> Ops:
        yield from map(Release, self.held)
        bucket, label = self.buckets.pop(unit), f"unit {unit}"
        self.held = [bucket]
        first = next(self.tags)
        self.sent.append(first)
        yield ReduceScatter(first, label, bucket, self.rules.inside)
        if self.rules.across is not None:
            piece = bucket.nbytes / self.partition.num_places
            self.sent.append(next(self.tags))
            yield AllReduce(
                self.sent[-1], label, piece, bucket, group=self.rules.across, after=(first,)
            )


class FSDP1(Strategy):
    """Fully sharded as in torch's first version, with flat parameters.

    A unit is gathered before its module's forward, freed after it, gathered again before its
    backward, and its gradients are then reduce_scattered, after every micro-step: 3 (n - 1)/n of
    all parameters pass through every rank of a ring. Frozen units are not reduced; partly frozen
    ones are reduced as whole flat parameters, as with ``use_orig_params``.

    References
    ----------
    Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 2023;
    torch, distributed/fsdp/_runtime_utils.py.
    """

    faster_options: ClassVar[Mapping[str, Any]] = {"backward_prefetch": "backward_pre"}
    groups_follow_nodes: ClassVar[bool] = True
    wrapper: ClassVar[str] = "FullyShardedDataParallel"
    launch_names: ClassVar[Mapping[str, str]] = {
        "all_gather": "FullyShardedDataParallel._pre_forward",
        "reduce_scatter": "FullyShardedDataParallel._post_backward_hook",
    }

    kind: Literal["fsdp1"] = "fsdp1"
    sharding_strategy: Literal[
        "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"
    ] = "FULL_SHARD"
    """Whether units are freed after forward, all but the root, which backward needs first;
    ``SHARD_GRAD_OP`` keeps all. The hybrid ones shard units within groups of neighbours; each
    rank's piece is then all_reduced across groups, on a separate stream."""
    shard_size: Int | None = Field(None, ge=1)
    """Ranks of a group under a hybrid strategy; None is the number of ranks per node."""
    units: Units = "blocks"
    """As of `FSDP`."""
    backward_prefetch: Literal["backward_pre", "backward_post", "none"] = "backward_pre"
    """When backward gathers the next unit: before the backward of the current one; after it and
    before its gradients are sent; or when it is needed."""
    forward_prefetch: Bool = False
    """Launch the next unit's gather before the forward of the current one."""
    limit_all_gathers: Bool = True
    """Let the host wait until at most two units are gathered or still in use; false lets forward
    gather all of them at once. In backward gathers and sums alternate on one stream, so that the
    limit has no effect."""
    param_dtype: Low | None = None
    """Of ``MixedPrecision``; as of `FSDP`."""
    reduce_dtype: Low | None = None
    """Of ``MixedPrecision``; as of `FSDP`."""
    weight_by_shard: Bool = False
    """As of `DDP`."""

    @property
    def _is_hybrid(self) -> bool:
        return "HYBRID" in self.sharding_strategy

    @property
    def dtypes(self) -> LayerDtypes:
        return LayerDtypes(self.param_dtype)

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        if self.shard_size is not None and not self._is_hybrid:
            return (
                f"shard_size: {self.shard_size} is an option of groups, but "
                f"{self.sharding_strategy} has none; leave it out, or write sharding_strategy: "
                "HYBRID_SHARD."
            )
        return (
            unequal_shards(self.shard_size, world_size)
            or unknown_unit(self.units, workload)
            or low_problem(self.param_dtype, workload)
            or uneven(workload)
        )

    def _ranks(self, facts: Facts) -> Ints:
        """Return the sharding groups, shape `(num_groups, group size)`."""
        size = (self.shard_size or facts.local_size) if self._is_hybrid else facts.world_size
        return np.arange(facts.world_size).reshape(-1, size)

    def _groups(self) -> tuple[Group, ...]:
        """Return the process groups of model broadcasts; the first one shards."""
        return (SHARD, REPLICATE) if self._is_hybrid else (None,)

    def _layout(self, facts: Facts) -> tuple[Partition, list[Unit]]:
        """Return the partition and the units in use."""
        modules = chosen(facts.graph, self.units)
        parameters = [module.parameters for module in modules]
        kept = ReplicatedPart(weights=False, gradients=False)
        partition = Partition(facts.parameters, parameters, self._ranks(facts), kept)
        return partition, units_in_use(facts.graph, modules)

    def setup(self, facts: Facts) -> Ops:
        """Broadcast rank 0's model (sync_module_states), and keep the pieces."""
        ranks, tags = self._ranks(facts), count()
        if self._is_hybrid:
            yield NewGroup(SHARD, members(ranks), 0)
            yield NewGroup(REPLICATE, members(ranks.T), 1)
        for group in self._groups():
            yield from broadcast_model(facts, 0, tags, group)
        partition, _ = facts.once("units", lambda: self._layout(facts))
        yield Shard(partition)

    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        partition, units = facts.once("units", lambda: self._layout(facts))
        inside, *across = self._groups()
        rules = UnitRules(
            self.sharding_strategy in ("FULL_SHARD", "HYBRID_SHARD"),
            self.backward_prefetch,
            self.forward_prefetch,
            self.limit_all_gathers,
            inside,
            across[0] if across and len(partition.ranks) > 1 else None,
            self.reduce_dtype,
        )
        tags = count()
        yield ScaleLoss(self.weight_by_shard)
        for micro in range(step.num_micro_steps):
            yield from UnitWalk(facts, partition, units, rules, tags).run(micro)
        yield from agree(facts, tags, inside)
        yield Update()
