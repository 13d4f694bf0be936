"""Collectives of Python objects, as in torch.distributed.

Objects are sent as pickles, with their times: first a tensor of sizes, then one of bytes, as long
as the longest where every rank must have the same length.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from simdp.arrays import Array
from simdp.distributed.collectives import issue, posted_receive, posted_send
from simdp.distributed.groups import AnyGroup, Member, Root, member
from simdp.engine.programs.records import CallArguments, CallSignature, named
from simdp.errors import ProgramError


def all_gather_object(object_list: list[object], obj: object, group: AnyGroup = None) -> None:
    """Collect an object of every rank in a list on every rank.

    ``object_list`` has one entry per rank; ``obj`` can be pickled.

    Raises
    ------
    ProgramError
        If the list has another length.
    """
    call = "all_gather_object"
    if (at := member(group, call)) is None:
        return
    _places(object_list, len(at.group.ranks), call, "object_list")
    data, sizes = _shared(at, call, obj)
    received = np.empty((len(sizes), len(data)), np.uint8)
    _issue(at, call, "all_gather", [data], list(received))
    object_list[:] = _objects(received, sizes)


def gather_object(
    obj: object,
    object_gather_list: list[object] | None = None,
    dst: int | None = None,
    group: AnyGroup = None,
    group_dst: int | None = None,
) -> None:
    """Collect an object of every rank in the list of rank ``dst``, by default 0.

    Raises
    ------
    ProgramError
        If the list is missing there or has another length, or is given elsewhere.
    """
    call = "gather_object"
    if (at := member(group, call)) is None:
        return
    root = at.root(dst, group_dst, call, "dst", 0)
    if root.mine:
        _places(object_gather_list, len(at.group.ranks), call, "object_gather_list")
    elif object_gather_list is not None:
        raise ProgramError(
            f"{call}: object_gather_list belongs to rank {root.rank} alone; leave it out elsewhere."
        )
    data, sizes = _shared(at, call, obj, root)
    received = np.empty((len(sizes) if root.mine else 0, len(data)), np.uint8)
    _issue(at, call, "gather", [data], list(received), root)
    if object_gather_list is not None:
        object_gather_list[:] = _objects(received, sizes)


def scatter_object_list(
    scatter_object_output_list: list[object],
    scatter_object_input_list: list[object] | None = None,
    src: int | None = None,
    group: AnyGroup = None,
    group_src: int | None = None,
) -> None:
    """Send each rank one object of the list of rank ``src``, by default 0.

    The first element of the output list becomes the object; the input list of other ranks is
    ignored.

    Raises
    ------
    ProgramError
        If a list is missing or has another length.
    """
    call = "scatter_object_list"
    if (at := member(group, call)) is None:
        return
    root = at.root(src, group_src, call, "src", 0)
    _some(scatter_object_output_list, call, "scatter_object_output_list")
    pickles: list[Array] = []
    if root.mine:
        given = scatter_object_input_list
        _places(given, len(at.group.ranks), call, "scatter_object_input_list")
        pickles = [_pickled(obj) for obj in given or ()]
    sizes = [np.array([len(data)]) for data in pickles]
    longest = max(sizes, default=np.zeros(1, np.int64)).copy()
    _broadcast(at, call, longest, root)
    length = int(longest[0])
    received, size = np.empty(length, np.uint8), np.zeros(1, np.int64)
    _issue(at, call, "scatter", [_padded(data, length) for data in pickles], [received], root)
    _issue(at, call, "scatter", sizes, [size], root)
    scatter_object_output_list[0] = _objects([received], [size])[0]


def broadcast_object_list(
    object_list: list[object],
    src: int | None = None,
    group: AnyGroup = None,
    device: object = None,
    group_src: int | None = None,
) -> None:
    """Copy the objects of rank ``src``, by default 0, to all others' lists of the same length.

    ``device`` has no effect.

    Raises
    ------
    ProgramError
        If there is no list, or it is empty.
    """
    call = "broadcast_object_list"
    if (at := member(group, call)) is None:
        return
    root = at.root(src, group_src, call, "src", 0)
    sizes, data = _joined(object_list, call, root.mine)
    _broadcast(at, call, sizes, root)
    if not root.mine:
        data = np.empty(sizes.sum(), np.uint8)
    _broadcast(at, call, data, root)
    if not root.mine:
        object_list[:] = _apart(data, sizes)


def send_object_list(
    object_list: list[object],
    dst: int | None = None,
    group: AnyGroup = None,
    device: object = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Send objects to rank ``dst``; ``device`` and ``use_batch`` have no effect.

    Raises
    ------
    ProgramError
        If there is no list, or it is empty, or no such rank.
    """
    call = "send_object_list"
    for tensor in _joined(object_list, call, True):
        posted = posted_send(call, tensor, dst, group, 0, group_dst)
        if posted is None:
            return
        posted[0].process.runtime.wait(posted[1])


