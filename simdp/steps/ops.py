"""The operations of a training step.

A strategy yields them; the engine's interpreters derive numbers, memory and times. Operations
contain no arrays, instants or step numbers, so that equal steps are equal data. A ``tag`` numbers a
collective within its step.

A new operation is a class here that names the interpreters that it concerns, and a method in each
of these: ``@handlers(NewOperation)``. Importing an interpreter without one raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, ClassVar, NamedTuple, TypeVar

from simdp.arrays import Ints
from simdp.errors import OperationError
from simdp.steps.partition import Bucket, Factoring, Group, Partition, Selection
from simdp.workload.optimizers.base import Optimizer
from simdp.workload.sampling import Participants

# Operations and their handlers --------------------------------------------------------------------


class Concern(Flag):
    """The interpreters, by the `Handlers` that each has.

    Attributes
    ----------
    NONE
        `simdp.steps.program.Program`, or another operation, reads it.
    NUMBERS, COMPRESSION
        `simdp.engine.interpreters.numbers.Numbers`: it changes arrays; so does
        `simdp.engine.compression.Compressed`.
    FAULTS
        `simdp.engine.interpreters.records.Forecast`: it runs updates, or spreads faults among the
        ranks.
    BEFORE, AFTER
        `simdp.engine.interpreters.memory.MemoryInterpreter`: memory changes as it begins; as it
        ends.
    WORK, TIME
        `simdp.engine.interpreters.costs.Costs`: work on the compute stream, the same in every step;
        or time that depends on the step, on waits, or on a network.
    BOUND
        `simdp.studies.plan.bounds.StepDemand`: it belongs to the least time of a step.
    """

    NONE = 0
    NUMBERS = auto()
    COMPRESSION = auto()
    FAULTS = auto()
    BEFORE = auto()
    AFTER = auto()
    WORK = auto()
    TIME = auto()
    BOUND = auto()


class CollectiveCall(NamedTuple):
    """A collective that a run calls; root 0 if it has none, and the size of its whole buffer."""

    collective: str
    root: int
    group: Group
    nbytes: float


class Op:
    """Base of the operations: frozen data.

    Raises
    ------
    OperationError
        When a class is defined that concerns an interpreter without a handler of it.
    """

    concerns: ClassVar[Concern]

    def __init_subclass__(cls) -> None:
        for handlers in INTERPRETERS:
            handlers.include(cls)
        OPERATIONS.append(cls)

    @property
    def called(self) -> CollectiveCall | None:
        """The collective that the operation starts, or None."""
        return None


OPERATIONS: list[type[Op]] = []
"""All operations."""

INTERPRETERS: list[Handlers[Any]] = []
"""The handlers of all imported interpreters."""

H = TypeVar("H", bound=Callable[..., object])


class Handlers(dict[type[Op], H | None]):
    """An interpreter's handlers by class of operation; None for those that do not concern it.

    A class attribute, which decorates the methods of the class. `Unless` is never looked up: `flat`
    and the run unpack it.

    Raises
    ------
    OperationError
        When the class is complete, if an operation has no handler (before Python 3.12, as the
        cause of a RuntimeError); when a class is looked up that is no operation.
    """

    def __init__(self, concern: Concern) -> None:
        super().__init__()
        self.concern, self.name = concern, ""

    def __call__(self, *kinds: type[Op]) -> Callable[[H], H]:
        """Register the decorated method as the handler of operations."""

        def register(method: H) -> H:
            self.update(dict.fromkeys(kinds, method))
            return method

        return register

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"{owner.__module__}.{owner.__qualname__}.{name}"
        for kind in OPERATIONS:
            self.include(kind)
        INTERPRETERS.append(self)

    def include(self, kind: type[Op]) -> None:
        """Look for the handler of an operation that concerns the interpreter."""
        if (kind in self) != bool(kind.concerns & self.concern):
            raise OperationError(self.name, kind)
        self.setdefault(kind)

    def __missing__(self, kind: type[Op]) -> None:
        raise OperationError(self.name, kind)


# Quantization -------------------------------------------------------------------------------------


class EncodeBucket(NamedTuple):
    """Quantization of a bucket to bytes, with a scale and a zero point for each row.

    A row has ``row`` elements, and the last one is padded with zeros; None: one row.
    """

    bucket: Bucket
    row: int | None
    label: str

    @property
    def num_rows(self) -> int:
        """Number of rows; if they divide the bucket evenly, one of padding follows (torch)."""
        return 1 if self.row is None else self.bucket.num_elements // self.row + 1

    @property
    def num_bytes(self) -> int:
        """Number of sent elements, of one byte each."""
        return self.bucket.num_elements if self.row is None else self.num_rows * self.row


@dataclass(frozen=True)
class Observe(Op):
    """Compute the scale and the zero point of every row."""

    concerns = Concern.WORK
    code: EncodeBucket


@dataclass(frozen=True)
class Quantize(Op):
    """Quantize every rank's bucket to bytes."""

    concerns = Concern.WORK
    code: EncodeBucket


