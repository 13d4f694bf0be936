"""Base class of strategies, and helpers that several strategies share.

A strategy yields the operations of a training step in order, like the training loop of a rank
program. It reads the facts of a run, but no numbers and no times; one loop serves all ranks.
Everything else is derived from the operations (`simdp.steps.program`).

As in Megatron's distributed optimizer, every bucket is cut into equal pieces, one per rank; rank r
keeps, updates and sends the r-th. Buckets are filled in reverse order of registration from the
first step on, since pieces cannot change owners.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from simdp.arrays import Ints
from simdp.spec import Spec
from simdp.steps.facts import Facts, LayerDtypes, Ops, StepContext, Tags, trainable
from simdp.steps.ops import (
    QUORUM,
    AllGather,
    AllReduce,
    Batch,
    FillBucket,
    Gather,
    Meet,
    MicrobatchDone,
    NewGroup,
    Open,
    ReduceScatter,
    Release,
    ScaleLoss,
    Unless,
    Update,
    Wait,
)
from simdp.steps.partition import Bucket, Group, Partition, ReplicatedPart, assign, limits
from simdp.steps.passes import backward, forward, forward_of_all, scatter, send_all, send_buffers
from simdp.strategies.comm_hooks import CommHook
from simdp.workload import Workload
from simdp.workload.compute import Host

PRECISION = ("param_dtype", "reduce_dtype", "output_dtype", "output_dtype_at", "mixed_precision")
"""Options that set a precision."""


class ServerOptions(NamedTuple):
    """Options of a parameter server; see `simdp.strategies.parameter_server.ParameterServer`."""

    rank: int
    updates: Literal["synchronous", "asynchronous"]
    backup: int
    max_staleness: int | None


class Departure(NamedTuple):
    """An option by which training differs from that of one device on the same batches."""

    cause: str
    """Its name in an audit, of `simdp.results.audit.CAUSES`."""
    key: str
    """Dotted key of the option in a scenario."""
    text: str
    """A sentence: what the option does to gradients or weights."""
    without: dict[str, Any]
    """Dotted keys, with the values that train as one device does."""


AVERAGED: dict[str, Any] = {"strategy": {"kind": "ddp", "weight_by_shard": True}}
"""Gradients of all samples, averaged in every step."""


class Strategy(Spec):
    """Base of the strategies: how ranks train together.

    Other packages read class attributes and properties, and know no strategy by its name.
    """

    kind: str

    has_server: ClassVar[bool] = False
    """Whether ranks are workers of a parameter server."""

    in_one_process: ClassVar[bool] = False
    """Whether ranks are devices of one process, with the model on device 0."""

    averages_parameters: ClassVar[bool] = False
    """Whether ranks train separate weights for a period and then average them."""

    max_ranks: ClassVar[int | None] = None
    """Largest number of ranks; None without a limit."""

    varies_buckets: ClassVar[bool] = False
    """Whether searches vary ``overlap``, ``comm_hook`` and ``bucket_cap`` for shorter steps."""

    faster_options: ClassVar[Mapping[str, Any]] = {}
    """Options, with values that shorten steps and leave gradients as they are."""

    sync_once: ClassVar[Mapping[str, Any]] = {}
    """The same of steps of several micro-steps: gradients are exchanged after the last one only."""

    groups_follow_nodes: ClassVar[bool] = False
    """Whether process groups depend on the number of ranks per node."""

    has_dtensors: ClassVar[bool] = False
    """Whether gradients are DTensors sharded by rows, which some of torch's optimizers refuse."""

    same_on_one_node: ClassVar[str | None] = None
    """The strategy that is equal to this one if all ranks are on one node."""

    wrapper: ClassVar[str] = ""
    """torch's module that annotates forward in traces."""

    launch_names: ClassVar[Mapping[str, str]] = {}
    """The wrapper's annotations around launches of collectives in traces, by collective."""

    @property
    def has_synchronous_ranks(self) -> bool:
        """Whether every rank is a process of its own, in step with the others."""
        return not (self.has_server or self.in_one_process)

    @property
    def dtypes(self) -> LayerDtypes:
        """The dtypes that the strategy sets for layers."""
        return LayerDtypes()

    @property
    def interpreter_lock(self) -> float:
        """Fraction of forward for which a rank holds an interpreter lock that all ranks share."""
        return 0.0

    def host_of(self, workload: Workload, world_size: int) -> Host:
        """The host that launches kernels, and its assumed times."""
        return workload.host

    @property
    def num_late(self) -> int:
        """Number of slowest ranks per step without their gradients in the mean."""
        return 0

    @property
    def first_alike(self) -> int:
        """The first step from which on all steps, or all periods, are equal."""
        return 0

    @property
    def weighs_by_shard(self) -> bool | None:
        """Whether losses are weighted by the samples of each rank; None without such an option."""
        return getattr(self, "weight_by_shard", None)

    @property
    def has_several_periods(self) -> bool:
        """Whether `steps_together` covers averages of several periods."""
        return False

    @property
    def server_options(self) -> ServerOptions | None:
        """Options of the parameter server; None without one."""
        return None

    def departures(self, workload: Workload) -> list[Departure]:
        """List the options by which this strategy trains differently from one device.

        An option is listed where it may act; whether it does depends on the batches.
        """
        if self.weighs_by_shard is not False:
            return []
        return [of_weights(workload, {"strategy.weight_by_shard": True})]

    @property
    def precision_options(self) -> dict[str, Any]:
        """Options that set a precision and are not None."""
        options = {key: getattr(self, key, None) for key in PRECISION}
        return {key: value for key, value in options.items() if value is not None}

    def averaging(self) -> str:
        """Describe the averages that ranks compute, and how often."""
        if self.num_late:
            return f"gradients in every step, without the {self.num_late} slowest ranks"
        return "gradients in every step"

    def sent_as(self) -> str:
        """Describe the compression of gradients."""
        return "as they are"

    @property
    def updates_on_host(self) -> bool:
        """Whether the optimizer runs, and keeps its state, in host memory."""
        return bool(getattr(self, "offload_optimizer", "none") == "cpu")

    @property
    def keeps_parameters_on_host(self) -> bool:
        """Whether parameter shards stay in host memory too."""
        return False

    def settled(self, base: Path) -> Self:
        """Return the same strategy with its files read; relative paths start from ``base``.

        Raises
        ------
        ScenarioError
            With a line for every file that is unreadable or invalid.
        """
        return self

    @abstractmethod
    def setup(self, facts: Facts) -> Ops:
        """Prepare the ranks, before the first step."""

    @abstractmethod
    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        """Run one optimizer step."""

    def infer_step(self, facts: Facts, step: StepContext) -> Ops:
        """Run one step of ``mode: inference``."""
        raise AssertionError(f"{self.kind} serves no inference; the scenario's checks refuse it")

    def step(self, facts: Facts, step: StepContext) -> Ops:
        """Run one step of the workload's mode."""
        return (self.infer_step if facts.is_inference else self.train_step)(facts, step)

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        """Explain why this strategy cannot train the workload, led by a key; or None."""
        return None

    def problem_with_groups(
        self, num_groups: int, world_size: int, workload: Workload
    ) -> str | None:
        """Explain why replica groups cannot leave and rejoin steps, led by a key; or None."""
        return (
            f"kind: {self.kind} does not support replica groups that leave steps; use ddp, "
            "hsdp or local_sgd, or a recovery that restarts all ranks."
        )

    def cast_units(self, workload: Workload) -> tuple[str, ...]:
        """Return modules within the root with outputs that are cast to ``output_dtype``."""
        return ()

    @property
    def steps_together(self) -> int:
        """Steps from one agreement on weights to the next; within them no rank can leave."""
        return 1

    def whole_periods(self, least: int) -> int:
        """Return the steps of a run with metrics of whole periods.

        Parameters
        ----------
        least : int
            Minimum number of steps; metrics leave out the first.
        """
        return 1 + self.steps_together * max(ceil((least - 1) / self.steps_together), 1)

    def after_warmup(self) -> Self:
        """Return the same strategy as it trains after its warm-up steps."""
        return self

    def with_period(self, steps: int) -> Self:
        """Return the same strategy with another number of `steps_together`."""
        raise AssertionError(f"{self.kind} has no periods")

    def problem_with_unused(self, workload: Workload) -> str | None:
        """Explain why ranks cannot leave parameters unused, led by the place in the scenario."""
        return (
            f"workload.unused: strategy.kind: {self.kind} needs a gradient of every parameter on "
            "every rank; use {kind: ddp, find_unused_parameters: true}."
        )

    def problem_with_frozen(self) -> str | None:
        """Explain why parameters cannot be frozen, without the place; or None."""
        return None

    def num_updates(self, world_size: int, num_steps: int) -> int:
        """Return the optimizer's updates in these steps, which the learning rate follows."""
        return num_steps