def recv_object_list(
    object_list: list[object],
    src: int | None = None,
    group: AnyGroup = None,
    device: object = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Receive a list of objects of the list's length from rank ``src``; see `send_object_list`.

    Returns the sender's rank; -1 for a rank outside of the group.
    """
    call = "recv_object_list"
    if (at := member(group, call)) is None:
        return -1
    source = at.root(src, group_src, call, "src").rank
    sizes, _ = _joined(object_list, call, False)
    _receive(at, call, sizes, source, group)
    data = np.empty(sizes.sum(), np.uint8)
    _receive(at, call, data, source, group)
    object_list[:] = _apart(data, sizes)
    return source


def _receive(at: Member, call: str, tensor: Array, source: int, group: AnyGroup) -> None:
    posted = posted_receive(call, tensor, source, group, 0, None)
    assert posted is not None
    at.process.runtime.wait(posted[1])


def _issue(
    at: Member,
    call: str,
    collective: str,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    root: Root | None = None,
) -> None:
    sample = (*outputs, *inputs)[0]
    place, shown = (root.place, root.shown) if root else (0, "")
    signature = CallSignature(call, named(sample.dtype), sample.shape, shown)
    issue(at, signature, CallArguments(inputs, outputs), False, collective, root=place)


def _broadcast(at: Member, call: str, tensor: Array, root: Root) -> None:
    _issue(at, call, "broadcast", [tensor] * root.mine, [tensor] * (not root.mine), root)


def _shared(
    at: Member, call: str, obj: object, root: Root | None = None
) -> tuple[Array, list[Array]]:
    """Return an object as bytes, padded to the longest of all ranks, and the size of each."""
    data = _pickled(obj)
    sizes = list(np.zeros((len(at.group.ranks), 1), np.int64))
    _issue(at, call, "all_gather", [np.array([len(data)])], sizes, root)
    return _padded(data, int(max(sizes)[0])), sizes


def _pickled(obj: object) -> Array:
    return np.frombuffer(pickle.dumps(obj), np.uint8)


def _padded(data: Array, length: int) -> Array:
    return np.concatenate([data, np.zeros(length - len(data), np.uint8)])


def _objects(rows: Sequence[Array] | Array, sizes: Sequence[Array]) -> list[Any]:
    pairs = zip(rows, sizes, strict=True)
    return [pickle.loads(row[: int(size[0])].tobytes()) for row, size in pairs]


def _joined(objects: list[object], call: str, mine: bool) -> tuple[Array, Array]:
    """Return sizes and bytes of all objects of a list, if the caller sends them."""
    _some(objects, call, "object_list")
    if not mine:
        return np.zeros(len(objects), np.int64), np.empty(0, np.uint8)
    pickles = [_pickled(obj) for obj in objects]
    return np.array([len(data) for data in pickles]), np.concatenate(pickles)


def _apart(data: Array, sizes: Array) -> list[Any]:
    return _objects(
        np.split(data, np.cumsum(sizes)[:-1]), [sizes[i : i + 1] for i in range(len(sizes))]
    )


def _some(objects: object, call: str, name: str) -> None:
    if not isinstance(objects, list) or not objects:
        raise ProgramError(f"{call}: {name} is {objects!r}; give a list with one place at least.")


def _places(objects: object, n: int, call: str, name: str) -> None:
    if not isinstance(objects, list) or len(objects) != n:
        given = f"one of {len(objects)}" if isinstance(objects, list) else repr(objects)
        raise ProgramError(
            f"{call}: {name} must be a list with a place for each of {n} ranks, got {given}."
        )
