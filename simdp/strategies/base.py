"""The base of strategies, and helpers that several of them share.

A strategy says what happens, in which order, and nothing beside it: it knows the facts of a run and
neither numbers nor time, and reads like the training loop of a rank program. One loop serves all
ranks. What others want to know of it is read off its operations (`simdp.steps.program`).

As in Megatron's distributed optimizer: every bucket is cut into as many equal pieces as there are
ranks, and rank r keeps, updates and hands out the r-th. Buckets are filled in the reverse order of
registration, from the first step on, since a rank's pieces cannot change hands.
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
from simdp.moved import advise
from simdp.spec import Spec
from simdp.steps.facts import Facts, LayerDtypes, Ops, StepContext, trainable
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
from simdp.steps.passes import Tags, backward, forward, forward_of_all, scatter
from simdp.strategies.comm_hooks import CommHook
from simdp.workload import Workload
from simdp.workload.compute import Host

Execution = Literal["synchronous", "parameter_server", "single_process"]

PRECISION = ("param_dtype", "reduce_dtype", "output_dtype", "output_dtype_at", "mixed_precision")
"""Options that choose a precision."""


class ServerOptions(NamedTuple):
    """Options of a parameter server; as of `simdp.strategies.parameter_server.ParameterServer`."""

    rank: int
    updates: Literal["synchronous", "asynchronous"]
    backup: int
    max_staleness: int | None


class Strategy(Spec):
    """How ranks train together.

    Other packages read class attributes and properties, and know no strategy by its name.
    """

    kind: str

    execution: ClassVar[Execution] = "synchronous"
    """How ranks run: each in a process of its own and in step with the others; as workers of a
    parameter server; or as devices of one process, whose only model is on device 0."""

    averages_parameters: ClassVar[bool] = False
    """Whether ranks train their own weights for a period, and then average them."""

    max_ranks: ClassVar[int | None] = None
    """Most ranks; None where there is no limit."""

    varies_buckets: ClassVar[bool] = False
    """Whether ``overlap``, ``comm_hook`` and ``bucket_cap`` are worth varying for shorter steps."""

    groups_follow_nodes: ClassVar[bool] = False
    """Whether process groups depend on how many ranks a node has."""

    has_dtensors: ClassVar[bool] = False
    """Whether gradients are DTensors of rows, which some of torch's optimizers refuse."""

    same_on_one_node: ClassVar[str | None] = None
    """The strategy that does the same where all ranks are on one node."""

    wrapper: ClassVar[str] = ""
    """torch's module that annotates forward in traces."""

    launch_names: ClassVar[Mapping[str, str]] = {}
    """Annotations of the wrapper in traces where it launches a collective, by its key."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Keep the names working by which classes said how they run."""
        if (one := vars(cls).get("one_process")) is not None:
            advise(f"{cls.__name__}.one_process", 'execution = "single_process"')
            cls.execution = "single_process" if one else cls.execution
        if (player := vars(cls).get("player")) is not None:
            advise(f"{cls.__name__}.player", 'execution = "synchronous" or "parameter_server"')
            cls.execution = "parameter_server" if player == "server" else cls.execution

    @property
    def dtypes(self) -> LayerDtypes:
        """The dtypes that layers get from the strategy."""
        return LayerDtypes()

    @property
    def interpreter_lock(self) -> float:
        """Share of forward for which a rank holds an interpreter that all ranks share."""
        return 0.0

    def host_of(self, workload: Workload, world_size: int) -> Host:
        """The host that launches the kernels, with the times that are assumed of it."""
        return workload.host

    @property
    def num_late(self) -> int:
        """Ranks that come last in a step, whose gradients are dropped."""
        return 0

    @property
    def first_alike(self) -> int:
        """The step from which on steps, or whole periods, are alike."""
        return 0

    @property
    def weighs_by_shard(self) -> bool | None:
        """Whether a rank counts by its samples; None where no option decides it."""
        found: bool | None = getattr(self, "weight_by_shard", None)
        return found

    @property
    def has_several_periods(self) -> bool:
        """Whether averages of several periods come within `steps_together`."""
        return False

    @property
    def server_options(self) -> ServerOptions | None:
        """The server's; None where there is none."""
        return None

    @property
    def precision_options(self) -> dict[str, Any]:
        """Options that choose a precision, without those that are None."""
        found = {key: getattr(self, key, None) for key in PRECISION}
        return {key: value for key, value in found.items() if value is not None}

    def averaging(self) -> str:
        """Describe in words which averages ranks make, and how often."""
        if self.num_late:
            return f"gradients in every step, without the {self.num_late} slowest ranks"
        return "gradients in every step"

    def sent_as(self) -> str:
        """Describe in words what becomes of gradients on their way."""
        return "as they are"

    @property
    def updates_on_host(self) -> bool:
        """Whether the optimizer works, and keeps its state, in the memory of the host."""
        return False

    @property
    def keeps_parameters_on_host(self) -> bool:
        """Whether pieces of parameters are kept there too."""
        return False

    def settled(self, base: Path) -> Self:
        """The same strategy with its files read; relative paths start from ``base``.

        Raises
        ------
        ScenarioError
            With a line for every file that cannot be read, or does not say what it should.
        """
        return self

    @abstractmethod
    def setup(self, facts: Facts) -> Ops:
        """Prepare the ranks, before the first step."""

    @abstractmethod
    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        """One optimizer step."""

    def infer_step(self, facts: Facts, step: StepContext) -> Ops:
        """One step of ``mode: inference``."""
        raise AssertionError(f"{self.kind} serves no inference; the scenario's checks refuse it")

    def step(self, facts: Facts, step: StepContext) -> Ops:
        """One step of the workload's mode."""
        return (self.infer_step if facts.is_inference else self.train_step)(facts, step)

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        """Say why this strategy cannot train this on so many ranks, led by a key; or None."""
        return None

    def problem_with_groups(
        self, num_groups: int, world_size: int, workload: Workload
    ) -> str | None:
        """Say why replica groups cannot drop out of steps and come back, led by a key; or None."""
        return (
            f"kind: {self.kind} knows no replica groups that go on without each other; use ddp, "
            "hsdp or local_sgd, or a recovery that restarts all ranks."
        )

    def cast_units(self, workload: Workload) -> tuple[str, ...]:
        """Modules within the root whose outputs the strategy casts to its ``output_dtype``."""
        return ()

    @property
    def steps_together(self) -> int:
        """Steps after which ranks agree on weights, and before which none can drop out."""
        return 1

    def whole_periods(self, least: int) -> int:
        """Steps of a run whose metrics cover whole periods.

        Parameters
        ----------
        least : int
            Steps that the run must have, the first of which metrics leave out.
        """
        return 1 + self.steps_together * max(ceil((least - 1) / self.steps_together), 1)

    def after_warmup(self) -> Self:
        """The same strategy as it trains after its warm-up steps."""
        return self

    def with_period(self, steps: int) -> Self:
        """The same strategy with another number of `steps_together`."""
        raise AssertionError(f"{self.kind} has no periods")

    def problem_with_unused(self, workload: Workload) -> str | None:
        """Say why ranks cannot leave parameters unused, led by the place in the scenario."""
        return (
            f"workload.unused: strategy.kind: {self.kind} needs a gradient of every parameter on "
            "every rank; use {kind: ddp, find_unused_parameters: true}."
        )

    def problem_with_frozen(self) -> str | None:
        """Say why parameters cannot be frozen, without the place; or None."""
        return None

    def num_updates(self, world_size: int, num_steps: int) -> int:
        """Count the optimizer's updates in so many steps, which the learning rate follows."""
        return num_steps


