"""Tensors of torch scripts as buffers of collectives.

torch's collectives work on memory, unseen by autograd, modes and versions; so do these, on NumPy
views of it.

Tensors of these ranks are on the host, where torch has gloo, so that a script can be compared with
its real run. The order of additions is that of gloo's plans. Blocks that fit the processor's cache
go from all inputs to all outputs at once.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from simdp.arrays import Array
from simdp.collectives import Collectives
from simdp.distributed.launch import BACKENDS
from simdp.engine.programs.folding import BLOCK, ChunkSums, additions, fold_blocks
from simdp.engine.programs.records import CallSignature
from simdp.errors import ProgramError

# Buffers ------------------------------------------------------------------------------------------

SIXTEEN = {torch.bfloat16: torch.int16, torch.float16: torch.int16}
"""Substitutes of dtypes that NumPy lacks, or is slow with."""

_NUMPY = torch._C.TensorBase.numpy
"""torch's method, even if replaced while a script runs."""

_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Buffer:
    """The memory of a dense tensor without overlaps, or of one on torch's device ``meta``.

    Attributes
    ----------
    array : ndarray, shape `(num_elements,)`
        Its elements in memory order, as integers if NumPy lacks the dtype.
    real : bool
        Whether there is memory; else the array repeats one element.

    Raises
    ------
    ValueError
        If the tensor is not contiguous; the message is torch's.
    """

    __slots__ = ("array", "dtype", "nbytes", "real", "size")

    def __init__(self, tensor: Any, call: str) -> None:
        self.dtype = tensor.dtype
        self.size = tensor.numel()
        self.real = not (tensor.is_meta or type(tensor).__name__ == "FakeTensor")
        self.array = _array(tensor, call) if self.real else _nothing(self.size, tensor)
        self.nbytes = self.array.nbytes


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
        dtype = _dtype(memory.dtype)
        if memory.is_conj() or memory.is_neg() or not memory.numel():
            return _NUMPY(memory) if memory.numel() else np.empty(0, dtype)
        return _view(memory, dtype)


@cache
def _dtype(dtype: Any) -> np.dtype[Any]:
    """Return NumPy's dtype of a torch dtype; that of integers of its size, if there is none."""
    empty = torch.empty(0, dtype=dtype)
    try:
        return _NUMPY(empty).dtype
    except TypeError:
        return _NUMPY(empty.view(_BYTES[empty.element_size()])).dtype


def _view(memory: Any, dtype: np.dtype[Any]) -> Array:
    """Return the memory of a flat tensor as an array.

    torch's own ``numpy()`` forbids to resize the storage from then on, which FSDP does to free it.
    """
    nbytes = memory.numel() * memory.element_size()
    raw: Any = (ctypes.c_char * nbytes).from_address(memory.data_ptr())
    raw.owner = memory
    array = np.frombuffer(raw, dtype)
    storage = memory.untyped_storage()
    storage.views = [view for view in getattr(storage, "views", ()) if view() is not None]
    storage.views.append(weakref.ref(array))
    return array


def in_use(storage: Any) -> bool:
    """Return whether a pending call reads or writes a storage's memory."""
    return any(view() is not None for view in getattr(storage, "views", ()))


def of(tensors: Sequence[Any], call: str) -> list[Buffer]:
    """Return the memory of several tensors."""
    return [Buffer(tensor, call) for tensor in tensors]


def _dense(tensor: Any) -> bool:
    """Return whether a tensor's elements fill its memory, each once, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def halves(arrays: Sequence[Array], dtype: Any) -> list[Any]:
    """Return arrays of 16-bit numbers as tensors, which torch adds as gloo does."""
    return [torch.from_numpy(array.view(np.int16)).view(dtype) for array in arrays]


def device_type(tensor: Any) -> str:
    """Return the type of a tensor's device, as seen by its script."""
    return str(tensor.device.type)


# Adding -------------------------------------------------------------------------------------------

OPS: dict[str, tuple[Any, Any]] = {
    "SUM": (np.add, torch.add),
    "AVG": (np.add, torch.add),
    "PREMUL_SUM": (np.add, torch.add),
    "PRODUCT": (np.multiply, torch.mul),
    "MIN": (np.minimum, torch.minimum),
    "MAX": (np.maximum, torch.maximum),
    "BAND": (np.bitwise_and, None),
    "BOR": (np.bitwise_or, None),
    "BXOR": (np.bitwise_xor, None),
}
"""Functions that combine arrays, and 16-bit tensors, by torch's name."""

