"""The operations of a training step.

A strategy yields them; the engine's interpreters derive numbers, memory and times. Operations
contain no arrays, instants or step numbers, so that equal steps are equal data. A ``tag`` numbers a
collective within its step.
"""

from __future__ import annotations

from typing import NamedTuple

from simdp.arrays import Ints
from simdp.steps.partition import Bucket, Factoring, Group, Partition, Selection
from simdp.workload.optimizers.base import Optimizer
from simdp.workload.sampling import Participants

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


class Observe(NamedTuple):
    """Compute the scale and the zero point of every row."""

    code: EncodeBucket


class Quantize(NamedTuple):
    """Quantize every rank's bucket to bytes."""

    code: EncodeBucket


class Dequantize(NamedTuple):
    """Replace the bucket by the mean of all ranks' dequantized bytes."""

    code: EncodeBucket
    divisor: float


Coded = Observe | Quantize | Dequantize


class Rounding(NamedTuple):
    """Cast a bucket to a smaller dtype and divide it before its collective, or cast it back.

    ``bucket`` is in the smaller dtype.
    """

    bucket: Bucket
    label: str
    is_back: bool = False


# One process --------------------------------------------------------------------------------------


class Scatter(NamedTuple):
    """Rank 0 sends each rank its piece of an array of the batch, one after the other.

    ``name`` is an input of the model, or ``y``, the targets.
    """

    micro: int
    name: str


class CopyOut(NamedTuple):
    """Start to copy rank 0's tensors to other ranks, for one micro-step.

    As `Broadcast`, among the ranks of ``group``, which include rank 0.
    """

    tag: int
    label: str
    nbytes: float
    names: tuple[str, ...]
    group: Group


class Replicate(NamedTuple):
    """Make a copy of every module for each device of a process, without its tensors.

    Attributes
    ----------
    devices : tuple of int
        Those that compute; all but the first get copies.
    """

    devices: tuple[int, ...]


class Gather(NamedTuple):
    """Copy every rank's outputs, or its loss, to the root, one after the other."""

    micro: int
    root: int
    losses: bool = False


class LossOfAll(NamedTuple):
    """Compute the loss of all gathered outputs on the root."""

    micro: int
    root: int


class HandBack(NamedTuple):
    """Send the gradients of gathered outputs back from the root, after its loss's backward."""

    micro: int
    root: int
    losses: bool = False


class Reduce(NamedTuple):
    """Start to sum gradients of a micro-step on rank 0, in one flat buffer."""

    tag: int
    label: str
    bucket: Bucket
    group: Group


class TakeSums(NamedTuple):
    """Add the sums to rank 0's gradients of the step, and free the copies of the model."""

    micro: int


class OwnHook(NamedTuple):
    """A bucket that is sent by a user's comm hook.

    Attributes
    ----------
    path, name : str
        File, and name of the function of a state and a bucket.
    bucket : Bucket
        The bucket.
    sent : Bucket or None
        Tensor that the function passes to its all_reduce; None if it calls none.
    goes_on : bool
        Whether the function continues with the sum.
    label : str
        The bucket's name in the trace.
    """

    path: str
    name: str
    bucket: Bucket
    sent: Bucket | None
    goes_on: bool
    label: str


class CallHook(NamedTuple):
    """Call the function on every rank with its bucket."""

    hook: OwnHook


class EndHook(NamedTuple):
    """Replace the bucket by the function's result for the sum."""

    hook: OwnHook


class HostCopy(NamedTuple):
    """Copy between every rank's device and host; compute waits for it.

    Before a collective, it runs on that collective's stream. ``nbytes`` are a rank's, on average.
    """

    name: str
    nbytes: float


# Coalesced collectives ----------------------------------------------------------------------------


class GatherTogether(NamedTuple):
    """Start to gather the parameters of some units, in one all_gather; as `AllGather`."""

    tag: int
    label: str
    nbytes: float
    units: tuple[int, ...]
    before: HostCopy | None = None


class ReduceTogether(NamedTuple):
    """Start to sum the gradients of some units in one reduce_scatter, each piece on its owner.

    Owners add the sums to their pieces of the step's gradients; the whole ones are dropped.
    ``before`` is as of `GatherTogether`.
    """

    tag: int
    label: str
    bucket: Bucket
    units: tuple[int, ...]
    before: HostCopy | None = None


