"""FSDP2 (fully_shard) and hybrid sharding.

The host runs ahead of the device without limit. On the device a gather starts when the parameters
of the gather before the last have been copied out of their buffer, so that at most two such buffers
exist; in backward one unit is gathered while another one computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field

from simdp.arrays import Ints
from simdp.errors import shown
from simdp.spec import Bool, Int, problem
from simdp.steps.facts import Facts, LayerDtypes, Ops, StepContext, Tags
from simdp.steps.ops import (
    AllGather,
    AllReduce,
    Copy,
    FillBucket,
    Free,
    HostCopy,
    NewGroup,
    Open,
    ReduceScatter,
    Release,
    ScaleLoss,
    Shard,
    Unshard,
    Update,
    Wait,
)
from simdp.steps.partition import Bucket, Group, RowPartition, by_rows
from simdp.steps.passes import backward, forward
from simdp.strategies.base import (
    Low,
    Strategy,
    agree,
    broadcast_model,
    divisors_of,
    low_problem,
    members,
    output_problem,
    synchronised_norms,
    unequal_shards,
    uneven,
)
from simdp.strategies.unit_names import UnitModules, Units, chosen, unknown_unit
from simdp.workload import Workload
from simdp.workload.execution import widened
from simdp.workload.layers.base import ModelGraph
from simdp.workload.precision import numpy_dtype

# Row units ----------------------------------------------------------------------------------------

BUFFERS = 2
"""Gathers launched before the first one has been copied out."""

AVERAGED = ("float32", "bfloat16")
"""Dtypes in which the collective itself divides the sums (torch: ReduceOp.AVG)."""


class RowUnit(NamedTuple):
    """Modules with parameters that are gathered and freed together."""

    number: int  # index in the partition
    label: str
    first: int  # first call that uses it in forward
    last: int  # and last; backward in reverse
    stays: bool  # whether backward needs it first, so that it is kept by default
    is_late: bool  # whether no input gradient marks the end of its backward
    names: tuple[str, ...]  # parameters that get gradients
    has_backward: bool = True  # whether gradients flow through any of its calls


class RowRules(NamedTuple):
    """Options of `FSDP` that decide when units are gathered and freed."""

    reshard_after_forward: bool | int | None  # an int is neither 1 nor the group's size
    reshard_after_backward: bool
    sums_last: bool  # whether gradients are summed after the last micro-step only
    forward_prefetch: int | None
    backward_prefetch: int | None
    reduce_dtype: str  # of gradients that are sent
    inside: Group = None  # groups that gather and sum units
    across: Group = None  # of ranks with equal pieces
    part: Group = None  # that keep units between forward and backward
    offloads: bool = False  # whether pieces and summed gradients are in host memory
    across_last: bool = False  # whether sums are all_reduced across after the last micro-step only


def row_units(graph: ModelGraph, modules: Sequence[UnitModules]) -> list[RowUnit]:
    """Return the units that calls use, in the order in which forward gathers them.

    ``modules`` are all units, the root first.
    """
    learned, units = set(graph.ready_order), []
    for number, module in enumerate(modules):
        if module.last < 0:
            continue
        is_late = not number or not any(graph.needs[module.first])
        names = tuple(name for name in module.parameters if name in learned)
        first, last = module.first, module.last
        flows = any(graph.flows[first : last + 1])
        units.append(
            RowUnit(number, module.label, first, last, module.stays, is_late, names, flows)
        )
    return sorted(units, key=lambda unit: (unit.number > 0, unit.first))


def divisors(num_ranks: int, dtype: str) -> tuple[float, float]:
    """Return the divisors of gradients before and after the sum, for a mean."""
    if dtype in AVERAGED:
        return 1.0, float(num_ranks)
    factor = 1
    while num_ranks % factor == 0 and num_ranks / factor > factor:
        factor *= 2
    return float(factor), num_ranks / factor


class RowWalk:
    """Gathers and frees units in the micro-steps of a step, with FSDP's prefetch.

    `_before_forward` gathers those of forward ahead, `_ahead` those of backward.
    """

    def __init__(
        self,
        facts: Facts,
        partition: RowPartition,
        units: Sequence[RowUnit],
        rules: RowRules,
        tags: Tags,
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
        self.gathering: dict[int, int] = {}  # units that are being gathered, and the tag
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
        if number in self.gathering or number in self.whole:
            return
        tag = self.gathering[number] = next(self.tags)
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
        yield Wait((self.gathering.pop(number),))
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
            begun = {*self.whole, *self.gathering}
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
        kept = self.rules.reshard_after_forward
        for unit in reversed(self.ending.get(number, ())):
            self.left[unit.number].append(len(self.order))
            self.order.append(unit.number)
            if kept if kept is not None else not unit.stays:
                parts = 0 if kept is None or kept is True else int(kept)
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
        """Return units that are gathered while a unit's backward runs."""
        ahead = self.rules.backward_prefetch
        if ahead is not None and unit.number in self.place_inside:
            at = self.place_inside[unit.number]
            if at:
                return self.inner[max(at - ahead, 0) : at][::-1]
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
        """Reduce-scatter a unit's gradients; one unit is in flight at a time."""
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
            yield FillBucket(bucket, name, before)
        moved = self.facts.num_elements(unit.names) * self.facts.itemsize + bucket.nbytes
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
        """Return the copy of the last sums to the host, on the stream of the sums."""
        nbytes, self.summed = self.summed, 0.0
        return HostCopy("gradients", nbytes) if nbytes else None

    def _settle(self) -> Ops:
        if self.summing is not None:
            tag, bucket = self.summing
            self.summing = None
            yield Wait((tag,))
            yield Release(bucket)

    def _finish(self) -> Ops:
        """End backward: wait for sums, and free unused gathers."""
        if not self._sums:
            return
        yield from self._settle()
        yield Wait(tuple(self.pending))
        left = self._download()
        yield from [] if left is None else [left]
        self.pending, self.order = [], []
        for places in self.left.values():
            places.clear()
        for number, tag in self.gathering.items():
            yield Wait((tag,))
            yield Free(number)
        self.gathering.clear()
        self.parted.clear()


