"""Gradient compression: casts, quantization, top-k, PowerSGD, error feedback, and its cost.

Elementwise kernels cost memory traffic only; each tensor read or written counts once.

PowerSGD follows torch's powerSGD_hook: sums of P are not divided, since they are orthonormalised;
sums of Q and of uncompressed tensors are divided after the all_reduce.
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
from simdp.rng import GROUP, TorchGenerator, hook_seed
from simdp.scenario.root import Scenario
from simdp.steps import ops
from simdp.steps.ops import (
    AddSelected,
    CallHook,
    Concern,
    Dequantize,
    EncodeBucket,
    EndHook,
    Handlers,
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
    message_of,
    read_hook,
)
from simdp.workload.precision import numpy_dtype

LEVELS = 255
"""Quantization steps between minimum and maximum (torch: quint8)."""

EPS = float(np.finfo(np.float32).eps)
"""Minimum scale (torch: MinMaxObserver)."""


def quantized(flat: Array, code: EncodeBucket) -> Floats:
    """Quantize and dequantize one rank's bucket; shape `(num_elements,)`, float32.

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
    dequantized: Floats = (scale * (sent - zero)).reshape(-1)[: flat.size]
    return dequantized


def average(bucket: FlatBuffers, code: EncodeBucket, divisor: float) -> None:
    """Set every rank's bucket to the mean of the quantized buckets, added in rank order."""
    sent = each_rank(
        lambda rank: quantized(bucket.flat[rank], code), len(bucket.flat), bucket.flat[0].size
    )
    total = np.zeros_like(sent[0])
    for values in sent:
        total += values
    for flat in bucket.flat:
        flat[...] = total / np.float32(divisor)


class Errors:
    """Error feedback of all ranks, per tensor, so that buckets may be rebuilt."""

    def __init__(self) -> None:
        self.lost: dict[str, list[Array]] = {}

    def add(self, bucket: FlatBuffers) -> None:
        """Add the errors to a bucket, and keep a copy of the sums."""
        for name in bucket.names():
            views = bucket.views(name)
            lost = self.lost.setdefault(name, [np.zeros_like(view) for view in views])
            for own, view in zip(lost, views, strict=True):
                np.add(view, own, out=view)
                own[...] = view

    def state_dict(self) -> dict[str, Array]:
        """Return every rank's errors."""
        return {
            f"{rank}/lost/{name}": own
            for name, lost in self.lost.items()
            for rank, own in enumerate(lost)
        }

    def load_state_dict(self, arrays: Mapping[str, Array], world_size: int) -> None:
        """Load the errors; ranks without saved errors start with zeros."""
        names = {name.split("/", 2)[2] for name in arrays if "/lost/" in name}
        for name in sorted(names):
            first = arrays[f"0/lost/{name}"]
            kept = [arrays.get(f"{rank}/lost/{name}") for rank in range(world_size)]
            self.lost[name] = [
                np.zeros_like(first) if errors is None else errors.copy() for errors in kept
            ]

    def settle(self, bucket: FlatBuffers) -> None:
        """Set the errors to the sums of `add` minus the bucket, which holds the values sent."""
        for name in bucket.names():
            for own, view in zip(self.lost[name], bucket.views(name), strict=True):
                np.subtract(own, view, out=own)


# Top-k --------------------------------------------------------------------------------------------


class Entries(NamedTuple):
    """Selected entries of one rank's bucket: indices, and values after the division."""

    places: Ints
    values: Array