@dataclass(frozen=True)
class Dequantize(Op):
    """Replace the bucket by the mean of all ranks' dequantized bytes."""

    concerns = Concern.COMPRESSION | Concern.WORK
    code: EncodeBucket
    divisor: float


@dataclass(frozen=True)
class Rounding(Op):
    """Cast a bucket to a smaller dtype and divide it before its collective, or cast it back.

    ``bucket`` is in the smaller dtype.
    """

    concerns = Concern.WORK
    bucket: Bucket
    label: str
    is_back: bool = False


# One process --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scatter(Op):
    """Rank 0 sends each rank its piece of an array of the batch, one after the other.

    ``name`` is an input of the model, or ``y``, the targets.
    """

    concerns = Concern.BEFORE | Concern.TIME
    micro: int
    name: str


@dataclass(frozen=True)
class CopyOut(Op):
    """Start to copy rank 0's tensors to other ranks, for one micro-step.

    As `Broadcast`, among the ranks of ``group``, which include rank 0.
    """

    concerns = Concern.NUMBERS | Concern.BEFORE | Concern.TIME | Concern.BOUND
    tag: int
    label: str
    nbytes: float
    names: tuple[str, ...]
    group: Group

    @property
    def called(self) -> CollectiveCall:
        return CollectiveCall("broadcast", 0, self.group, self.nbytes)


@dataclass(frozen=True)
class Replicate(Op):
    """Make a copy of every module for each device of a process, without its tensors."""

    concerns = Concern.WORK
    devices: tuple[int, ...]
    """Those that compute; all but the first get copies."""


@dataclass(frozen=True)
class Gather(Op):
    """Copy every rank's outputs, or its loss, to the root, one after the other."""

    concerns = Concern.NUMBERS | Concern.BEFORE | Concern.AFTER | Concern.TIME
    micro: int
    root: int
    losses: bool = False


@dataclass(frozen=True)
class LossOfAll(Op):
    """Compute the loss of all gathered outputs on the root."""

    concerns = Concern.NUMBERS | Concern.BEFORE | Concern.TIME
    micro: int
    root: int


@dataclass(frozen=True)
class HandBack(Op):
    """Send the gradients of gathered outputs back from the root, after its loss's backward."""

    concerns = Concern.NUMBERS | Concern.BEFORE | Concern.AFTER | Concern.TIME
    micro: int
    root: int
    losses: bool = False


@dataclass(frozen=True)
class Reduce(Op):
    """Start to sum gradients of a micro-step on rank 0, in one flat buffer."""

    concerns = Concern.NUMBERS | Concern.BEFORE | Concern.AFTER | Concern.TIME | Concern.BOUND
    tag: int
    label: str
    bucket: Bucket
    group: Group

    @property
    def called(self) -> CollectiveCall:
        return CollectiveCall("reduce", 0, self.group, self.bucket.nbytes)


@dataclass(frozen=True)
class TakeSums(Op):
    """Add the sums to rank 0's gradients of the step, and free the copies of the model."""

    concerns = Concern.NUMBERS | Concern.FAULTS | Concern.AFTER
    micro: int


class OwnHook(NamedTuple):
    """A bucket that is sent by a user's comm hook."""

    path: str
    """File."""
    name: str
    """Name of the function of a state and a bucket."""
    bucket: Bucket
    """The bucket."""
    sent: Bucket | None
    """Tensor that the function passes to its all_reduce; None if it calls none."""
    goes_on: bool
    """Whether the function continues with the sum."""
    label: str
    """The bucket's name in the trace."""


@dataclass(frozen=True)
class CallHook(Op):
    """Call the function on every rank with its bucket."""

    concerns = Concern.COMPRESSION | Concern.WORK
    hook: OwnHook


@dataclass(frozen=True)
class EndHook(Op):
    """Replace the bucket by the function's result for the sum."""

    concerns = Concern.COMPRESSION | Concern.WORK
    hook: OwnHook


@dataclass(frozen=True)
class HostCopy(Op):
    """Copy between every rank's device and host; compute waits for it.

    Before a collective, it runs on that collective's stream. ``nbytes`` are a rank's, on average.
    """

    concerns = Concern.WORK | Concern.BOUND
    name: str
    nbytes: float