PART = "part"
"""Name of the process groups that keep units between forward and backward."""


def _true_false_or_ranks(value: object) -> object:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and value > 0:
        return value if value > 1 else False  # True equals 1, but a rank alone keeps all
    raise problem(f"{shown(value)} is not allowed; write true, false or a number of ranks.")


def _no_word(value: object) -> object:
    if isinstance(value, str):
        raise problem(
            f"{shown(value)} is not allowed; write a number of units, or strategy: "
            "{kind: fsdp1}, which takes backward_pre, backward_post and none."
        )
    return value


Reshard = Annotated[bool | int | None, BeforeValidator(_true_false_or_ranks)]


class PerParameter(Strategy):
    """Base of `FSDP` and `HSDP`: torch's ``fully_shard``, FSDP2.

    Every parameter is cut along its first dimension. A unit is gathered before its modules'
    forward, copied out into parameters and freed after it; the same for its backward, after which
    each rank gets the summed gradients of its rows; frozen parameters have none. Only streams limit
    how far the host runs ahead.

    References
    ----------
    torch, distributed/fsdp/_fully_shard.
    """

    has_dtensors: ClassVar[bool] = True
    faster_options: ClassVar[Mapping[str, Any]] = {"reshard_after_forward": False}
    sync_once: ClassVar[Mapping[str, Any]] = {"sync": "last"}
    launch_names: ClassVar[Mapping[str, str]] = {
        "all_gather": "FSDP::all_gather",
        "reduce_scatter": "FSDP::post_backward_reduce",
    }

    units: Units = "blocks"
    """Modules that are units: the repeated blocks of the model (`Graph.blocks`); these, and one
    unit each of the layers before and behind them, as in torchtitan; only the model itself; or
    modules of these names, in which ``*`` matches any text between dots. Units may be nested; other
    parameters belong to the root."""
    reshard_after_forward: Reshard = None
    """Whether units are freed after forward. None frees all but the root and torchtitan's last
    unit, which backward needs first. A number, a divisor of the sharding group, is the size of
    groups of neighbours that keep a unit together until its backward; 1 is false, the whole group
    true."""
    reshard_after_backward: Bool = True
    """Whether units are freed after the backward of each micro-step; after the last one they always
    are."""
    forward_prefetch: Int | None = Field(None, ge=1)
    """Units gathered ahead, as by ``set_modules_to_forward_prefetch``, and by
    ``set_modules_to_backward_prefetch`` on all units but the root. None follows from streams: two
    in forward, one in backward."""
    backward_prefetch: Annotated[Int | None, BeforeValidator(_no_word)] = Field(None, ge=1)
    """Units gathered ahead, as by ``set_modules_to_forward_prefetch``, and by
    ``set_modules_to_backward_prefetch`` on all units but the root. None follows from streams: two
    in forward, one in backward."""
    param_dtype: Low | None = None
    """Of ``MixedPrecisionPolicy``: the dtype of compute and of gathered weights, as under
    ``precision: mixed``; of gradients in collectives, by default that of the layers; of the units'
    outputs, by default that of the layers."""
    reduce_dtype: Low | None = None
    """Of ``MixedPrecisionPolicy``: the dtype of compute and of gathered weights, as under
    ``precision: mixed``; of gradients in collectives, by default that of the layers; of the units'
    outputs, by default that of the layers."""
    output_dtype: Low | None = None
    """Of ``MixedPrecisionPolicy``: the dtype of compute and of gathered weights, as under
    ``precision: mixed``; of gradients in collectives, by default that of the layers; of the units'
    outputs, by default that of the layers."""
    output_dtype_at: Literal["units", "root"] | None = None
    """Whether the ``output_dtype`` is that of all units, or only of the root's outputs, those of
    the model. None is all units, unless 32-bit inputs would meet 16-bit weights of layers in the
    root: torch fails there, so that it applies to the root."""
    sync: Literal["every", "last"] = "every"
    """After which micro-steps gradients are summed; gradients stay whole until then."""
    offload: Literal["none", "cpu"] = "none"
    """``CPUOffloadPolicy``: pieces, their gradients and the optimizer are in host memory
    (`cluster.host`). Rows are copied to the device before they are gathered, and sums back."""
    weight_by_shard: Bool = False
    """As of `DDP`."""

    @property
    def dtypes(self) -> LayerDtypes:
        return LayerDtypes(self.param_dtype, outputs=self.output_dtype)

    @property
    def updates_on_host(self) -> bool:
        return self.offload == "cpu"

    @property
    def keeps_parameters_on_host(self) -> bool:
        return self.offload == "cpu"

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        size, kept = self._shard_size(world_size), self.reshard_after_forward
        if size is not None and kept and size % kept:
            return (
                f"reshard_after_forward: {kept} does not divide the {size} ranks that share a "
                f"unit; use true, false or one of {divisors_of(size)}."
            )
        problem = unknown_unit(self.units, workload) or low_problem(self.param_dtype, workload)
        problem = problem or output_problem(self.output_dtype, self.param_dtype)
        return problem or self._mixed_outputs(workload) or uneven(workload)

    def _mixed_outputs(self, workload: Workload) -> str | None:
        """Refuse an ``output_dtype_at`` without effect, or with which torch fails; or None."""
        if self.output_dtype_at is not None and self.output_dtype is None:
            return "output_dtype_at: needs output_dtype; write both, or none."
        if self.output_dtype_at != "units" or workload.model.timed:
            return None
        mixes = self.wide_outputs(workload)[1]
        if mixes is None:
            return None
        layer = workload.graph.calls[mixes].layer
        return (
            f"output_dtype_at: units, but {layer.name or layer.kind} is the root's: torch fails "
            f"where its {self.param_dtype} weights or inputs meet {self.output_dtype} ones; name "
            "its module in units, or write root."
        )

    def wide_outputs(self, workload: Workload) -> tuple[tuple[str, ...], int | None]:
        """Return units within the root with 32-bit outputs, and the call on which torch fails."""
        low = self.param_dtype
        if self.output_dtype != "float32" or low is None or low == "float32":
            return (), None
        modules = chosen(workload.graph, self.units)[1:]
        names = tuple(module.label for module in modules if module.last >= 0)
        return names, widened(workload.graph, names, low, workload.dtype).mixes

    def cast_units(self, workload: Workload) -> tuple[str, ...]:
        """Return units with cast outputs; see `Strategy.cast_units`."""
        if workload.model.timed or self.output_dtype_at == "root":
            return ()
        if unknown_unit(self.units, workload) is not None:
            return ()
        names, mixes = self.wide_outputs(workload)
        return names if mixes is None else ()

    def _shard_size(self, world_size: int) -> int | None:
        """Return the number of ranks that share a unit; None for a node's size."""
        return world_size

    def _ranks(self, facts: Facts) -> Ints:
        """Return the sharding groups, shape `(num_groups, group size)`."""
        return np.arange(facts.world_size)[None, :]

    def _groups(self) -> tuple[Group, ...]:
        """Return the process groups of model broadcasts; the first one shards."""
        return (None,)

    def _kept_by(self, facts: Facts) -> bool | int | None:
        """Return ``reshard_after_forward``, with the whole group's size as true."""
        kept, size = self.reshard_after_forward, int(self._ranks(facts).shape[1])
        if kept is None or isinstance(kept, bool):
            return kept
        return True if kept == size else kept

    def _layout(self, facts: Facts) -> tuple[RowPartition, list[RowUnit]]:
        """Return the partition and the units in use."""
        modules = chosen(facts.graph, self.units)
        parameters = [module.parameters for module in modules]
        kept = self._kept_by(facts)
        few = 0 if kept is None or isinstance(kept, bool) else kept
        partition = by_rows(facts.parameters, parameters, self._ranks(facts), few)
        return partition, row_units(facts.graph, modules)

    def setup(self, facts: Facts) -> Ops:
        """Broadcast rank 0's model, and keep the pieces."""
        partition, _ = facts.once("units", lambda: self._layout(facts))
        if partition.after_forward is not None:
            yield NewGroup(PART, members(facts.quorum.among(partition.after_forward.ranks)), 2)
        tags = count()
        for group in self._groups() if facts.quorum.group is None else ():
            yield from broadcast_model(facts, 0, tags, group)
        yield Shard(partition)

    def _rules(self, facts: Facts, partition: RowPartition) -> RowRules:
        inside, *across = self._groups()
        own = facts.workload.precision.gradient_dtype(facts.workload.dtype)
        return RowRules(
            self._kept_by(facts),
            self.reshard_after_backward,
            self.sync == "last",
            self.forward_prefetch,
            self.backward_prefetch,
            self.reduce_dtype or own,
            inside,
            across[0] if across and len(partition.ranks) > 1 else None,
            PART,
            self.offload == "cpu",
        )

    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        partition, units = facts.once("units", lambda: self._layout(facts))
        rules, tags = self._rules(facts, partition), count()
        yield ScaleLoss(self.weight_by_shard)
        walk = RowWalk(facts, partition, units, rules, tags)
        for micro in range(step.num_micro_steps):
            yield from walk.run(micro, micro == step.num_micro_steps - 1)
        yield from agree(facts, tags, rules.inside)
        yield Update(facts.quorum.there)


