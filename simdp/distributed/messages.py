"""Point to point, as torch.distributed has it: a send and a receive make a message together.

``send`` blocks until the message is there, as NCCL's and gloo's do: two ranks that both send
before they receive wait for each other for ever.
"""

from __future__ import annotations

from simdp.arrays import Array
from simdp.distributed.groups import AnyGroup, Member, member
from simdp.distributed.tensors import whole
from simdp.distributed.work import Work
from simdp.engine.programs.calls import Asked, Handle, named
from simdp.errors import ProgramError


def isend(tensor: Array, dst: int, group: AnyGroup = None, tag: int = 0) -> Work | None:
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

    Returns
    -------
    Work or None
        None for a rank that is not in the group.

    Raises
    ------
    ProgramError
        If there is no such rank, or the tensor is none.
    """
    found = _send("isend", tensor, dst, group, tag)
    return None if found is None else Work(found[0].process, found[1])


def irecv(
    tensor: Array, src: int | None = None, group: AnyGroup = None, tag: int = 0
) -> Work | None:
    """Receive a tensor from rank ``src``, or from whoever sends first, and go on; see `isend`."""
    found = _receive("irecv", tensor, src, group, tag)
    return None if found is None else Work(found[0].process, found[1])


def send(tensor: Array, dst: int, group: AnyGroup = None, tag: int = 0) -> None:
    """Send a tensor to rank ``dst``; see `isend`."""
    found = _send("send", tensor, dst, group, tag)
    if found is not None:
        found[0].process.runtime.wait(found[1])


def recv(tensor: Array, src: int | None = None, group: AnyGroup = None, tag: int = 0) -> int:
    """Receive a tensor from rank ``src``, or from whoever sends first; see `isend`.

    Returns
    -------
    int
        The rank that sent it; -1 for a rank that is not in the group.
    """
    found = _receive("recv", tensor, src, group, tag)
    if found is None:
        return -1
    found[0].process.runtime.wait(found[1])
    return found[1].source


def _send(
    call: str, tensor: Array, dst: int, group: AnyGroup, tag: int
) -> tuple[Member, Handle] | None:
    at = member(group, call, depth=4)
    if at is None:
        return None
    whole(tensor, call, "tensor", read_only=True)
    _other(at, dst, call, "dst")
    asked = Asked(call, named(tensor.dtype), tensor.shape, f"dst={dst}" + _tagged(tag))
    runtime, rank = at.process.runtime, at.process.rank
    clock, name = runtime.clock[rank], at.group.name
    return at, runtime.messages.send(rank, clock, asked, tensor, dst, tag, name)


def _receive(
    call: str, tensor: Array, src: int | None, group: AnyGroup, tag: int
) -> tuple[Member, Handle] | None:
    at = member(group, call, depth=4)
    if at is None:
        return None
    whole(tensor, call, "tensor")
    if src is not None:
        _other(at, src, call, "src")
    asked = Asked(call, named(tensor.dtype), tensor.shape, f"src={src}" + _tagged(tag))
    runtime, rank = at.process.runtime, at.process.rank
    clock, name = runtime.clock[rank], at.group.name
    return at, runtime.messages.receive(rank, clock, asked, tensor, src, tag, name)


def _other(at: Member, rank: int, call: str, name: str) -> None:
    at.place(rank, call, name)
    if rank == at.process.rank:
        raise ProgramError(f"{call}: {name}={rank} is this rank itself; give another one.")


def _tagged(tag: int) -> str:
    return f", tag={tag}" if tag else ""