# Coalesced collectives ----------------------------------------------------------------------------


@dataclass(frozen=True)
class GatherTogether(Op):
    """Start to gather the parameters of some units, in one all_gather; as `AllGather`."""

    concerns = Concern.NUMBERS | Concern.BEFORE | Concern.TIME | Concern.BOUND
    tag: int
    label: str
    nbytes: float
    units: tuple[int, ...]
    before: HostCopy | None = None

    @property
    def called(self) -> CollectiveCall:
        return CollectiveCall("all_gather", 0, None, self.nbytes)


@dataclass(frozen=True)
class ReduceTogether(Op):
    """Start to sum the gradients of some units in one reduce_scatter, each piece on its owner.

    Owners add the sums to their pieces of the step's gradients; the whole ones are dropped.
    ``before`` is as of `GatherTogether`.
    """

    concerns = Concern.NUMBERS | Concern.TIME | Concern.BOUND
    tag: int
    label: str
    bucket: Bucket
    units: tuple[int, ...]
    before: HostCopy | None = None

    @property
    def called(self) -> CollectiveCall:
        return CollectiveCall("reduce_scatter", 0, None, self.bucket.nbytes)


@dataclass(frozen=True)
class KeepSums(Op):
    """Add each rank's pieces of complete sums to those of the step.

    The whole gradients are dropped.
    """

    concerns = Concern.NUMBERS
    bucket: Bucket


# Units --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard(Op):
    """From now on each rank keeps only its pieces of the partition."""

    concerns = Concern.NUMBERS
    partition: Partition


@dataclass(frozen=True)
class Unshard(Op):
    """Copy a gathered unit out of its buffer of ``nbytes``, into parameters."""

    concerns = Concern.NUMBERS | Concern.BEFORE | Concern.AFTER | Concern.WORK | Concern.BOUND
    unit: int
    name: str
    nbytes: float


@dataclass(frozen=True)
class Free(Op):
    """Drop a unit's parameters, except each rank's own piece.

    ``parts`` neighbours keep it together until it is gathered again; 0: all that share it.
    """

    concerns = Concern.NUMBERS | Concern.AFTER
    unit: int
    parts: int = 0


@dataclass(frozen=True)
class Open(Op):
    """Allocate a buffer for the whole gradients of a unit."""

    concerns = Concern.NUMBERS | Concern.BEFORE
    bucket: Bucket


@dataclass(frozen=True)
class Release(Op):
    """Free the buffer of a unit's whole gradients."""

    concerns = Concern.BEFORE
    bucket: Bucket


# Micro-steps --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch(Op):
    """Take each rank's part of a micro-batch; or all of it on a root."""

    concerns = Concern.NUMBERS | Concern.AFTER | Concern.TIME
    micro: int
    root: int | None = None


@dataclass(frozen=True)
class Forward(Op):
    """Run forward of a call of the model; the loss is the call after the last.

    ``again``: it is recomputed; ``gil`` is the fraction of a kernel's launch that runs on one rank
    at a time.
    """

    concerns = Concern.NUMBERS | Concern.BEFORE | Concern.AFTER | Concern.WORK | Concern.BOUND
    micro: int
    call: int
    again: bool = False
    gil: float = 0.0


@dataclass(frozen=True)
class Backward(Op):
    """Run backward of a call; the loss is the first."""

    concerns = Concern.NUMBERS | Concern.BEFORE | Concern.AFTER | Concern.WORK | Concern.BOUND
    micro: int
    call: int


@dataclass(frozen=True)
class Tail(Op):
    """Run the rest of a call's backward, after the gradients of its parameters are ready."""

    concerns = Concern.WORK | Concern.BOUND
    micro: int
    call: int


@dataclass(frozen=True)
class Exchange(Op):
    """Exchange numbers between ranks in the middle of a call, and wait.

    ``collective`` is a key of ``collectives``, ``nbytes`` the whole buffer.
    """

    concerns = Concern.AFTER | Concern.TIME | Concern.BOUND
    micro: int
    call: int
    collective: str
    nbytes: float

    @property
    def called(self) -> CollectiveCall:
        return CollectiveCall(self.collective, 0, None, self.nbytes)


@dataclass(frozen=True)
class MicrobatchDone(Op):
    """End a micro-step, and free its memory."""

    concerns = Concern.AFTER
    micro: int


@dataclass(frozen=True)
class ScaleLoss(Op):
    """Set the factors of all losses in this step.

    Every micro-step's loss is weighted by its share of the rank's samples; with ``by_shard``, each
    rank's also by its share of all items that the losses average, times world_size.
    """

    concerns = Concern.NUMBERS
    by_shard: bool