def of_weights(workload: Workload, without: dict[str, object]) -> Departure:
    """Return the departure of losses that are not weighted by the samples of each rank."""
    key = "strategy.weight_by_shard"
    if workload.loss.adds:
        text = (
            "each rank's loss is a sum, and the average over the ranks divides it by their number"
        )
        return Departure("loss_sum_not_averaged", key, text, without)
    text = "the loss is a mean of each rank's mean, and ranks have different numbers of items"
    return Departure("loss_mean_of_rank_means", key, text, without)


def infers(strategy: Strategy | type[Strategy]) -> bool:
    """Return whether a strategy supports ``mode: inference``."""
    kind = strategy if isinstance(strategy, type) else type(strategy)
    return kind.infer_step is not Strategy.infer_step


def copies_charged(option: bool | None, facts: Facts) -> bool:
    """Return whether copies of gradients cost time: the strategy's option, else the cluster's."""
    return facts.overheads.copies if option is None else option


def uneven(workload: Workload) -> str | None:
    """Refuse different numbers of samples per rank, which only `DDP` supports; or None."""
    if len(set(workload.samples_per_rank or [])) <= 1:
        return None
    return (
        "kind: ranks have different numbers of samples, and those that run out would leave the "
        "others waiting; use {kind: ddp, join: true}."
    )


