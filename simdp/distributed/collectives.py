"""Collectives on NumPy arrays, as torch.distributed has them: in place, with global ranks.

Every function blocks until its result is there; with ``async_op=True`` it gives back a `Work`.
What a call reads and writes belongs to it until it is over. Ranks that are no member of the group
get torch's warning, and None. All of them raise `ProgramError` where an argument is wrong, or where
the ranks of the group do not make the same call.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from simdp.arrays import Array
from simdp.distributed.groups import AnyGroup, Member, member
from simdp.distributed.tensors import blocks, checked, like, whole
from simdp.distributed.work import Work
from simdp.engine.programs.calls import NOTHING, Asked, Given, named
from simdp.errors import ProgramError


class ReduceOp(Enum):
    """How reductions combine elements.

    Sums are added in the order of the algorithm, and so have its bits; ``AVG`` is the sum over the
    number of ranks.
    """

    SUM = "SUM"
    AVG = "AVG"
    MAX = "MAX"
    MIN = "MIN"
    PRODUCT = "PRODUCT"


def _named(op: ReduceOp, tensor: Array, call: str) -> str:
    if not isinstance(op, ReduceOp):
        known = ", ".join(f"ReduceOp.{known.name}" for known in ReduceOp)
        raise ProgramError(f"{call}: op={op!r} is no reduction; give one of {known}.")
    if op is ReduceOp.AVG and tensor.dtype.kind in "biu":
        raise ProgramError(
            f"{call}: ReduceOp.AVG of {tensor.dtype} is no {tensor.dtype}; use a float dtype, or "
            "ReduceOp.SUM."
        )
    return op.name


def _issue(
    at: Member,
    asked: Asked,
    given: Given,
    async_op: bool,
    collective: str,
    op: str = "SUM",
    root: int = 0,
) -> Work | None:
    runtime, rank = at.process.runtime, at.process.rank
    handle = at.group.issue(rank, runtime.clock[rank], asked, given, collective, op, root)
    if async_op:
        return Work(at.process, handle)
    runtime.wait(handle)
    return None


def all_reduce(
    tensor: Array, op: ReduceOp = ReduceOp.SUM, group: AnyGroup = None, async_op: bool = False
) -> Work | None:
    """Reduce the tensors of all ranks, and leave the result on every one of them."""
    call = "all_reduce"
    at = member(group, call)
    if at is None:
        return None
    whole(tensor, call, "tensor")
    name = _named(op, tensor, call)
    asked = Asked(call, named(tensor.dtype), tensor.shape, f"op={name}")
    return _issue(at, asked, Given((tensor,), (tensor,)), async_op, call, name)


def broadcast(
    tensor: Array, src: int, group: AnyGroup = None, async_op: bool = False
) -> Work | None:
    """Copy the tensor of rank ``src`` to all others."""
    call = "broadcast"
    at = member(group, call)
    if at is None:
        return None
    root = at.place(src, call, "src")
    whole(tensor, call, "tensor")
    asked = Asked(call, named(tensor.dtype), tensor.shape, f"src={src}")
    mine = at.process.rank == src
    given = Given((tensor,), ()) if mine else Given((), (tensor,))
    return _issue(at, asked, given, async_op, call, root=root)


def reduce(
    tensor: Array,
    dst: int,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce the tensors of all ranks onto rank ``dst``; the others keep theirs.

    Torch leaves what the others then hold open; gloo leaves partial sums there.
    """
    call = "reduce"
    at = member(group, call)
    if at is None:
        return None
    root = at.place(dst, call, "dst")
    whole(tensor, call, "tensor")
    name = _named(op, tensor, call)
    asked = Asked(call, named(tensor.dtype), tensor.shape, f"dst={dst}, op={name}")
    given = Given((tensor,), (tensor,) if at.process.rank == dst else ())
    return _issue(at, asked, given, async_op, call, name, root)


def scatter(
    tensor: Array,
    scatter_list: Sequence[Array] | None = None,
    src: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
) -> Work | None:
    """Give each rank one tensor of the list that rank ``src`` has."""
    call = "scatter"
    at = member(group, call)
    if at is None:
        return None
    root = at.place(src, call, "src")
    whole(tensor, call, "tensor")
    pieces = _only_at(root, at, scatter_list, call, "scatter_list", tensor, read_only=True)
    asked = Asked(call, named(tensor.dtype), tensor.shape, f"src={src}")
    return _issue(at, asked, Given(pieces, (tensor,)), async_op, call, root=root)


def gather(
    tensor: Array,
    gather_list: Sequence[Array] | None = None,
    dst: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
) -> Work | None:
    """Collect the tensors of all ranks in the list that rank ``dst`` has."""
    call = "gather"
    at = member(group, call)
    if at is None:
        return None
    root = at.place(dst, call, "dst")
    whole(tensor, call, "tensor", read_only=True)
    pieces = _only_at(root, at, gather_list, call, "gather_list", tensor)
    asked = Asked(call, named(tensor.dtype), tensor.shape, f"dst={dst}")
    return _issue(at, asked, Given((tensor,), pieces), async_op, call, root=root)


