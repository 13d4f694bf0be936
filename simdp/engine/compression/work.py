"""Work of comm hooks: the kernels that each of their operations launches."""

from __future__ import annotations

from typing import get_args

from simdp.engine.compression.kernels import (
    Kernel,
    entrywise,
    orthonormal,
    product,
    selection,
)
from simdp.steps.bucket import Factoring, Selection
from simdp.steps.coded import Code, Dequantize, Observe, Quantize, Rounding
from simdp.steps.ops import AddSelected, Join, Select, Split
from simdp.steps.own_hook import CallHook, EndHook, OwnHook
from simdp.workload.precision.rounding import numpy_dtype

Compression = (
    Rounding
    | Split
    | Join
    | Select
    | AddSelected
    | Observe
    | Quantize
    | Dequantize
    | CallHook
    | EndHook
)
KINDS = get_args(Compression)


def work_of(op: Compression, itemsize: int, world_size: int) -> tuple[str, list[Kernel]]:
    """Name the work of an operation in the trace, and list its kernels.

    Parameters
    ----------
    op : Compression
        Of a comm hook.
    itemsize : int
        Bytes of a gradient's element.
    world_size : int
        Number of ranks.
    """
    match op:
        case Rounding(label=label, is_back=is_back):
            return f"{label} {'back' if is_back else 'cast'}", rounding(op, itemsize)
        case Split(factoring):
            return f"{factoring.label} P", splitting(factoring, itemsize)
        case Join(factoring):
            return f"{factoring.label} P Q", joining(factoring, itemsize)
        case Select(selection):
            return f"{selection.label} top k", selecting(selection, itemsize)
        case AddSelected(selection):
            return f"{selection.label} sum", adding(selection, itemsize, world_size)
        case Observe(code):
            return f"{code.label} scales", observing(code)
        case Quantize(code):
            return f"{code.label} to bytes", quantizing(code)
        case Dequantize(code):
            return f"{code.label} mean", dequantizing(code, world_size)
        case CallHook(hook):
            return f"{hook.label} hook", calling(hook)
        case EndHook(hook):
            return f"{hook.label} end of hook", calling(hook) if hook.goes_on else []


def rounding(asked: Rounding, itemsize: int) -> list[Kernel]:
    """A cast; on its way out, a division in the smaller dtype too."""
    low = numpy_dtype(asked.bucket.dtype).itemsize
    cast = Kernel(0.0, float(asked.bucket.num_elements * (itemsize + low)))
    return [cast] if asked.is_back else [cast, entrywise(float(asked.bucket.num_elements * low), 2)]


def splitting(taken: Factoring, itemsize: int) -> list[Kernel]:
    """Up to the products P = M Q.

    The error is added (two buffers read, one written) and the sum copied; what travels as it is is
    copied into a buffer, as is a bucket that grows to a square.
    """
    found = [entrywise(taken.bucket.nbytes, 2)] if taken.is_square else []
    if taken.error_feedback:
        found.append(entrywise(taken.bucket.nbytes, 5, 2))
    if taken.rest.nbytes:
        found.append(entrywise(taken.rest.nbytes, 2))
    for batch, rows, columns, rank in _shapes(taken):
        if batch > 1:
            found.append(entrywise(float(batch * rows * columns * itemsize), 2))
        found.append(orthonormal(columns, rank, itemsize, taken.epsilon, batch))
        found.append(product(rows, columns, rank, itemsize, batch))
    return found


def unpacking(taken: Factoring) -> list[Kernel]:
    """Sums of what travels as it is are divided, and copied back one by one."""
    return [entrywise(taken.rest.nbytes, 4, 1 + len(taken.rest.names))]


def turning(taken: Factoring, itemsize: int) -> list[Kernel]:
    """The sums of P become orthonormal, and Q = M^T P."""
    found = []
    for batch, rows, columns, rank in _shapes(taken):
        found.append(orthonormal(rows, rank, itemsize, taken.epsilon, batch))
        found.append(product(columns, rows, rank, itemsize, batch))
    return found


def joining(taken: Factoring, itemsize: int) -> list[Kernel]:
    """Averages are put together, P Q^T, and what they lack is noted."""
    found = list[Kernel]()
    if taken.q.nbytes:
        found.append(entrywise(taken.q.nbytes, 2))
    elif taken.rest.nbytes:  # no later all_reduce has waited until it was unpacked
        found += unpacking(taken)
    for batch, rows, columns, rank in _shapes(taken):
        found.append(product(rows, rank, columns, itemsize, batch))
        if batch > 1:
            found.append(entrywise(float(batch * rows * columns * itemsize), 2, batch))
    if taken.error_feedback:
        found.append(entrywise(taken.bucket.nbytes, 3))
    return found


def selecting(asked: Selection, itemsize: int) -> list[Kernel]:
    """The entries of largest magnitude are found; with error feedback, in a sum."""
    nbytes, entry = asked.bucket.nbytes, asked.entry_nbytes
    found = selection(nbytes, itemsize, asked.num_entries, entry)
    if not asked.error_feedback:
        return found
    # The error is added; what is chosen is then set to 0 in the sum.
    chosen = float(asked.num_entries * entry)
    return [entrywise(nbytes, 3), *found, entrywise(chosen, 1)]


def adding(asked: Selection, itemsize: int, world_size: int) -> list[Kernel]:
    """The bucket is cleared; each rank's entries are read and added, by a kernel each."""
    added = asked.num_entries * (float(asked.entry_nbytes) + 2.0 * itemsize)
    each = Kernel(0.0, added * world_size, world_size)
    return [entrywise(asked.bucket.nbytes, 1), each]


def observing(code: Code) -> list[Kernel]:
    """The least and the greatest of every row are found; rows need a copy that is filled up."""
    nbytes = code.bucket.nbytes
    copied = [] if code.row is None else [entrywise(nbytes, 2)]
    return [*copied, entrywise(nbytes, 1, 2)]


def quantizing(code: Code) -> list[Kernel]:
    """Numbers are scaled, rounded, moved and clamped by a kernel each, and become bytes."""
    return [entrywise(code.bucket.nbytes, 8, 4), Kernel(0.0, float(5 * code.num_bytes))]


def dequantizing(code: Code, world_size: int) -> list[Kernel]:
    """Each rank's bytes become numbers, are moved, scaled and added; then the sum is divided."""
    nbytes = code.bucket.nbytes
    each = world_size * (code.num_bytes + 8.0 * nbytes)
    return [Kernel(0.0, each, 4 * world_size), entrywise(nbytes, 2)]


def calling(hook: OwnHook) -> list[Kernel]:
    """What is in the bucket is read, and what is sent written; or the other way round."""
    sent = hook.bucket.nbytes if hook.sent is None else hook.sent.nbytes
    return [Kernel(0.0, hook.bucket.nbytes + sent)]


def _shapes(taken: Factoring) -> list[tuple[int, int, int, int]]:
    """How many matrices a kernel works on, their rows and columns, and the rank."""
    found: dict[tuple[int, int, int], int] = {}
    for factor in taken.factors:
        key = (factor.rows, factor.columns, factor.rank)
        found[key] = found.get(key, 0) + 1
    if taken.batched:
        return [(batch, *shape) for shape, batch in found.items()]
    return [(1, *shape) for shape, batch in found.items() for _ in range(batch)]
