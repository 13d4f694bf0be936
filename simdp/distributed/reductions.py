"""Collectives that add, as torch.distributed has them; see `simdp.distributed.collectives`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from simdp.arrays import Array
from simdp.distributed.backends import NO_BITS, REDUCES_PIECES
from simdp.distributed.groups import AnyGroup, Member, member
from simdp.distributed.tensors import checked, like, whole
from simdp.distributed.work import Work, issue
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
