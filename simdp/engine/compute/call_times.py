"""Compute times of layers, with fusion, launches and overlap.

Used with ``compute: {kind: roofline, kernels: torch}``. Each tensor is counted once per kernel; the
arithmetic of additions, casts and fills is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from itertools import islice
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np

from simdp.arrays import Floats, Ints, product
from simdp.cluster.hardware import TENSOR_CORES
from simdp.engine.compute.roofline import Roofline, roofline_of
from simdp.engine.samples import BatchSamples
from simdp.results.result import ComputePart
from simdp.scenario.root import Scenario
from simdp.workload import Workload
from simdp.workload.execution import call_dtypes, widened
from simdp.workload.finetuning import backward_kernels, learned_elements
from simdp.workload.layers.base import Kernel, Shape
from simdp.workload.lifetimes import recomputed
from simdp.workload.precision import numpy_dtype
from simdp.workload.sampling import SampleParts
from simdp.workload.step_costs import WIDTH_OF_16_BITS, arithmetic_of_calls


class Columns(NamedTuple):
    """Distinct seconds of calls, shape `(num_calls, num_columns)`, and the column of each rank."""

    seconds: Floats
    column: Ints

    def of(self, call: int) -> Floats:
        """Time of a call on every rank, shape `(world_size,)` [s]."""
        row = self.seconds[call]
        return row[self.column] if len(row) > 1 else np.full(len(self.column), row[0])


def alike(batch: Ints, which: Ints, device: Ints) -> tuple[Ints, Ints]:
    """Group ranks with equal samples, shapes and device into columns.

    Returns one rank per column, and the column of each rank.
    """
    key = (which * (int(batch.max()) + 1) + batch) * (int(device.max()) + 1) + device
    _, first, column = np.unique(key, return_index=True, return_inverse=True)
    return first, column


def with_accumulation(columns: Columns, workload: Workload, roofline: Roofline) -> Columns:
    """Seconds of backward plus the addition to each parameter's gradient, one kernel each.

    Ranks without samples add nothing.
    """
    from simdp.engine.compute.kernels import accumulating  # imports layers

    _, ranks = np.unique(columns.column, return_index=True)
    seconds = columns.seconds.copy()
    for call, kernels in enumerate(accumulating(workload)):
        nbytes = sum(kernel.fixed for kernel in kernels)
        added = roofline.moving(nbytes)[ranks] + len(kernels) * roofline.launch[ranks]
        seconds[call] += added * (seconds[call] > 0)
    return Columns(seconds, columns.column)


# CallTimes ----------------------------------------------------------------------------------------

Shapes = tuple[Shape, ...]
K = TypeVar("K")
V = TypeVar("V")

LOSS = "loss"
"""Name of the work that follows the last call."""

BATCH_NORMS = ("batch_norm1d", "batch_norm2d", "batch_norm3d")

ATTENTION = ("attention", "t5_attention")
"""Kinds of layers that count as attention, fused or not."""

KERNEL_KINDS = ("matrix_products", "attention", "memory_bound", "launches")
"""Kinds of time of `CallTimes.by_kind`."""

MAX_KEPT = 2**22
"""Numbers that are kept for later steps, 32 MiB; padded batches keep producing new lengths."""

MIN_ENTRIES = 4
"""Results that are kept at any size: forward and backward of two kinds of micro-batches."""


class KernelColumns(NamedTuple):
    """Kernels of all calls as arrays of equal length; the loss counts as one more call.

    ``call`` is ascending, ``dtype`` a position in ``CallTimes.dtypes``; the others are as in
    `Kernel`.
    """

    call: Ints
    dtype: Ints
    flops: Floats
    nbytes: Floats
    fixed: Floats
    misaligned: Floats


class CallColumns:
    """Calls of a workload as arrays, and their kernels by pass and shapes.

    The loss counts as one more call. They are the same on every device.
    """

    def __init__(self, workload: Workload) -> None:
        graph = workload.graph
        names = [call.layer.name or call.layer.kind for call in graph.calls]
        self.names = names if workload.model.recorded else [*names, LOSS]
        self.call_dtypes = [*arithmetic_of_calls(workload), workload.dtype]
        self.dtypes = list(dict.fromkeys(self.call_dtypes))
        # Autocast runs products in 16 bits: matrices, convolutions, attention.
        lower = [call.layer.autocast == "lower" for call in graph.calls]
        self.has_products = np.array([*lower, False])
        fused = [call.layer.costly == "fused_attention" for call in graph.calls]
        self.is_fused = np.array([*fused, False])
        attends = [call.layer.kind in ATTENTION for call in graph.calls]
        self.attends = self.is_fused | np.array([*attends, False])
        native = [call.layer.kind in BATCH_NORMS for call in graph.calls]
        contiguous = getattr(workload.compute, "memory_format", "contiguous") == "contiguous"
        self.is_native_norm = np.array([*native, False]) & (contiguous and not workload.compile)
        self.kernels: dict[tuple[str, Shapes], KernelColumns] = {}


_KNOWN: deque[tuple[Workload, CallColumns]] = deque(maxlen=8)


def columns_of(workload: Workload) -> CallColumns:
    """The columns of a workload, which other clusters and other measured times share."""
    for other, columns in _KNOWN:
        if other is workload or _same_kernels(other, workload):
            return columns
    columns = CallColumns(workload)
    _KNOWN.append((workload, columns))
    return columns


def _same_kernels(a: Workload, b: Workload) -> bool:
    """Whether two workloads differ at most in their measured times."""
    if a.graph is not b.graph or a.compute.kernel_settings != b.compute.kernel_settings:
        return False
    return a.model_copy(update={"compute": b.compute}) == b


class CallTimes:
    """Seconds of forward and backward, call by call.

    ``names`` are those of the calls' layers, and of the loss at the end if it is not among them;
    ``tails`` are False: no call's backward continues after its gradients are ready.
    """

    def __init__(self, workload: Workload, roofline: Roofline) -> None:
        self.workload, self.roofline, self.graph = workload, roofline, workload.graph
        calls = self._calls = columns_of(workload)
        self.names, self.call_dtypes = calls.names, calls.call_dtypes
        self.tails = [False] * len(self.names)
        self._has_products, self._is_fused = calls.has_products, calls.is_fused
        self._attends = calls.attends
        self._on_tensor_cores = np.isin(calls.dtypes, TENSOR_CORES)
        is_bfloat16 = np.array([name == "bfloat16" for name in calls.call_dtypes])
        self._is_native_norm = calls.is_native_norm & is_bfloat16
        self._seconds: dict[Hashable, Columns] = {}

    def seconds(
        self,
        activity: str,
        batch: Ints,
        shapes: Sequence[Shapes],
        which: Ints,
        shares: Sequence[float] = (),
    ) -> Columns:
        """Time of every call on every rank.

        Parameters
        ----------
        activity : {"forward", "backward"}
            The pass.
        batch : ndarray, shape `(world_size,)`
            Samples of each rank.
        shapes : sequence of tuple of Shape
            The different shapes of the inputs.
        which : ndarray, shape `(world_size,)`
            Index of each rank's shape.
        shares : sequence of float
            For each of the shapes, the fraction of its pairs of tokens that fused attention
            computes; default: all.

        Returns
        -------
        Columns
            Of the calls and the loss; 0 on a rank without samples.
        """
        key = (activity, batch.tobytes(), tuple(shapes), which.tobytes(), tuple(shares))
        if key not in self._seconds:
            columns = self._work_out(activity, batch, shapes, which, shares)
            keep(self._seconds, key, columns, columns.seconds.size + 3 * len(batch))
        return self._seconds[key]

    def whole(self, activity: str, rank: int, batch: int) -> float:
        """Time of all calls on a rank, for a number of samples of full length [s]."""
        kernels = self._kernels_of(activity, self.workload.model.known_shapes())
        return float(self._of_rank(activity, kernels, rank, float(batch)).sum())

    def _work_out(
        self,
        activity: str,
        batch: Ints,
        shapes: Sequence[Shapes],
        which: Ints,
        shares: Sequence[float],
    ) -> Columns:
        first, column = alike(batch, which, self.roofline.device)
        seconds = np.zeros((len(self.names), len(first)))
        for number, rank in enumerate(first):
            if batch[rank]:
                kernels = self._kernels_of(activity, shapes[which[rank]])
                if shares:
                    part = np.where(self._is_fused[kernels.call], shares[which[rank]], 1.0)
                    kernels = kernels._replace(flops=kernels.flops * part)
                seconds[:, number] = self._of_rank(activity, kernels, int(rank), float(batch[rank]))
                if self.workload.cuda_graphs and activity == "forward":
                    seconds[0, number] += self.roofline.launch[rank]
        return Columns(seconds, column)

    def by_kind(
        self,
        activity: str,
        batch: Ints,
        looked_at: tuple[Sequence[Shapes], Ints, Sequence[float]],
        calls: Sequence[int] | None = None,
    ) -> dict[str, tuple[float, float]]:
        """Time and arithmetic by kind of kernel, summed over all ranks.

        ``looked_at`` are shapes, index of each rank's shape, and shares, as for `seconds`; only
        ``calls`` count if given.

        Returns
        -------
        dict of str to (float, float)
            Seconds and FLOPs of ``matrix_products`` (kernels bound by arithmetic), ``attention``,
            ``memory_bound`` kernels, and ``launches`` that the device waits for.
        """
        shapes, which, shares = looked_at
        first, column = alike(batch, which, self.roofline.device)
        counts = np.bincount(column, minlength=len(first))
        totals = {kind: np.zeros(2) for kind in KERNEL_KINDS}
        for rank, count in zip(first.tolist(), counts.tolist(), strict=True):
            if not batch[rank]:
                continue
            kernels = self._kernels_of(activity, shapes[which[rank]])
            if shares:
                part = np.where(self._is_fused[kernels.call], shares[which[rank]], 1.0)
                kernels = kernels._replace(flops=kernels.flops * part)
            busy = self._alone(activity, kernels, rank, float(batch[rank]))
            idle = self._before(activity, kernels.call, busy, rank)
            if self.workload.cuda_graphs and activity == "forward":
                idle[:1] += self.roofline.launch[rank]
            counted = np.ones(len(busy), dtype=bool)
            if calls is not None:
                counted = np.isin(kernels.call, calls)
            moving = (batch[rank] * kernels.nbytes + kernels.fixed) / self.roofline.bandwidth[rank]
            attends = self._attends[kernels.call]
            bound = ~attends & (busy <= moving)
            done = batch[rank] * kernels.flops
            for kind, those in (
                ("attention", attends),
                ("memory_bound", bound),
                ("matrix_products", ~attends & ~bound),
            ):
                both = those & counted
                totals[kind] += count * np.array([busy[both].sum(), done[both].sum()])
            totals["launches"][0] += count * idle[counted].sum()
        return {kind: (float(lasted), float(done)) for kind, (lasted, done) in totals.items()}

    def kernels(self, activity: str, rank: int, batch: int) -> tuple[Ints, Floats, Floats]:
        """Kernels of all calls on a rank, for a number of samples of full length.

        Returns the number of each kernel's call, ascending; the time that the device waits for its
        launch; and its duration [s].
        """
        kernels = self._kernels_of(activity, self.workload.model.known_shapes())
        busy = self._alone(activity, kernels, rank, float(batch))
        return kernels.call, self._before(activity, kernels.call, busy, rank), busy

    def _of_rank(self, activity: str, kernels: KernelColumns, rank: int, batch: float) -> Floats:
        seconds = self._alone(activity, kernels, rank, batch)
        seconds += self._before(activity, kernels.call, seconds, rank)
        return np.bincount(kernels.call, seconds, minlength=len(self.names)).astype(float)

    def _alone(self, activity: str, kernels: KernelColumns, rank: int, batch: float) -> Floats:
        """Duration of each kernel on the device [s]."""
        flops = np.array(
            [
                [self.roofline.flops(name, fused)[rank] for name in self.dtypes()]
                for fused in ("", activity)
            ]
        )[self._is_fused[kernels.call].astype(int), kernels.dtype]
        slow = (kernels.misaligned > 0) & self._on_tensor_cores[kernels.dtype]
        flops = np.where(slow, flops * self.roofline.misaligned[rank], flops)
        products = self._has_products[kernels.call] & (kernels.flops > 0)
        half_work = self.roofline.half_work[rank] * products
        native = self._is_native_norm[kernels.call]
        roofline = self.roofline
        bandwidth = np.where(native, roofline.batch_norm[rank], roofline.bandwidth[rank])
        seconds: Floats = np.maximum(
            (batch * kernels.flops + half_work) / flops,
            (batch * kernels.nbytes + kernels.fixed) / bandwidth,
        )
        return seconds

    def _before(self, activity: str, call: Ints, seconds: Floats, rank: int) -> Floats:
        """Time that the device waits for the launch of each kernel [s]."""
        launch, idle = self.roofline.launch[rank], np.zeros(len(seconds))
        if self.workload.host.async_launch:
            # Backward goes through the calls from the last one.
            order = np.argsort(-call if activity == "backward" else call, kind="stable")
            idle[order] = idle_before(seconds[order], launch)
        elif not self.workload.cuda_graphs:
            idle += launch
        return idle

    def dtypes(self) -> list[str]:
        """Arithmetic of the calls."""
        return self._calls.dtypes

    def _kernels_of(self, activity: str, inputs: Shapes) -> KernelColumns:
        key, kernels_by_key = (activity, inputs), self._calls.kernels
        if key not in kernels_by_key:
            listed, known = [], self.dtypes()
            for number, kernels in enumerate(call_kernels(self.workload, activity, inputs)):
                dtype = known.index(self.call_dtypes[number])
                listed += [(number, dtype, *kernel) for kernel in kernels]
            columns = np.array(listed, dtype=float).T
            call, dtypes = columns[:2].astype(np.int64)
            keep(kernels_by_key, key, KernelColumns(call, dtypes, *columns[2:]), columns.size)
        return kernels_by_key[key]


def idle_before(seconds: Floats, launch: float) -> Floats:
    """Time that a device waits for each launch, if the host never waits for the device [s].

    Kernel k, of duration ``seconds[k]``, is launched at ``(k + 1) launch`` and begins then, or when
    the one before it is done.
    """
    launched = launch * np.arange(1, len(seconds) + 1)
    late = np.maximum.accumulate(launched - (np.cumsum(seconds) - seconds))
    return np.diff(late, prepend=0.0)


def keep(known: dict[K, V], key: K, value: V, size: int) -> None:
    """Keep a value for later steps; drop the oldest if there are too many."""
    if len(known) >= max(MAX_KEPT // size, MIN_ENTRIES):
        del known[next(iter(known))]
    known[key] = value


def layer_kernels(workload: Workload, activity: str, inputs: Shapes) -> list[list[Kernel]]:
    """Kernels of each call's layer, without casts and loss.

    Under `torch.compile`, elementwise calls are fused by chain.
    """
    graph, dtype = workload.graph, workload.dtype
    flowing = graph.shapes(inputs)
    ran = call_dtypes(graph, workload.precision, dtype)
    # Some of several equal layers may be frozen.
    same = range(len(graph.calls)) if graph.frozen else graph.first_equal
    kernels_of_calls = list[list[Kernel]]()
    known: dict[tuple[int, Shapes, tuple[bool, ...], str], list[Kernel]] = {}
    for number, (call, needs, low) in enumerate(zip(graph.calls, graph.needs, ran, strict=True)):
        given = tuple(flowing[value] for value in call.inputs)
        key = (same[number], given, needs, low)
        if key not in known:
            itemsize = numpy_dtype(low).itemsize
            known[key] = (
                call.layer.forward_cost(given, itemsize)
                if activity == "forward"
                else backward_kernels(graph, number, given, itemsize)
            )
        kernels_of_calls.append(known[key])
    if workload.compile:
        itemsizes = [numpy_dtype(name).itemsize for name in (*[dtype] * len(inputs), *ran)]
        from simdp.engine.compute.kernels import Flowing, fuse  # imports layers

        kernels_of_calls = fuse(activity, kernels_of_calls, Flowing(graph, flowing, itemsizes))
    return kernels_of_calls


def call_kernels(workload: Workload, activity: str, inputs: Shapes) -> list[list[Kernel]]:
    """Kernels of each call, and of the loss if it is not a call.

    Calls in 16 bits with 32-bit weights cast these first, as torch's autocast does. With
    ``kernels: torch``, kernels that run between calls are included.
    """
    graph, dtype = workload.graph, workload.dtype
    flowing = graph.shapes(inputs)
    ran = call_dtypes(graph, workload.precision, dtype)
    stored = numpy_dtype(workload.precision.weight_dtype(dtype)).itemsize
    kernels_of_calls = layer_kernels(workload, activity, inputs)
    _cast_between_units(kernels_of_calls, workload, flowing)
    for number, arithmetic in enumerate(arithmetic_of_calls(workload)):
        if arithmetic == "float8":
            kernels_of_calls[number] = [
                *_casts_to_float8(workload, activity, number, flowing),
                *kernels_of_calls[number],
            ]
    if workload.compute.runs_eagerly:
        from simdp.engine.compute.kernels import Flow, kernels_of_loss, with_those_beside

        flow = Flow(workload, flowing, ran)
        return [
            *with_those_beside(kernels_of_calls, activity, flow),
            kernels_of_loss(activity, flow),
        ]
    if any(numpy_dtype(low).itemsize < stored for low in ran):
        _cast_weights(kernels_of_calls, workload, activity, ran)
    if workload.model.recorded:  # with its loss
        return kernels_of_calls
    return [*kernels_of_calls, _kernels_of_loss(workload, flowing, ran)]


def _casts_to_float8(
    workload: Workload, activity: str, number: int, flowing: Sequence[Shape]
) -> list[Kernel]:
    """Casts of a linear layer's operands: input and weight, in backward the gradient as well.

    Each reads 16 bits and writes 8. Eager torch first reads an operand to find its largest value;
    the compiler fuses that into the kernel that wrote it. As torchao, backward casts the operands
    that forward kept in 16 bits again.
    """
    call = workload.graph.calls[number]
    nbytes_per_element = WIDTH_OF_16_BITS * (1 if workload.compile else 2) + 1
    weight = call.layer.parameters()[0].num_elements
    casts = [
        Kernel(0.0, float(nbytes_per_element * prod(flowing[call.inputs[0]]))),
        Kernel(0.0, 0.0, float(nbytes_per_element * weight)),
    ]
    if activity == "backward":
        output = len(workload.graph.inputs) + number
        casts.append(Kernel(0.0, float(nbytes_per_element * prod(flowing[output]))))
    return casts


def _cast_between_units(
    kernels_of_calls: list[list[Kernel]], workload: Workload, flowing: Sequence[Shape]
) -> None:
    """Add the casts of values that modules pass on in 32 bits; backward casts their gradients."""
    graph, precision, full = workload.graph, workload.precision, workload.dtype
    if not precision.wide_units or precision.low is None:
        return
    casts = widened(graph, precision.wide_units, precision.low, full)
    itemsize = numpy_dtype(precision.low).itemsize + numpy_dtype(full).itemsize
    first, outputs = len(graph.inputs), {value for value, _ in graph.outputs}  # the loss casts
    leaving = [(value, value - first) for value in casts.leaves if value not in outputs]
    for value, number in (*leaving, *casts.enters):
        cast = Kernel(0.0, float(prod(flowing[value]) * itemsize))
        kernels_of_calls[number] = [*kernels_of_calls[number], cast]


def _cast_weights(
    kernels_of_calls: list[list[Kernel]], workload: Workload, activity: str, ran: Sequence[str]
) -> None:
    """Insert the cast of each call's weights, or of their gradients, before its kernels."""
    graph = workload.graph
    stored = numpy_dtype(workload.precision.weight_dtype(workload.dtype)).itemsize
    same = range(len(graph.calls)) if graph.frozen else graph.first_equal
    cast_of = dict[int, int]()
    for number, (call, low) in enumerate(zip(graph.calls, ran, strict=True)):
        itemsize = numpy_dtype(low).itemsize
        if itemsize >= stored:
            continue
        like = same[number]
        if like not in cast_of:
            all_of_them = sum(p.num_elements for p in call.layer.parameters())
            is_back = activity == "backward"
            cast_of[like] = learned_elements(graph, number) if is_back else all_of_them
        if elements := cast_of[like]:
            cast = Kernel(0.0, 0.0, float(elements * (itemsize + stored)))
            kernels_of_calls[number] = [cast, *kernels_of_calls[number]]


