"""Operations: what a training step consists of, as frozen data.

A strategy yields them; the engine's readers make numbers, memory and times of them. No operation
holds an array, an instant or the number of its step, and so a step that does the same as the one
before it is the same data. A ``tag`` numbers a collective within its step.
"""

from __future__ import annotations

from typing import NamedTuple

from simdp.steps.partition import Partition

Group = str | tuple[int, ...] | None
"""Who takes part: the process groups of a name, some ranks, or all together."""


# What travels -----------------------------------------------------------------------------------


class Bucket(NamedTuple):
    """Gradients that travel together, as one flat buffer on every rank.

    Attributes
    ----------
    names : tuple of str
        Of the parameters in it, in order.
    num_elements : int
        Of all of them.
    dtype : str
        Of the buffer.
    nbytes : float
        Size of the gradients in it [bytes].
    room : float
        What the buffer takes for good beside the gradients [bytes].
    is_view : bool
        Whether gradients live in it for good.
    is_compressed : bool
        Whether gradients are rounded to another dtype as they come in.
    unit : int or None
        The unit of the strategy's partition that it holds the gradients of.
    of : str
        What tells it from others of the same parameters: a factor of a matrix, or what is left.
    """

    names: tuple[str, ...]
    num_elements: int
    dtype: str
    nbytes: float
    room: float = 0.0
    is_view: bool = False
    is_compressed: bool = False
    unit: int | None = None
    of: str = ""


class Factor(NamedTuple):
    """A gradient seen as a matrix, which travels as the product of two thin ones.

    Attributes
    ----------
    name : str
        The parameter.
    rows, columns : int
        Of the matrix.
    rank : int
        Columns of both thin matrices.
    """

    name: str
    rows: int
    columns: int
    rank: int


class Factoring(NamedTuple):
    """How a bucket is taken apart: matrices M become P = M Q and Q, the others stay as they are.

    Attributes
    ----------
    bucket, rest, p, q : Bucket
        The whole; what travels as it is; the left and the right factors of all matrices.
    factors : tuple of Factor
        The gradients that become two factors each.
    error_feedback, warm_start, epsilon, batched
        As in `simdp.strategies.comm_hooks.power_sgd.PowerSGD`.
    label : str
        The bucket's name in the trace.
    """

    bucket: Bucket
    rest: Bucket
    p: Bucket
    q: Bucket
    factors: tuple[Factor, ...]
    error_feedback: bool
    warm_start: bool
    epsilon: float
    batched: bool
    label: str


class Selection(NamedTuple):
    """The entries of a bucket that a rank sends: those of largest magnitude, with their places.

    Attributes
    ----------
    bucket : Bucket
        The whole.
    num_entries : int
        How many of it are sent.
    entry_nbytes : int
        Size of a value and its place [bytes].
    divisor : float
        What values are divided by before they are sent.
    error_feedback : bool
        Whether what was not sent the last time is added first.
    label : str
        The bucket's name in the trace.
    """

    bucket: Bucket
    num_entries: int
    entry_nbytes: int
    divisor: float
    error_feedback: bool
    label: str


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


class Done(NamedTuple):
    """A micro-step is over: what is left of it is given back."""

    micro: int


class Scale(NamedTuple):
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


# Memory and copies -------------------------------------------------------------------------------


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


class Open(NamedTuple):
    """A buffer for the whole gradients of a unit is made."""

    bucket: Bucket


class Release(NamedTuple):
    """The buffer of a unit's whole gradients is given back."""

    bucket: Bucket


class Fill(NamedTuple):
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
    before : Unpack or Turn or None
        What is computed on the communication stream before it begins.
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
    before: Unpack | Turn | None = None
    group: Group = None
    after: tuple[int, ...] = ()


class ReduceScatter(NamedTuple):
    """Start to sum a unit's gradients, each piece on its owner; the whole ones are forgotten.

    What an owner gets is added to its piece of the step's gradients; where several groups have all
    pieces, when an `AllReduce` of the bucket has summed the pieces over them.
    """

    tag: int
    label: str
    bucket: Bucket
    group: Group = None


class AllGather(NamedTuple):
    """Start to give every rank what each one has.

    Attributes
    ----------
    unit : int or None
        A unit's parameters are put together from their pieces.
    selection : Selection or None
        Or every rank's chosen entries travel; ``nbytes`` are those of all ranks.
    wait, others
        As of `AllReduce`.
    """

    tag: int
    label: str
    nbytes: float
    unit: int | None = None
    selection: Selection | None = None
    wait: float = 0.0
    group: Group = None


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
    """Start to give every rank the mean of all ranks' weights: divided, then summed."""

    tag: int
    label: str
    nbytes: float


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
        Members of each; every rank is in one of them.
    stream : int
        The communication stream that takes their collectives.
    """

    name: str
    ranks: tuple[tuple[int, ...], ...]
    stream: int


class Shard(NamedTuple):
    """From here on each rank keeps only what the partition deals to it."""

    partition: Partition


class Free(NamedTuple):
    """A unit's parameters are forgotten, but for each rank's own piece."""

    unit: int


class Unless(NamedTuple):
    """Operations that are left out where an inf or nan kept the last update from anything."""

    ops: tuple[Op, ...]


# Compression -------------------------------------------------------------------------------------


class Split(NamedTuple):
    """Take a bucket apart: add what was lost the last time, and find P = M Q."""

    factoring: Factoring


class Unpack(NamedTuple):
    """Get the sums of what travels as it is back into the bucket."""

    factoring: Factoring


class Turn(NamedTuple):
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


# One process with several devices ----------------------------------------------------------------


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


Op = (
    Batch
    | Forward
    | Backward
    | Tail
    | Exchange
    | Done
    | Scale
    | Update
    | Hold
    | Reserve
    | Copy
    | Open
    | Release
    | Fill
    | Take
    | AllReduce
    | ReduceScatter
    | AllGather
    | Broadcast
    | Average
    | Wait
    | Meet
    | NewGroup
    | Shard
    | Free
    | Unless
    | Split
    | Unpack
    | Turn
    | Join
    | Select
    | AddSelected
    | Scatter
    | CopyOut
    | Gather
    | LossOfAll
    | HandBack
    | Reduce
    | TakeSums
)
"""What a strategy yields."""
