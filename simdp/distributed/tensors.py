"""Checks and splits tensors that are passed to a call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import index

import numpy as np

from simdp.arrays import Array
from simdp.errors import ProgramError

KINDS = "biufc"
"""Booleans and numbers. The placeholder of 16-bit types beyond NumPy's has kind V."""


def whole(tensor: object, call: str, name: str, read_only: bool = False) -> None:
    """Check one tensor.

    Raises
    ------
    ProgramError
        If it is not an array of numbers, or not writable.
    """
    if not isinstance(tensor, np.ndarray):
        kind = type(tensor)
        if kind.__module__.partition(".")[0] == "torch":
            raise ProgramError(
                f"{call}: {name} is a torch tensor; give {name}.detach().numpy(), which shares its "
                "memory."
            )
        raise ProgramError(
            f"{call}: {name} is a {kind.__name__}; make it a NumPy array before, {name} = "
            f"np.array({name}), and give that."
        )
    if tensor.dtype.kind not in KINDS and (tensor.dtype.kind != "V" or tensor.dtype.names):
        raise ProgramError(f"{call}: {name} holds {tensor.dtype}; give an array of numbers.")
    if not read_only and not tensor.flags.writeable:
        raise ProgramError(f"{call}: {name} is read-only; give a copy, {name}.copy().")


def like(tensor: Array, dtype: np.dtype[np.generic], size: int, call: str, name: str) -> None:
    """Check a tensor's dtype and its number of elements.

    Raises
    ------
    ProgramError
        If they differ.
    """
    if tensor.dtype != dtype or tensor.size != size:
        raise ProgramError(
            f"{call}: {name} has {tensor.size} elements of {tensor.dtype}; it needs {size} of "
            f"{dtype}."
        )


def checked(
    tensors: object, n: int, sample: Array | None, call: str, name: str, read_only: bool = False
) -> Sequence[Array]:
    """Check a list with a tensor for each of ``n`` ranks, of ``sample``'s dtype and shape if given.

    Raises
    ------
    ProgramError
        If the list is invalid.
    """
    if not isinstance(tensors, list | tuple) or len(tensors) != n:
        given = "None" if tensors is None else f"a {type(tensors).__name__}"
        if isinstance(tensors, list | tuple):
            given = f"{len(tensors)} tensors"
        raise ProgramError(
            f"{call}: {name} must be a list with a tensor for each of {n} ranks, got {given}."
        )
    for number, tensor in enumerate(tensors):
        if (
            sample is not None
            and type(tensor) is np.ndarray
            and tensor.dtype is sample.dtype
            and tensor.size == sample.size
            and (read_only or tensor.flags.writeable)
        ):
            continue  # as good as its sample; n ranks have n lists of n
        whole(tensor, call, f"{name}[{number}]", read_only)
        if sample is not None:
            like(tensor, sample.dtype, sample.size, call, f"each tensor of {name}")
    return tensors


def blocks(
    tensor: Array, n: int, sizes: Sequence[int] | None, call: str, name: str
) -> Sequence[Array]:
    """Cut a tensor along its first axis, into a view for every rank.

    Raises
    ------
    ProgramError
        If the sizes are invalid.
    """
    rows = len(tensor) if tensor.ndim else 0
    if sizes is None:
        if rows % n or not tensor.ndim:
            raise ProgramError(
                f"{call}: {name} has {rows} rows, which {n} ranks cannot share evenly; give "
                f"{name}_split_sizes."
            )
        sizes = [rows // n] * n
    elif not _share(sizes, n, rows):
        given = list(sizes) if isinstance(sizes, list | tuple) else repr(sizes)
        raise ProgramError(
            f"{call}: {name}_split_sizes {given} must be a list of {n} whole numbers >= 0 that add "
            f"up to {rows}, the rows of {name}."
        )
    return [tensor[start:stop] for start, stop in pairwise(accumulate(sizes, initial=0))]


def _share(sizes: object, n: int, rows: int) -> bool:
    """Return whether these are numbers of rows for every rank."""
    try:
        counts = [index(number) for number in sizes]  # type: ignore[attr-defined]
    except TypeError:
        return False
    return len(counts) == n and sum(counts) == rows and min(counts) >= 0
