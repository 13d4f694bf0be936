"""What a rank keeps in memory while it trains, as pure counting."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simdp.strategies.base import Strategy
from simdp.workload import Workload
from simdp.workload.execution import call_dtypes
from simdp.workload.precision.rounding import numpy_dtype
from simdp.workload.sampling import chunk_sizes

Floats = NDArray[np.float64]


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
        buckets=strategy.bucket_memory(gradients),
        activations=microbatch * activation_nbytes(workload),
        other=float(microbatch * workload.itemsize * sum(map(prod, inputs)) + buffers),
    )


def activation_nbytes(workload: Workload) -> float:
    """Bytes per sample that forward keeps for backward, with samples of full length.

    A value that several layers keep is there once, in each dtype that one of them needs it in. The
    model's inputs are not counted: they are the micro-batch.
    """
    graph = workload.graph
    first, flowing = len(graph.inputs), graph.shapes(workload.model.known_shapes())
    ran = call_dtypes(graph, workload.precision, workload.dtype)
    there: set[tuple[int, str]] = set()
    beside = 0.0
    for number, (call, dtype) in enumerate(zip(graph.calls, ran, strict=True)):
        given = [flowing[value] for value in call.inputs]
        kept = call.layer.kept(given, numpy_dtype(dtype).itemsize)
        beside += kept.nbytes
        there.update((call.inputs[i], dtype) for i in kept.inputs if call.inputs[i] >= first)
        if kept.output:
            there.add((first + number, dtype))
    return beside + sum(prod(flowing[v]) * numpy_dtype(name).itemsize for v, name in there)


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
    reduced, flat buffers; these are real here whatever the simulated device saves. Data and fresh
    weights are drawn in float64 and then cast, so that for a moment both are there.
    """
    one = rank_memory(workload, strategy, max(largest_microbatches(workload, world_size)))
    model, whole = workload.model, workload.model.num_parameters() * workload.itemsize
    each = 2.0 * whole + one.optimizer_state + whole * bool(strategy.uses(world_size, workload))
    # 16-bit activations are kept in 32-bit arrays; and there is what flows between the layers.
    widening = 2 if workload.precision.low else 1
    each += 2 * (widening * one.activations + one.other)
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
