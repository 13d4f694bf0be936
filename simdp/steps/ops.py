"""The operations of a training step.

A strategy yields them; the engine's readers make numbers, memory and times of them. No operation
holds an array, an instant or the number of its step, and so a step that does the same as the one
before it is the same data. A ``tag`` numbers a collective within its step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from simdp.arrays import Ints
from simdp.moved import renamed
from simdp.steps.partition import Bucket, Factoring, Group, Partition, Selection
from simdp.workload.optimizers.base import Optimizer
from simdp.workload.sampling import Participants


def __getattr__(name: str) -> Any:
    return renamed(__name__, name)


# Coded --------------------------------------------------------------------------------------------


class EncodeBucket(NamedTuple):
    """How the numbers of a bucket become bytes, with a scale and a zero point for each row.

    Attributes
    ----------
    bucket : Bucket
        The whole.
    row : int or None
        Elements of a row; None has all in one. The last row is filled up with zeros.
    label : str
        The bucket's name in the trace.
    """

    bucket: Bucket
    row: int | None
    label: str

    @property
    def num_rows(self) -> int:
        """Rows; where they divide a bucket's elements, one of padding follows (as in torch)."""
        return 1 if self.row is None else self.bucket.num_elements // self.row + 1

    @property
    def num_bytes(self) -> int:
        """Elements that are sent, of one byte each."""
        return self.bucket.num_elements if self.row is None else self.num_rows * self.row


class Observe(NamedTuple):
    """Find the scale and the zero point of every row."""

    code: EncodeBucket


class Quantize(NamedTuple):
    """Round every rank's bucket to bytes."""

    code: EncodeBucket


class Dequantize(NamedTuple):
    """Make the bucket's content the mean of what all ranks have sent."""

    code: EncodeBucket
    divisor: float


Coded = Observe | Quantize | Dequantize


class Rounding(NamedTuple):
    """A bucket is cast to a smaller dtype and divided before it travels, or cast back afterwards.

    Attributes
    ----------
    bucket : Bucket
        In the dtype that travels.
    label : str
        Its name in the trace.
    is_back : bool
        Whether it comes back.
    """

    bucket: Bucket
    label: str
    is_back: bool = False


# One process --------------------------------------------------------------------------------------


class Scatter(NamedTuple):
    """Rank 0 hands out each rank's piece of an array of its batch, one after the other.

    Attributes
    ----------
    micro : int
        The micro-batch.
    name : str
        An input of the model, or ``y``, the targets.
    """

    micro: int
    name: str


class CopyOut(NamedTuple):
    """Start to copy rank 0's tensors to other ranks, which borrow them for a micro-step.

    As `Broadcast`, among the ranks of ``group``, of which rank 0 is one.
    """

    tag: int
    label: str
    nbytes: float
    names: tuple[str, ...]
    group: Group


class Gather(NamedTuple):
    """Copy every rank's outputs, or its loss, to a rank, one after the other."""

    micro: int
    root: int
    losses: bool = False


class LossOfAll(NamedTuple):
    """A rank computes the loss of all outputs that it has gathered."""

    micro: int
    root: int


class HandBack(NamedTuple):
    """Hand the gradients of what was gathered back from the root, after its loss's backward."""

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
    """Add the sums to rank 0's gradients of the step, and let the copies of the model go."""

    micro: int


class OwnHook(NamedTuple):
    """A bucket that a function sends.

    Attributes
    ----------
    path, name : str
        The file, and the function of a state and a bucket in it.
    bucket : Bucket
        The whole.
    sent : Bucket or None
        What the function hands to its all_reduce; None if it calls none.
    goes_on : bool
        Whether it does something with the sum.
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
    """Every rank calls the function with its bucket."""

    hook: OwnHook


class EndHook(NamedTuple):
    """What it has made of the sum becomes the bucket's content."""

    hook: OwnHook


class HostCopy(NamedTuple):
    """Every rank copies something between its device and the host, which compute waits for.

    As what comes before a collective, it is done on that collective's stream.

    Attributes
    ----------
    name : str
        What.
    nbytes : float
        Of a rank, on average [bytes].
    """

    name: str
    nbytes: float


# Coalesced ----------------------------------------------------------------------------------------


class GatherTogether(NamedTuple):
    """Start to put the parameters of some units together, in one all_gather.

    Attributes
    ----------
    tag, label, nbytes
        As of `simdp.steps.ops.AllReduce`.
    units : tuple of int
        Which.
    before : HostCopy or None
        What is copied on the communication stream before it begins.
    """

    tag: int
    label: str
    nbytes: float
    units: tuple[int, ...]
    before: HostCopy | None = None


