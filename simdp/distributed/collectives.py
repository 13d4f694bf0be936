"""Collectives that move tensors, as torch.distributed has them: in place, with global ranks.

A root may also be given by its place in the group, as ``group_src`` or ``group_dst``. Every call
blocks until its result is there; with ``async_op=True`` it gives back a `Work`. What a call reads
and writes belongs to it until it is over. Ranks that are no member of the group get torch's
warning, and None. All of them raise `ProgramError` where an argument is wrong, or where the ranks
of the group do not make the same call. Collectives that add are in `simdp.distributed.reductions`.
"""

from __future__ import annotations

from collections.abc import Sequence

from simdp.arrays import Array
from simdp.distributed.groups import AnyGroup, Member, Root, member
from simdp.distributed.tensors import blocks, checked, like, whole
from simdp.distributed.work import Work, issue
from simdp.engine.programs.calls import Asked, Given, named
from simdp.errors import ProgramError


def broadcast(
    tensor: Array,
    src: int | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy the tensor of rank ``src`` to all others."""
    call = "broadcast"
    at = member(group, call)
    if at is None:
        return None
    root = at.root(src, group_src, call, "src")
    whole(tensor, call, "tensor")
    asked = Asked(call, named(tensor.dtype), tensor.shape, root.shown)
    given = Given((tensor,), ()) if root.mine else Given((), (tensor,))
    return issue(at, asked, given, async_op, call, root=root.place)


def scatter(
    tensor: Array,
    scatter_list: Sequence[Array] | None = None,
    src: int | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Give each rank one tensor of the list that rank ``src`` has."""
    call = "scatter"
    at = member(group, call)
    if at is None:
        return None
    root = at.root(src, group_src, call, "src", 0)
    whole(tensor, call, "tensor")
    pieces = _only_at(root, at, scatter_list, call, "scatter_list", tensor, read_only=True)
    asked = Asked(call, named(tensor.dtype), tensor.shape, root.shown)
    return issue(at, asked, Given(pieces, (tensor,)), async_op, call, root=root.place)


def gather(
    tensor: Array,
    gather_list: Sequence[Array] | None = None,
    dst: int | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Collect the tensors of all ranks in the list that rank ``dst`` has."""
    call = "gather"
    at = member(group, call)
    if at is None:
        return None
    root = at.root(dst, group_dst, call, "dst", 0)
    whole(tensor, call, "tensor", read_only=True)
    pieces = _only_at(root, at, gather_list, call, "gather_list", tensor)
    asked = Asked(call, named(tensor.dtype), tensor.shape, root.shown)
    return issue(at, asked, Given((tensor,), pieces), async_op, call, root=root.place)


def _only_at(
    root: Root,
    at: Member,
    tensors: Sequence[Array] | None,
    call: str,
    name: str,
    sample: Array,
    read_only: bool = False,
) -> Sequence[Array]:
    """The list that the root must have, and nobody else."""
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
    at = member(group, call)
    if at is None:
        return None
    whole(tensor, call, "tensor", read_only=True)
    outputs = checked(tensor_list, len(at.group.ranks), tensor, call, "tensor_list")
    asked = Asked(call, named(tensor.dtype), tensor.shape)
    return issue(at, asked, Given((tensor,), outputs), async_op, "all_gather")


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
    return issue(at, asked, given, async_op, "all_gather", tensors=(output_tensor,))


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
    return issue(at, asked, Given(inputs, outputs), async_op, "all_to_all")


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
    given = Given(inputs, outputs)
    return issue(at, asked, given, async_op, "all_to_all", tensors=(output,))
