"""Operations: what a training step consists of, as frozen data.

A strategy yields them; the engine's readers make numbers, memory and times of them. No operation
holds an array, an instant or the number of its step, and so a step that does the same as the one
before it is the same data. A ``tag`` numbers a collective within its step.
"""

from __future__ import annotations

from typing import NamedTuple

from simdp.steps.bucket import Bucket, Factoring, Group, Selection
from simdp.steps.coalesced import Coalesced
from simdp.steps.coded import Coded, Rounding
from simdp.steps.offload import HostCopy
from simdp.steps.one_process import CopyOut, Gather, HandBack, LossOfAll, Reduce, Scatter, TakeSums
from simdp.steps.own_hook import CallHook, EndHook
from simdp.steps.unit_ops import Free, Open, Release, Shard, Unshard

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
    before: Unpack | Turn | HostCopy | None = None
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
    | Rounding
    | AllReduce
    | ReduceScatter
    | AllGather
    | Broadcast
    | Average
    | Wait
    | Meet
    | NewGroup
    | Shard
    | Unshard
    | Free
    | Unless
    | Split
    | Unpack
    | Turn
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