def _kernels_of_loss(
    workload: Workload, flowing: Sequence[Shape], ran: Sequence[str]
) -> list[Kernel]:
    """Kernels of a loss: prediction and target in, a gradient out; and casts of outputs."""
    graph, dtype = workload.graph, workload.dtype
    width = float(sum(prod(flowing[value]) for value, _ in graph.outputs))
    loss = [Kernel(4 * width, 2 * width * numpy_dtype(dtype).itemsize)]
    if workload.precision.widens_outputs:
        made = sum(
            prod(flowing[value]) * numpy_dtype(ran[value - len(graph.inputs)]).itemsize
            for value, _ in graph.outputs
        )
        whole = width * numpy_dtype(dtype).itemsize
        loss += [Kernel(0.0, made + whole)] * (made < whole)
    return loss


# compute_parts ------------------------------------------------------------------------------------

PARTS = ("matrix_products", "attention", "memory_bound", "recompute", "launches", "slowed")
"""Kinds of kernels, recomputation, launches that the device waits for, and the rest."""

LEAST_SLOWED = 1e-6
"""Fraction of compute below which a remainder is a rounding error."""


def compute_parts(scenario: Scenario, compute: float, peak: float | None) -> list[dict[str, Any]]:
    """Split the compute of a steady step by cause.

    Parameters
    ----------
    scenario : Scenario
        One point.
    compute : float
        ``compute_s`` of its result [s].
    peak : float or None
        Peak arithmetic of all devices [FLOP/s].

    Returns
    -------
    list of dict
        The fields of a `simdp.results.result.ComputePart` for each of `PARTS` that takes time.
        ``matrix_products`` are kernels bound by arithmetic;
        ``attention`` all kernels of attention, without its linear layers; ``memory_bound`` kernels
        bound by memory traffic; ``recompute`` the forward that backward repeats; ``launches`` the
        time that a device waits for its host; ``slowed`` the additions by stragglers and by
        communication that overlaps compute. The seconds sum to ``compute``. Empty where layers have
        no kernels (measured times, profiles), and for strategies with one process for all devices,
        or a parameter server.
    """
    workload, strategy, n = scenario.workload, scenario.strategy, scenario.cluster.world_size
    is_plain = strategy.has_synchronous_ranks
    if workload.compute.source != "roofline" or workload.model.timed or not is_plain or not compute:
        return []
    spent = _spent(scenario)
    total = sum(seconds for seconds, _ in spent.values()) / n
    if not total:
        return []
    slowed = max(compute - total, 0.0)
    scale = 1 / n
    if slowed < LEAST_SLOWED * compute or workload.lengths(scenario.seed, scenario.base):
        # Samples differ in length between steps: this step represents all.
        scale, slowed = compute / total / n, 0.0
    parts = list[ComputePart]()
    for part, (seconds, flops) in spent.items():
        mean = seconds * scale
        rate = flops * scale * n / (mean * peak) if peak and flops and mean else None
        parts.append(ComputePart(part, mean, rate))
    parts.append(ComputePart("slowed", slowed, None))
    return [part._asdict() for part in parts if part.seconds > 0.0]


