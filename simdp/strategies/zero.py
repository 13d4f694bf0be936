"""DeepSpeed's ZeRO, stages 1 to 3.

A bucket is reduced before a gradient that does not fit ("independent parallel gradients" in
DeepSpeed's sources); a gradient larger than a bucket is reduced alone.

A bucket of gradients covers few pieces, so that DeepSpeed all_reduces it and each rank copies its
own part (stage_1_and_2.py, ``use_multi_rank_bucket_allreduce``); only stage 3 calls reduce_scatter.

Every call of the model that has parameters is a module. From the second step on the order of their
uses, the trace, is known, and parameters are prefetched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, count
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.spec import Bool, Bytes, Int, problem
from simdp.steps.facts import Facts, Ops, StepContext, Tags, trainable
from simdp.steps.ops import (
    AllGather,
    AllReduce,
    Broadcast,
    FillBucket,
    Free,
    GatherTogether,
    Hold,
    HostCopy,
    KeepSums,
    ReduceTogether,
    Reserve,
    ScaleLoss,
    Shard,
    Unless,
    Update,
    Wait,
)
from simdp.steps.partition import BUCKET_CAP_NBYTES, Bucket, Partition, ReplicatedPart, least_loaded
from simdp.steps.passes import AtCall, backward, forward
from simdp.strategies.base import (
    Strategy,
    agree,
    broadcast_model,
    fill_up,
    partition_buckets,
    step_in_pieces,
    uneven,
)
from simdp.strategies.ddp import DDP
from simdp.workload import Workload
from simdp.workload.layers.base import Parameter

BUCKET_ELEMENTS = 500_000_000
"""Default elements of a bucket (DeepSpeed: reduce_bucket_size)."""


class IpgRules(NamedTuple):
    """DeepSpeed's options for reducing gradients; as of `simdp.strategies.zero.Zero3`.

    With ``to_host``, summed pieces are copied to the host on the same stream.
    """

    reduce_bucket_size: int
    overlap_comm: bool
    contiguous_gradients: bool
    to_host: bool = False


Start = Callable[[int, str, Bucket, HostCopy | None], Ops]


class IpgBuckets:
    """Reduces the gradients of one backward pass.

    With ``overlap_comm`` buckets are reduced while others are filled: when one is sent, compute
    waits until at most ``in_flight`` earlier ones are pending; that is 0 in stages 1 and 2, which
    alternate between two buffers. Without, it waits for every one.
    """

    def __init__(
        self,
        facts: Facts,
        rules: IpgRules,
        tags: Tags,
        start: Start,
        finish: Callable[[Bucket], Ops],
        in_flight: int = 0,
    ) -> None:
        self.facts, self.rules, self.tags = facts, rules, tags
        self._start, self._finish, self._in_flight = start, finish, in_flight
        layout = fill_up(facts.ready_order, facts.sizes, rules.reduce_bucket_size)
        self.buckets = [facts.bucket(names, room=0.0, of="ipg") for names in layout]
        self.home = {name: i for i, bucket in enumerate(self.buckets) for name in bucket.names}
        self.num_sent = 0
        self.pending: list[tuple[int, Bucket]] = []
        self.owed: HostCopy | None = None

    def mark_ready(self, name: str) -> Ops:
        """Copy a gradient into its bucket; first reduce a previous one that is full."""
        here = self.home[name]
        if here > self.num_sent:
            yield from self._send()
        yield FillBucket(self.buckets[here], name, self.facts.world_size)

    def finish(self) -> Ops:
        """Reduce the last bucket, and wait for all."""
        if self.buckets:
            yield from self._send()
        yield from self._settle()
        if self.owed is not None:
            yield self.owed

    def _send(self) -> Ops:
        bucket, label = self.buckets[self.num_sent], f"bucket {self.num_sent}"
        self.num_sent += 1
        yield from self._settle(self._in_flight)
        # Without buffers gradients are flattened when sent.
        if not self.rules.contiguous_gradients:
            yield Hold("buckets", bucket.nbytes)
        self.pending.append((next(self.tags), bucket))
        yield from self._start(self.pending[-1][0], label, bucket, self.owed)
        if self.rules.to_host:
            self.owed = HostCopy("gradients", bucket.nbytes / self.facts.world_size)
        if not self.rules.overlap_comm:
            yield from self._settle()

    def _settle(self, left: int = 0) -> Ops:
        while len(self.pending) > left:
            tag, bucket = self.pending.pop(0)
            yield Wait((tag,))
            yield from self._finish(bucket)
            if not self.rules.contiguous_gradients:
                yield Hold("buckets", -bucket.nbytes)


# Deepspeed ----------------------------------------------------------------------------------------

GATHERED_ELEMENTS = 500_000_000
"""Default elements gathered at a time (DeepSpeed: allgather_bucket_size)."""

KEYS = ("reduce_bucket_size", "allgather_bucket_size", "overlap_comm", "contiguous_gradients")
"""Options of ``communication: deepspeed``; None if left out."""


class DeepSpeed(NamedTuple):
    """How stages 1 and 2 reduce and gather; as of `simdp.strategies.zero.Zero2`."""

    rules: IpgRules
    allgather_bucket_size: int
    by_shard: bool

    @classmethod
    def of(cls, options: Zero1 | Zero2) -> DeepSpeed:
        """Read a strategy's options, with DeepSpeed's defaults."""
        size, whole = options.reduce_bucket_size, options.allgather_bucket_size
        rules = IpgRules(
            reduce_bucket_size=BUCKET_ELEMENTS if size is None else size,
            overlap_comm=bool(options.overlap_comm),
            contiguous_gradients=options.contiguous_gradients is not False,
            to_host=options.updates_on_host,
        )
        at_once = GATHERED_ELEMENTS if whole is None else whole
        return cls(rules, at_once, options.weight_by_shard)


def refuse_others(given: Mapping[str, bool], way: str, needed: str) -> None:
    """Raise a `PydanticCustomError` for the first given key of another ``communication``."""
    for key in [key for key, is_given in given.items() if is_given]:
        if way != needed:
            raise problem(f"{key} belongs to communication: {needed}; leave it out, or write that.")


def refuse_renamed(has_cap: bool, overlap: bool) -> None:
    """Raise a `PydanticCustomError` for options that DeepSpeed has under another name."""
    if has_cap:
        raise problem(
            "bucket_cap is not DeepSpeed's; with communication: deepspeed write "
            "reduce_bucket_size [elements]."
        )
    if not overlap:
        raise problem(
            "overlap is not DeepSpeed's; with communication: deepspeed write overlap_comm."
        )


def partition_flat(facts: Facts, kept: ReplicatedPart) -> Partition:
    """Cut the concatenation of all trainable parameters into equal pieces."""
    whole = [[parameter.name for parameter in trainable(facts)]]
    return Partition(trainable(facts), whole, np.arange(facts.world_size)[None, :], kept)


def step_of_deepspeed(facts: Facts, step: StepContext, partition: Partition, how: DeepSpeed) -> Ops:
    """Run one step of stage 1, or of stage 2 if gradients are partitioned.

    Stage 2 reduces after every micro-step, stage 1 after the last one.
    """
    tags, last = count(), step.num_micro_steps - 1
    yield ScaleLoss(how.by_shard)
    for micro in range(last + 1):
        yield from forward(facts, micro)
        if partition.kept.gradients and micro < last:
            yield from backward(facts, micro)
        else:
            yield from _reduced_backward(facts, micro, how.rules, tags)
    yield from agree(facts, tags)
    yield Update()
    if how.rules.to_host:
        updated = partition.piece_elements(0) * facts.weight_itemsize
        yield Unless((HostCopy("parameters", float(updated)),))
    yield Unless(tuple(_gather(facts, partition, how.allgather_bucket_size, tags)))


def _reduced_backward(facts: Facts, micro: int, rules: IpgRules, tags: Tags) -> Ops:
    def start(tag: int, label: str, bucket: Bucket, before: HostCopy | None) -> Ops:
        yield AllReduce(tag, label, bucket.nbytes, bucket, before=before)

    def keep(bucket: Bucket) -> Ops:
        yield KeepSums(bucket)

    buckets = IpgBuckets(facts, rules, tags, start, keep)
    # Of two buffers one is filled while the other is reduced.
    num_buffers = (1 + rules.overlap_comm) * rules.contiguous_gradients
    room = float(num_buffers * rules.reduce_bucket_size * facts.itemsize)
    yield Hold("buckets", room)
    yield from backward(facts, micro, buckets.mark_ready)
    yield from buckets.finish()
    yield Hold("buckets", -room)


def _gather(facts: Facts, partition: Partition, at_once: int, tags: Tags) -> Ops:
    """All_gather all parameters, one slice of every rank's piece after the other."""
    elements = partition.piece_elements(0) * partition.num_places
    num_slices = max(1, elements // max(at_once, 1))
    nbytes = float(partition.unit_elements(0) * facts.weight_itemsize)
    for number in range(num_slices):
        tag, is_last = next(tags), number == num_slices - 1
        # The last slice carries the numbers of all.
        unit = 0 if is_last else None
        yield AllGather(tag, f"parameters {number}", nbytes / num_slices, unit)
        yield Wait((tag,))


WHOLE = ReplicatedPart(weights=True, gradients=True)


class Zero1(Strategy):
    """ZeRO stage 1, in three implementations.

    ``all_reduce`` is torch's ``ZeroRedundancyOptimizer`` under `DDP`: all gradients are averaged on
    every rank, whole tensors are assigned to ranks, each updates its own and broadcasts them, so
    that 3 (n - 1)/n of all parameters pass through every rank of a ring. ``reduce_scatter`` is
    Megatron's distributed optimizer: every bucket of gradients is reduce_scattered, and parameters
    are all_gathered after the update, 2 (n - 1)/n. ``deepspeed`` partitions all parameters as one
    flat buffer, all_reduces buckets of gradients, of which each rank keeps its own piece, and
    all_gathers parameters after the update, 3 (n - 1)/n.

    References
    ----------
    Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models",
    arXiv 1910.02054; torch, zero_redundancy_optimizer.py; DeepSpeed, runtime/zero/stage_1_and_2.py.
    """

    wrapper: ClassVar[str] = "DistributedDataParallel"

    faster_options: ClassVar[Mapping[str, Any]] = {
        "overlap": True,
        "overlap_comm": True,
        "find_unused_parameters": False,
    }

    kind: Literal["zero1"] = "zero1"
    communication: Literal["all_reduce", "reduce_scatter", "deepspeed"] = "all_reduce"
    """The implementation."""
    parameters_as_bucket_view: Bool = False
    """One broadcast per rank, of all its parameters, instead of one per parameter; for
    ``all_reduce``."""
    bucket_cap: Bytes | None = None
    """As of `DDP`; not for ``deepspeed``."""
    overlap: Bool = True
    """As of `DDP`; not for ``deepspeed``."""
    find_unused_parameters: Bool = False
    """As of `DDP`, for ``all_reduce``; otherwise unused parameters are ignored."""
    broadcast_buffers: Bool | None = None
    """As of `DDP`, for ``all_reduce``, where None is true; otherwise every rank keeps its own."""
    weight_by_shard: Bool = False
    """As of `DDP`."""
    reduce_bucket_size: Annotated[Int, Field(ge=1)] | None = None
    """For ``deepspeed``: elements of gradients reduced, and of parameters gathered, at a time. None
    is 500,000,000."""
    allgather_bucket_size: Annotated[Int, Field(ge=1)] | None = None
    """For ``deepspeed``: elements of gradients reduced, and of parameters gathered, at a time. None
    is 500,000,000."""
    overlap_comm: Bool | None = None
    """For ``deepspeed``: reduce a bucket during backward; None is false, as in DeepSpeed."""
    contiguous_gradients: Bool | None = None
    """For ``deepspeed``: copy gradients into a buffer of ``reduce_bucket_size`` elements, two with
    ``overlap_comm``; None is true. False flattens every bucket when it is sent."""
    offload_optimizer: Literal["none", "cpu"] = "none"
    """For ``deepspeed``: keep master weights and the optimizer's state in host memory
    (``cluster.host``) and update there. Summed gradients are copied to the host, and parameters
    back after the update."""

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        given = {
            "parameters_as_bucket_view": self.parameters_as_bucket_view,
            "find_unused_parameters": self.find_unused_parameters,
            "broadcast_buffers": self.broadcast_buffers is not None,
        }
        refuse_others(given, self.communication, "all_reduce")
        for_deepspeed = {key: getattr(self, key) is not None for key in KEYS}
        for_deepspeed["offload_optimizer"] = self.updates_on_host
        refuse_others(for_deepspeed, self.communication, "deepspeed")
        if self.communication == "deepspeed":
            refuse_renamed(self.bucket_cap is not None, self.overlap)
        return self

    @property
    def _ddp(self) -> DDP:
        keys = ("bucket_cap", "overlap", "find_unused_parameters", "weight_by_shard")
        options = {key: getattr(self, key) for key in keys}
        # The setup broadcasts buffers once in any case.
        options["broadcast_buffers"] = self.broadcast_buffers is not False
        return DDP().model_copy(update=options)  # all of it has been validated here

    @property
    def _averages(self) -> bool:
        return self.communication == "all_reduce"

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        return uneven(workload) or (
            self._ddp.problem_with(world_size, workload) if self._averages else None
        )

    def _layout(self, facts: Facts) -> Partition:
        if self.communication == "deepspeed":
            return partition_flat(facts, WHOLE)
        if not self._averages:
            return partition_buckets(facts, self.bucket_cap, WHOLE)
        ranks, owners = np.arange(facts.world_size)[None, :], _owners(facts)
        return Partition(trainable(facts), [], ranks, WHOLE, owners)

    def setup(self, facts: Facts) -> Ops:
        """Broadcast rank 0's model, and partition the optimizer's state."""
        yield from self._ddp.setup(facts)
        yield Shard(facts.once("partition", lambda: self._layout(facts)))

    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        partition, tags = facts.once("partition", lambda: self._layout(facts)), count()
        if self.communication == "deepspeed":
            yield from step_of_deepspeed(facts, step, partition, DeepSpeed.of(self))
            return
        if not self._averages:
            # Megatron's gradients live in their buckets.
            yield from step_in_pieces(
                facts, step, partition, self.overlap, self.weight_by_shard, every=False
            )
            return
        yield from self._ddp.average_gradients(facts, step, tags)
        yield Update()
        yield Unless(tuple(self._broadcast(facts, partition, tags)))

    def _broadcast(self, facts: Facts, partition: Partition, tags: Tags) -> Ops:
        """Start every owner's broadcasts, rank by rank; then wait for all."""
        sent: list[int] = []
        for root, owned in enumerate(partition.owned):
            names = [name for name in partition.sizes if name in owned] if owned else []
            messages = [names] if self.parameters_as_bucket_view else [[name] for name in names]
            for number, together in enumerate(messages):
                if together:
                    sent.append(next(tags))
                    nbytes = float(facts.num_elements(together) * facts.weight_itemsize)
                    label = f"parameters {root}.{number}"
                    yield Broadcast(sent[-1], label, nbytes, tuple(together), root)
        yield Wait(tuple(sent))


def _owners(facts: Facts) -> dict[str, int]:
    """Assign the parameters of each of the optimizer's groups, those of no group last."""
    groups = facts.workload.optimizer.param_groups or ()
    sorted_out: list[list[Parameter]] = [[] for _ in range(len(groups) + 1)]
    for parameter in trainable(facts):
        matching = (i for i, group in enumerate(groups) if group.matches(parameter.name))
        sorted_out[next(matching, len(groups))].append(parameter)
    return least_loaded(sorted_out, facts.world_size)


KEPT = ReplicatedPart(weights=True, gradients=False)


class Zero2(Strategy):
    """ZeRO stage 2: gradients and optimizer state in pieces, parameters whole.

    With several micro-steps gradients are summed after each, so that a rank holds only its pieces
    and the buckets in flight.

    References
    ----------
    Rajbhandari et al., arXiv 1910.02054; DeepSpeed, runtime/zero/stage_1_and_2.py.
    """

    faster_options: ClassVar[Mapping[str, Any]] = {"overlap": True, "overlap_comm": True}

    kind: Literal["zero2"] = "zero2"
    communication: Literal["reduce_scatter", "deepspeed"] = "reduce_scatter"
    """Reduce_scatter every bucket; or as DeepSpeed, which partitions all parameters as one flat
    buffer and all_reduces buckets, of which each rank keeps its own piece."""
    bucket_cap: Bytes | None = None
    """As of `DDP` [bytes], for ``reduce_scatter``, where None is 25 MiB for every bucket."""
    overlap: Bool = True
    """As of `DDP`, for ``reduce_scatter``."""
    weight_by_shard: Bool = False
    """As of `DDP`."""
    reduce_bucket_size: Annotated[Int, Field(ge=1)] | None = None
    """For ``deepspeed``: elements of gradients reduced, and of parameters gathered, at a time. None
    is 500,000,000."""
    allgather_bucket_size: Annotated[Int, Field(ge=1)] | None = None
    """For ``deepspeed``: elements of gradients reduced, and of parameters gathered, at a time. None
    is 500,000,000."""
    overlap_comm: Bool | None = None
    """As of `Zero1`."""
    contiguous_gradients: Bool | None = None
    """As of `Zero1`."""
    offload_optimizer: Literal["none", "cpu"] = "none"
    """As of `Zero1`."""

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        given = {key: getattr(self, key) is not None for key in KEYS}
        given["offload_optimizer"] = self.updates_on_host
        refuse_others(given, self.communication, "deepspeed")
        if self.communication == "deepspeed":
            refuse_renamed(self.bucket_cap is not None, self.overlap)
        return self

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        return uneven(workload)

    def _layout(self, facts: Facts) -> Partition:
        if self.communication == "deepspeed":
            return facts.once("partition", lambda: partition_flat(facts, KEPT))
        cap = float(BUCKET_CAP_NBYTES) if self.bucket_cap is None else self.bucket_cap
        return facts.once("partition", lambda: partition_buckets(facts, cap, KEPT))

    def setup(self, facts: Facts) -> Ops:
        """Broadcast rank 0's model, and partition gradients and optimizer state."""
        yield from DDP().setup(facts)
        yield Shard(self._layout(facts))

    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        partition = self._layout(facts)
        if self.communication == "deepspeed":
            yield from step_of_deepspeed(facts, step, partition, DeepSpeed.of(self))
            return
        yield from step_in_pieces(
            facts, step, partition, self.overlap, self.weight_by_shard, every=True
        )


# Fetching -----------------------------------------------------------------------------------------


class FetchRules(NamedTuple):
    """DeepSpeed's options for fetching; as of `simdp.strategies.zero.Zero3`, in elements."""

    prefetch_bucket_size: int
    max_live_parameters: int
    max_reuse_distance: int
    from_host: bool = False


class Use(NamedTuple):
    """A call that uses parameters: the units it needs, and its own, which may be freed after it."""

    units: tuple[int, ...]
    own: tuple[int, ...]


class UseTrace(NamedTuple):
    """Uses of a micro-step, and the place of each call of forward, and of backward, among them."""

    uses: list[Use]
    forward: dict[int, int]
    backward: dict[int, int]


def trace_of(facts: Facts, partition: Partition) -> UseTrace:
    """Return the uses of parameters in a micro-step, including those of recomputation."""
    calls = facts.graph.calls
    own = [
        tuple(sorted({partition.unit_of[p.name] for p in call.layer.parameters()}))
        for call in calls
    ]
    trace = UseTrace([], {}, {})
    for call in range(len(calls)):
        if own[call]:
            trace.forward[call] = len(trace.uses)
            trace.uses.append(Use(own[call], own[call]))
    for call in reversed(range(len(calls))):
        again = [unit for inside in facts.recomputed.get(call, ()) for unit in own[inside]]
        here = own[call] if facts.graph.flows[call] else ()
        needed = tuple(dict.fromkeys([*here, *again]))
        if needed:
            trace.backward[call] = len(trace.uses)
            trace.uses.append(Use(needed, own[call]))
    return trace


class Fetcher:
    """Gathers parameters before their use, and frees them after it, in one micro-step.

    The partition has one unit per parameter. Without a recorded trace (``is_known``) nothing is
    prefetched or kept for reuse; ``persistent`` units stay on every rank. See DeepSpeed,
    runtime/zero/partitioned_param_coordinator.py.
    """

    def __init__(
        self,
        facts: Facts,
        partition: Partition,
        trace: UseTrace,
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
        elements = [sum(map(partition.unit_elements, use.units)) for use in trace.uses]
        self.passed = [0, *accumulate(elements)]  # elements used before each place
        self.places: dict[int, list[int]] = {}
        for place, unit in self.queue:
            self.places.setdefault(unit, []).append(place)
        self.ahead = 0
        self.fetched_for: dict[int, int] = {}

    def before(self, places: dict[int, int], call: int) -> Ops:
        """Fetch a call's parameters, and then prefetch."""
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
        """Fetch the next units of the trace, up to a bucket's elements."""
        while self.ahead < len(self.queue) and self.queue[self.ahead][0] <= place:
            self.ahead += 1
        most = min(self.rules.max_live_parameters - self.live, self.rules.prefetch_bucket_size)
        units: list[int] = []
        held = 0
        while self.ahead < len(self.queue) and held < most:
            used_at, unit = self.queue[self.ahead]
            self.ahead += 1
            self.fetched_for[unit] = used_at
            if unit not in self.there and unit not in self.persistent and unit not in units:
                units.append(unit)
                held += self.partition.unit_elements(unit)
        yield from self._gather(units)

    def _gather(self, units: Sequence[int]) -> Ops:
        if units:
            tag = next(self.tags)
            self.pending.add(tag)
            self.there |= dict.fromkeys(units, tag)
            self.live += sum(map(self.partition.unit_elements, units))
            yield together(self.facts, self.partition, units, tag, self.rules.from_host)

    def after(self, places: dict[int, int], call: int) -> Ops:
        """Free a call's parameters, except those reused soon."""
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
        """Return whether a unit is reused within fewer than ``max_reuse_distance`` elements."""
        places = self.places[unit]
        further = bisect_right(places, place)
        if further == len(places):
            return False
        passed = self.passed[places[further]] - self.passed[place + 1]
        return passed < self.rules.max_reuse_distance

    def around(self, places: dict[int, int]) -> tuple[AtCall, AtCall]:
        """Return hooks before and after each call of a pass, given the places of its calls."""
        return partial(self.before, places), partial(self.after, places)


def together(
    facts: Facts, partition: Partition, units: Sequence[int], tag: int, from_host: bool
) -> GatherTogether:
    """Gather parameters in one all_gather, each padded to pieces of equal length.

    With ``from_host``, every rank first copies its pieces to the device.
    """
    elements = sum(partition.piece_elements(unit) * partition.num_places for unit in units)
    label = partition.units[units[0]][0]
    if len(units) > 1:
        label = f"{label} and {len(units) - 1} more"
    nbytes = float(elements * facts.weight_itemsize)
    before = HostCopy("parameters", nbytes / partition.num_places) if from_host else None
    return GatherTogether(tag, label, nbytes, tuple(units), before)


PREFETCHED_ELEMENTS, LIVE_ELEMENTS, PERSISTENT_ELEMENTS = 50_000_000, 1_000_000_000, 100_000
"""DeepSpeed's prefetch_bucket_size, max_live_parameters and param_persistence_threshold."""

IN_FLIGHT = 2
"""Pending buckets allowed when another is sent (DeepSpeed: max_param_reduce_events)."""

Elements = Annotated[Int, Field(ge=0)]


class Zero3(Strategy):
    """ZeRO stage 3 of DeepSpeed: parameters, gradients and optimizer state in pieces.

    Every parameter is partitioned separately. A module's parameters are gathered before its forward
    and its backward, with those that are prefetched; gradients are summed in buckets, each piece on
    its owner, after every micro-step. A module is a call of the model. As in DeepSpeed, the first
    step prefetches nothing, since the order is not known yet.

    References
    ----------
    Rajbhandari et al., arXiv 1910.02054 and 2104.07857; DeepSpeed, runtime/zero/stage3.py and
    config.py (defaults).
    """

    faster_options: ClassVar[Mapping[str, Any]] = {"overlap_comm": True}

    kind: Literal["zero3"] = "zero3"
    reduce_bucket_size: Annotated[Int, Field(ge=1)] = BUCKET_ELEMENTS
    """Elements of gradients reduced at a time."""
    overlap_comm: Bool = True
    """Reduce a bucket during backward."""
    contiguous_gradients: Bool = True
    """Copy gradients into a buffer of ``reduce_bucket_size`` elements, which stays allocated. False
    flattens every bucket when it is sent."""
    prefetch_bucket_size: Elements = PREFETCHED_ELEMENTS
    """Elements prefetched at a time (DeepSpeed: stage3_prefetch_bucket_size); 0 disables
    prefetching."""
    max_live_parameters: Elements = LIVE_ELEMENTS
    """Most elements on a rank up to which parameters are prefetched."""
    max_reuse_distance: Elements = LIVE_ELEMENTS
    """Parameters reused within this many elements are not freed."""
    param_persistence_threshold: Elements = PERSISTENT_ELEMENTS
    """Parameters of at most this many elements stay whole on every rank; they are gathered after
    every update."""
    offload_optimizer: Literal["none", "cpu"] = "none"
    """Keep pieces of gradients, master weights and the optimizer's state in host memory
    (``cluster.host``) and update there. Summed gradients are copied to the host, and parameters
    back after the update."""
    offload_param: Literal["none", "cpu"] = "none"
    """Keep pieces of parameters in host memory too; each is copied to the device before it is
    gathered."""
    weight_by_shard: Bool = False
    """As of `DDP`."""

    @model_validator(mode="after")
    def _parameters_follow_the_optimizer(self) -> Self:
        if self.offload_param == "cpu" and self.offload_optimizer == "none":
            raise problem("offload_param: cpu needs offload_optimizer: cpu.")
        return self

    @property
    def keeps_parameters_on_host(self) -> bool:
        return self.offload_param == "cpu"

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        return uneven(workload)

    def _layout(self, facts: Facts) -> tuple[Partition, UseTrace]:
        def deal() -> tuple[Partition, UseTrace]:
            units = [[parameter.name] for parameter in facts.parameters]
            ranks, kept = np.arange(facts.world_size)[None, :], ReplicatedPart(False, False)
            partition = Partition(facts.parameters, units, ranks, kept)
            return partition, trace_of(facts, partition)

        return facts.once("partition", deal)

    def _persistent(self, partition: Partition) -> list[int]:
        most = self.param_persistence_threshold
        return [u for u in range(len(partition.units)) if partition.unit_elements(u) <= most]

    @property
    def _rules(self) -> IpgRules:
        return IpgRules(
            self.reduce_bucket_size,
            self.overlap_comm,
            self.contiguous_gradients,
            self.updates_on_host,
        )

    def setup(self, facts: Facts) -> Ops:
        """Broadcast rank 0's model, partition it, and gather persistent parameters."""
        tags = count()
        yield from broadcast_model(facts, 0, tags)
        partition, _ = self._layout(facts)
        yield Shard(partition)
        yield from self._gather_persistent(facts, partition, tags)
        if self.contiguous_gradients:
            yield Reserve(float(self.reduce_bucket_size * facts.itemsize))

    def _gather_persistent(self, facts: Facts, partition: Partition, tags: Tags) -> Ops:
        units = self._persistent(partition)
        if units:
            tag = next(tags)
            yield together(facts, partition, units, tag, self.keeps_parameters_on_host)
            yield Wait((tag,))

    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        partition, _ = self._layout(facts)
        tags, units = count(), self._persistent(partition)
        yield ScaleLoss(self.weight_by_shard)
        for micro in range(step.num_micro_steps):
            is_known = bool(micro) or not step.reduced_before(1)
            yield from self._micro_step(facts, micro, is_known, tags)
        yield from agree(facts, tags)
        yield Update()
        if self.updates_on_host and not self.keeps_parameters_on_host:
            elements = sum(map(partition.piece_elements, range(len(partition.units))))
            yield Unless((HostCopy("parameters", float(elements * facts.weight_itemsize)),))
        # Persistent parameters are gathered again, into the same memory.
        anew = [*map(Free, units), *self._gather_persistent(facts, partition, tags)]
        yield Unless(tuple(anew))

    def _micro_step(self, facts: Facts, micro: int, is_known: bool, tags: Tags) -> Ops:
        partition, trace = self._layout(facts)
        rules = FetchRules(
            self.prefetch_bucket_size,
            self.max_live_parameters,
            self.max_reuse_distance,
            self.keeps_parameters_on_host,
        )
        persistent = frozenset(self._persistent(partition))
        fetcher = Fetcher(facts, partition, trace, is_known, rules, persistent, tags)
        buckets = IpgBuckets(
            facts, self._rules, tags, _start_of(partition), nothing_left, IN_FLIGHT
        )
        yield from forward(facts, micro, *fetcher.around(trace.forward))
        yield from backward(facts, micro, buckets.mark_ready, *fetcher.around(trace.backward))
        yield from buckets.finish()


def _start_of(partition: Partition) -> Start:
    """Return the function that starts to reduce a bucket."""

    def start(tag: int, label: str, bucket: Bucket, before: HostCopy | None) -> Ops:
        units = tuple(partition.unit_of[name] for name in bucket.names)
        yield ReduceTogether(tag, label, bucket, units, before)

    return start


def nothing_left(bucket: Bucket) -> Ops:
    """Do nothing; the sums are already on their owners."""
    yield from ()
