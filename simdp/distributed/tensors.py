"""Tensors: what a call accepts as one, and how it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simdp.errors import ProgramError

Array = NDArray[Any]

KINDS = "biufc"
"""Booleans and numbers. What stands for 16-bit types beyond NumPy's own has kind V."""


def whole(tensor: object, call: str, name: str, read_only: bool = False) -> None:
    """Check one tensor.

    Raises
    ------
    ProgramError
        If it is no array of numbers, or cannot be written to.
    """
    if not isinstance(tensor, np.ndarray):
        raise ProgramError(
            f"{call}: {name} is a {type(tensor).__name__}; give a NumPy array, as np.array({name})."
        )
    if tensor.dtype.kind not in KINDS and (tensor.dtype.kind != "V" or tensor.dtype.names):
        raise ProgramError(f"{call}: {name} holds {tensor.dtype}; give an array of numbers.")
    if not read_only and not tensor.flags.writeable:
        raise ProgramError(f"{call}: {name} is read-only; give a copy, {name}.copy().")


def like(tensor: Array, dtype: np.dtype[Any], size: int, call: str, name: str) -> None:
    """Check a tensor's dtype and its number of elements.

    Raises
    ------
    ProgramError
        If they are not as they must be.
    """
    if tensor.dtype != dtype or tensor.size != size:
        raise ProgramError(
            f"{call}: {name} has {tensor.size} elements of {tensor.dtype}; it needs {size} of "
            f"{dtype}."
        )


def checked(
    tensors: object, n: int, sample: Array | None, call: str, name: str, read_only: bool = False
) -> Sequence[Array]:
    """Check a list with a tensor for every rank.

    Parameters
    ----------
    tensors : object
        What was given.
    n : int
        Ranks of the group.
    sample : ndarray or None
        What all of them must be like; None if they may differ.
    call, name : str
        For messages.
    read_only : bool
        Whether they need not be written to.

    Raises
    ------
    ProgramError
        If it is no such list.
    """
    if not isinstance(tensors, list | tuple) or len(tensors) != n:
        given = f"{len(tensors)} tensors" if isinstance(tensors, list | tuple) else repr(tensors)
        raise ProgramError(
            f"{call}: {name} must be a list with a tensor for each of {n} ranks, got {given}."
        )
    for tensor in tensors:
        whole(tensor, call, name, read_only)
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
        If that cannot be.
    """
    rows = len(tensor) if tensor.ndim else 0
    if sizes is None:
        if rows % n or not tensor.ndim:
            raise ProgramError(
                f"{call}: {name} has {rows} rows, which {n} ranks cannot share evenly; give "
                f"{name}_split_sizes."
            )
        return np.split(tensor, n)
    if len(sizes) != n or min(sizes) < 0 or sum(sizes) != rows:
        raise ProgramError(
            f"{call}: {name}_split_sizes {list(sizes)} must be {n} numbers >= 0 that add up to "
            f"{rows}, the rows of {name}."
        )
    return np.split(tensor, np.cumsum(sizes)[:-1])
