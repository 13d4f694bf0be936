"""Point to point, as torch.distributed has it: a send and a receive make a message together.

``send`` blocks until the message is there, as NCCL's and gloo's do: two ranks that both send
before they receive wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simdp.arrays import Array
from simdp.distributed.groups import AnyGroup, Member, member
from simdp.distributed.tensors import whole
from simdp.distributed.work import Work
from simdp.engine.programs.calls import Asked, Handle, named
from simdp.errors import ProgramError


def isend(
    tensor: Array,
    dst: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work | None:
    """Send a tensor to rank ``dst``, and go on.

    Parameters
    ----------
    tensor : ndarray
        Must not change before the work is over.
    dst : int
        Global rank.
    group : ProcessGroup, optional
        All ranks, if left out.
    tag : int
        A receive takes messages of its own tag only.
    group_dst : int
        In place of ``dst``: the place in the group.

    Returns
    -------
    Work or None
        None for a rank that is not in the group.

    Raises
    ------
    ProgramError
        If there is no such rank, or the tensor is none.
    """
    found = posted_send("isend", tensor, dst, group, tag, group_dst)
    return None if found is None else Work(found[0].process, found[1], [tensor])


def irecv(
    tensor: Array,
    src: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | None:
    """Receive a tensor from rank ``src``, or from whoever sends first, and go on; see `isend`."""
    found = posted_receive("irecv", tensor, src, group, tag, group_src)
    return None if found is None else Work(found[0].process, found[1], [tensor])


def send(
    tensor: Array,
    dst: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send a tensor to rank ``dst``; see `isend`."""
    found = posted_send("send", tensor, dst, group, tag, group_dst)
    if found is not None:
        found[0].process.runtime.wait(found[1])


def recv(
    tensor: Array,
    src: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive a tensor from rank ``src``, or from whoever sends first; see `isend`.

    Returns
    -------
    int
        The rank that sent it; -1 for a rank that is not in the group.
    """
    found = posted_receive("recv", tensor, src, group, tag, group_src)
    if found is None:
        return -1
    found[0].process.runtime.wait(found[1])
    return found[1].source


class P2POp:
    """A message of a batch.

    Parameters
    ----------
    op : callable
        `isend` or `irecv`.
    tensor, peer, group, tag, group_peer
        Its arguments.

    Raises
    ------
    ProgramError
        If an argument is wrong.
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
    """Begin several messages of one group at once; see `isend`.

    Raises
    ------
    ProgramError
        If the list is none, or the groups differ.
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
    """Post a send for what the program calls ``call``; see `isend`."""
    at = member(group, call, depth=4)
    if at is None:
        return None
    whole(tensor, call, "tensor", read_only=True)
    dst = _other(at, dst, group_dst, call, "dst")
    asked = Asked(call, named(tensor.dtype), tensor.shape, f"dst={dst}" + _tagged(tag))
    runtime, rank = at.process.runtime, at.process.rank
    clock, name = runtime.clock[rank], at.group.name
    return at, runtime.messages.send(rank, clock, asked, tensor, dst, tag, name)


def posted_receive(
    call: str, tensor: Array, src: int | None, group: AnyGroup, tag: int, group_src: int | None
) -> tuple[Member, Handle] | None:
    """Post a receive for what the program calls ``call``; see `irecv`."""
    at = member(group, call, depth=4)
    if at is None:
        return None
    whole(tensor, call, "tensor")
    if src is not None or group_src is not None:
        src = _other(at, src, group_src, call, "src")
    asked = Asked(call, named(tensor.dtype), tensor.shape, f"src={src}" + _tagged(tag))
    runtime, rank = at.process.runtime, at.process.rank
    clock, name = runtime.clock[rank], at.group.name
    return at, runtime.messages.receive(rank, clock, asked, tensor, src, tag, name)


def _other(at: Member, rank: Any, group_rank: Any, call: str, name: str) -> int:
    found = at.root(rank, group_rank, call, name)
    if found.mine:
        raise ProgramError(f"{call}: {found.shown} is this rank itself; give another one.")
    return found.rank


def _tagged(tag: int) -> str:
    return f", tag={tag}" if tag else ""
