"""Gradient compression: casts, quantization, top-k, PowerSGD, error feedback, and its cost.

Work on single entries moves memory; its arithmetic is not counted. Each tensor that a kernel reads
or writes is moved once.

The order of operations is that of torch's powerSGD_hook: sums of P are not divided, since they are
made orthonormal; sums of Q and of what travels as it is are divided after the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from simdp.arrays import Array, Floats, Ints
from simdp.engine.compute.roofline import Roofline
from simdp.engine.payload import FlatBuffers
from simdp.engine.threads import each_rank
from simdp.errors import OperationError, ProgramError, ScenarioError
from simdp.scenario import Scenario
from simdp.steps import ops
from simdp.steps.ops import (
    AddSelected,
    CallHook,
    Dequantize,
    EncodeBucket,
    EndHook,
    Join,
    Observe,
    OwnHook,
    Quantize,
    Rounding,
    Select,
    SplitBucket,
)
from simdp.steps.partition import Bucket, Factor, Factoring, Selection
from simdp.strategies.comm_hooks.python import (
    GradBucket,
    Hook,
    HookError,
    HookFuture,
    called,
    content,
    read_hook,
    said,
)
from simdp.workload.precision import numpy_dtype
from simdp.workload.torch_generator import GROUP, TorchGenerator, hook_seed

# Quantized ----------------------------------------------------------------------------------------

LEVELS = 255
"""Steps between the least and the greatest number (torch: quint8)."""

EPS = float(np.finfo(np.float32).eps)
"""Scales are no smaller (torch: MinMaxObserver)."""


def quantized(flat: Array, code: EncodeBucket) -> Floats:
    """What other ranks make of one rank's bucket, shape `(num_elements,)`, float32.

    References
    ----------
    torch, ddp_comm_hooks/quantization_hooks.py; ao/quantization/observer.py.
    """
    filled = np.zeros(code.num_bytes, np.float32)
    filled[: flat.size] = flat
    rows = filled.reshape(code.num_rows, -1)
    least = np.minimum(rows.min(axis=1, keepdims=True), np.float32(0))
    most = np.maximum(rows.max(axis=1, keepdims=True), np.float32(0))
    scale = np.maximum((most - least) / np.float32(LEVELS), np.float32(EPS))
    zero = np.clip(-np.rint(least / scale), 0, LEVELS)
    sent = np.clip(np.rint(rows / scale) + zero, 0, LEVELS)
    found: Floats = (scale * (sent - zero)).reshape(-1)[: flat.size]
    return found


def average(bucket: FlatBuffers, code: EncodeBucket, divisor: float) -> None:
    """Make every rank's bucket the mean of what all have sent, added in the order of the ranks."""
    sent = each_rank(
        lambda rank: quantized(bucket.flat[rank], code), len(bucket.flat), bucket.flat[0].size
    )
    total = np.zeros_like(sent[0])
    for one in sent:
        total += one
    for flat in bucket.flat:
        flat[...] = total / np.float32(divisor)


# Errors -------------------------------------------------------------------------------------------


class Errors:
    """Error feedback of all ranks, tensor by tensor, so that it outlives the buckets."""

    def __init__(self) -> None:
        self.lost: dict[str, list[Array]] = {}

    def add(self, bucket: FlatBuffers) -> None:
        """Add what was lost to a bucket, and note the sums: what is to be sent now."""
        for name in bucket.names():
            views = bucket.views(name)
            lost = self.lost.setdefault(name, [np.zeros_like(view) for view in views])
            for own, view in zip(lost, views, strict=True):
                np.add(view, own, out=view)
                own[...] = view

    def state_dict(self) -> dict[str, Array]:
        """What every rank has lost."""
        return {
            f"{rank}/lost/{name}": own
            for name, lost in self.lost.items()
            for rank, own in enumerate(lost)
        }

    def load_state_dict(self, arrays: Mapping[str, Array], world_size: int) -> None:
        """Take up what was lost; ranks that were not there have lost nothing yet."""
        names = {name.split("/", 2)[2] for name in arrays if "/lost/" in name}
        for name in sorted(names):
            first = arrays[f"0/lost/{name}"]
            kept = [arrays.get(f"{rank}/lost/{name}") for rank in range(world_size)]
            self.lost[name] = [np.zeros_like(first) if one is None else one.copy() for one in kept]

    def settle(self, bucket: FlatBuffers) -> None:
        """Subtract from what was to be sent what a bucket holds now: what was."""
        for name in bucket.names():
            for own, view in zip(self.lost[name], bucket.views(name), strict=True):
                np.subtract(own, view, out=own)


