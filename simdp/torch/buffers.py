"""Buffers: the memory of tensors, as collectives read and write it.

Torch's own collectives work on memory, behind the back of autograd, of modes and of versions; so
do these, on NumPy's views of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from simdp.arrays import Array

SIXTEEN = {torch.bfloat16: torch.int16, torch.float16: torch.int16}
"""What NumPy has not, or is slow with, by what it is taken for."""

_NUMPY = torch._C.TensorBase.numpy
"""Torch's own, whatever stands in for it while a script runs."""

_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Buffer:
    """The memory of a tensor.

    Parameters
    ----------
    tensor : Tensor
        Dense, with no element twice; or without memory, on torch's device ``meta``.
    call : str
        For messages.

    Attributes
    ----------
    dtype : torch.dtype
        The tensor's.
    array : ndarray, shape `(num_elements,)`
        Its elements as they lie in memory, as whole numbers where NumPy has no such dtype.
    nbytes, size : int
        As of an array.
    real : bool
        Whether there is memory; an array without has one element, again and again.

    Raises
    ------
    ValueError
        If the tensor has gaps, as torch says it.
    """

    __slots__ = ("array", "dtype", "nbytes", "real", "size")

    def __init__(self, tensor: Any, call: str) -> None:
        self.dtype = tensor.dtype
        self.size = tensor.numel()
        self.real = not (tensor.is_meta or _fake(tensor))
        self.array = _array(tensor, call) if self.real else _nothing(self.size, tensor)
        self.nbytes = self.array.nbytes


def _fake(tensor: Any) -> bool:
    return type(tensor).__name__ == "FakeTensor"


def _nothing(size: int, tensor: Any) -> Array:
    kind = np.dtype(f"V{tensor.element_size()}")
    return np.broadcast_to(np.zeros((), kind), (size,))


def _array(tensor: Any, call: str) -> Array:
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass():
        memory = tensor.detach()
        if not memory.is_contiguous():
            if not _dense(memory):
                raise ValueError(f"{call}: Tensors must be contiguous")
            memory = memory.as_strided((memory.numel(),), (1,), memory.storage_offset())
        memory = memory.view(-1)
        try:
            found: Array = _NUMPY(memory)
        except TypeError:
            found = _NUMPY(memory.view(_BYTES[memory.element_size()]))
        return found


def of(tensors: Sequence[Any], call: str) -> list[Buffer]:
    """The memory of several tensors."""
    return [Buffer(tensor, call) for tensor in tensors]


def _dense(tensor: Any) -> bool:
    """Whether a tensor's elements fill its memory, each once, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def halves(arrays: Sequence[Array], dtype: Any) -> list[Any]:
    """Arrays of 16-bit numbers as tensors, with which torch adds up as gloo does."""
    return [torch.from_numpy(array.view(np.int16)).view(dtype) for array in arrays]


def device_type(tensor: Any) -> str:
    """The type of device that a tensor is on, as its script sees it."""
    return str(tensor.device.type)
