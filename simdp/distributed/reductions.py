"""Collectives that add, as torch.distributed has them; see `simdp.distributed.collectives`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np

from simdp.arrays import Array
from simdp.distributed.backends import NO_BITS, REDUCES_PIECES
from simdp.distributed.groups import AnyGroup, Member, member
from simdp.distributed.tensors import checked, like, whole
from simdp.distributed.work import Future, Work, issue
from simdp.engine.programs.calls import Asked, Given, named
from simdp.errors import ProgramError


class ReduceOp(Enum):
    """How reductions combine elements.

    Elements are combined in the order of the algorithm, and so have its bits; ``AVG`` is the sum
    over the number of ranks. ``BAND``, ``BOR`` and ``BXOR`` take bits of whole numbers, and are not
    there with nccl.
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
    """Reduce the tensors of all ranks, and leave the result on every one of them."""
    call = "all_reduce"
    at = member(group, call)
    if at is None:
        return None
    whole(tensor, call, "tensor")
    name = _named(op, tensor, at, call)
    asked = Asked(call, named(tensor.dtype), tensor.shape, f"op={name}")
    return issue(at, asked, Given((tensor,), (tensor,)), async_op, call, name)


def all_reduce_coalesced(
    tensors: Array | Sequence[Array],
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
) -> Future | None:
    """Reduce several tensors of one dtype in one all_reduce of all their elements, in place.

    With ``async_op=True`` it gives back the future of the tensors, as torch does, not a `Work`.
    Torch does not compare the ranks' shapes; here they must be the same.
    """
    call = "all_reduce_coalesced"
    at = member(group, call)
    if at is None:
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
    asked = Asked(call, more=f"{shapes}, op={name}")
    work = issue(at, asked, Given(several, several), async_op, "all_reduce", name)
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

    Torch leaves what the others then hold open; gloo leaves partial sums there.
    """
    call = "reduce"
    at = member(group, call)
    if at is None:
        return None
    root = at.root(dst, group_dst, call, "dst")
    whole(tensor, call, "tensor")
    name = _named(op, tensor, at, call)
    asked = Asked(call, named(tensor.dtype), tensor.shape, f"{root.shown}, op={name}")
    given = Given((tensor,), (tensor,) if root.mine else ())
    return issue(at, asked, given, async_op, call, name, root.place)


def reduce_scatter(
    output: Array,
    input_list: Sequence[Array],
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce the i-th tensors of all ranks' lists onto the i-th rank."""
    call = "reduce_scatter"
    at = member(group, call)
    if at is None:
        return None
    whole(output, call, "output")
    pieces = checked(input_list, len(at.group.ranks), output, call, "input_list", True)
    name = _named(op, output, at, call)
    asked = Asked(call, named(output.dtype), output.shape, f"op={name}")
    if at.group.backend not in REDUCES_PIECES:
        return issue(at, asked, Given(pieces, (output,)), async_op, "reduce_scatter", name)
    work = None
    for place, rank in enumerate(at.group.ranks):
        given = Given((pieces[place],), (output,) if rank == at.process.rank else ())
        work = issue(at, asked, given, async_op, "reduce", name, place, (output,))
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
    at = member(group, call)
    if at is None:
        return None
    whole(output, call, "output")
    whole(input, call, "input", read_only=True)
    like(input, output.dtype, len(at.group.ranks) * output.size, call, "input")
    name = _named(op, output, at, call)
    asked = Asked(call, named(output.dtype), output.shape, f"op={name}")
    return issue(at, asked, Given((input,), (output,)), async_op, "reduce_scatter", name)