GLOO = Collectives.model_validate(BACKENDS["gloo"])


class Reduction(NamedTuple):
    """An operator of a reduction."""

    name: str  # a key of `OPS`
    factor: float = 1.0  # of ``PREMUL_SUM``: factor of the inputs

    def __str__(self) -> str:
        return self.name if self.factor == 1.0 else f"{self.name} {self.factor:g}"


def reduction(op: Any, call: str, tensor: Any) -> Reduction:
    """Convert torch's ReduceOp for a tensor.

    NCCL averages whole numbers on GPUs, and gloo refuses it.

    Raises
    ------
    ProgramError
        If the dtype does not support the reduction.
    """
    kind = op.op if hasattr(op, "op") else op
    name = str(kind).rpartition(".")[2]
    if name not in OPS:
        raise ProgramError(f"{call}: ReduceOp.{name} is not served; use one of {', '.join(OPS)}.")
    dtype = tensor.dtype
    whole = not (dtype.is_floating_point or dtype.is_complex)
    if name == "AVG" and whole and device_type(tensor) == "cpu":  # torch's message
        raise RuntimeError("result type Float can't be cast to the desired output type Long")
    if (dtype.is_floating_point and dtype.itemsize == 1) or (name[0] == "B" and not whole):
        raise ProgramError(
            f"{call}: ReduceOp.{name} of {dtype} is not there; use another dtype, or all_gather."
        )
    factor = getattr(op, "factor", None) if name == "PREMUL_SUM" else None
    return Reduction(name, 1.0 if factor is None else float(factor))


def reduce_into(
    collective: str,
    inputs: Sequence[Any],
    outputs: Sequence[Array],
    how: Reduction,
    root: int = 0,
) -> None:
    """Reduce the inputs of all ranks into arrays ``outputs``, which may be the inputs.

    ``collective``, all_reduce or reduce, gives the order of operands; ``how`` replaces addition.
    """
    n, size = len(inputs), inputs[0].size
    if not outputs or not size:
        return
    arrays = [buffer.array for buffer in inputs]
    chunks = _chunks(collective, n, size, arrays[0].itemsize, root)
    dtype, adds = inputs[0].dtype, OPS[how.name]
    scale: Callable[[Any], None] | None = None
    if how.name == "AVG":
        scale = _mean(n, dtype)
    with np.errstate(all="ignore"), torch._C._DisableTorchDispatch():
        if dtype in SIXTEEN:
            sources, add, room = halves(arrays, dtype), adds[1], torch.empty(BLOCK, dtype=dtype)
            targets = halves(outputs, dtype)
        else:
            sources, add, room = arrays, adds[0], np.empty(BLOCK, arrays[0].dtype)
            targets = list(outputs)
        if how.factor != 1.0:
            sources = [source * how.factor for source in sources]
        fold_blocks(chunks, sources, targets, add, room, scale)


def _mean(n: int, dtype: Any) -> Callable[[Any], None]:
    def divide(piece: Any) -> None:
        if isinstance(piece, np.ndarray) and piece.dtype.kind in "iu":
            piece[...] = np.sign(piece) * (np.abs(piece) // n)  # to zero, as NCCL
        elif isinstance(piece, np.ndarray):
            np.divide(piece, n, out=piece)
        else:
            piece.div_(n)

    return divide


@lru_cache(maxsize=64)
def _chunks(collective: str, n: int, size: int, itemsize: int, root: int) -> ChunkSums:
    if n == 1:
        return ChunkSums([0, size], [0])
    plan = getattr(GLOO, collective).plan(n, float(size * itemsize), root)
    return ChunkSums(plan.offsets(size, itemsize).tolist(), additions(plan))


# Arguments ----------------------------------------------------------------------------------------


def lists(tensors: Any) -> list[list[Any]]:
    """Return a list of lists of tensors from a list of lists or a single one."""
    if tensors and isinstance(tensors[0], torch.Tensor):
        return [list(tensors)]
    return [list(inner) for inner in tensors]


def op_of(opts: Any) -> Any:
    """Return the reduction of some options, or given instead of them."""
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


def message(name: str, memory: Buffer, peer: str, tag: int) -> CallSignature:
    """Format a message for reports."""
    dtype = str(memory.dtype).removeprefix("torch.")
    return CallSignature(name, dtype, (memory.size,), peer + (f", tag={tag}" if tag else ""))