class Largest:
    """Top-k compression of all ranks, with its errors."""

    def __init__(self) -> None:
        self.errors = Errors()

    def select(
        self, bucket: FlatBuffers, count: int, divisor: float, error_feedback: bool
    ) -> list[Entries]:
        """Add the errors, and select every rank's entries of largest magnitude.

        All other entries are set to 0 in the buckets; with error feedback they become the errors.
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
    """Set every rank's bucket to the sum of all selected entries, added in rank order.

    All ranks compute the same sum after the all_gather, so it is computed once.
    """
    total = np.zeros_like(bucket.flat[0])
    for places, values in chosen:
        total[places] += values
    for flat in bucket.flat:
        flat[...] = total


def largest(values: Array, count: int) -> Ints:
    """Indices of the entries of largest magnitude; ties: the lower index.

    Parameters
    ----------
    values : ndarray, shape `(num_elements,)`
        nan counts as infinite.
    count : int
        1 <= count <= num_elements.

    Returns
    -------
    ndarray, shape `(count,)`, int64
        Ascending.
    """
    wide = values.astype(np.float32) if values.dtype.itemsize == 2 else values
    size = np.abs(wide)
    size[np.isnan(size)] = np.inf
    last = np.partition(size, len(size) - count)[len(size) - count]
    above, equal = np.flatnonzero(size > last), np.flatnonzero(size == last)
    return np.sort(np.concatenate([above, equal[: count - len(above)]]))


# Kernels ------------------------------------------------------------------------------------------

RADIX_BITS = 8
"""Bits per pass of torch.topk's radix select (ATen/native/cuda/TensorTopK.cu)."""

GRAM_SCHMIDT_RANK = 2
"""Most columns for which torch's powerSGD_hook uses Gram-Schmidt; it uses QR for more."""


class CompressionKernels(NamedTuple):
    """Costs of consecutive kernels: FLOP of products, bytes read and written, number of kernels."""

    flops: float
    nbytes: float
    launches: int = 1


def seconds(kernels: Iterable[CompressionKernels], roofline: Roofline, dtype: str) -> Floats:
    """Time of consecutive kernels on each rank's device by the roofline model [s].

    The arithmetic is of one dtype. Returns an ndarray of shape `(world_size,)`.
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
    """Cost of ``passes`` reads or writes of a buffer."""
    return CompressionKernels(0.0, nbytes * passes, launches)


def product(
    rows: int, inner: int, columns: int, itemsize: int, batch: int = 1
) -> CompressionKernels:
    """Cost of a batched matrix product in one launch."""
    moved = rows * inner + inner * columns + rows * columns
    return CompressionKernels(2.0 * rows * inner * columns * batch, float(moved * itemsize * batch))


def orthonormal(
    rows: int, columns: int, itemsize: int, epsilon: float, batch: int = 1
) -> CompressionKernels:
    """Cost of orthonormalising the columns of matrices.

    Gram-Schmidt per column: the norm (one read), with an epsilon one more kernel, the division (one
    read, one write); then the projection of the remaining columns is subtracted in four kernels,
    which read or write these columns six times and the column twice. QR, as LAPACK's geqrf and
    orgqr: `2 rows columns^2` FLOPs each, to leading order (LAPACK Working Note 41).
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
    """Whether torch uses Gram-Schmidt: few columns, or 16 bits."""
    return columns <= GRAM_SCHMIDT_RANK or itemsize == 2


def selection(nbytes: float, itemsize: int, chosen: int, entry: int) -> list[CompressionKernels]:
    """Cost of selecting the entries of largest magnitude.

    ``abs`` reads and writes the buffer. torch.topk reads it once per `RADIX_BITS` bits of a value
    to find the threshold, and once more to gather; each pass counts as a kernel. Then the selected
    entries, of ``entry`` bytes with their indices, are read, divided and written.
    """
    passes = itemsize * 8 // RADIX_BITS + 1
    return [
        entrywise(nbytes, 2),
        entrywise(nbytes, passes, passes),
        entrywise(float(chosen * entry), 2, 2),
    ]