# Largest ------------------------------------------------------------------------------------------


class Entries(NamedTuple):
    """Entries of one rank's bucket: where they stand, and their values, divided."""

    places: Ints
    values: Array


class Largest:
    """What top-k keeps on every rank: errors."""

    def __init__(self) -> None:
        self.errors = Errors()

    def select(
        self, bucket: FlatBuffers, count: int, divisor: float, error_feedback: bool
    ) -> list[Entries]:
        """Add the errors, and choose every rank's entries of largest magnitude.

        What is chosen is taken out of the bucket, so that what is left in it is lost.
        """
        if error_feedback:
            self.errors.add(bucket)

        def work(rank: int) -> Entries:
            flat = bucket.flat[rank]
            places = largest(flat, count)
            values = flat[places] * flat.dtype.type(1.0 / divisor)
            kept = flat[places]
            flat[...] = 0
            flat[places] = kept
            return Entries(places, values)

        chosen = each_rank(work, len(bucket.flat), bucket.flat[0].size)
        if error_feedback:
            self.errors.settle(bucket)
        return chosen


def add(chosen: Sequence[Entries], bucket: FlatBuffers) -> None:
    """Make every rank's bucket the sum of all that was chosen, in the order of the ranks.

    An all_gather adds nothing, and all ranks do the same with what it brings: it is done once.
    """
    total = np.zeros_like(bucket.flat[0])
    for places, values in chosen:
        total[places] += values
    for flat in bucket.flat:
        flat[...] = total


def largest(values: Array, count: int) -> Ints:
    """Places of the entries of largest magnitude; of equal ones, the first.

    Parameters
    ----------
    values : ndarray, shape `(num_elements,)`
        nan counts as infinite.
    count : int
        How many; 1 <= count <= num_elements.

    Returns
    -------
    ndarray, shape `(count,)`, int64
        In rising order.
    """
    wide = values.astype(np.float32) if values.dtype.itemsize == 2 else values
    size = np.abs(wide)
    size[np.isnan(size)] = np.inf
    last = np.partition(size, len(size) - count)[len(size) - count]
    above, equal = np.flatnonzero(size > last), np.flatnonzero(size == last)
    return np.sort(np.concatenate([above, equal[: count - len(above)]]))


# Kernels ------------------------------------------------------------------------------------------

RADIX_BITS = 8
"""Bits of a value by which torch.topk sorts in one pass (ATen/native/cuda/TensorTopK.cu)."""

GRAM_SCHMIDT_RANK = 2
"""Columns up to which torch's powerSGD_hook takes Gram-Schmidt; for more, it takes QR."""


class CompressionKernels(NamedTuple):
    """Kernels that run one after the other.

    Attributes
    ----------
    flops : float
        Arithmetic of products [FLOP].
    nbytes : float
        Bytes read and written.
    launches : int
        How many kernels these are.
    """

    flops: float
    nbytes: float
    launches: int = 1


