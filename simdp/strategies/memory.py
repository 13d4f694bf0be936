"""What a rank keeps in memory while it trains, as pure counting."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import NamedTuple

from simdp.strategies.base import Strategy
from simdp.workload import Workload
from simdp.workload.execution import call_dtypes
from simdp.workload.precision.rounding import numpy_dtype
from simdp.workload.sampling import chunk_sizes


class RankMemory(NamedTuple):
    """Bytes on one device at the peak of a step, the end of backward.

    The names are those of ``memory_bytes`` in result.json.
    """

    parameters: float
    gradients: float
    optimizer_state: float
    buckets: float
    activations: float
    other: float

    def total(self) -> float:
        """Sum of all parts [bytes]."""
        return sum(self)


def rank_memory(workload: Workload, strategy: Strategy, microbatch: int) -> RankMemory:
    """Count what a rank keeps.

    Parameters
    ----------
    workload, strategy
        What is trained, and how.
    microbatch : int
        Samples of the rank's largest micro-step.

    Returns
    -------
    RankMemory
        ``optimizer_state`` holds master weights too; ``other`` is the micro-batch itself and what
        the model keeps without learning it.
    """
    model, graph, precision = workload.model, workload.graph, workload.precision
    elements = float(model.num_parameters())
    stored = numpy_dtype(precision.weight_dtype(workload.dtype)).itemsize
    state = elements * precision.has_master + sum(
        len(workload.optimizer.for_parameter(p.name).state_names()) * p.num_elements
        for p in graph.parameters
    )
    inputs = model.known_shapes()
    buffers = sum(b.num_elements * (8 if b.integer else workload.itemsize) for b in graph.buffers)
    gradients = elements * workload.gradient_itemsize
    return RankMemory(
        parameters=elements * stored,
        gradients=gradients,
        optimizer_state=state * workload.itemsize,
        buckets=strategy.bucket_memory(
            graph.parameters, graph.ready_order, workload.gradient_itemsize
        ),
        activations=microbatch * activation_nbytes(workload) + bool(microbatch) * _fixed(workload),
        other=float(microbatch * workload.itemsize * sum(map(prod, inputs)) + buffers),
    )


def _fixed(workload: Workload) -> float:
    """Bytes that forward keeps for backward, whatever the samples of a micro-batch."""
    if not workload.model.timed:
        return 0.0
    return sum(call.layer.kept([()], 0).fixed for call in workload.graph.calls)


def activation_nbytes(workload: Workload) -> float:
    """Bytes per sample that forward keeps for backward, with samples of full length.

    A value that several layers keep is there once, in each dtype that one of them needs it in. The
    model's inputs are not counted: they are the micro-batch.
    """
    graph = workload.graph
    first, flowing = len(graph.inputs), graph.shapes(workload.model.known_shapes())
    ran = call_dtypes(graph, workload.precision, workload.dtype)
    values: dict[tuple[int, str], float] = {}
    beside = 0.0
    for number, (call, dtype) in enumerate(zip(graph.calls, ran, strict=True)):
        itemsize = numpy_dtype(dtype).itemsize
        kept = call.layer.kept([flowing[value] for value in call.inputs], itemsize)
        beside += kept.nbytes
        chosen = [call.inputs[i] for i in kept.inputs] + [first + number] * kept.output
        for value in chosen:
            if value >= first:
                values[value, dtype] = float(prod(flowing[value]) * itemsize)
    return beside + sum(values.values())


def largest_microbatches(workload: Workload, world_size: int) -> list[int]:
    """Samples of the largest micro-step of each rank."""
    if isinstance(workload.grad_accum, list):
        return [max(workload.grad_accum)] * world_size
    if workload.global_batch is None:
        return [workload.microbatch or 0] * world_size
    shards = chunk_sizes(workload.global_batch, world_size)
    shards += [0] * (world_size - len(shards))
    return [-(-shard // workload.grad_accum) for shard in shards]


def host_memory_needed(
    workload: Workload, strategy: Strategy, world_size: int, num_samples: int
) -> float:
    """Bytes that a run with numerics takes on this machine.

    Every rank has weights, gradients, optimizer state, activations and, where gradients are
    reduced, flat buffers; these are real here whatever the simulated device saves. So are the
    gradients of a second micro-step, before they are added, and weights rounded to 16 bits. Data
    and fresh weights are drawn in float64 and then cast, so that for a moment both are there.
    """
    one = rank_memory(workload, strategy, max(largest_microbatches(workload, world_size)))
    model, whole = workload.model, workload.model.num_parameters() * workload.itemsize
    accumulate, low = workload.grad_accum, workload.precision.low is not None
    copies = 2 + bool(strategy.uses(world_size, workload, num_samples)) + low
    copies += (len(accumulate) if isinstance(accumulate, list) else accumulate) > 1
    # 16-bit activations are kept in 32-bit arrays; and there is what flows between the layers.
    flowing = 2 * ((1 + low) * one.activations + one.other)
    each = copies * whole + one.optimizer_state + flowing
    target = workload.loss.target_shape(model.output_shape())
    sample = sum(map(prod, model.known_shapes())) + prod(target)
    data = num_samples * sample * (8 + workload.itemsize)
    largest_tensor = max(parameter.num_elements for parameter in model.parameters())
    return each * world_size + float(data + 8 * largest_tensor * (os.cpu_count() or 1))


def host_memory() -> float:
    """Bytes of memory that this machine, or the container that we run in, has."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    try:
        return min(total, float(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such limit
        return total