def _spent(scenario: Scenario) -> dict[str, tuple[float, float]]:
    """Seconds and FLOPs of all ranks in the first steady step, by part."""
    alone = scenario.model_copy(update={"numerics": False})
    workload, n = scenario.workload, scenario.cluster.world_size
    roofline = roofline_of(scenario.cluster)
    times, samples = CallTimes(workload, roofline), BatchSamples(alone)
    again = sorted({call for run in recomputed(workload) for call in run.again})
    first = int(workload.num_steps(n, scenario.base) > 1)
    steps = workload.batches(n, scenario.seed, scenario.base, has_indices=samples.has_indices)
    batches = next(islice(steps, first, None))
    seconds, flops = dict.fromkeys(PARTS[:-1], 0.0), dict.fromkeys(PARTS[:-1], 0.0)

    def add(activity: str, parts: SampleParts, calls: list[int] | None = None) -> None:
        by_kind = times.by_kind(activity, parts.sizes, samples.looked_at(parts), calls)
        for kind, (lasted, done) in by_kind.items():
            part = kind if calls is None else "recompute"
            seconds[part] += lasted
            flops[part] += done

    is_training = workload.mode == "training"
    adds = is_training and workload.compute.runs_eagerly and scenario.program.partition is None
    for number, parts in enumerate(batches.micro):
        add("forward", parts)
        if is_training:
            add("backward", parts)
        if is_training and again:
            add("forward", parts, again)
        if adds and number:
            seconds["memory_bound"] += _accumulating(times, roofline, parts, samples)
    return {part: (seconds[part], flops[part]) for part in seconds}


def _accumulating(
    times: CallTimes, roofline: Roofline, parts: SampleParts, samples: BatchSamples
) -> float:
    """Time of additions to gradients of an earlier micro-step, summed over all ranks [s]."""
    without = times.seconds("backward", parts.sizes, *samples.looked_at(parts))
    return _of_all(with_accumulation(without, times.workload, roofline)) - _of_all(without)


def _of_all(columns: Columns) -> float:
    counts = np.bincount(columns.column, minlength=columns.seconds.shape[1])
    return float(product(columns.seconds.sum(axis=0), counts))