def infers(strategy: Strategy | type[Strategy]) -> bool:
    """Whether a strategy can serve ``mode: inference``."""
    kind = strategy if isinstance(strategy, type) else type(strategy)
    return kind.infer_step is not Strategy.infer_step


def copies_charged(asked: bool | None, facts: Facts) -> bool:
    """Whether copies of gradients cost time: as the strategy says, or else the cluster."""
    return facts.overheads.copies if asked is None else asked


def uneven(workload: Workload) -> str | None:
    """Say that ranks run out of samples at different times, which `DDP` alone handles; or None."""
    if len(set(workload.samples_per_rank or [])) <= 1:
        return None
    return (
        "kind: ranks have different numbers of samples, and those that run out would leave the "
        "others waiting; use {kind: ddp, join: true}."
    )


def members(ranks: Ints) -> tuple[tuple[int, ...], ...]:
    """Process groups, as `NewGroup` takes them."""
    return tuple(tuple(row) for row in ranks.tolist())


Low = Literal["bfloat16", "float16", "float32"]
"""What `MixedPrecision` and ``MixedPrecisionPolicy`` take."""


def low_problem(param_dtype: Low | None, workload: Workload) -> str | None:
    """Say why a workload does not go with the dtype that its strategy computes in; or None."""
    if param_dtype is None:
        return None
    if workload.dtype != "float32":
        return (
            f"param_dtype: {param_dtype} is of float32 weights, but workload.dtype is "
            f"{workload.dtype}; write workload.dtype: float32, or leave param_dtype out."
        )
    precision = workload.precision
    if precision.kind == "full" or (precision.kind, precision.low) == ("mixed", param_dtype):
        return None
    return (
        f"param_dtype: {param_dtype} says what workload.precision: {precision.kind} of "
        f"{precision.low} says otherwise; leave one of them out."
    )