# work_of ------------------------------------------------------------------------------------------

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
    """Name of an operation of a comm hook in the trace, and its kernels.

    ``itemsize`` is that of a gradient [bytes].

    Raises
    ------
    OperationError
        If the operation is not one of `KINDS`.
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


def rounding(cast_op: Rounding, itemsize: int) -> list[CompressionKernels]:
    """Cost of a cast; before the collective also of a division in the smaller dtype."""
    low = numpy_dtype(cast_op.bucket.dtype).itemsize
    cast = CompressionKernels(0.0, float(cast_op.bucket.num_elements * (itemsize + low)))
    return (
        [cast]
        if cast_op.is_back
        else [cast, entrywise(float(cast_op.bucket.num_elements * low), 2)]
    )


def splitting(taken: Factoring, itemsize: int) -> list[CompressionKernels]:
    """Cost of PowerSGD up to the products P = M Q.

    The error is added (two reads, one write) and the sum copied; uncompressed tensors are copied
    into a buffer, as is a bucket that is padded to a square.
    """
    kernels = [entrywise(taken.bucket.nbytes, 2)] if taken.is_square else []
    if taken.error_feedback:
        kernels.append(entrywise(taken.bucket.nbytes, 5, 2))
    if taken.rest.nbytes:
        kernels.append(entrywise(taken.rest.nbytes, 2))
    for batch, rows, columns, rank in _shapes(taken):
        if batch > 1:
            kernels.append(entrywise(float(batch * rows * columns * itemsize), 2))
        kernels.append(orthonormal(columns, rank, itemsize, taken.epsilon, batch))
        kernels.append(product(rows, columns, rank, itemsize, batch))
    return kernels


def unpacking(taken: Factoring) -> list[CompressionKernels]:
    """Cost of dividing the sums of uncompressed tensors and copying each back."""
    return [entrywise(taken.rest.nbytes, 4, 1 + len(taken.rest.names))]


def turning(taken: Factoring, itemsize: int) -> list[CompressionKernels]:
    """Cost of orthonormalising the sums of P, and of Q = M^T P."""
    kernels = []
    for batch, rows, columns, rank in _shapes(taken):
        kernels.append(orthonormal(rows, rank, itemsize, taken.epsilon, batch))
        kernels.append(product(columns, rows, rank, itemsize, batch))
    return kernels


def joining(taken: Factoring, itemsize: int) -> list[CompressionKernels]:
    """Cost of the averages P Q^T and of the new errors."""
    kernels = list[CompressionKernels]()
    if taken.q.nbytes:
        kernels.append(entrywise(taken.q.nbytes, 2))
    elif taken.rest.nbytes:  # not unpacked before a later all_reduce
        kernels += unpacking(taken)
    for batch, rows, columns, rank in _shapes(taken):
        kernels.append(product(rows, rank, columns, itemsize, batch))
        if batch > 1:
            kernels.append(entrywise(float(batch * rows * columns * itemsize), 2, batch))
    if taken.error_feedback:
        kernels.append(entrywise(taken.bucket.nbytes, 3))
    return kernels


def selecting(entries: Selection, itemsize: int) -> list[CompressionKernels]:
    """Cost of top-k; with error feedback also of adding and updating the errors."""
    nbytes, entry = entries.bucket.nbytes, entries.entry_nbytes
    kernels = selection(nbytes, itemsize, entries.num_entries, entry)
    if not entries.error_feedback:
        return kernels
    # The error is added; the selected entries are then set to 0 in the sum.
    chosen = float(entries.num_entries * entry)
    return [entrywise(nbytes, 3), *kernels, entrywise(chosen, 1)]


def adding(entries: Selection, itemsize: int, world_size: int) -> list[CompressionKernels]:
    """Cost of clearing the bucket and adding each rank's entries, one kernel per rank."""
    added = entries.num_entries * (float(entries.entry_nbytes) + 2.0 * itemsize)
    per_rank = CompressionKernels(0.0, added * world_size, world_size)
    return [entrywise(entries.bucket.nbytes, 1), per_rank]


def observing(code: EncodeBucket) -> list[CompressionKernels]:
    """Cost of every row's minimum and maximum; rows need a padded copy."""
    nbytes = code.bucket.nbytes
    copied = [] if code.row is None else [entrywise(nbytes, 2)]
    return [*copied, entrywise(nbytes, 1, 2)]


def quantizing(code: EncodeBucket) -> list[CompressionKernels]:
    """Cost of scale, round, add zero point, clamp (a kernel each), and the cast to bytes."""
    return [entrywise(code.bucket.nbytes, 8, 4), CompressionKernels(0.0, float(5 * code.num_bytes))]