@dataclass(frozen=True)
class Update(Op):
    """Run the optimizer on the ``active`` ranks, None: all, and drop all gradients."""

    concerns = Concern.NUMBERS | Concern.FAULTS | Concern.BEFORE | Concern.AFTER | Concern.BOUND
    active: tuple[bool, ...] | None = None


@dataclass(frozen=True)
class Hold(Op):
    """Allocate memory of a part on every rank; negative ``nbytes`` free it."""

    concerns = Concern.AFTER
    part: str
    nbytes: float


@dataclass(frozen=True)
class Reserve(Op):
    """From the end of the setup on, buffers of this size on every rank besides its buckets."""

    concerns = Concern.NONE
    nbytes: float


@dataclass(frozen=True)
class Copy(Op):
    """Copy within every rank's device memory, which reads and writes ``nbytes``."""

    concerns = Concern.WORK | Concern.BOUND
    name: str
    nbytes: float


@dataclass(frozen=True)
class FillBucket(Op):
    """Write a gradient, divided, into its place in a bucket; 0 if there is none.

    ``is_copied``: the copy takes time.
    """

    concerns = Concern.NUMBERS | Concern.WORK | Concern.BOUND
    bucket: Bucket
    name: str
    divisor: float
    is_copied: bool = False


@dataclass(frozen=True)
class Take(Op):
    """Replace the gradients of a bucket's parameters by its content, divided; as `FillBucket`."""

    concerns = Concern.NUMBERS | Concern.FAULTS | Concern.WORK | Concern.BOUND
    bucket: Bucket
    divisor: float = 1.0
    is_copied: bool = False


# Collectives -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AllReduce(Op):
    """Start to sum over the ranks, on a communication stream."""

    concerns = Concern.NUMBERS | Concern.FAULTS | Concern.TIME | Concern.BOUND
    tag: int
    """Its number in the step, and its content."""
    label: str
    """Its number in the step, and its content."""
    nbytes: float
    """The whole buffer [bytes]."""
    bucket: Bucket | None = None
    """Its gradients; None for bookkeeping without arithmetic."""
    wait: float = 0.0
    """Minimum delay of its begin, as where a background thread polls for work [s]."""
    before: Unpack | OrthogonalizeBucket | HostCopy | None = None
    """Work on the communication stream before it begins."""
    group: Group = None
    """The ranks."""
    after: tuple[int, ...] = ()
    """Collectives that must end before it begins."""

    @property
    def called(self) -> CollectiveCall:
        return CollectiveCall("all_reduce", 0, self.group, self.nbytes)


@dataclass(frozen=True)
class ReduceScatter(Op):
    """Start to sum a unit's gradients, each piece on its owner; the whole ones are dropped.

    Owners add the sums to their pieces of the step's gradients; with several groups that each have
    all pieces, after an `AllReduce` of the bucket over the groups.
    """

    concerns = Concern.NUMBERS | Concern.FAULTS | Concern.AFTER | Concern.TIME | Concern.BOUND
    tag: int
    """As of `AllReduce`."""
    label: str
    """As of `AllReduce`."""
    bucket: Bucket
    """As of `AllReduce`."""
    group: Group = None
    """As of `AllReduce`."""
    divisor: float = 1.0
    """Of the sums."""
    before: HostCopy | None = None
    """As of `AllReduce`."""

    @property
    def called(self) -> CollectiveCall:
        return CollectiveCall("reduce_scatter", 0, self.group, self.bucket.nbytes)


@dataclass(frozen=True)
class AllGather(Op):
    """Start to gather every rank's part on all ranks."""

    concerns = Concern.NUMBERS | Concern.BEFORE | Concern.TIME | Concern.BOUND
    tag: int
    label: str
    nbytes: float
    unit: int | None = None
    """The unit with the gathered parameters."""
    selection: Selection | None = None
    """Or the selected entries of every rank; ``nbytes`` are those of all ranks."""
    wait: float = 0.0
    """As of `AllReduce`."""
    group: Group = None
    """As of `AllReduce`."""
    copied: float = 0.0
    """Copy of a piece into its buffer before it begins [bytes]."""
    before: HostCopy | None = None
    """As of `AllReduce`."""

    @property
    def called(self) -> CollectiveCall:
        return CollectiveCall("all_gather", 0, self.group, self.nbytes)