def _only_at(
    root: int,
    at: Member,
    tensors: Sequence[Array] | None,
    call: str,
    name: str,
    sample: Array,
    read_only: bool = False,
) -> Sequence[Array]:
    """The list that the root must have, and nobody else."""
    rank = at.group.ranks[root]
    if at.process.rank == rank:
        return checked(tensors, len(at.group.ranks), sample, call, name, read_only)
    if tensors is not None and (not isinstance(tensors, list | tuple) or tensors):
        raise ProgramError(f"{call}: {name} belongs to rank {rank} alone; leave it out elsewhere.")
    return ()


def all_gather(
    tensor_list: list[Array], tensor: Array, group: AnyGroup = None, async_op: bool = False
) -> Work | None:
    """Collect the tensors of all ranks in a list on every rank."""
    call = "all_gather"
    at = member(group, call)
    if at is None:
        return None
    whole(tensor, call, "tensor", read_only=True)
    outputs = checked(tensor_list, len(at.group.ranks), tensor, call, "tensor_list")
    asked = Asked(call, named(tensor.dtype), tensor.shape)
    return _issue(at, asked, Given((tensor,), outputs), async_op, "all_gather")


def all_gather_into_tensor(
    output_tensor: Array, input_tensor: Array, group: AnyGroup = None, async_op: bool = False
) -> Work | None:
    """Collect the tensors of all ranks in one tensor on every rank, end to end or stacked."""
    call = "all_gather_into_tensor"
    at = member(group, call)
    if at is None:
        return None
    whole(input_tensor, call, "input_tensor", read_only=True)
    whole(output_tensor, call, "output_tensor")
    n = len(at.group.ranks)
    like(output_tensor, input_tensor.dtype, n * input_tensor.size, call, "output_tensor")
    asked = Asked(call, named(input_tensor.dtype), input_tensor.shape)
    outputs = list(output_tensor.reshape(n, -1)) if output_tensor.flags.c_contiguous else None
    given = Given((input_tensor,), outputs or (output_tensor,))
    return _issue(at, asked, given, async_op, "all_gather")


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
    name = _named(op, output, call)
    asked = Asked(call, named(output.dtype), output.shape, f"op={name}")
    return _issue(at, asked, Given(pieces, (output,)), async_op, "reduce_scatter", name)


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
    name = _named(op, output, call)
    asked = Asked(call, named(output.dtype), output.shape, f"op={name}")
    return _issue(at, asked, Given((input,), (output,)), async_op, "reduce_scatter", name)


def all_to_all(
    output_tensor_list: Sequence[Array],
    input_tensor_list: Sequence[Array],
    group: AnyGroup = None,
    async_op: bool = False,
) -> Work | None:
    """Send the i-th tensor of a list to the i-th rank, from each rank to each."""
    call = "all_to_all"
    at = member(group, call)
    if at is None:
        return None
    n = len(at.group.ranks)
    inputs = checked(input_tensor_list, n, None, call, "input_tensor_list", True)
    outputs = checked(output_tensor_list, n, None, call, "output_tensor_list")
    for each in (*inputs, *outputs):
        like(each, inputs[0].dtype, each.size, call, "every tensor")
    asked = Asked(call, named(inputs[0].dtype), (n,))
    return _issue(at, asked, Given(inputs, outputs), async_op, "all_to_all")


def all_to_all_single(
    output: Array,
    input: Array,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
) -> Work | None:
    """Send the i-th rows of a tensor to the i-th rank, from each rank to each.

    Parameters
    ----------
    output, input : ndarray
        Of equal dtype; cut along the first axis.
    output_split_sizes, input_split_sizes : sequence of int, optional
        Rows from and to each rank; equally many if left out.
    group, async_op
        As everywhere.
    """
    call = "all_to_all_single"
    at = member(group, call)
    if at is None:
        return None
    whole(output, call, "output")
    whole(input, call, "input", read_only=True)
    like(input, output.dtype, input.size, call, "input")
    n = len(at.group.ranks)
    inputs = blocks(input, n, input_split_sizes, call, "input")
    outputs = blocks(output, n, output_split_sizes, call, "output")
    asked = Asked(call, named(output.dtype), output.shape[1:], "rows")
    return _issue(at, asked, Given(inputs, outputs), async_op, "all_to_all")


def barrier(group: AnyGroup = None, async_op: bool = False) -> Work | None:
    """Wait until all ranks have come here."""
    call = "barrier"
    at = member(group, call)
    return None if at is None else _issue(at, Asked(call), NOTHING, async_op, call)
