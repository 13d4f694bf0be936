"""Collectives of rank programs.

A root may also be given by its place in the group, as ``group_src`` or ``group_dst``. Every call
blocks until its result is complete; with ``async_op=True`` it returns a `Work`. The call owns its
inputs and outputs until it is complete. Ranks outside of the group get torch's warning, and None.
All of them raise `ProgramError` if an argument is invalid, or if the ranks of the group do not make
the same call.

``send`` blocks until the message arrives, as with NCCL and gloo: two ranks that both send before
they receive deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np

from simdp.arrays import Array
from simdp.distributed.groups import AnyGroup, Member, Root, member, seconds_of, whole_number
from simdp.distributed.launch import NO_BITS, REDUCES_PIECES, Process, process
from simdp.distributed.tensors import blocks, checked, like, whole
from simdp.engine.programs.records import (
    NOTHING,
    CallArguments,
    CallSignature,
    Handle,
    listed,
    named,
)
from simdp.errors import ProgramError


class Work:
    """A pending call; it owns its tensors until it is complete."""

    def __init__(self, process: Process, handle: Handle, tensors: Sequence[Array]) -> None:
        self._process, self._handle, self._tensors = process, handle, tensors

    def wait(self) -> bool:
        """Block the rank until the call is complete; returns True.

        Raises
        ------
        ProgramError
            If the call belongs to another rank.
        """
        self._asking("wait")
        self._process.runtime.wait(self._handle)
        return True

    def is_completed(self) -> bool:
        """Return whether the call is complete. Time passes only in `compute` and in blocking calls.

        Raises
        ------
        ProgramError
            If a program only polls, or the call belongs to another rank.
        """
        asking = self._asking("is_completed")
        advice = "compute() and wait() only, so call one of them"
        asking.polls.add(asking.runtime.clock[asking.rank], self._handle, advice)
        return self._handle.done

    def is_success(self) -> bool:
        """Return that the call has not failed, like torch also while it is pending."""
        self._asking("is_success")
        return True

    def get_future(self) -> Future:
        """Return a future of the call's tensors on this rank."""
        self._asking("get_future")
        return Future(self, lambda: list(self._tensors))

    def __str__(self) -> str:
        return str(self._handle.signature)

    def _asking(self, call: str) -> Process:
        """Return the calling rank, which must own this work."""
        asking = process(call)
        self._handle.check_owner(call, asking.rank)
        return asking

    def source_rank(self) -> int:
        """Return the rank that a received message came from; -1 before, and for other calls."""
        return self._handle.source if self._handle.done else -1


class Future:
    """Result of a call, like torch.futures.Future; ``find`` returns a complete call's value."""

    def __init__(self, work: Work, find: Callable[[], object]) -> None:
        self._work, self._find = work, find
        self._found: list[Any] = []

    def wait(self) -> Any:
        """Block the rank until the call is complete; return its value."""
        self._work.wait()
        return self.value()

    def done(self) -> bool:
        """Return whether the call is complete, as `Work.is_completed`."""
        return self._work.is_completed()

    def value(self) -> Any:
        """Return the result of the call: the list of its tensors, or a callback's return value.

        Raises
        ------
        ProgramError
            If the call is not complete.
        """
        if not self.done():
            raise ProgramError(f"value: {self._work} is not over yet; call wait() first.")
        if not self._found:
            self._found.append(self._find())
        return self._found[0]

    def then(self, callback: Callable[[Future], object]) -> Future:
        """Return a future of ``callback(self)``.

        It runs once: now if the call is complete, or else when the rank first waits for that future
        or reads its value.
        """
        following = Future(self._work, lambda: callback(self))
        if self.done():
            following.value()
        return following