@dataclass(frozen=True)
class Broadcast(Op):
    """Start to replace tensors of one dtype on every rank by the root's.

    Attributes
    ----------
    others
        As of `AllReduce`.
    """

    concerns = Concern.NUMBERS | Concern.TIME | Concern.BOUND
    tag: int
    label: str
    nbytes: float
    names: tuple[str, ...]
    """Parameters, or buffers."""
    root: int = 0
    """A rank; in process groups, a place in the group."""
    group: Group = None

    @property
    def called(self) -> CollectiveCall:
        return CollectiveCall("broadcast", self.root, self.group, self.nbytes)


@dataclass(frozen=True)
class Average(Op):
    """Start to replace all weights by their mean: divided, then summed; as `AllReduce`.

    In process groups of ``num_averaged`` ranks each has its own mean; None: all counted ranks.
    """

    concerns = Concern.NUMBERS | Concern.TIME | Concern.BOUND
    tag: int
    label: str
    nbytes: float
    group: Group = None
    num_averaged: int | None = None

    @property
    def called(self) -> CollectiveCall:
        return CollectiveCall("all_reduce", 0, self.group, self.nbytes)


@dataclass(frozen=True)
class StartOuter(Op):
    """Copy every rank's weights as the global ones, which an outer optimizer updates."""

    concerns = Concern.NUMBERS | Concern.BEFORE | Concern.WORK
    optimizer: Optimizer


@dataclass(frozen=True)
class OuterUpdate(Op):
    """Update the global weights by the outer optimizer, and copy them to every rank.

    The gradient is the global weights minus the rank's, after an `Average` of these.
    """

    concerns = Concern.NUMBERS | Concern.BEFORE | Concern.AFTER | Concern.WORK
    optimizer: Optimizer


@dataclass(frozen=True)
class Wait(Op):
    """The compute stream waits for collectives."""

    concerns = Concern.TIME | Concern.BOUND
    tags: tuple[int, ...]


@dataclass(frozen=True)
class Meet(Op):
    """All ranks wait for each other, at no cost."""

    concerns = Concern.TIME


@dataclass(frozen=True)
class NewGroup(Op):
    """Create process groups that run the same collectives separately.

    Every participating rank is in one of them; ``stream`` is the communication stream of their
    collectives.
    """

    concerns = Concern.NONE
    name: str
    ranks: tuple[tuple[int, ...], ...]
    stream: int


@dataclass(frozen=True)
class Unless(Op):
    """Operations that are skipped if an inf or nan prevented the last update."""

    concerns = Concern.NONE
    ops: tuple[Op, ...]


# PowerSGD and top-k ------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitBucket(Op):
    """Add the errors of the last step to a bucket, and compute P = M Q."""

    concerns = Concern.COMPRESSION | Concern.WORK
    factoring: Factoring


@dataclass(frozen=True)
class Unpack(Op):
    """Copy the sums of uncompressed tensors back into the bucket."""

    concerns = Concern.NONE
    factoring: Factoring


@dataclass(frozen=True)
class OrthogonalizeBucket(Op):
    """Orthonormalise the sums of P, and compute Q = M^T P."""

    concerns = Concern.NONE
    factoring: Factoring


@dataclass(frozen=True)
class Join(Op):
    """Set the bucket to P Q^T, divided; and keep the error of each gradient."""

    concerns = Concern.COMPRESSION | Concern.WORK
    factoring: Factoring
    divisor: float


@dataclass(frozen=True)
class Select(Op):
    """Select the entries of a bucket that are sent."""

    concerns = Concern.COMPRESSION | Concern.WORK
    selection: Selection


@dataclass(frozen=True)
class AddSelected(Op):
    """Set the bucket to the sum of all selected entries, 0 elsewhere."""

    concerns = Concern.COMPRESSION | Concern.WORK
    selection: Selection


CALLING = tuple(kind for kind in OPERATIONS if kind.called is not Op.called)
"""Operations that start a collective."""


QUORUM = "quorum"
"""Name of the process group of all participating ranks."""


class Quorum(NamedTuple):
    """Participating ranks, and the number of averaged gradients.

    ``participants`` is None if no rank can drop out.
    """

    num_counted: int
    participants: Participants | None = None

    @property
    def group(self) -> Group:
        """Group of all participating ranks, for collectives; None if these are all ranks."""
        return None if self.participants is None or self.participants.there.all() else QUORUM

    @property
    def there(self) -> tuple[bool, ...] | None:
        """Whether each rank takes part; None: all do."""
        return None if self.participants is None else tuple(self.participants.there.tolist())

    def among(self, groups: Ints) -> Ints:
        """Groups of ranks, a row each, of which all ranks take part."""
        if self.participants is None:
            return groups
        return groups[self.participants.there[groups].all(axis=1)]