class ReduceTogether(NamedTuple):
    """Start to sum the gradients of some units in one reduce_scatter, each piece on its owner.

    What an owner gets is added to its pieces of the step's gradients; the whole ones are forgotten.
    ``before`` is as of `GatherTogether`.
    """

    tag: int
    label: str
    bucket: Bucket
    units: tuple[int, ...]
    before: HostCopy | None = None


class KeepSums(NamedTuple):
    """Of a bucket whose sums all ranks have, each adds its own pieces to those of the step.

    The whole gradients are forgotten.
    """

    bucket: Bucket


Coalesced = GatherTogether | ReduceTogether | KeepSums


# Unit ops -----------------------------------------------------------------------------------------


class Shard(NamedTuple):
    """From here on each rank keeps only what the partition deals to it."""

    partition: Partition


class Unshard(NamedTuple):
    """What has been gathered of a unit is copied out of its buffer, into parameters.

    Attributes
    ----------
    unit, name
        Which.
    nbytes : float
        The buffer's size [bytes].
    """

    unit: int
    name: str
    nbytes: float


class Free(NamedTuple):
    """A unit's parameters are forgotten, but for each rank's own piece.

    Attributes
    ----------
    unit : int
        Which.
    parts : int
        How many neighbours keep it together until it is gathered again; 0 is all that share it.
    """

    unit: int
    parts: int = 0


class Open(NamedTuple):
    """A buffer for the whole gradients of a unit is made."""

    bucket: Bucket


class Release(NamedTuple):
    """The buffer of a unit's whole gradients is given back."""

    bucket: Bucket


# A micro-step on ranks of their own --------------------------------------------------------------


class Batch(NamedTuple):
    """Every rank takes its own part of a micro-batch; or a root takes the whole of it."""

    micro: int
    root: int | None = None


class Forward(NamedTuple):
    """A call of the model runs forward; the loss is the call after the last.

    Attributes
    ----------
    micro, call : int
        Of which micro-step, and which call of the graph.
    again : bool
        Whether it is computed a second time, because nothing was kept of it.
    gil : float
        The part of a kernel's launch that one rank does at a time.
    """

    micro: int
    call: int
    again: bool = False
    gil: float = 0.0


class Backward(NamedTuple):
    """Backward goes through a call; the loss is the first."""

    micro: int
    call: int


class Tail(NamedTuple):
    """What backward does in a call when the gradients of its parameters are ready already."""

    micro: int
    call: int


class Exchange(NamedTuple):
    """Ranks exchange numbers in the middle of a call, and wait for each other.

    Attributes
    ----------
    micro, call : int
        As of `Forward`.
    collective : str
        Key of ``collectives``.
    nbytes : float
        The whole buffer [bytes].
    """

    micro: int
    call: int
    collective: str
    nbytes: float


class MicrobatchDone(NamedTuple):
    """A micro-step is over: what is left of it is given back."""

    micro: int


class ScaleLoss(NamedTuple):
    """Choose how each loss counts in this step.

    Every micro-step's loss counts with its share of the rank's samples; with ``by_shard`` also
    each rank's with its share of what all ranks' losses average, times world_size.
    """

    by_shard: bool


class Update(NamedTuple):
    """The optimizer changes the weights of some ranks, and all gradients are forgotten.

    Attributes
    ----------
    active : tuple of bool or None
        Of each rank, whether it takes part; None is all.
    """

    active: tuple[bool, ...] | None = None


class Hold(NamedTuple):
    """Every rank takes memory for a part, or gives it back where ``nbytes`` is negative."""

    part: str
    nbytes: float


class Reserve(NamedTuple):
    """From the end of the setup on, every rank has buffers of this size beside its buckets."""

    nbytes: float


class Copy(NamedTuple):
    """Every rank copies something in its device's memory, which reads and writes it [bytes]."""

    name: str
    nbytes: float


class FillBucket(NamedTuple):
    """A gradient, divided, comes into its place in a bucket; 0 where there is none.

    Attributes
    ----------
    bucket, name
        Which gradient goes where.
    divisor : float
        What it is divided by.
    is_copied : bool
        Whether that copy is charged.
    """

    bucket: Bucket
    name: str
    divisor: float
    is_copied: bool = False


class Take(NamedTuple):
    """A bucket's content, divided, becomes the gradients of its parameters; as `Fill`."""

    bucket: Bucket
    divisor: float = 1.0
    is_copied: bool = False


# Collectives -------------------------------------------------------------------------------------