def issue(
    at: Member,
    signature: CallSignature,
    given: CallArguments,
    async_op: bool,
    collective: str,
    op: str = "SUM",
    root: int = 0,
    tensors: Sequence[Array] | None = None,
) -> Work | None:
    """Issue a collective; wait for it, or with ``async_op`` return its work.

    Other arguments as for `simdp.engine.programs.groups.ProgramGroup.issue`; ``tensors`` are the
    value of its future, by default the outputs, or without any the inputs.
    """
    runtime, rank = at.process.runtime, at.process.rank
    handle = at.group.issue(rank, runtime.clock[rank], signature, given, collective, op, root)
    if async_op:
        return Work(at.process, handle, tensors or given.outputs or given.inputs)
    runtime.wait(handle)
    return None


# Collectives --------------------------------------------------------------------------------------


def broadcast(
    tensor: Array,
    src: int | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy the tensor of rank ``src`` to all others."""
    call = "broadcast"
    if (at := member(group, call)) is None:
        return None
    root = at.root(src, group_src, call, "src")
    whole(tensor, call, "tensor")
    signature = CallSignature(call, named(tensor.dtype), tensor.shape, root.shown)
    given = CallArguments((tensor,), ()) if root.mine else CallArguments((), (tensor,))
    return issue(at, signature, given, async_op, call, root=root.place)


def scatter(
    tensor: Array,
    scatter_list: Sequence[Array] | None = None,
    src: int | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Send each rank one tensor of rank ``src``'s list."""
    call = "scatter"
    if (at := member(group, call)) is None:
        return None
    root = at.root(src, group_src, call, "src", 0)
    whole(tensor, call, "tensor")
    pieces = _only_at(root, at, scatter_list, call, "scatter_list", tensor, read_only=True)
    signature = CallSignature(call, named(tensor.dtype), tensor.shape, root.shown)
    return issue(at, signature, CallArguments(pieces, (tensor,)), async_op, call, root=root.place)


def gather(
    tensor: Array,
    gather_list: Sequence[Array] | None = None,
    dst: int | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Collect the tensors of all ranks in rank ``dst``'s list."""
    call = "gather"
    if (at := member(group, call)) is None:
        return None
    root = at.root(dst, group_dst, call, "dst", 0)
    whole(tensor, call, "tensor", read_only=True)
    pieces = _only_at(root, at, gather_list, call, "gather_list", tensor)
    signature = CallSignature(call, named(tensor.dtype), tensor.shape, root.shown)
    return issue(at, signature, CallArguments((tensor,), pieces), async_op, call, root=root.place)


def _only_at(
    root: Root,
    at: Member,
    tensors: Sequence[Array] | None,
    call: str,
    name: str,
    sample: Array,
    read_only: bool = False,
) -> Sequence[Array]:
    """Return the list that only the root must pass."""
    if root.mine:
        return checked(tensors, len(at.group.ranks), sample, call, name, read_only)
    if tensors is not None and (not isinstance(tensors, list | tuple) or tensors):
        raise ProgramError(
            f"{call}: {name} belongs to rank {root.rank} alone; leave it out elsewhere."
        )
    return ()


def all_gather(
    tensor_list: list[Array], tensor: Array, group: AnyGroup = None, async_op: bool = False
) -> Work | None:
    """Collect the tensors of all ranks in a list on every rank."""
    call = "all_gather"
    if (at := member(group, call)) is None:
        return None
    whole(tensor, call, "tensor", read_only=True)
    outputs = checked(tensor_list, len(at.group.ranks), tensor, call, "tensor_list")
    signature = CallSignature(call, named(tensor.dtype), tensor.shape)
    return issue(at, signature, CallArguments((tensor,), outputs), async_op, "all_gather")


def all_gather_into_tensor(
    output_tensor: Array, input_tensor: Array, group: AnyGroup = None, async_op: bool = False
) -> Work | None:
    """Collect the tensors of all ranks in one tensor on every rank, end to end or stacked."""
    call = "all_gather_into_tensor"
    if (at := member(group, call)) is None:
        return None
    whole(input_tensor, call, "input_tensor", read_only=True)
    whole(output_tensor, call, "output_tensor")
    n = len(at.group.ranks)
    like(output_tensor, input_tensor.dtype, n * input_tensor.size, call, "output_tensor")
    signature = CallSignature(call, named(input_tensor.dtype), input_tensor.shape)
    outputs = list(output_tensor.reshape(n, -1)) if output_tensor.flags.c_contiguous else None
    given = CallArguments((input_tensor,), outputs or (output_tensor,))
    return issue(at, signature, given, async_op, "all_gather", tensors=(output_tensor,))


def all_to_all(
    output_tensor_list: Sequence[Array],
    input_tensor_list: Sequence[Array],
    group: AnyGroup = None,
    async_op: bool = False,
) -> Work | None:
    """Send the i-th tensor of a list to the i-th rank, from each rank to each."""
    call = "all_to_all"
    if (at := member(group, call)) is None:
        return None
    n = len(at.group.ranks)
    inputs = checked(input_tensor_list, n, None, call, "input_tensor_list", True)
    outputs = checked(output_tensor_list, n, None, call, "output_tensor_list")
    for array in (*inputs, *outputs):
        like(array, inputs[0].dtype, array.size, call, "every tensor")
    signature = CallSignature(call, named(inputs[0].dtype), (n,))
    return issue(at, signature, CallArguments(inputs, outputs), async_op, "all_to_all")


def all_to_all_single(
    output: Array,
    input: Array,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
) -> Work | None:
    """Send the i-th rows of a tensor to the i-th rank, from each rank to each.

    ``output`` and ``input`` have the same dtype and are cut along the first axis; split sizes are
    rows from and to each rank, equal by default.
    """
    call = "all_to_all_single"
    if (at := member(group, call)) is None:
        return None
    whole(output, call, "output")
    whole(input, call, "input", read_only=True)
    like(input, output.dtype, input.size, call, "input")
    n = len(at.group.ranks)
    inputs = blocks(input, n, input_split_sizes, call, "input")
    outputs = blocks(output, n, output_split_sizes, call, "output")
    signature = CallSignature(call, named(output.dtype), output.shape[1:], "rows")
    given = CallArguments(inputs, outputs)
    return issue(at, signature, given, async_op, "all_to_all", tensors=(output,))


# Messages -----------------------------------------------------------------------------------------


def isend(
    tensor: Array,
    dst: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work | None:
    """Start to send a tensor to global rank ``dst``.

    Parameters
    ----------
    tensor : ndarray
        Must not change before the work is complete.
    dst : int
        Global rank.
    group : ProcessGroup, optional
        Default: all ranks.
    tag : int
        A receive only matches messages of the same tag.
    group_dst : int
        Instead of ``dst``: the place in the group.

    Returns
    -------
    Work or None
        None for a rank outside of the group.

    Raises
    ------
    ProgramError
        If there is no such rank, or the tensor is invalid.
    """
    posted = posted_send("isend", tensor, dst, group, tag, group_dst)
    return None if posted is None else Work(posted[0].process, posted[1], [tensor])


def irecv(
    tensor: Array,
    src: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | None:
    """Start to receive a tensor from rank ``src``, or from any rank; see `isend`."""
    posted = posted_receive("irecv", tensor, src, group, tag, group_src)
    return None if posted is None else Work(posted[0].process, posted[1], [tensor])


def send(
    tensor: Array,
    dst: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send a tensor to rank ``dst``; see `isend`."""
    posted = posted_send("send", tensor, dst, group, tag, group_dst)
    if posted is not None:
        posted[0].process.runtime.wait(posted[1])


def recv(
    tensor: Array,
    src: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive a tensor from rank ``src``, or from any rank; see `isend`.

    Returns the sender's rank; -1 for a rank outside of the group.
    """
    posted = posted_receive("recv", tensor, src, group, tag, group_src)
    if posted is None:
        return -1
    posted[0].process.runtime.wait(posted[1])
    return posted[1].source


class P2POp:
    """A message of a batch; arguments as of ``op``, `isend` or `irecv`.

    Raises
    ------
    ProgramError
        If an argument is invalid.
    """

    def __init__(
        self,
        op: Callable[..., Work | None],
        tensor: Array,
        peer: int | None = None,
        group: AnyGroup = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise ProgramError(f"P2POp: op is {op!r}; give isend or irecv.")
        whole(tensor, "P2POp", "tensor", read_only=op is isend)
        at = member(group, "P2POp", warn=False)
        if at is not None:
            group_peer, peer = at.root(peer, group_peer, "P2POp", "peer")[:2]
        self.op, self.tensor, self.group, self.tag = op, tensor, group, tag
        self.peer, self.group_peer = peer, group_peer


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Start several messages of one group at once; see `isend`.

    Raises
    ------
    ProgramError
        If the list is invalid, or the groups differ.
    """
    call = "batch_isend_irecv"
    ops = p2p_op_list
    if not isinstance(ops, list) or not ops or not all(isinstance(op, P2POp) for op in ops):
        raise ProgramError(f"{call}: give a list of one P2POp or more.")
    if any(op.group != ops[0].group for op in ops):
        raise ProgramError(
            f"{call}: the messages are of different groups; give each its own batch."
        )
    if member(ops[0].group, call) is None:
        return []
    works = [op.op(op.tensor, op.peer, op.group, op.tag) for op in ops]
    return [work for work in works if work is not None]


def posted_send(
    call: str, tensor: Array, dst: int | None, group: AnyGroup, tag: int, group_dst: int | None
) -> tuple[Member, Handle] | None:
    """Post a send for the program's ``call``; see `isend`."""
    if (at := member(group, call, depth=4)) is None:
        return None
    whole(tensor, call, "tensor", read_only=True)
    dst = _other(at, dst, group_dst, call, "dst")
    signature = CallSignature(call, named(tensor.dtype), tensor.shape, f"dst={dst}" + _tagged(tag))
    runtime, rank = at.process.runtime, at.process.rank
    clock, name = runtime.clock[rank], at.group.name
    return at, runtime.messages.send(rank, clock, signature, tensor, dst, tag, name)


def posted_receive(
    call: str, tensor: Array, src: int | None, group: AnyGroup, tag: int, group_src: int | None
) -> tuple[Member, Handle] | None:
    """Post a receive for the program's ``call``; see `irecv`."""
    if (at := member(group, call, depth=4)) is None:
        return None
    whole(tensor, call, "tensor")
    if src is not None or group_src is not None:
        src = _other(at, src, group_src, call, "src")
    signature = CallSignature(call, named(tensor.dtype), tensor.shape, f"src={src}" + _tagged(tag))
    runtime, rank = at.process.runtime, at.process.rank
    clock, name = runtime.clock[rank], at.group.name
    return at, runtime.messages.receive(rank, clock, signature, tensor, src, tag, name)


def _other(at: Member, rank: object, group_rank: object, call: str, name: str) -> int:
    peer = at.root(rank, group_rank, call, name)
    if peer.mine:
        raise ProgramError(f"{call}: {peer.shown} is this rank itself; give another one.")
    return peer.rank


def _tagged(tag: int) -> str:
    return f", tag={tag}" if tag else ""


# Reductions ---------------------------------------------------------------------------------------


class ReduceOp(Enum):
    """Operators of reductions.

    Elements are combined in the order of the algorithm, which determines their bits; ``AVG`` is the
    sum over the number of ranks. ``BAND``, ``BOR`` and ``BXOR`` combine bits of integers; nccl
    lacks them.
    """

    SUM = "SUM"
    AVG = "AVG"
    MAX = "MAX"
    MIN = "MIN"
    PRODUCT = "PRODUCT"
    BAND = "BAND"
    BOR = "BOR"
    BXOR = "BXOR"


def _named(op: ReduceOp, tensor: Array, at: Member, call: str) -> str:
    if not isinstance(op, ReduceOp):
        known = ", ".join(f"ReduceOp.{known.name}" for known in ReduceOp)
        raise ProgramError(f"{call}: op={op!r} is no reduction; give one of {known}.")
    if op is ReduceOp.AVG and tensor.dtype.kind in "biu":
        raise ProgramError(
            f"{call}: ReduceOp.AVG of {tensor.dtype} is no {tensor.dtype}; use a float dtype, or "
            "ReduceOp.SUM."
        )
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        if tensor.dtype.kind not in "biu":
            raise ProgramError(
                f"{call}: {op} of {tensor.dtype} has no sense; use a dtype of whole numbers."
            )
        if at.group.backend in NO_BITS:
            raise ProgramError(
                f"{call}: {op} is not there with backend {at.group.backend}; use gloo or mpi, or "
                "ReduceOp.MAX of zeros and ones."
            )
    return op.name


def all_reduce(
    tensor: Array, op: ReduceOp = ReduceOp.SUM, group: AnyGroup = None, async_op: bool = False
) -> Work | None:
    """Reduce the tensors of all ranks, with the result on all of them."""
    call = "all_reduce"
    if (at := member(group, call)) is None:
        return None
    whole(tensor, call, "tensor")
    name = _named(op, tensor, at, call)
    signature = CallSignature(call, named(tensor.dtype), tensor.shape, f"op={name}")
    return issue(at, signature, CallArguments((tensor,), (tensor,)), async_op, call, name)


def all_reduce_coalesced(
    tensors: Array | Sequence[Array],
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
) -> Future | None:
    """Reduce several tensors of one dtype in one all_reduce of all their elements, in place.

    With ``async_op=True`` it returns the future of the tensors, like torch, not a `Work`. torch
    does not compare the ranks' shapes; here they must be the same.
    """
    call = "all_reduce_coalesced"
    if (at := member(group, call)) is None:
        return None
    several = [tensors] if isinstance(tensors, np.ndarray) else tensors
    if not isinstance(several, list | tuple) or not several:
        given = "an empty list" if several in ([], ()) else f"a {type(several).__name__}"
        raise ProgramError(f"{call}: tensors must be a list of at least one array, got {given}.")
    for number, tensor in enumerate(several):
        whole(tensor, call, f"tensors[{number}]")
        if tensor.dtype != several[0].dtype:
            raise ProgramError(
                f"{call}: tensors[{number}] holds {tensor.dtype} and tensors[0] "
                f"{several[0].dtype}; all must have one dtype: make a call for each dtype."
            )
    name, dtype = _named(op, several[0], at, call), named(several[0].dtype)
    shapes = ", ".join(f"{dtype}[{', '.join(map(str, tensor.shape))}]" for tensor in several)
    signature = CallSignature(call, more=f"{shapes}, op={name}")
    work = issue(at, signature, CallArguments(several, several), async_op, "all_reduce", name)
    return None if work is None else work.get_future()


def reduce(
    tensor: Array,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce the tensors of all ranks onto rank ``dst``; the others keep theirs.

    torch leaves the others' result undefined; gloo leaves partial sums there.
    """
    call = "reduce"
    if (at := member(group, call)) is None:
        return None
    root = at.root(dst, group_dst, call, "dst")
    whole(tensor, call, "tensor")
    name = _named(op, tensor, at, call)
    signature = CallSignature(call, named(tensor.dtype), tensor.shape, f"{root.shown}, op={name}")
    given = CallArguments((tensor,), (tensor,) if root.mine else ())
    return issue(at, signature, given, async_op, call, name, root.place)


def reduce_scatter(
    output: Array,
    input_list: Sequence[Array],
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce the i-th tensors of all ranks' lists onto the i-th rank."""
    call = "reduce_scatter"
    if (at := member(group, call)) is None:
        return None
    whole(output, call, "output")
    pieces = checked(input_list, len(at.group.ranks), output, call, "input_list", True)
    name = _named(op, output, at, call)
    signature = CallSignature(call, named(output.dtype), output.shape, f"op={name}")
    if at.group.backend not in REDUCES_PIECES:
        return issue(
            at, signature, CallArguments(pieces, (output,)), async_op, "reduce_scatter", name
        )
    work = None
    for place, rank in enumerate(at.group.ranks):
        given = CallArguments((pieces[place],), (output,) if rank == at.process.rank else ())
        work = issue(at, signature, given, async_op, "reduce", name, place, (output,))
    return work


def reduce_scatter_tensor(
    output: Array,
    input: Array,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce the i-th pieces of all ranks' tensors onto the i-th rank."""
    call = "reduce_scatter_tensor"
    if (at := member(group, call)) is None:
        return None
    whole(output, call, "output")
    whole(input, call, "input", read_only=True)
    like(input, output.dtype, len(at.group.ranks) * output.size, call, "input")
    name = _named(op, output, at, call)
    signature = CallSignature(call, named(output.dtype), output.shape, f"op={name}")
    return issue(
        at, signature, CallArguments((input,), (output,)), async_op, "reduce_scatter", name
    )


MONITORED = ("gloo",)
"""Backends with a `monitored_barrier` in torch."""

TIMEOUT = 1800.0
"""torch's default timeout [s]."""


def barrier(
    group: AnyGroup = None,
    async_op: bool = False,
    device_ids: Sequence[int] | None = None,
    timeout: object = None,
) -> Work | None:
    """Wait until all ranks have arrived; ``device_ids`` and ``timeout`` have no effect."""
    call = "barrier"
    if (at := member(group, call)) is None:
        return None
    seconds_of(timeout, call)
    ids = device_ids if device_ids is not None else []
    if not isinstance(ids, list) or None in map(whole_number, ids):
        raise ProgramError(f"{call}: device_ids is {device_ids!r}; give a list of numbers, as [0].")
    return issue(at, CallSignature(call), NOTHING, async_op, call)


def monitored_barrier(
    group: AnyGroup = None, timeout: object = None, wait_all_ranks: bool = False
) -> None:
    """Wait until all ranks have arrived; the group's first rank names late ranks.

    As in torch, every rank sends to the first one, which replies when all have arrived. A rank that
    never arrives is named by the deadlock report.

    Parameters
    ----------
    group : ProcessGroup, optional
        Default: all ranks. Its backend must be gloo.
    timeout : timedelta, optional
        Maximum delay behind the first rank; default: that of `init_process_group`, or 30 minutes.
    wait_all_ranks : bool
        Whether all late ranks are named, instead of the first only.

    Raises
    ------
    ProgramError
        On the group's first rank, if others are late; or if an argument is invalid.
    """
    call = "monitored_barrier"
    if (at := member(group, call)) is None:
        return
    if at.group.backend not in MONITORED:
        raise ProgramError(
            f"{call}: backend {at.group.backend} has none; use {MONITORED[0]}, or barrier."
        )
    patience = seconds_of(timeout, call) or at.process.timeout or TIMEOUT
    rank, ranks = at.process.rank, at.group.ranks
    first, signature = rank == ranks[0], CallSignature(call)
    came = np.array([at.process.runtime.clock[rank]])
    everyone = list(np.zeros((len(ranks), 1))) if first else []
    issue(at, signature, CallArguments((came,), everyone), False, "gather")
    late = [ranks[place] for place, arrival in enumerate(everyone) if arrival > came + patience]
    if late:
        shown = listed(late if wait_all_ranks else late[:1])
        raise ProgramError(f"{call}: {shown} did not come within {patience:g} s of rank {rank}.")
    issue(at, signature, CallArguments(everyone, (came,)), False, "scatter")