def members(ranks: Ints) -> tuple[tuple[int, ...], ...]:
    """Return process groups as `NewGroup` takes them."""
    return tuple(tuple(row) for row in ranks.tolist())


Low = Literal["bfloat16", "float16", "float32"]
"""Dtypes of ``MixedPrecision`` and ``MixedPrecisionPolicy``."""


def low_problem(param_dtype: Low | None, workload: Workload) -> str | None:
    """Explain why a workload conflicts with its strategy's ``param_dtype``; or None."""
    if param_dtype is None:
        return None
    if workload.dtype != "float32":
        return (
            f"param_dtype: {param_dtype} needs float32 weights, but workload.dtype is "
            f"{workload.dtype}; write workload.dtype: float32, or leave param_dtype out."
        )
    precision = workload.precision
    if precision.kind == "full" or (precision.kind, precision.low) == ("mixed", param_dtype):
        return None
    return (
        f"param_dtype: {param_dtype} contradicts workload.precision: {precision.kind} of "
        f"{precision.low}; leave one of them out."
    )


def output_problem(output_dtype: Low | None, param_dtype: Low | None) -> str | None:
    """Explain why units cannot return ``output_dtype``; or None."""
    made = param_dtype or "float32"
    if output_dtype in (None, "float32", made):
        return None
    return (
        f"output_dtype: {output_dtype}, but layers compute in {made}; write "
        f"{' or '.join(dict.fromkeys(('float32', made)))}, or leave it out."
    )


# Left out -----------------------------------------------------------------------------------------

WHOLE = ("none", "bf16", "fp16")
"""Hooks that sum uncompressed gradients and keep no state between steps."""


def partial_drop(join: bool, hook: CommHook) -> str | None:
    """Explain which option would keep a part of dropped gradients, behind a comma; or None."""
    if join:
        return "but join lets ranks leave too; leave one of them out."
    if hook.kind not in WHOLE:
        return (
            f"but comm_hook: {hook.kind} keeps a part of them for later steps; use one of "
            f"{', '.join(WHOLE)}."
        )
    return None