def dequantizing(code: EncodeBucket, world_size: int) -> list[CompressionKernels]:
    """Cost of dequantizing and adding each rank's bytes, and of dividing the sum."""
    nbytes = code.bucket.nbytes
    read = world_size * (code.num_bytes + 8.0 * nbytes)
    return [CompressionKernels(0.0, read, 4 * world_size), entrywise(nbytes, 2)]


def calling(hook: OwnHook) -> list[CompressionKernels]:
    """Cost of reading the bucket and writing the tensor to send, or the reverse."""
    sent = hook.bucket.nbytes if hook.sent is None else hook.sent.nbytes
    return [CompressionKernels(0.0, hook.bucket.nbytes + sent)]


def _shapes(taken: Factoring) -> list[tuple[int, int, int, int]]:
    """Batch size, rows, columns and rank of each kernel."""
    batches: dict[tuple[int, int, int], int] = {}
    for factor in taken.factors:
        key = (factor.rows, factor.columns, factor.rank)
        batches[key] = batches.get(key, 0) + 1
    if taken.batched:
        return [(batch, *shape) for shape, batch in batches.items()]
    return [(1, *shape) for shape, batch in batches.items() for _ in range(batch)]


PREFIX = "hook/"


class Hooked:
    """Calls a user's comm hook on all ranks; keeps their states and pending futures."""

    def __init__(self, world_size: int) -> None:
        self.states: list[dict[str, Any]] = [{} for _ in range(world_size)]
        self._futures: dict[str, list[HookFuture]] = {}
        self._functions: dict[tuple[str, str], Hook] = {}

    def call(
        self, hook: OwnHook, bucket: FlatBuffers, shapes: Mapping[str, tuple[int, ...]]
    ) -> FlatBuffers | None:
        """Call the function on every rank in turn.

        Returns
        -------
        FlatBuffers or None
            Tensors to all_reduce; None if the hook sends nothing and has set the buckets.

        Raises
        ------
        ProgramError
            If the function raises, or sends another size or dtype than for zeros.
        """
        futures, n = list[HookFuture](), len(bucket.flat)
        place = hook.path, hook.name
        if place not in self._functions:
            self._functions[place] = read_hook(Path(hook.path), hook.name)
        function = self._functions[place]
        inside = {name: shapes[name] for name in hook.bucket.names}
        for rank, flat in enumerate(bucket.flat):
            try:
                returned = called(function, self.states[rank], GradBucket(flat, inside, rank, n))
                if isinstance(returned, HookFuture):
                    _check(hook, returned)
                    futures.append(returned)
                elif hook.sent is not None:
                    raise HookError("calls no all_reduce, but called one for zeros.")
                else:
                    flat[...] = returned
            except Exception as error:
                raise _problem(hook, rank, error) from None
        if hook.sent is None:
            return None
        self._futures[hook.label] = futures
        sent = FlatBuffers({"sent": (hook.sent.num_elements,)}, n, futures[0].sent.dtype)
        for flat, future in zip(sent.flat, futures, strict=True):
            flat[...] = future.sent
        return sent

    def end(self, hook: OwnHook, bucket: FlatBuffers, summed: FlatBuffers) -> None:
        """Set every rank's bucket to its future's result for the sum.

        Raises
        ------
        ProgramError
            If the function raises, or its result does not fit the bucket.
        """
        futures = self._futures.pop(hook.label)
        for rank, (future, total) in enumerate(zip(futures, summed.flat, strict=True)):
            flat = bucket.flat[rank]
            try:
                flat[...] = content(future.result(total), flat)
            except Exception as error:
                raise _problem(hook, rank, error) from None

    def state_dict(self) -> dict[str, Array]:
        """Return every rank's state as arrays.

        Raises
        ------
        ScenarioError
            If a value is neither a number nor an array.
        """
        arrays = {}
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
                arrays[f"{rank}/{PREFIX}{key}"] = array
        return arrays

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Load the states; ranks without a saved state start empty."""
        for name, value in arrays.items():
            rank, _, key = name.partition("/")
            if key.startswith(PREFIX) and int(rank) < len(self.states):
                kept: Any = np.array(value) if np.ndim(value) else np.asarray(value).item()
                self.states[int(rank)][key[len(PREFIX) :]] = kept


def _check(hook: OwnHook, future: HookFuture) -> None:
    """Raise if a tensor's size or dtype differs from the planned one."""
    got = f"{future.sent.size} {future.sent.dtype.name}"
    expected = "nothing" if hook.sent is None else f"{hook.sent.num_elements} {hook.sent.dtype}"
    if got != expected:
        raise HookError(
            f"passes {got} to all_reduce, but {expected} for zeros; size and dtype may depend only "
            "on the size of the bucket."
        )