class FSDP(PerParameter):
    """Fully sharded over all ranks."""

    kind: Literal["fsdp"] = "fsdp"


SHARD, REPLICATE = "shard", "replicate"
"""Names of process groups: ranks that share all pieces, and ranks with the same pieces."""


class HSDP(PerParameter):
    """Fully sharded within groups of neighbours, each with all pieces: a mesh of two dimensions.

    A unit's gradients are reduce_scattered inside each group; then ranks with the same piece
    all_reduce it, on a separate communication stream.
    """

    groups_follow_nodes: ClassVar[bool] = True
    same_on_one_node: ClassVar[str | None] = "fsdp"
    sync_once: ClassVar[Mapping[str, Any]] = {"sync": "last", "all_reduce": "last"}

    kind: Literal["hsdp"] = "hsdp"
    shard_size: Int | None = Field(None, ge=1)
    """Ranks of a group; None is the number of ranks per node."""
    all_reduce: Literal["every", "last"] = "every"
    """After which micro-steps sums are all_reduced across groups; "last" accumulates those of
    earlier micro-steps inside each group, as ``set_requires_all_reduce(False)`` does."""

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        return unequal_shards(self.shard_size, world_size) or super().problem_with(
            world_size, workload
        )

    def problem_with_groups(
        self, num_groups: int, world_size: int, workload: Workload
    ) -> str | None:
        if self.shard_size is None or self.shard_size * num_groups != world_size:
            return (
                "shard_size: ranks that have all pieces together drop out together; write "
                f"{max(world_size // num_groups, 1)} for {num_groups} replica groups of "
                f"{world_size} ranks."
            )
        return synchronised_norms(workload)

    def _shard_size(self, world_size: int) -> int | None:
        return self.shard_size

    def _ranks(self, facts: Facts) -> Ints:
        return np.arange(facts.world_size).reshape(-1, self.shard_size or facts.local_size)

    def _groups(self) -> tuple[Group, ...]:
        return (SHARD, REPLICATE)

    def _rules(self, facts: Facts, partition: RowPartition) -> RowRules:
        return super()._rules(facts, partition)._replace(across_last=self.all_reduce == "last")

    def setup(self, facts: Facts) -> Ops:
        """Make the groups, broadcast rank 0's model in them, and keep the pieces."""
        ranks = facts.quorum.among(self._ranks(facts))
        yield NewGroup(SHARD, members(ranks), 0)
        yield NewGroup(REPLICATE, members(ranks.T), 1)
        yield from super().setup(facts)