def problem_with_backups(backup_ranks: int, world_size: int, workload: Workload) -> str | None:
    """Explain why this many ranks cannot be dropped in every step; or None."""
    if backup_ranks >= world_size:
        return (
            f"backup_ranks: {backup_ranks} dropped gradients of {world_size} leave none; use at "
            f"most {world_size - 1}."
        )
    return synchronised_norms(workload)


def synchronised_norms(workload: Workload) -> str | None:
    """Refuse a workload that exchanges more than gradients; or None."""
    if not workload.graph.is_synchronised:
        return None
    return (
        "kind: sync_batchnorm needs the statistics of all ranks in the middle of a step, of which "
        "some may be missing; use a batch norm that is not synchronised."
    )


def make_quorum(facts: Facts) -> Ops:
    """Make a process group of the participants, unless all ranks participate."""
    if facts.quorum.group is not None and facts.quorum.participants is not None:
        yield NewGroup(QUORUM, (facts.quorum.participants.ranks,), 0)


def unequal_groups(num_groups: int, world_size: int) -> str | None:
    """Refuse a number of replica groups that does not divide the ranks; or None."""
    if not world_size % num_groups:
        return None
    return (
        f"kind: {num_groups} replica groups do not divide the {world_size} ranks; use one of "
        f"{divisors_of(world_size, least=2)}."
    )


def unequal_shards(shard_size: int | None, world_size: int) -> str | None:
    """Refuse a group size that does not divide the ranks; or None."""
    if shard_size is None or not world_size % shard_size:
        return None
    return (
        f"shard_size: {shard_size} does not divide the {world_size} ranks; "
        f"use one of {divisors_of(world_size)}."
    )


def divisors_of(number: int, least: int = 1) -> str:
    """List the divisors of a number, from ``least`` on."""
    return ", ".join(str(n) for n in range(least, number + 1) if number % n == 0)


def broadcast_model(
    facts: Facts, root: int, tags: Tags, group: Group = None, buffers: bool = True
) -> Ops:
    """Broadcast the parameters of ``root``, and its buffers."""
    yield from send_all(facts, facts.parameters, "parameters", root, tags, group)
    if buffers:
        yield from send_buffers(facts, root, tags, group)


def own_gradients(facts: Facts, step: StepContext, by_shard: bool = False) -> Ops:
    """Run forward and backward of a step without sending gradients."""
    yield ScaleLoss(by_shard)
    for micro in range(step.num_micro_steps):
        yield from forward(facts, micro)
        yield from backward(facts, micro)