def _problem(hook: OwnHook, rank: int, error: Exception) -> ProgramError:
    return ProgramError(f"rank {rank}, {hook.path}{message_of(error, hook.path)}")


# Low rank -----------------------------------------------------------------------------------------


class Thin(NamedTuple):
    """Tensors sent in place of a bucket on every rank: uncompressed ones, and factors P and Q."""

    rest: FlatBuffers
    p: FlatBuffers
    q: FlatBuffers


class LowRank:
    """PowerSGD on all ranks: keeps Q of the previous step, and errors."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.errors = Errors()
        self._q: dict[str, list[Array]] = {}
        self._num_seeds = 0  # one for each bucket whose Q is drawn
        self._begun: set[str] = set()  # labels of buckets whose Q has been drawn
        self._squares: dict[str, FlatBuffers] = {}  # of pending buckets

    def take(self, bucket: FlatBuffers, factoring: Factoring) -> Thin:
        """Add the errors, orthonormalise Q, and compute P = M Q."""
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
        """Orthonormalise the sums of P, and compute Q = M^T P."""
        bucket = self._squares.get(factoring.label, bucket)
        for f in factoring.factors:
            matrices = [view.reshape(f.rows, f.columns) for view in bucket.views(f.name)]
            self._multiply(
                matrices, thin.p.views(f.name), thin.q.views(f.name), factoring.epsilon, True
            )

    def join(self, bucket: FlatBuffers, factoring: Factoring, thin: Thin, divisor: float) -> None:
        """Set the bucket to the average P Q^T, and update the errors."""
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
        """Copy a bucket into square matrices, padded with zeros."""
        shapes: dict[str, tuple[int, ...]] = {
            f.name: (f.rows, f.columns) for f in factoring.factors
        }
        squares = FlatBuffers(shapes, self.world_size, bucket.flat[0].dtype)
        for flat, square in zip(bucket.flat, squares.flat, strict=True):
            square[: flat.size] = flat
            square[flat.size :] = 0
        return squares

    def state_dict(self) -> dict[str, Array]:
        """Return errors, every matrix's last Q, and the number of seeds by seeded bucket."""
        arrays = self.errors.state_dict()
        for name, views in self._q.items():
            arrays[f"q/{name}"] = views[0]  # of a sum, which is the same on all ranks
        for label in sorted(self._begun):
            arrays[f"drawn/{label}"] = np.array(self._num_seeds)
        return arrays

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Load errors, Q and the number of seeds."""
        self.errors.load_state_dict(arrays, self.world_size)
        for name, kept in arrays.items():
            if name.startswith("q/"):
                self._q[name[2:]] = [kept.copy() for _ in range(self.world_size)]
            elif name.startswith("drawn/"):
                self._begun.add(name[6:])
                self._num_seeds = int(kept)

    def _first_q(self, factoring: Factoring, thin: Thin) -> None:
        """Start from the previous step's Q, or from torch's random numbers."""
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


def _randn(generator: TorchGenerator, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """``torch.randn(shape, dtype=dtype)``; 16-bit dtypes are drawn in float32.

    torch draws in groups of `GROUP`; if the last group is incomplete, it redraws the last `GROUP`
    numbers.
    """
    count = prod(shape)
    if dtype.itemsize > 2 or count < GROUP or not count % GROUP:
        return generator.normal(1.0, shape, "float64" if dtype.itemsize == 8 else "float32")
    groups = generator.normal(1.0, (count // GROUP * GROUP,))
    last = generator.normal(1.0, (GROUP,))
    return np.concatenate([groups[: count - GROUP], last]).reshape(shape)


def _drawn_at_once(factoring: Factoring) -> list[list[Factor]]:
    """Group the factors by torch's calls that draw their Q: by shape if batched."""
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
    torch's powerSGD_hook uses Gram-Schmidt for at most two columns, or 16 bits; else QR. A column
    of zeros stays zero; in torch it becomes nan without an epsilon.
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
    """Matrix product; 16-bit inputs are accumulated in float32, as on a tensor core."""
    if left.dtype.itemsize > 2:
        return left @ right
    return left.astype(np.float32) @ right.astype(np.float32)