class KeepSums(NamedTuple):
    """Add each rank's pieces of complete sums to those of the step.

    The whole gradients are dropped.
    """

    bucket: Bucket


Coalesced = GatherTogether | ReduceTogether | KeepSums


# Units --------------------------------------------------------------------------------------------


class Shard(NamedTuple):
    """From now on each rank keeps only its pieces of the partition."""

    partition: Partition


class Unshard(NamedTuple):
    """Copy a gathered unit out of its buffer of ``nbytes``, into parameters."""

    unit: int
    name: str
    nbytes: float


class Free(NamedTuple):
    """Drop a unit's parameters, except each rank's own piece.

    ``parts`` neighbours keep it together until it is gathered again; 0: all that share it.
    """

    unit: int
    parts: int = 0


class Open(NamedTuple):
    """Allocate a buffer for the whole gradients of a unit."""

    bucket: Bucket


class Release(NamedTuple):
    """Free the buffer of a unit's whole gradients."""

    bucket: Bucket


# Micro-steps --------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Take each rank's part of a micro-batch; or all of it on a root."""

    micro: int
    root: int | None = None


class Forward(NamedTuple):
    """Run forward of a call of the model; the loss is the call after the last.

    ``again``: it is recomputed; ``gil`` is the fraction of a kernel's launch that runs on one rank
    at a time.
    """

    micro: int
    call: int
    again: bool = False
    gil: float = 0.0


class Backward(NamedTuple):
    """Run backward of a call; the loss is the first."""

    micro: int
    call: int


class Tail(NamedTuple):
    """Run the rest of a call's backward, after the gradients of its parameters are ready."""

    micro: int
    call: int


class Exchange(NamedTuple):
    """Exchange numbers between ranks in the middle of a call, and wait.

    ``collective`` is a key of ``collectives``, ``nbytes`` the whole buffer.
    """

    micro: int
    call: int
    collective: str
    nbytes: float


class MicrobatchDone(NamedTuple):
    """End a micro-step, and free its memory."""

    micro: int


class ScaleLoss(NamedTuple):
    """Set the factors of all losses in this step.

    Every micro-step's loss is weighted by its share of the rank's samples; with ``by_shard``, each
    rank's also by its share of all items that the losses average, times world_size.
    """

    by_shard: bool


class Update(NamedTuple):
    """Run the optimizer on the ``active`` ranks, None: all, and drop all gradients."""

    active: tuple[bool, ...] | None = None


class Hold(NamedTuple):
    """Allocate memory of a part on every rank; negative ``nbytes`` free it."""

    part: str
    nbytes: float


class Reserve(NamedTuple):
    """From the end of the setup on, buffers of this size on every rank besides its buckets."""

    nbytes: float


class Copy(NamedTuple):
    """Copy within every rank's device memory, which reads and writes ``nbytes``."""

    name: str
    nbytes: float


class FillBucket(NamedTuple):
    """Write a gradient, divided, into its place in a bucket; 0 if there is none.

    ``is_copied``: the copy takes time.
    """

    bucket: Bucket
    name: str
    divisor: float
    is_copied: bool = False


class Take(NamedTuple):
    """Replace the gradients of a bucket's parameters by its content, divided; as `FillBucket`."""

    bucket: Bucket
    divisor: float = 1.0
    is_copied: bool = False


# Collectives -------------------------------------------------------------------------------------


class AllReduce(NamedTuple):
    """Start to sum over the ranks, on a communication stream.

    Attributes
    ----------
    tag, label
        Its number in the step, and its content.
    nbytes : float
        The whole buffer [bytes].
    bucket : Bucket or None
        Its gradients; None for bookkeeping without arithmetic.
    wait : float
        Minimum delay of its begin, as where a background thread polls for work [s].
    before : Unpack or OrthogonalizeBucket or HostCopy or None
        Work on the communication stream before it begins.
    group : str or tuple of int or None
        The ranks.
    after : tuple of int
        Collectives that must end before it begins.
    """

    tag: int
    label: str
    nbytes: float
    bucket: Bucket | None = None
    wait: float = 0.0
    before: Unpack | OrthogonalizeBucket | HostCopy | None = None
    group: Group = None
    after: tuple[int, ...] = ()