class AllReduce(NamedTuple):
    """Start to sum over the ranks, on a communication stream.

    Attributes
    ----------
    tag, label
        Its number in the step, and what it carries.
    nbytes : float
        The whole buffer [bytes].
    bucket : Bucket or None
        What is summed; None where the sum is bookkeeping that has no part in the arithmetic.
    wait : float
        It does not begin before so long after it was asked for, as where a background thread looks
        for work only now and then [s].
    before : Unpack or Turn or HostCopy or None
        What is done on the communication stream before it begins.
    group : str or tuple of int or None
        Who sums.
    after : tuple of int
        Collectives that must be over before it begins.
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
    """Start to sum a unit's gradients, each piece on its owner; the whole ones are forgotten.

    What an owner gets is added to its piece of the step's gradients; where several groups have all
    pieces, when an `AllReduce` of the bucket has summed the pieces over them.

    Attributes
    ----------
    tag, label, bucket, group, before
        As of `AllReduce`.
    divisor : float
        What the sums are divided by.
    """

    tag: int
    label: str
    bucket: Bucket
    group: Group = None
    divisor: float = 1.0
    before: HostCopy | None = None


class AllGather(NamedTuple):
    """Start to give every rank what each one has.

    Attributes
    ----------
    unit : int or None
        A unit's parameters are put together from their pieces.
    selection : Selection or None
        Or every rank's chosen entries travel; ``nbytes`` are those of all ranks.
    wait, group, before
        As of `AllReduce`.
    copied : float
        What is read and written before it, beside all else, to get a piece into its buffer [bytes].
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
        Whose; in process groups, a place in the group.
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
    """Start to give every rank the mean of all weights: divided, then summed.

    Attributes
    ----------
    tag, label, nbytes, group
        As of `AllReduce`.
    num_averaged : int or None
        Ranks of a process group, each of which gets its own mean; None averages all that count.
    """

    tag: int
    label: str
    nbytes: float
    group: Group = None
    num_averaged: int | None = None


class StartOuter(NamedTuple):
    """Every rank copies its weights as the global ones, which an outer optimizer updates."""

    optimizer: Optimizer


class OuterUpdate(NamedTuple):
    """The outer optimizer updates the global weights, which then replace every rank's weights.

    Its gradient is the global weights less the rank's, after an `Average` of these.
    """

    optimizer: Optimizer


class Wait(NamedTuple):
    """The compute stream waits until collectives are done."""

    tags: tuple[int, ...]


class Meet(NamedTuple):
    """Every rank waits until all have come, at no cost."""


class NewGroup(NamedTuple):
    """Make process groups that each do the same collectives by themselves.

    Attributes
    ----------
    name : str
        What collectives call them.
    ranks : tuple of tuple of int
        Members of each; every rank that takes part is in one of them.
    stream : int
        The communication stream that takes their collectives.
    """

    name: str
    ranks: tuple[tuple[int, ...], ...]
    stream: int


class Unless(NamedTuple):
    """Operations that are left out where an inf or nan kept the last update from anything."""

    ops: tuple[Op, ...]


# Compression -------------------------------------------------------------------------------------


class SplitBucket(NamedTuple):
    """Take a bucket apart: add what was lost the last time, and find P = M Q."""

    factoring: Factoring


class Unpack(NamedTuple):
    """Get the sums of what travels as it is back into the bucket."""

    factoring: Factoring


class OrthogonalizeBucket(NamedTuple):
    """Make the sums of P orthonormal, and find Q = M^T P."""

    factoring: Factoring


class Join(NamedTuple):
    """Make the bucket's content P Q^T, divided; and note what is lost of each gradient."""

    factoring: Factoring
    divisor: float


class Select(NamedTuple):
    """Choose the entries of a bucket that are sent."""

    selection: Selection


class AddSelected(NamedTuple):
    """Make the bucket's content the sum of all that was chosen, 0 elsewhere."""

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
    | CopyOut
    | Gather
    | LossOfAll
    | HandBack
    | Reduce
    | TakeSums
)
"""What a strategy yields."""


QUORUM = "quorum"
"""Name of the process group of all ranks that take part."""


class Quorum(NamedTuple):
    """Who takes part.

    Attributes
    ----------
    num_counted : int
        Ranks whose gradients are averaged.
    participants : Participants or None
        Who takes part in every step; None where nobody can drop out.
    """

    num_counted: int
    participants: Participants | None = None

    @property
    def group(self) -> Group:
        """All that take part, as collectives call them; None where these are all ranks."""
        return None if self.participants is None or self.participants.there.all() else QUORUM

    @property
    def there(self) -> tuple[bool, ...] | None:
        """Of each rank whether it takes part; None: all do."""
        return None if self.participants is None else tuple(self.participants.there.tolist())

    def among(self, groups: Ints) -> Ints:
        """Those of some groups of ranks, a row each, that take part as a whole."""
        if self.participants is None:
            return groups
        found: Ints = groups[self.participants.there[groups].all(axis=1)]
        return found