def _copy(sources: Sequence[Array], targets: Sequence[Array]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target[...] = source


class Compressed:
    """Executes the operations of comm hooks, and keeps their state.

    Temporary buffers are added to ``made`` and removed from it.
    """

    handlers = Handlers[Callable[[Any, Any], None]](Concern.COMPRESSION)

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

    def read(self, op: ops.Op) -> None:
        """Execute an operation of a comm hook; ignore all others."""
        handler = self.handlers[type(op)]
        if handler is not None:
            handler(self, op)

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
        """Return the state kept between steps."""
        arrays: dict[str, Array] = {}
        if "_low_rank" in self.__dict__:
            arrays |= self._low_rank.state_dict()
        if "_largest" in self.__dict__:
            arrays |= self._largest.errors.state_dict()
        if "_hooked" in self.__dict__:
            arrays |= self._hooked.state_dict()
        return arrays

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Load the state kept between steps."""
        self._low_rank.load_state_dict(arrays)
        self._largest.errors.load_state_dict(arrays, self._world_size)
        self._hooked.load_state_dict(arrays)

    def turn(self, op: ops.OrthogonalizeBucket) -> None:
        """Orthonormalise the sums of P, and compute Q."""
        taken = op.factoring
        self._low_rank.turn(self._flat(taken.bucket), taken, self._thin[taken.label])

    @handlers(ops.SplitBucket)
    def _split(self, op: ops.SplitBucket) -> None:
        taken = op.factoring
        thin = self._low_rank.take(self._flat(taken.bucket), taken)
        self._thin[taken.label] = thin
        self._made |= {taken.rest: thin.rest, taken.p: thin.p, taken.q: thin.q}

    @handlers(ops.Join)
    def _join(self, op: ops.Join) -> None:
        taken = op.factoring
        thin = self._thin.pop(taken.label)
        self._low_rank.join(self._flat(taken.bucket), taken, thin, op.divisor)
        for bucket in {taken.rest, taken.p, taken.q}:
            del self._made[bucket]

    @handlers(ops.Select)
    def _select(self, op: ops.Select) -> None:
        entries = op.selection
        self._chosen[entries.label] = self._largest.select(
            self._flat(entries.bucket), entries.num_entries, entries.divisor, entries.error_feedback
        )

    @handlers(ops.AddSelected)
    def _add_selected(self, op: ops.AddSelected) -> None:
        entries = op.selection
        add(self._chosen.pop(entries.label), self._flat(entries.bucket))

    @handlers(ops.Dequantize)
    def _dequantize(self, op: ops.Dequantize) -> None:
        average(self._flat(op.code.bucket), op.code, op.divisor)

    @handlers(ops.CallHook)
    def _call_hook(self, op: ops.CallHook) -> None:
        handed = self._hooked.call(op.hook, self._flat(op.hook.bucket), self._shapes)
        if handed is not None and op.hook.sent is not None:
            self._made[op.hook.sent] = handed

    @handlers(ops.EndHook)
    def _end_hook(self, op: ops.EndHook) -> None:
        assert op.hook.sent is not None, "a hook without an all_reduce has no end"
        summed = self._made.pop(op.hook.sent)
        self._hooked.end(op.hook, self._flat(op.hook.bucket), summed)