def output_problem(output_dtype: Low | None, param_dtype: Low | None) -> str | None:
    """Say why outputs cannot be of this dtype where layers compute in that one; or None."""
    made = param_dtype or "float32"
    if output_dtype in (None, "float32", made):
        return None
    return (
        f"output_dtype: {output_dtype}, but layers compute in {made}; write "
        f"{' or '.join(dict.fromkeys(('float32', made)))}, or leave it out."
    )


# Left out -----------------------------------------------------------------------------------------

WHOLE = ("none", "bf16", "fp16")
"""Hooks that keep nothing from step to step, and add what ranks send as it is."""


def dropped_in_part(join: bool, hook: CommHook) -> str | None:
    """Say what would keep a part of gradients that are dropped, behind a comma; or None."""
    if join:
        return "but join lets ranks leave by themselves; leave one of them out."
    if hook.kind not in WHOLE:
        return (
            f"but comm_hook: {hook.kind} sends and keeps more than those of a step; use one of "
            f"{', '.join(WHOLE)}."
        )
    return None


def problem_with_backups(backup_ranks: int, world_size: int, workload: Workload) -> str | None:
    """Say why so many ranks cannot be dropped in every step; or None."""
    if backup_ranks >= world_size:
        return (
            f"backup_ranks: {backup_ranks} dropped gradients of {world_size} leave none; use at "
            f"most {world_size - 1}."
        )
    return asks_others(workload)


def asks_others(workload: Workload) -> str | None:
    """Say that ranks exchange more than gradients; or None."""
    if not workload.graph.is_synchronised:
        return None
    return (
        "kind: sync_batchnorm needs the statistics of all ranks in the middle of a step, of which "
        "some may be missing; use a batch norm that is not synchronised."
    )


def meet_again(facts: Facts) -> Ops:
    """Make a process group of those that take part, where these are not all ranks."""
    if facts.quorum.group is not None and facts.quorum.participants is not None:
        yield NewGroup(QUORUM, (facts.quorum.participants.ranks,), 0)


def unequal_groups(num_groups: int, world_size: int) -> str | None:
    """Say that ranks cannot be so many replica groups of one size; or None."""
    if not world_size % num_groups:
        return None
    fitting = [str(n) for n in range(2, world_size + 1) if world_size % n == 0]
    return (
        f"kind: {num_groups} replica groups do not divide the {world_size} ranks; use one of "
        f"{', '.join(fitting)}."
    )


def infer_in_processes(facts: Facts, scatters: bool) -> Ops:
    """One step: forward alone.

    Parameters
    ----------
    facts : Facts
        Of ranks whose models are alike.
    scatters : bool
        Whether rank 0 has the batch, hands it out and gathers the outputs; else every rank has
        samples of its own, and keeps what it makes of them.
    """
    if scatters:
        yield from scatter(facts, 0)
    else:
        yield Batch(0)
    yield from forward_of_all(facts, 0)
    if scatters:
        yield Gather(0, 0)
        yield Meet()  # a rank that got nothing is no step ahead
    else:
        yield MicrobatchDone(0)


def idle_option(strategy: Strategy, read: Sequence[str] = ()) -> str | None:
    """Say that an option is about gradients, of which inference has none; or None.

    Parameters
    ----------
    strategy : Strategy
        As it is written.
    read : sequence of str
        Options that inference reads too.
    """
    for name, field in type(strategy).model_fields.items():
        if name in ("kind", *read) or getattr(strategy, name) == field.get_default():
            continue
        return f"{name}: mode: inference has no gradients to send; leave this out."
    return None


# Flat pieces --------------------------------------------------------------------------------------

AGREED_NBYTES = 4.0
"""Norms and flags are float32, whatever the gradients are (torch: FSDP.clip_grad_norm_,
ShardedGradScaler)."""


def deal_buckets(facts: Facts, bucket_cap: float | None, kept: ReplicatedPart) -> Partition:
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
        yield FillBucket(self.buckets[unit], name, self.facts.world_size)
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
    facts: Facts,
    step: StepContext,
    partition: Partition,
    overlap: bool,
    by_shard: bool,
    every: bool,
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
    yield ScaleLoss(by_shard)
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