def seconds(kernels: Iterable[CompressionKernels], roofline: Roofline, dtype: str) -> Floats:
    """How long kernels take on each rank's device, as in `simdp.engine.compute.roofline` [s].

    Parameters
    ----------
    kernels : iterable of Kernel
        One after the other.
    roofline : Roofline
        The devices.
    dtype : str
        What is computed in.

    Returns
    -------
    ndarray, shape `(world_size,)`
    """
    total = np.zeros(len(roofline.launch))
    for kernel in kernels:
        busy = roofline.moving(kernel.nbytes)
        if kernel.flops:
            arithmetic = (kernel.flops + roofline.half_work) / roofline.flops(dtype)
            busy = np.maximum(busy, arithmetic)
        total += busy + kernel.launches * roofline.launch
    return total


def entrywise(nbytes: float, passes: int, launches: int = 1) -> CompressionKernels:
    """Read and write buffers of a size, so many in all."""
    return CompressionKernels(0.0, nbytes * passes, launches)


def product(
    rows: int, inner: int, columns: int, itemsize: int, batch: int = 1
) -> CompressionKernels:
    """Multiply matrices, several of the same shapes in one launch."""
    moved = rows * inner + inner * columns + rows * columns
    return CompressionKernels(2.0 * rows * inner * columns * batch, float(moved * itemsize * batch))


def orthonormal(
    rows: int, columns: int, itemsize: int, epsilon: float, batch: int = 1
) -> CompressionKernels:
    """Make the columns of matrices orthonormal.

    Gram-Schmidt, column by column: the norm (reads the column), with an epsilon one more kernel,
    and the division (reads and writes it); then, where columns are left, what they have of this one
    is taken out of them in four kernels, of which the first two and the last two read or write
    these columns three times each, and the column twice in all. QR, as LAPACK's geqrf and orgqr:
    `2 rows columns^2` FLOPs each, to leading order (LAPACK Working Note 41).
    """
    size = rows * itemsize * batch
    if not by_columns(columns, itemsize):
        return CompressionKernels(4.0 * rows * columns**2 * batch, 4.0 * size * columns, 2)
    nbytes, launches = 0, 0
    for left in reversed(range(columns)):
        nbytes += size * (3 + bool(left) * (2 + 6 * left))
        launches += 2 + (epsilon > 0) + 4 * bool(left)
    return CompressionKernels(0.0, float(nbytes), launches)


def by_columns(columns: int, itemsize: int) -> bool:
    """Whether matrices are made orthonormal by Gram-Schmidt, as torch decides it."""
    return columns <= GRAM_SCHMIDT_RANK or itemsize == 2


def selection(nbytes: float, itemsize: int, chosen: int, entry: int) -> list[CompressionKernels]:
    """Choose the entries of largest magnitude of a buffer.

    ``abs`` reads and writes it. torch.topk reads it once for every `RADIX_BITS` bits of a value,
    to find the smallest one to be taken, and once more to take them out; each pass counts as a
    kernel. Then the chosen entries, of ``entry`` bytes with their places, are read, divided and
    written.
    """
    passes = itemsize * 8 // RADIX_BITS + 1
    return [
        entrywise(nbytes, 2),
        entrywise(nbytes, passes, passes),
        entrywise(float(chosen * entry), 2, 2),
    ]


# Work ---------------------------------------------------------------------------------------------