def fill_up(names: Sequence[str], sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Sort gradients into buckets of at most ``most``, which close before one that does not fit."""
    groups: list[list[str]] = []
    held = 0
    for name in names:
        if not groups or held + sizes[name] > most:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += sizes[name]
    return groups


def infer_in_processes(facts: Facts, scatters: bool) -> Ops:
    """Run forward of one inference step.

    With ``scatters`` rank 0 scatters the batch and gathers the outputs; else every rank has its own
    samples and keeps its outputs.
    """
    if scatters:
        yield from scatter(facts, 0)
    else:
        yield Batch(0)
    yield from forward_of_all(facts, 0)
    if scatters:
        yield Gather(0, 0)
        yield Meet()  # ranks without samples wait for the others
    else:
        yield MicrobatchDone(0)


def idle_option(strategy: Strategy, read: Sequence[str] = ()) -> str | None:
    """Refuse the first option that only concerns gradients, which inference has none of; or None.

    ``read`` are options that inference uses too.
    """
    for name, field in type(strategy).model_fields.items():
        if name in ("kind", *read) or getattr(strategy, name) == field.get_default():
            continue
        return f"{name}: mode: inference has no gradients to send; leave this out."
    return None


# Flat pieces --------------------------------------------------------------------------------------

AGREED_NBYTES = 4.0
"""Norms and flags are float32, independent of the gradients' dtype (torch: FSDP.clip_grad_norm_,
ShardedGradScaler)."""


def partition_buckets(facts: Facts, bucket_cap: float | None, kept: ReplicatedPart) -> Partition:
    """Cut each bucket of trainable parameters into equal pieces, one per rank.

    ``bucket_cap`` [bytes] is as of `DDP`; ``kept`` is replicated on every rank.
    """
    buckets = assign(trainable(facts)[::-1], facts.itemsize, limits(bucket_cap))
    return Partition(trainable(facts), buckets, np.arange(facts.world_size)[None, :], kept)


def unit_bucket(facts: Facts, partition: Partition, unit: int, dtype: str | None = None) -> Bucket:
    """Return the bucket of a unit's gradients, in ``dtype`` or else their own.

    Where gradients are replicated they live in it; else it exists from an `Open` to a `Release`.
    """
    is_view = partition.kept.gradients
    return facts.bucket(partition.units[unit], dtype, unit=unit, is_view=is_view, room=0.0)


class PieceReducer:
    """Reduce-scatters the gradients of one backward pass, unit by unit.

    The bucket of a unit is released when the next unit is sent, the last one at the end.
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
        """Copy a gradient into its bucket; send every complete bucket in order."""
        unit = self.partition.unit_of[name]
        if unit not in self.buckets:
            self.buckets[unit] = unit_bucket(self.facts, self.partition, unit)
            yield Open(self.buckets[unit])
        yield FillBucket(self.buckets[unit], name, self.facts.world_size)
        self.missing[unit] -= 1
        while self.turn < len(self.missing) and not self.missing[self.turn]:
            if self.turn in self.buckets:  # a unit without used parameters is not sent
                yield from self._send(self.buckets.pop(self.turn))
            self.turn += 1

    def _send(self, bucket: Bucket) -> Ops:
        yield from map(Release, self.held)
        self.held = [bucket]
        self.sent.append(next(self.tags))
        yield ReduceScatter(self.sent[-1], f"bucket {bucket.unit}", bucket)


def step_in_pieces(
    facts: Facts,
    step: StepContext,
    partition: Partition,
    overlap: bool,
    by_shard: bool,
    every: bool,
) -> Ops:
    """Run one step in which gradients are reduce-scattered to the owners of their pieces.

    They are sent during backward (``overlap``), and after ``every`` micro-step, so that none is
    kept whole, or after the last one.
    """
    tags = count()
    yield ScaleLoss(by_shard)
    for micro in range(step.num_micro_steps):
        yield from forward(facts, micro)
        if every or micro == step.num_micro_steps - 1:
            yield from PieceReducer(facts, partition, tags).backward(micro, overlap)
        else:
            yield from backward(facts, micro)
    yield from agree(facts, tags)
    yield Update()
    yield Unless(tuple(gather_updated(facts, partition, tags)))


def agree(facts: Facts, tags: Tags, group: Group = None) -> Ops:
    """All_reduce scalars that depend on whole gradients, and wait for them.

    These are the gradient norm for clipping, the inf or nan flag of a loss scaler, and two norms
    per tensor for optimizers with trust ratios such as LAMB.
    """
    optimizer = facts.workload.optimizer
    trusting = sum(optimizer.for_parameter(name).trusts for name in facts.ready_order)
    numbers_of = {
        "inf or nan": float(facts.workload.precision.scaler() is not None),
        "gradient norm": float(facts.workload.clip_grad_norm is not None),
        "trust ratios": 2.0 * trusting,
    }
    for label, numbers in numbers_of.items():
        if not numbers:
            continue
        tag = next(tags)
        yield AllReduce(tag, label, numbers * AGREED_NBYTES, group=group)
        yield Wait((tag,))


def gather(facts: Facts, partition: Partition, unit: int, tag: int, label: str) -> AllGather:
    """All_gather a unit's parameters from their pieces."""
    nbytes = float(partition.unit_elements(unit) * facts.weight_itemsize)
    return AllGather(tag, label, nbytes, unit)


def gather_updated(facts: Facts, partition: Partition, tags: Tags) -> Ops:
    """All_gather all updated parameters, and wait."""
    learned, sent = set(facts.ready_order), list[int]()
    for unit, names in enumerate(partition.units):
        if learned.intersection(names):
            sent.append(next(tags))
            yield gather(facts, partition, unit, sent[-1], f"parameters {unit}")
    yield Wait(tuple(sent))