class ReduceScatter(NamedTuple):
    """Start to sum a unit's gradients, each piece on its owner; the whole ones are dropped.

    Owners add the sums to their pieces of the step's gradients; with several groups that each have
    all pieces, after an `AllReduce` of the bucket over the groups.

    Attributes
    ----------
    tag, label, bucket, group, before
        As of `AllReduce`.
    divisor : float
        Of the sums.
    """

    tag: int
    label: str
    bucket: Bucket
    group: Group = None
    divisor: float = 1.0
    before: HostCopy | None = None


class AllGather(NamedTuple):
    """Start to gather every rank's part on all ranks.

    Attributes
    ----------
    unit : int or None
        The unit with the gathered parameters.
    selection : Selection or None
        Or the selected entries of every rank; ``nbytes`` are those of all ranks.
    wait, group, before
        As of `AllReduce`.
    copied : float
        Copy of a piece into its buffer before it begins [bytes].
    """

    tag: int
    label: str
    nbytes: float
    unit: int | None = None
    selection: Selection | None = None
    wait: float = 0.0
    group: Group = None
    copied: float = 0.0
    before: HostCopy | None = None


class Broadcast(NamedTuple):
    """Start to replace tensors of one dtype on every rank by the root's.

    Attributes
    ----------
    names : tuple of str
        Parameters, or buffers.
    root : int
        A rank; in process groups, a place in the group.
    others
        As of `AllReduce`.
    """

    tag: int
    label: str
    nbytes: float
    names: tuple[str, ...]
    root: int = 0
    group: Group = None


class Average(NamedTuple):
    """Start to replace all weights by their mean: divided, then summed; as `AllReduce`.

    In process groups of ``num_averaged`` ranks each has its own mean; None: all counted ranks.
    """

    tag: int
    label: str
    nbytes: float
    group: Group = None
    num_averaged: int | None = None


class StartOuter(NamedTuple):
    """Copy every rank's weights as the global ones, which an outer optimizer updates."""

    optimizer: Optimizer


class OuterUpdate(NamedTuple):
    """Update the global weights by the outer optimizer, and copy them to every rank.

    The gradient is the global weights minus the rank's, after an `Average` of these.
    """

    optimizer: Optimizer


class Wait(NamedTuple):
    """The compute stream waits for collectives."""

    tags: tuple[int, ...]


class Meet(NamedTuple):
    """All ranks wait for each other, at no cost."""


class NewGroup(NamedTuple):
    """Create process groups that run the same collectives separately.

    Every participating rank is in one of them; ``stream`` is the communication stream of their
    collectives.
    """

    name: str
    ranks: tuple[tuple[int, ...], ...]
    stream: int


class Unless(NamedTuple):
    """Operations that are skipped if an inf or nan prevented the last update."""

    ops: tuple[Op, ...]


# PowerSGD and top-k ------------------------------------------------------------------------------


class SplitBucket(NamedTuple):
    """Add the errors of the last step to a bucket, and compute P = M Q."""

    factoring: Factoring


class Unpack(NamedTuple):
    """Copy the sums of uncompressed tensors back into the bucket."""

    factoring: Factoring


class OrthogonalizeBucket(NamedTuple):
    """Orthonormalise the sums of P, and compute Q = M^T P."""

    factoring: Factoring


class Join(NamedTuple):
    """Set the bucket to P Q^T, divided; and keep the error of each gradient."""

    factoring: Factoring
    divisor: float


class Select(NamedTuple):
    """Select the entries of a bucket that are sent."""

    selection: Selection


class AddSelected(NamedTuple):
    """Set the bucket to the sum of all selected entries, 0 elsewhere."""

    selection: Selection


Op = (
    Batch
    | Forward
    | Backward
    | Tail
    | Exchange
    | MicrobatchDone
    | ScaleLoss
    | Update
    | Hold
    | Reserve
    | Copy
    | Open
    | Release
    | FillBucket
    | Take
    | Rounding
    | AllReduce
    | ReduceScatter
    | AllGather
    | Broadcast
    | Average
    | StartOuter
    | OuterUpdate
    | Wait
    | Meet
    | NewGroup
    | Shard
    | Unshard
    | Free
    | Unless
    | SplitBucket
    | Unpack
    | OrthogonalizeBucket
    | Join
    | Select
    | AddSelected
    | Coalesced
    | Coded
    | HostCopy
    | CallHook
    | EndHook
    | Scatter
    | Replicate
    | CopyOut
    | Gather
    | LossOfAll
    | HandBack
    | Reduce
    | TakeSums
)
"""Operations of a strategy."""


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