Compression = (
    Rounding
    | SplitBucket
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


def work_of(
    op: Compression, itemsize: int, world_size: int
) -> tuple[str, list[CompressionKernels]]:
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
        case SplitBucket(factoring):
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
        case _:
            raise OperationError(f"{__name__}.work_of", type(op))


def rounding(asked: Rounding, itemsize: int) -> list[CompressionKernels]:
    """A cast; on its way out, a division in the smaller dtype too."""
    low = numpy_dtype(asked.bucket.dtype).itemsize
    cast = CompressionKernels(0.0, float(asked.bucket.num_elements * (itemsize + low)))
    return [cast] if asked.is_back else [cast, entrywise(float(asked.bucket.num_elements * low), 2)]


def splitting(taken: Factoring, itemsize: int) -> list[CompressionKernels]:
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


def unpacking(taken: Factoring) -> list[CompressionKernels]:
    """Sums of what travels as it is are divided, and copied back one by one."""
    return [entrywise(taken.rest.nbytes, 4, 1 + len(taken.rest.names))]


def turning(taken: Factoring, itemsize: int) -> list[CompressionKernels]:
    """The sums of P become orthonormal, and Q = M^T P."""
    found = []
    for batch, rows, columns, rank in _shapes(taken):
        found.append(orthonormal(rows, rank, itemsize, taken.epsilon, batch))
        found.append(product(columns, rows, rank, itemsize, batch))
    return found


def joining(taken: Factoring, itemsize: int) -> list[CompressionKernels]:
    """Averages are put together, P Q^T, and what they lack is noted."""
    found = list[CompressionKernels]()
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


def selecting(asked: Selection, itemsize: int) -> list[CompressionKernels]:
    """The entries of largest magnitude are found; with error feedback, in a sum."""
    nbytes, entry = asked.bucket.nbytes, asked.entry_nbytes
    found = selection(nbytes, itemsize, asked.num_entries, entry)
    if not asked.error_feedback:
        return found
    # The error is added; what is chosen is then set to 0 in the sum.
    chosen = float(asked.num_entries * entry)
    return [entrywise(nbytes, 3), *found, entrywise(chosen, 1)]


def adding(asked: Selection, itemsize: int, world_size: int) -> list[CompressionKernels]:
    """The bucket is cleared; each rank's entries are read and added, by a kernel each."""
    added = asked.num_entries * (float(asked.entry_nbytes) + 2.0 * itemsize)
    each = CompressionKernels(0.0, added * world_size, world_size)
    return [entrywise(asked.bucket.nbytes, 1), each]


def observing(code: EncodeBucket) -> list[CompressionKernels]:
    """The least and the greatest of every row are found; rows need a copy that is filled up."""
    nbytes = code.bucket.nbytes
    copied = [] if code.row is None else [entrywise(nbytes, 2)]
    return [*copied, entrywise(nbytes, 1, 2)]


def quantizing(code: EncodeBucket) -> list[CompressionKernels]:
    """Numbers are scaled, rounded, moved and clamped by a kernel each, and become bytes."""
    return [entrywise(code.bucket.nbytes, 8, 4), CompressionKernels(0.0, float(5 * code.num_bytes))]


def dequantizing(code: EncodeBucket, world_size: int) -> list[CompressionKernels]:
    """Each rank's bytes become numbers, are moved, scaled and added; then the sum is divided."""
    nbytes = code.bucket.nbytes
    each = world_size * (code.num_bytes + 8.0 * nbytes)
    return [CompressionKernels(0.0, each, 4 * world_size), entrywise(nbytes, 2)]


def calling(hook: OwnHook) -> list[CompressionKernels]:
    """What is in the bucket is read, and what is sent written; or the other way round."""
    sent = hook.bucket.nbytes if hook.sent is None else hook.sent.nbytes
    return [CompressionKernels(0.0, hook.bucket.nbytes + sent)]


def _shapes(taken: Factoring) -> list[tuple[int, int, int, int]]:
    """How many matrices a kernel works on, their rows and columns, and the rank."""
    found: dict[tuple[int, int, int], int] = {}
    for factor in taken.factors:
        key = (factor.rows, factor.columns, factor.rank)
        found[key] = found.get(key, 0) + 1
    if taken.batched:
        return [(batch, *shape) for shape, batch in found.items()]
    return [(1, *shape) for shape, batch in found.items() for _ in range(batch)]


# Hooked -------------------------------------------------------------------------------------------

PREFIX = "hook/"


class Hooked:
    """The states of all ranks, and what is on its way.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self.states: list[dict[str, Any]] = [{} for _ in range(world_size)]
        self._futures: dict[str, list[HookFuture]] = {}
        self._functions: dict[tuple[str, str], Hook] = {}

    def call(
        self, hook: OwnHook, bucket: FlatBuffers, shapes: Mapping[str, tuple[int, ...]]
    ) -> FlatBuffers | None:
        """Call the function on every rank, one after the other.

        Returns
        -------
        FlatBuffers or None
            What they hand over; None where nothing travels, and the buckets have their content.

        Raises
        ------
        ProgramError
            If it raises, or does not do what it did with zeros.
        """
        found, n = list[HookFuture](), len(bucket.flat)
        place = hook.path, hook.name
        if place not in self._functions:
            self._functions[place] = read_hook(Path(hook.path), hook.name)
        function = self._functions[place]
        inside = {name: shapes[name] for name in hook.bucket.names}
        for rank, flat in enumerate(bucket.flat):
            try:
                one = called(function, self.states[rank], GradBucket(flat, inside, rank, n))
                if isinstance(one, HookFuture):
                    _check(hook, one)
                    found.append(one)
                elif hook.sent is not None:
                    raise HookError("calls no all_reduce, but has called one for zeros.")
                else:
                    flat[...] = one
            except Exception as error:
                raise _problem(hook, rank, error) from None
        if hook.sent is None:
            return None
        self._futures[hook.label] = found
        sent = FlatBuffers({"sent": (hook.sent.num_elements,)}, n, found[0].sent.dtype)
        for flat, future in zip(sent.flat, found, strict=True):
            flat[...] = future.sent
        return sent

    def end(self, hook: OwnHook, bucket: FlatBuffers, summed: FlatBuffers) -> None:
        """Let every rank's function make the bucket's content of the sum.

        Raises
        ------
        ProgramError
            If it raises, or ends at something else.
        """
        futures = self._futures.pop(hook.label)
        for rank, (future, total) in enumerate(zip(futures, summed.flat, strict=True)):
            flat = bucket.flat[rank]
            try:
                flat[...] = content(future.result(total), flat)
            except Exception as error:
                raise _problem(hook, rank, error) from None

    def state_dict(self) -> dict[str, Array]:
        """What is in every rank's state.

        Raises
        ------
        ScenarioError
            If something is no number and no array.
        """
        found = {}
        for rank, state in enumerate(self.states):
            for key, value in state.items():
                array = np.asarray(value)
                if not isinstance(key, str) or array.dtype.kind == "O":
                    raise ScenarioError(
                        [
                            f"strategy.comm_hook: the state of rank {rank} holds {key!r}, which "
                            "cannot be saved; keep arrays and numbers by names."
                        ]
                    )
                found[f"{rank}/{PREFIX}{key}"] = array
        return found

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Take up the states; a rank that was not there begins with nothing."""
        for name, value in arrays.items():
            rank, _, key = name.partition("/")
            if key.startswith(PREFIX) and int(rank) < len(self.states):
                kept: Any = np.array(value) if np.ndim(value) else np.asarray(value).item()
                self.states[int(rank)][key[len(PREFIX) :]] = kept


def _check(hook: OwnHook, future: HookFuture) -> None:
    """Refuse what is not of the size that the clock was told."""
    got = f"{future.sent.size} {future.sent.dtype.name}"
    told = "nothing" if hook.sent is None else f"{hook.sent.num_elements} {hook.sent.dtype}"
    if got != told:
        raise HookError(
            f"hands {got} to all_reduce, but of zeros {told}; what travels must follow from the "
            "size of the bucket alone."
        )


def _problem(hook: OwnHook, rank: int, error: Exception) -> ProgramError:
    return ProgramError(f"rank {rank}, {hook.path}{said(error, hook.path)}")


# Low rank -----------------------------------------------------------------------------------------


class Thin(NamedTuple):
    """What travels in place of a bucket, on every rank: as it is, and as factors P and Q."""

    rest: FlatBuffers
    p: FlatBuffers
    q: FlatBuffers


class LowRank:
    """What PowerSGD keeps on every rank: Q of the step before, and errors.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.errors = Errors()
        self._q: dict[str, list[Array]] = {}
        self._num_seeds = 0  # drawn so far, one for each bucket whose Q is drawn
        self._begun: set[str] = set()  # labels of buckets whose Q has been drawn
        self._squares: dict[str, FlatBuffers] = {}  # of buckets on their way

    def take(self, bucket: FlatBuffers, factoring: Factoring) -> Thin:
        """Add the errors, make Q orthonormal, and compute P = M Q."""
        if factoring.is_square:
            bucket = self._squares[factoring.label] = self._square(bucket, factoring)
        if factoring.error_feedback:
            self.errors.add(bucket)
        dtype, factors = bucket.flat[0].dtype, factoring.factors
        shapes = {name: bucket.views(name)[0].shape for name in factoring.rest.names}
        thin = Thin(
            FlatBuffers(shapes, self.world_size, dtype),
            FlatBuffers({f.name: (f.rows, f.rank) for f in factors}, self.world_size, dtype),
            FlatBuffers({f.name: (f.columns, f.rank) for f in factors}, self.world_size, dtype),
        )
        for name in factoring.rest.names:
            _copy(bucket.views(name), thin.rest.views(name))
        self._first_q(factoring, thin)
        for f in factors:
            matrices = [view.reshape(f.rows, f.columns) for view in bucket.views(f.name)]
            self._multiply(
                matrices, thin.q.views(f.name), thin.p.views(f.name), factoring.epsilon, False
            )
        return thin

    def turn(self, bucket: FlatBuffers, factoring: Factoring, thin: Thin) -> None:
        """Make the sums of P orthonormal, and compute Q = M^T P."""
        bucket = self._squares.get(factoring.label, bucket)
        for f in factoring.factors:
            matrices = [view.reshape(f.rows, f.columns) for view in bucket.views(f.name)]
            self._multiply(
                matrices, thin.p.views(f.name), thin.q.views(f.name), factoring.epsilon, True
            )

    def join(self, bucket: FlatBuffers, factoring: Factoring, thin: Thin, divisor: float) -> None:
        """Make the bucket's content the average that all ranks know, and keep what it lacks."""
        whole, bucket = bucket, self._squares.pop(factoring.label, bucket)
        for flat in (*thin.rest.flat, *thin.q.flat):
            np.divide(flat, flat.dtype.type(divisor), out=flat)
        for name in factoring.rest.names:
            _copy(thin.rest.views(name), bucket.views(name))
        for f in factoring.factors:
            self._q[f.name] = thin.q.views(f.name)
            both = zip(thin.p.views(f.name), thin.q.views(f.name), strict=True)
            for view, (p, q) in zip(bucket.views(f.name), both, strict=True):
                view.reshape(f.rows, f.columns)[...] = times(p, q.T)
        if factoring.error_feedback:
            self.errors.settle(bucket)
        if factoring.is_square:
            for flat, square in zip(whole.flat, bucket.flat, strict=True):
                flat[...] = square[: flat.size]

    def _square(self, bucket: FlatBuffers, factoring: Factoring) -> FlatBuffers:
        """Copy a bucket, and fill it up with zeros."""
        shapes: dict[str, tuple[int, ...]] = {
            f.name: (f.rows, f.columns) for f in factoring.factors
        }
        squares = FlatBuffers(shapes, self.world_size, bucket.flat[0].dtype)
        for flat, square in zip(bucket.flat, squares.flat, strict=True):
            square[: flat.size] = flat
            square[flat.size :] = 0
        return squares

    def state_dict(self) -> dict[str, Array]:
        """Errors, the last Q of every matrix, and how many seeds were drawn for which buckets."""
        found = self.errors.state_dict()
        for name, views in self._q.items():
            found[f"q/{name}"] = views[0]  # of a sum, which is the same on all ranks
        for label in sorted(self._begun):
            found[f"drawn/{label}"] = np.array(self._num_seeds)
        return found

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Take up what was kept."""
        self.errors.load_state_dict(arrays, self.world_size)
        for name, kept in arrays.items():
            if name.startswith("q/"):
                self._q[name[2:]] = [kept.copy() for _ in range(self.world_size)]
            elif name.startswith("drawn/"):
                self._begun.add(name[6:])
                self._num_seeds = int(kept)

    def _first_q(self, factoring: Factoring, thin: Thin) -> None:
        """Begin with the Q of the step before, or with torch's random numbers."""
        names = [f.name for f in factoring.factors]
        known = factoring.label in self._begun and all(name in self._q for name in names)
        if factoring.warm_start and known:
            for name in names:
                _copy(self._q[name], thin.q.views(name))
            return
        self._begun.add(factoring.label)
        generator = TorchGenerator(hook_seed(factoring.random_seed, self._num_seeds))
        self._num_seeds += 1
        for group in _drawn_at_once(factoring):
            first = group[0]
            shape = len(group), first.columns, first.rank
            drawn = _randn(generator, shape, thin.q.flat[0].dtype)
            for f, fresh in zip(group, drawn, strict=True):
                _copy([fresh] * self.world_size, thin.q.views(f.name))

    def _multiply(
        self,
        matrices: Sequence[Array],
        factor: Sequence[Array],
        into: Sequence[Array],
        epsilon: float,
        transposed: bool,
    ) -> None:
        def work(rank: int) -> None:
            orthonormalise(factor[rank], epsilon)
            own = matrices[rank].T if transposed else matrices[rank]
            into[rank][...] = times(own, factor[rank])

        each_rank(work, self.world_size, matrices[0].size)


def _randn(generator: TorchGenerator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """``torch.randn(shape, dtype=dtype)``; what has 16 bits is drawn in float32, to be rounded.

    torch then draws numbers group by group, and the last 16 instead of the last few.
    """
    count = prod(shape)
    if dtype.itemsize > 2 or count < GROUP or not count % GROUP:
        return generator.normal(1.0, shape, "float64" if dtype.itemsize == 8 else "float32")
    groups = generator.normal(1.0, (count // GROUP * GROUP,))
    last = generator.normal(1.0, (GROUP,))
    return np.concatenate([groups[: count - GROUP], last]).reshape(shape)


def _drawn_at_once(factoring: Factoring) -> list[list[Factor]]:
    """Factors whose Q torch draws in one call: those of a shape if they are batched."""
    if not factoring.batched:
        return [[f] for f in factoring.factors]
    shapes: dict[tuple[int, int], list[Factor]] = {}
    for f in factoring.factors:
        shapes.setdefault((f.rows, f.columns), []).append(f)
    return list(shapes.values())


def orthonormalise(matrix: Array, epsilon: float = 0.0) -> None:
    """Make the columns of a matrix orthonormal, in place.

    Parameters
    ----------
    matrix : ndarray, shape `(rows, columns)`
        At least as many rows as columns.
    epsilon : float
        Added to a column's norm before the column is divided by it.

    Notes
    -----
    torch's powerSGD_hook takes Gram-Schmidt for at most two columns, or 16 bits; else QR. A column
    of zeros stays what it is; torch would make it nan without an epsilon.
    """
    columns = matrix.shape[1]
    if not by_columns(columns, matrix.dtype.itemsize):
        matrix[...] = np.linalg.qr(matrix)[0]
        return
    wide = matrix.astype(np.float32) if matrix.dtype.itemsize == 2 else matrix
    for number in range(columns):
        column = wide[:, number]
        norm = np.sqrt(np.vdot(column, column)) + wide.dtype.type(epsilon)
        if norm:
            column /= norm
        rest = wide[:, number + 1 :]
        rest -= np.outer(column, column @ rest)
    if wide is not matrix:
        matrix[...] = wide


def times(left: Array, right: Array) -> Array:
    """Multiply; what has 16 bits is summed in 32, as on a tensor core."""
    if left.dtype.itemsize > 2:
        return left @ right
    product: Array = left.astype(np.float32) @ right.astype(np.float32)
    return product


def _copy(sources: Sequence[Array], targets: Sequence[Array]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target[...] = source


# Compressed ---------------------------------------------------------------------------------------


class Compressed:
    """What comm hooks keep, and what is on its way.

    Parameters
    ----------
    scenario : Scenario
        One point, with numerics.
    flat : callable
        Finds the buffers of a bucket.
    made : dict
        Buffers beside those of whole gradients, which it adds to and takes from.
    shapes : mapping of str to tuple
        Of the parameters.

    Attributes
    ----------
    acts : dict of type to callable
        Who does what.
    """

    def __init__(
        self,
        scenario: Scenario,
        flat: Callable[[Bucket], FlatBuffers],
        made: dict[Bucket, FlatBuffers],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._world_size = scenario.cluster.world_size
        self._flat, self._made, self._shapes = flat, made, shapes
        self._thin: dict[str, Thin] = {}
        self._chosen: dict[str, list[Entries]] = {}
        self.acts: dict[type[Any], Callable[[Any], None]] = {
            ops.SplitBucket: self._split,
            ops.Join: self._join,
            ops.Select: self._select,
            ops.AddSelected: self._add_selected,
            ops.Dequantize: self._dequantize,
            ops.CallHook: self._call_hook,
            ops.EndHook: self._end_hook,
        }

    @cached_property
    def _low_rank(self) -> LowRank:
        return LowRank(self._world_size)

    @cached_property
    def _largest(self) -> Largest:
        return Largest()

    @cached_property
    def _hooked(self) -> Hooked:
        return Hooked(self._world_size)

    def state_dict(self) -> dict[str, Array]:
        """What is kept from step to step."""
        found: dict[str, Array] = {}
        if "_low_rank" in self.__dict__:
            found |= self._low_rank.state_dict()
        if "_largest" in self.__dict__:
            found |= self._largest.errors.state_dict()
        if "_hooked" in self.__dict__:
            found |= self._hooked.state_dict()
        return found

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Take up what was kept."""
        self._low_rank.load_state_dict(arrays)
        self._largest.errors.load_state_dict(arrays, self._world_size)
        self._hooked.load_state_dict(arrays)

    def turn(self, op: ops.OrthogonalizeBucket) -> None:
        """Make the sums of P orthonormal, and find Q."""
        taken = op.factoring
        self._low_rank.turn(self._flat(taken.bucket), taken, self._thin[taken.label])

    def _split(self, op: ops.SplitBucket) -> None:
        taken = op.factoring
        thin = self._low_rank.take(self._flat(taken.bucket), taken)
        self._thin[taken.label] = thin
        self._made |= {taken.rest: thin.rest, taken.p: thin.p, taken.q: thin.q}

    def _join(self, op: ops.Join) -> None:
        taken = op.factoring
        thin = self._thin.pop(taken.label)
        self._low_rank.join(self._flat(taken.bucket), taken, thin, op.divisor)
        for bucket in {taken.rest, taken.p, taken.q}:
            del self._made[bucket]

    def _select(self, op: ops.Select) -> None:
        asked = op.selection
        self._chosen[asked.label] = self._largest.select(
            self._flat(asked.bucket), asked.num_entries, asked.divisor, asked.error_feedback
        )

    def _add_selected(self, op: ops.AddSelected) -> None:
        asked = op.selection
        add(self._chosen.pop(asked.label), self._flat(asked.bucket))

    def _dequantize(self, op: ops.Dequantize) -> None:
        average(self._flat(op.code.bucket), op.code, op.divisor)

    def _call_hook(self, op: ops.CallHook) -> None:
        handed = self._hooked.call(op.hook, self._flat(op.hook.bucket), self._shapes)
        if handed is not None and op.hook.sent is not None:
            self._made[op.hook.sent] = handed

    def _end_hook(self, op: ops.EndHook) -> None:
        assert op.hook.sent is not None, "its all_reduce is over"
        summed = self._made.pop(op.hook.sent)
        self._hooked.end(op.hook, self._flat(op.hook.bucket), summed)
